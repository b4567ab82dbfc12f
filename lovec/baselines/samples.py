"""Other answers to the same questions, sampled once for all baselines that compare answers with them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from lovec.baselines.kept import KeptFiles
from lovec.core.notices import DoublingWarning
from lovec.core.settings import Count, Positive, Seed, checked
from lovec.core.stopwatch import Stopwatch
from lovec.encoding import Encoder
from lovec.encoding.answering import plain_completions
from lovec.tags import strip
from lovec.types import Engine, LovecError, Record, Sampling

log = logging.getLogger(__name__)
_PHASE = "sampling"
_STREAM = "sample\x1f"  # before the id of a record, in the key of the random streams of its samples


@checked("{} of samples")
class Samples:
    """Samples plain answers to questions and keeps them, with the time that each took.

    An answer depends only on the seed, the id of its record and its number, so it is the same whichever baseline asks
    first and however many processes share the records. A record that brings other answers in ``meta["samples"]`` is
    compared with those, and none are sampled for it.

    Args:
        temperature: sampling temperature; 1 in the paper.
        max_new_tokens: longest sample, in tokens.
        seed: seed of the random streams.

    Attributes:
        tokens: number of tokens of all samples that were written so far.

    Raises:
        LovecError: the temperature is not above 0 (all samples would be equal), or the length or the seed is out of
            range.
    """

    def __init__(self, temperature: Positive = 1.0, max_new_tokens: Count = 512, seed: Seed = 0) -> None:
        self.temperature = temperature
        self.max_new_tokens = max_new_tokens
        self.seed = seed
        self.tokens = 0
        self._files: KeptFiles | None = None
        # By id, question (the validation answers of a test may have the ids of its test answers) and number.
        self._cache: dict[tuple[str, str, int], tuple[list[str], float, float]] = {}
        self._fewer = DoublingWarning(
            log, "%d records so far bring fewer samples than a baseline asks for, and are compared with those: %s"
        )
        self._no_room = DoublingWarning(
            log, "the questions of %d records so far leave no room for a sample; shorten them: %s"
        )

    def keep_in(self, folder: Path) -> None:
        """Keep the samples in a folder from now on, and take those that are there as if they had just been drawn.

        Args:
            folder: holds samples of the same model, prompts and settings only.
        """
        self._files = KeptFiles(folder)
        for data in self._files.read():
            with suppress(LookupError, TypeError, ValueError):
                spent = float(data["seconds"]), float(data["cpu_seconds"])
                found = {(str(id), str(q), int(n)): (list(texts), *spent) for id, q, n, texts in data["answers"]}
                self.tokens += int(data["tokens"])
                self._cache.update(found)

    def answers(
        self, records: Sequence[Record], n: int, engine: Engine, encoder: Encoder, watch: Stopwatch
    ) -> list[list[str]]:
        """Return ``n`` other answers to the question of every record, without confidence tags: ``[records][samples]``.

        There are fewer where a record brings fewer, and none where the question leaves no room for an answer; both
        are logged.

        Args:
            records: the answers to compare with.
            n: number of samples per record.
            engine: runs the bare base model.
            encoder: makes its prompts; the question comes without the instruction.
            watch: gets the seconds that the samples took, in the phase "sampling": the full time for every baseline,
                also where the samples exist already.

        Raises:
            LovecError: ``meta["samples"]`` is not a list of texts.
        """
        brought = [brought_samples(record) for record in records]
        waiting = [r for r, texts in zip(records, brought, strict=True) if not texts]
        while waiting := [r for r in waiting if (r.id, r.question, n) not in self._cache]:
            self._draw(list({r.id: r for r in waiting}.values()), n, engine, encoder)  # streams are drawn by id
        answers = []
        for record, texts in zip(records, brought, strict=True):
            if not texts:
                texts, seconds, cpu_seconds = self._cache[record.id, record.question, n]
                watch.add(_PHASE, seconds, cpu_seconds)
            elif len(texts) < n:
                self._fewer.add(f"{record.id} ({len(texts)} of {n})")
            answers.append([strip(text, encoder.tags) for text in texts[:n]])
        self._fewer.flush()
        self._no_room.flush()
        return answers

    def forget(self) -> None:
        """Forget the answers so far, where nobody will ask for them again."""
        self._cache.clear()

    def _draw(self, records: list[Record], n: int, engine: Engine, encoder: Encoder) -> None:
        """Sample ``n`` answers per record; each record is charged an equal share of the time."""
        watch = Stopwatch()
        with watch.phase(_PHASE):
            questions = {f"{_STREAM}{record.id}": record.question for record in records}
            sampling = Sampling(self.max_new_tokens, self.temperature, n, self.seed)
            found = plain_completions(engine, encoder, questions, sampling)
            tokens = sum(len(completion.ids) for samples in found.values() for completion in samples)
            self.tokens += tokens
            texts = {
                key.removeprefix(_STREAM): [encoder.written(c.ids, c.finished).strip() for c in samples]
                for key, samples in found.items()
            }
        seconds, cpu_seconds = (clock[_PHASE] / len(records) for clock in (watch.seconds, watch.cpu_seconds))
        for record in records:
            self._cache[record.id, record.question, n] = texts.get(record.id, []), seconds, cpu_seconds
            if record.id not in texts:
                self._no_room.add(record.id)
        if self._files is not None:
            drawn = [[record.id, record.question, n, texts.get(record.id, [])] for record in records]
            spent = {"seconds": seconds, "cpu_seconds": cpu_seconds}  # of one record
            self._files.add({"answers": drawn, "tokens": tokens, **spent})


def brought_samples(record: Record) -> list[str]:
    """Return the samples that a record brings; [] where it brings none."""
    texts = record.meta.get("samples")
    if texts is None:
        return []
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise LovecError(f"record {record.id!r} has meta.samples of another form, expected a list of texts")
    return list(texts)
