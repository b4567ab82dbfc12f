"""The embedded world as training and test data: plain answers of its model, with exact labels."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lovec.baselines import FactsJudge, Wording
from lovec.datamodules.base import RecordsDataModule
from lovec.datasets.jsonl import read_records, write_records
from lovec.datasets.world import EmbeddedWorld, ensure_world, grading, text
from lovec.datasets.world.cache import code_of
from lovec.datasets.world.text import INSTRUCTION
from lovec.encoding import Encoder
from lovec.files import atomic_folder
from lovec.oracles.world import WorldOracle
from lovec.tags import DEFAULT_TAGS
from lovec.types import Completion, Engine, LovecError, Record, Sampling, Sentence, check_count, check_range

_WORLD_SPLITS = {"train": ("train",), "validation": ("dev",), "test": ("test", "private", "one-fact", "companies")}
_MAX_NEW_TOKENS = 224  # the longest answers of the world have about 170 tokens
_TAG_WORDS = (DEFAULT_TAGS.open, DEFAULT_TAGS.close)
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
"""Prompts of the baselines in the words of the world's model, which does not know "True" or "Yes", but scores."""


class World(RecordsDataModule):
    """Questions about the entities of the embedded world, with exactly labelled answers of its untrained model.

    Training takes the greedy answer and sampled answers to each question; validation and test take greedy answers only.
    The test split has people, towns and ships that are not in the training split ("in-domain"), the private lives of
    the same people ("other questions"), single facts ("one fact"), and companies ("out-of-domain"). Answers are made on
    first use, without a network, and kept in the cache, like the models of worlds that the package does not have.

    Args:
        variant: "world", or "world-small", which is quicker and less accurate.
        samples: number of sampled answers per training question, besides the greedy one.
        temperature: temperature of the sampled answers.
        unlabelled: a split of the world (see ``EmbeddedWorld.questions``) whose questions are answered like those of
            training, and added to it without labels; null adds none. It needs an objective that learns without labels
            from some answers, such as ``lovec.modules.Distil``.
        **kwargs: ``batch_size``, ``eval_batch_size`` and ``seed`` (also of the answers and wrong scores) of the
            datamodule.
    """

    splits = tuple(_WORLD_SPLITS)

    def __init__(
        self,
        variant: str = "world",
        samples: int = 1,
        temperature: float = 0.7,
        unlabelled: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_count("--data.samples", samples, at_least=0)
        check_range("--data.temperature", temperature, above=0)
        self.variant = variant
        self.samples = samples
        self.temperature = temperature
        if unlabelled in _WORLD_SPLITS["train"]:
            raise LovecError(
                f"--data.unlabelled is {unlabelled!r}, whose questions have labels in training; give another "
                "split of the world, or leave it out"
            )
        self.unlabelled = unlabelled
        self._world: EmbeddedWorld | None = None

    @property
    def world(self) -> EmbeddedWorld:
        """The world with its model; on first access it is opened, and built if the cache does not have it."""
        if self._world is None:
            self._world = ensure_world(self.variant)
        return self._world

    @property
    def title(self) -> str:
        """Name of the world."""
        return self.variant

    @property
    def instruction(self) -> str:
        """The short instruction that the world's model knows."""
        return self.world.instruction

    @property
    def oracle(self) -> WorldOracle:
        """The exact oracle, which can rate any answer about the world."""
        return WorldOracle(self.world)

    @property
    def wording(self) -> Wording:
        """Prompts and replies in the few words that the world's model knows."""
        return WORDING

    @property
    def judge(self) -> FactsJudge:
        """The exact judge, which compares facts with facts."""
        return FactsJudge()

    def questions(self, split: str) -> list[Record]:
        """Return a question about every entity of a split; this needs no model."""
        world = self._world or EmbeddedWorld(self.variant)
        return [record for part in _WORLD_SPLITS[split] for record in world.questions(part)]

    def prepare_data(self) -> None:
        """Build the world and write the answers of its model, unless the cache has them."""
        from filelock import FileLock

        for folder, answers in self._folders().items():
            if folder.exists():
                continue
            with FileLock(folder.with_name(f"{folder.name}.lock")):
                if folder.exists():
                    continue
                print(f"the model of {self.variant!r} answers questions, once for seed {self.seed}", file=sys.stderr)
                with atomic_folder(folder) as staging:
                    for split, records in answers():
                        write_records(staging / f"{split}.jsonl", records)

    def load(self, split: str) -> list[Record]:
        """Return the labelled answers of a split; for training, with wrong scores.

        The untrained model has seen tags when it was pre-trained, and writes one now and then although nothing asks for
        it. Such an answer is no plain text: there is nothing to learn from it.
        """
        answers, *added = self._folders()
        if not all(folder.exists() for folder in (answers, *added)):
            self.prepare_data()
        records = list(read_records(answers / f"{split}.jsonl"))
        if split != "train":
            return records
        labelled = self.training_pairs(_plain(records))
        unlabelled = [record for folder in added for record in _plain(read_records(folder / "unlabelled.jsonl"))]
        return labelled + self.keep_unlabelled(unlabelled)

    def _folders(self) -> dict[Path, Callable[[], Iterator[tuple[str, list[Record]]]]]:
        """Return the folders that hold answers, and what makes the files of each."""
        found = {self._folder(): self._answers}
        if self.unlabelled is not None:
            found[self._folder("unlabelled", self.unlabelled)] = self._unlabelled_answers
        return found

    def _folder(self, *more: str) -> Path:
        """Return the folder of answers, in that of the world; its name has a digest of all they depend on."""
        settings = [self.samples, self.temperature if self.samples else None, self.seed, _MAX_NEW_TOKENS, *more]
        digest = hashlib.sha256(f"{json.dumps(settings)}{code_of(grading.__file__)}{code_of(text.__file__)}".encode())
        store = self.world.store or Path()
        return store / f"answers-{digest.hexdigest()[:12]}"

    def _answers(self) -> Iterator[tuple[str, list[Record]]]:
        """Yield each split with its labelled answers."""
        answer = self._answerer()
        for split in self.splits:
            yield split, self._labelled(answer(self.questions(split), split == "train"))

    def _unlabelled_answers(self) -> Iterator[tuple[str, list[Record]]]:
        """Yield the answers without labels; those without a sentence have nothing to learn from."""
        assert self.unlabelled is not None
        records = self._answerer()(self.world.questions(self.unlabelled), True)
        yield "unlabelled", [record for record in records if record.sentences]

    def _answerer(self) -> Callable[[list[Record], bool], list[Record]]:
        """Load the world's model; return what answers questions with it, greedily and, where True, by samples too."""
        from transformers import AutoModelForCausalLM, AutoTokenizer  # imported here because it is slow

        from lovec.engines import TransformersEngine

        encoder = Encoder(AutoTokenizer.from_pretrained(self.world.model_path), self.instruction)
        engine = TransformersEngine()
        engine.sync(SimpleNamespace(model=AutoModelForCausalLM.from_pretrained(self.world.model_path)))
        greedy = Sampling(_MAX_NEW_TOKENS, seed=self.seed)
        sampled = Sampling(_MAX_NEW_TOKENS, self.temperature, max(1, self.samples), self.seed)

        def answer(questions: list[Record], for_training: bool) -> list[Record]:
            records = self._answer(questions, encoder, engine, greedy)
            if for_training and self.samples:
                records += self._answer(questions, encoder, engine, sampled)
            return records

        return answer

    def greedy_answers(self, split: str, encoder: Encoder, engine: Engine) -> list[Record]:
        """Return the model's greedy answers to the questions of a split of the world, with exact labels.

        Args:
            split: one of ``lovec.datasets.world.facts.SPLITS``.
            encoder: of the world's model.
            engine: runs it.
        """
        questions = self.world.questions(split)
        return self._labelled(self._answer(questions, encoder, engine, Sampling(_MAX_NEW_TOKENS, seed=self.seed)))

    def _labelled(self, records: list[Record]) -> list[Record]:
        ratings = self.oracle.rate(records)
        return [record.with_factuality(values) for record, values in zip(records, ratings, strict=True)]

    def _answer(self, questions: list[Record], encoder: Encoder, engine: Engine, sampling: Sampling) -> list[Record]:
        """Return plain answers, written without the instruction; those to one question are adjacent."""
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

    def _sentences(self, answer: str, completion: Completion) -> Sequence[str]:
        """Split an answer into sentences, without an unfinished last sentence of an answer that was cut off."""
        sentences = self.world.split_sentences(answer)
        unfinished = not completion.finished and sentences and not sentences[-1].endswith(".")
        return sentences[:-1] if unfinished else sentences


def _plain(records: Iterable[Record]) -> list[Record]:
    """Return the answers without confidence tags."""
    return [record for record in records if not any(word in record.answer for word in _TAG_WORDS)]
