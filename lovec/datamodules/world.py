"""The embedded world as training and test data: its model's plain answers, exactly labelled."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lovec.baselines import FactsJudge, Wording
from lovec.datamodules.base import RecordsDataModule
from lovec.datasets.jsonl import read_records, write_records
from lovec.datasets.pairs import with_rejected
from lovec.datasets.world import World as InventedWorld
from lovec.datasets.world import ensure_world, grading
from lovec.datasets.world.text import INSTRUCTION
from lovec.encoding import Encoder
from lovec.oracles.world import WorldOracle
from lovec.types import Completion, Engine, LovecError, Record, Sampling, Sentence

_PARTS = {"train": ("train",), "validation": ("dev",), "test": ("test", "companies")}
WORDING = Wording(
    p_true=f"{INSTRUCTION} {{question}} {{context}} {{sentence}}",
    true=" 10",
    false=" 0",
    verbal=f"{INSTRUCTION} {{question}} {{context}} {{sentence}}",
    score=" {score}",
    support=f"{INSTRUCTION} {{context}} {{sentence}}",
    yes=" 10",
    no=" 0",
)
"""What the world's model is asked: it knows no True and no Yes, but scores."""
_LONGEST = 192  # tokens of an answer; the world's model ends its own after about 100


class World(RecordsDataModule):
    """Questions about the people of the embedded world, answered by its untrained model and labelled exactly.

    Trains on the greedy answer and on sampled ones; validation and test hold greedy answers only. Test holds people
    the training never saw ("in-domain") and companies ("out-of-domain"). The world, its model and the answers are made
    on first use, without a network, and kept in the cache.

    Args:
        variant: "world", or "world-small" for a quicker and worse one.
        samples: sampled answers a training question has beside the greedy one.
        temperature: of the sampled answers.
        **kwargs: ``batch_size``, ``eval_batch_size`` and ``seed`` (of the answers and wrong scores, too) of the
            datamodule.
    """

    def __init__(self, variant: str = "world", samples: int = 1, temperature: float = 0.7, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if samples < 0 or (samples > 0 and not temperature > 0):
            raise LovecError(
                f"--data.samples is {samples} at --data.temperature {temperature}; expected 0 or more samples, "
                "drawn at a temperature above 0"
            )
        self.variant = variant
        self.samples = samples
        self.temperature = temperature
        self._world: InventedWorld | None = None

    @property
    def world(self) -> InventedWorld:
        """The world itself, opened (and, the first time ever, built) when it is asked for."""
        if self._world is None:
            self._world = ensure_world(self.variant)
        return self._world

    @property
    def instruction(self) -> str:
        """The short instruction that the world's model knows."""
        return self.world.instruction

    @property
    def oracle(self) -> WorldOracle:
        """The exact oracle: any answer about the world can be judged."""
        return WorldOracle(self.world)

    @property
    def wording(self) -> Wording:
        """Prompts and replies in the few words that the world's model knows."""
        return WORDING

    @property
    def judge(self) -> FactsJudge:
        """Exact: facts are compared with facts."""
        return FactsJudge()

    def prepare_data(self) -> None:
        """Build the world and write its model's answers, unless the cache holds them."""
        from filelock import FileLock

        folder = self._folder()
        if folder.exists():
            return
        with FileLock(folder.with_name(f"{folder.name}.lock")):
            if folder.exists():
                return
            print(f"the model of {self.variant!r} answers its questions, once for seed {self.seed}", file=sys.stderr)
            staging = folder.with_name(f".{folder.name}.{os.getpid()}")
            try:
                for split, records in self._answered().items():
                    write_records(staging / f"{split}.jsonl", records)
                os.replace(staging, folder)
            finally:
                shutil.rmtree(staging, ignore_errors=True)

    def load(self, split: str) -> list[Record]:
        """Read the answers of a split; for training, with a wrong score a sentence."""
        path = self._folder() / f"{split}.jsonl"
        if not path.exists():
            self.prepare_data()
        records = list(read_records(path))
        if split != "train":
            return records
        return [with_rejected(record, self.seed) for record in self.keep_labelled(records, split)]

    def _folder(self) -> Path:
        """Where the answers lie: named after what they depend on, inside the folder of the world they are about."""
        recipe = json.dumps([self.samples, self.temperature if self.samples else None, self.seed, _LONGEST])
        digest = hashlib.sha256(recipe.encode())
        digest.update(Path(grading.__file__).read_bytes())  # labels of another grader are other labels
        return self.world.model_path.parent / f"answers-{digest.hexdigest()[:12]}"

    def _answered(self) -> dict[str, list[Record]]:
        """Labelled answers of every split."""
        from transformers import AutoModelForCausalLM, AutoTokenizer  # here, as they are slow to import

        from lovec.engines import TransformersEngine

        encoder = Encoder(AutoTokenizer.from_pretrained(self.world.model_path), self.instruction)
        engine = TransformersEngine()
        engine.sync(SimpleNamespace(model=AutoModelForCausalLM.from_pretrained(self.world.model_path)))
        greedy = Sampling(_LONGEST, seed=self.seed)
        drawn = Sampling(_LONGEST, self.temperature, self.samples, self.seed)
        answered = {}
        for split, parts in _PARTS.items():
            questions = [record for part in parts for record in self.world.questions(part)]
            records: list[Record] = []
            for sampling in [greedy, drawn] if split == "train" and self.samples else [greedy]:
                records += self._answer(questions, encoder, engine, sampling)
            ratings = self.oracle.rate(records)
            answered[split] = [_labelled(record, f) for record, f in zip(records, ratings, strict=True)]
        return answered

    def _answer(self, questions: list[Record], encoder: Encoder, engine: Engine, sampling: Sampling) -> list[Record]:
        """Plain answers, without the instruction; those of one question stand together."""
        prompts = [encoder.prompt(record.question, instruct=False) for record in questions]
        completions = engine.generate(prompts, sampling, encoder.stop_ids, keys=[record.id for record in questions])
        records = []
        for record, group in zip(questions, completions, strict=True):
            for number, completion in enumerate(group, 1):
                name = f"{record.id}/sample-{number}" if sampling.temperature else record.id
                answer = encoder.decode(completion.ids).strip()
                sentences = tuple(map(Sentence, self._sentences(answer, completion)))
                records.append(replace(record, id=name, answer=answer, sentences=sentences))
        return records

    def _sentences(self, answer: str, completion: Completion) -> list[str]:
        """Sentences of an answer; of one that was cut off, the finished ones."""
        sentences = self.world.split(answer)
        if not completion.finished and sentences and not sentences[-1].endswith("."):
            del sentences[-1]
        return sentences


def _labelled(record: Record, factuality: list[float | None]) -> Record:
    pairs = zip(record.sentences, factuality, strict=True)
    return replace(record, sentences=tuple(replace(sentence, factuality=f) for sentence, f in pairs))
