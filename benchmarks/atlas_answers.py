"""Lets SmolLM2 write the answers of Atlas, which come with the package.

    python benchmarks/atlas_answers.py --work FOLDER       # less than an hour on one core; goes on where it was stopped
    python benchmarks/atlas_answers.py --work FOLDER --more  # only those of the part "more"; the others are kept

The model sees plain text, four worked examples and the question, and completes it until the end of the line. Which
cities are asked about depends on the country that it names for each of half as many candidates more, and on no verdict.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import atlas_drawing as drawing

from lovec.core.imports import without_progress_bars
from lovec.datasets.atlas import asking
from lovec.datasets.atlas.facts import City, cities
from lovec.datasets.atlas.shipped import SHIPPED, Part, stored_answers
from lovec.engines import TransformersEngine
from lovec.models.gguf import SMOLLM2, ensure_dequantised
from lovec.text.sentences import split_sentences
from lovec.types import Sampling

CITIES, COUNTRIES = 600, 100
MORE = 600  # cities of the part "more"
CANDIDATES = 0.75  # cities drawn at first, and again where the model placed them, as a share of those asked about
TEST, VALIDATION = 5, 8  # one of so many cities
SEED = 0
GREEDY = Sampling(max_new_tokens=120)
ROWS = 48


class Writer:
    """SmolLM2, with what it wrote so far.

    Args:
        work: folder that keeps what was written, so that another run goes on from there.
    """

    def __init__(self, work: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        folder = ensure_dequantised(SMOLLM2)
        self.work = work
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.engine = TransformersEngine(ROWS)
        with without_progress_bars():
            self.engine.sync(SimpleNamespace(model=AutoModelForCausalLM.from_pretrained(folder)))
        words = self.tokenizer.get_vocab()
        self.line_end = [number for word, number in words.items() if "Ċ" in word] + [self.tokenizer.eos_token_id]
        self.sentence_end = [words["."], *self.line_end]

    def write(
        self,
        name: str,
        prompts: dict[str, str],
        sentences: int,
        begun: Mapping[str, str] | None = None,
    ) -> dict[str, str]:
        """Return what the model writes after each prompt, by key: at most one line.

        Args:
            name: of the file that keeps it.
            prompts: by key.
            sentences: number of sentences that are kept; the model stops after the first if it is 1.
            begun: the first sentence of each answer, where it has been written already.
        """
        path = self.work / f"{name}.jsonl"
        found = dict(map(json.loads, path.read_text(encoding="utf-8").splitlines())) if path.exists() else {}
        missing = [key for key in prompts if key not in found]
        stop_ids = self.sentence_end if sentences == 1 else self.line_end
        begun = begun or {}
        for start in range(0, len(missing), ROWS):
            began, keys = time.perf_counter(), missing[start : start + ROWS]
            before = [f" {begun[key]}" if key in begun else "" for key in keys]
            ids = [self.tokenizer.encode(prompts[key] + text) for key, text in zip(keys, before, strict=True)]
            written = [rows[0].ids for rows in self.engine.generate(ids, GREEDY, stop_ids, keys=keys)]
            lines = [self.tokenizer.decode(tokens).split("\n")[0] for tokens in written]
            answers = [split_sentences((text + line).strip()) for text, line in zip(before, lines, strict=True)]
            texts = [" ".join(answer[:sentences]) for answer in answers]
            with path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps([k, t], ensure_ascii=False) + "\n" for k, t in zip(keys, texts, strict=True))
            found |= zip(keys, texts, strict=True)
            done, seconds = start + len(keys), time.perf_counter() - began
            print(f"{name}: {done} of {len(missing)}, {seconds:.0f} s for {len(keys)}", file=sys.stderr, flush=True)
        return {key: found[key] for key in prompts}


def main(number: int, work: Path, output: Path, only_more: bool) -> None:
    """Write the answers of Atlas.

    Args:
        number: of cities.
        work: folder that keeps what was written, so that another run goes on from there.
        output: the file of all answers.
        only_more: keeps the answers of the package and writes only those of the part "more".
    """
    work.mkdir(parents=True, exist_ok=True)
    writer = Writer(work)
    if only_more:
        stored = stored_answers()
        answers, kinds = stored["answers"], stored["kinds"]
    else:
        answers, kinds = write_parts(writer, number)
    asked = {cities()[int(key)] for part in ("train", "validation", "test") for key in answers[part]}
    answers["more"] = write_further(writer, MORE, SEED + 1, asked)
    drawing.write_answers(output, answers, kinds)
    print(f"{output}: {output.stat().st_size:,} bytes, {sum(map(len, answers.values())):,} answers")


def write_parts(writer: Writer, number: int) -> tuple[dict[Part, dict[str, str]], dict[str, asking.Kind]]:
    """Write the answers of all parts but "more".

    Args:
        writer: writes them.
        number: of cities.

    Returns:
        The answers by part and key, and the kinds of the questions about one fact.
    """
    chosen = choose(writer, number, SEED)
    shares = {"test": len(chosen) // TEST, "validation": len(chosen) // VALIDATION, "train": 0}
    splits = drawing.split_by_size(chosen, shares, SEED)
    train, test = splits["train"], splits["test"]
    countries = drawing.asked_countries(COUNTRIES, SEED)
    kinds = {city: asking.KINDS[at % len(asking.KINDS)] for at, city in enumerate(test)}
    about_fact = {str(c.id): drawing.one_fact_prompt(asking.one_fact_question(c, k), k) for c, k in kinds.items()}
    about_country = {c.code: drawing.country_prompt(asking.country_question(c)) for c in countries}
    begun = writer.write("candidates", about_city(chosen), 1)
    facts, other = len(asking.KINDS), _by_key(drawing.other_prompt, asking.other_question)
    greedy = functools.partial(writer.write, "greedy", sentences=facts, begun=begun)
    answers: dict[Part, dict[str, str]] = {
        "test": greedy(about_city(test)),
        "validation": greedy(about_city(splits["validation"])),
        "other-words": writer.write("other-words", other(test), facts),
        "one-fact": writer.write("one-fact", about_fact, 1),
        "countries": writer.write("countries", about_country, len(asking.COUNTRY)),
        "train": greedy(about_city(train)),
    }
    return answers, {str(city.id): kind for city, kind in kinds.items()}


def write_further(writer: Writer, number: int, seed: int, asked: Iterable[City]) -> dict[str, str]:
    """Return answers about so many cities that have not been asked about, by their numbers.

    Args:
        writer: writes them.
        number: of cities.
        seed: of the draw.
        asked: cities that are not drawn.
    """
    chosen = choose(writer, number, seed, asked)
    begun = writer.write("candidates", about_city(chosen), 1)
    return writer.write("greedy", about_city(chosen), len(asking.KINDS), begun)


def choose(writer: Writer, number: int, seed: int, without: Iterable[City] = ()) -> list[City]:
    """Return so many cities to ask about, by the country that the model names for more candidates.

    Args:
        writer: writes the sentences that name a country.
        number: how many cities.
        seed: of the draw.
        without: cities that are not drawn.
    """
    taken = set(without)

    def named(cities: Sequence[City]) -> dict[City, str]:
        written = writer.write("candidates", about_city(cities), 1)
        found = {city: drawing.named_country(city.name, written[str(city.id)]) for city in cities}
        return {city: code for city, code in found.items() if code is not None}

    share = round(CANDIDATES * number)
    first = drawing.candidates(share, seed, taken)
    claims = named(first)
    second = drawing.candidates_where_named(claims.values(), share, taken.union(first), seed)
    claims |= named(second)
    order = [city for pair in zip(first, second, strict=False) for city in pair]  # of both kinds in turn
    return drawing.chosen_by_claim({city: claims[city] for city in order if city in claims}, number)


def _by_key(
    prompt: Callable[[str], str], question: Callable[[City], str]
) -> Callable[[Sequence[City]], dict[str, str]]:
    return lambda cities: {str(city.id): prompt(question(city)) for city in cities}


about_city = _by_key(drawing.city_prompt, asking.city_question)
"""Prompts for the answers about cities, by their numbers."""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder that keeps what was written so far")
    parser.add_argument("--cities", type=int, default=CITIES, help="how many cities to ask about")
    parser.add_argument("--more", action="store_true", help='write only the part "more", and keep the other answers')
    parser.add_argument("--output", type=Path, default=SHIPPED, help="the file of all answers")
    arguments = parser.parse_args()
    main(arguments.cities, arguments.work, arguments.output, arguments.more)
