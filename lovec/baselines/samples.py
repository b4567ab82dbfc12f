"""Other answers to the same questions, drawn once for every baseline that compares with them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from lovec.encoding import Encoder
from lovec.stopwatch import Stopwatch
from lovec.tags import strip
from lovec.types import Engine, LovecError, Record, Sampling

log = logging.getLogger(__name__)
_PHASE = "sampling"


class Samples:
    """Draws plain answers to questions and keeps them, with the time each took.

    An answer depends on the seed, the id of its record and its number only, so it is the same whichever baseline asks
    first and however many processes share the records. A record that brings answers of its own, in
    ``meta["samples"]``, is compared with those; nothing is drawn for it.

    Args:
        temperature: of the samples; 1 in the paper.
        max_new_tokens: longest sample, in tokens.
        seed: of the samples.

    Raises:
        LovecError: the temperature is not above 0 (all samples would be the same), or the length not positive.
    """

    def __init__(self, temperature: float = 1.0, max_new_tokens: int = 512, seed: int = 0) -> None:
        if not temperature > 0 or max_new_tokens < 1:
            raise LovecError(
                f"samples got temperature={temperature:g} and max_new_tokens={max_new_tokens}, "
                "expected a temperature above 0 and at least 1 token"
            )
        self.temperature = temperature
        self.max_new_tokens = max_new_tokens
        self.seed = seed
        self._held: dict[tuple[str, int], tuple[list[str], float]] = {}
        self._told: set[str] = set()

    def of(
        self, records: Sequence[Record], n: int, engine: Engine, encoder: Encoder, watch: Stopwatch
    ) -> list[list[str]]:
        """``n`` other answers to every record's question, confidence tags removed; fewer where a record brings fewer.

        A question that leaves no room for an answer gets none.

        Args:
            records: the answers to compare with.
            n: samples a record.
            engine: runs the bare base model.
            encoder: its prompts; the question goes without the instruction.
            watch: is told what the samples took, in the phase "sampling": those held already as much as when drawn.

        Raises:
            LovecError: ``meta["samples"]`` is no list of texts.
        """
        own = {record.id: texts for record in records if (texts := _given(record))}
        new = {record.id: record for record in records if record.id not in own and (record.id, n) not in self._held}
        if new:
            self._draw(list(new.values()), n, engine, encoder)
        self._tell({name: len(texts) for name, texts in own.items() if len(texts) < n}, n)
        found = []
        for record in records:
            if record.id in own:
                texts = own[record.id][:n]
            else:
                texts, seconds = self._held[record.id, n]
                watch.seconds[_PHASE] = watch.seconds.get(_PHASE, 0.0) + seconds
            found.append([strip(text, encoder.tags) for text in texts])
        return found

    def _draw(self, records: list[Record], n: int, engine: Engine, encoder: Encoder) -> None:
        """Keep ``n`` answers a record, and an equal share of the time they took together."""
        clock = Stopwatch()
        with clock.phase(_PHASE):
            prompts = [encoder.prompt(record.question, instruct=False) for record in records]
            room = engine.context_length
            fits = [room is None or len(prompt) < room for prompt in prompts]
            drawn = iter(
                engine.generate(
                    [prompt for prompt, fit in zip(prompts, fits, strict=True) if fit],
                    Sampling(self.max_new_tokens, self.temperature, n, self.seed),
                    encoder.stop_ids,
                    keys=[f"sample\x1f{record.id}" for record, fit in zip(records, fits, strict=True) if fit],
                )
            )
            texts = [[encoder.decode(c.ids).strip() for c in next(drawn)] if fit else [] for fit in fits]
        for record, own, fit in zip(records, texts, fits, strict=True):
            self._held[record.id, n] = own, clock.seconds[_PHASE] / len(records)
            if not fit:
                log.warning("record %s: its question leaves no room for samples, shorten it", record.id)

    def _tell(self, fewer: dict[str, int], n: int) -> None:
        """Say once of each record that it brings fewer samples than asked for."""
        if new := {name: count for name, count in fewer.items() if name not in self._told}:
            self._told |= set(new)
            first = next(iter(new))
            log.warning(
                "%d records bring fewer than %d samples and are compared with those they have, such as %s with %d",
                len(new), n, first, new[first],
            )  # fmt: skip


def _given(record: Record) -> list[str]:
    """The samples that a record brings; [] where it brings none."""
    texts = record.meta.get("samples")
    if texts is None:
        return []
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise LovecError(f"record {record.id!r} has meta.samples of another form, expected a list of texts")
    return list(texts)
