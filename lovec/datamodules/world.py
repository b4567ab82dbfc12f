"""The embedded world as training and test data: plain answers of its model, with exact labels."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Annotated, Any, Literal, TypeAlias

from lightning.pytorch.trainer.states import TrainerFn

from lovec.baselines import WORLD_WORDING, FactsJudge, Wording
from lovec.core.files import atomic_folder
from lovec.core.imports import without_progress_bars
from lovec.core.progress import note
from lovec.core.provenance import text_digest
from lovec.core.settings import NO_EFFECT, CountFromZero, PlainWord, Positive, Share, check_choice
from lovec.datamodules.base import RecordsDataModule
from lovec.datasets.jsonl import read_records, write_records
from lovec.datasets.world import EmbeddedWorld, ensure_world, grading, text
from lovec.datasets.world.cache import code_of
from lovec.encoding import Encoder
from lovec.oracles.world import WorldOracle
from lovec.tags import DEFAULT_TAGS
from lovec.types import Completion, Engine, LovecError, Record, Sampling, Sentence, Unit

TestSet: TypeAlias = Literal["test", "private", "one-fact", "companies", "articles"]

_WORLD_SPLITS: dict[str, tuple[str, ...]] = {
    "train": ("train",),
    "validation": ("dev",),
    "test": ("test", "private", "one-fact", "companies"),
}
_ARTICLES = {"validation": "dev articles", "test": "articles"}  # parts of splits whose answers have articles
_ANSWERED = {"dev articles": "dev", "articles": "test"}  # the splits of the world that these answers are of
_ARTICLES_DOMAIN = "with a source"
_MAX_NEW_TOKENS = 224  # the longest answers of the world have about 170 tokens
_ROWS = 256  # answers that are written together; the model is so small that fewer take longer each
_SAMPLED, _UNLABELLED = "sampled answers", "answers without labels"  # beside the splits of the world
_ANSWERS = "answers.jsonl"
_TAG_WORDS = (DEFAULT_TAGS.open, DEFAULT_TAGS.close)


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
        test_sets: the splits of the world that the test split has: some of test (in-domain), private (other questions),
            one-fact and companies (out-of-domain), and articles, the questions of test with an article about the thing
            as evidence (with a source); null is all of them, with articles where ``articles`` is above 0.
        unit: what has a label and gets a confidence: a sentence, or each of its clauses, which are the parts of its
            form. No oracle can then judge answers that a model tags itself, and there are no articles.
        articles: share of training answers that get an article as evidence, and what it supports as their labels. The
            articles leave facts out and alter others. Validation then has articles, too.
        **kwargs: ``batch_size``, ``eval_batch_size`` and ``seed`` (also of the answers and wrong scores) of the
            datamodule.
    """

    splits = tuple(_WORLD_SPLITS)

    def __init__(
        self,
        variant: PlainWord = "world",
        samples: CountFromZero = 1,
        temperature: Positive = 0.7,
        unlabelled: PlainWord | None = None,
        test_sets: Annotated[list[PlainWord] | None, NO_EFFECT] = None,
        unit: Unit = "sentence",
        articles: Share = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.variant = variant
        self.samples = samples
        self.temperature = temperature
        if unlabelled in _WORLD_SPLITS["train"]:
            raise LovecError(
                f"--data.unlabelled is {unlabelled!r}, whose questions have labels in training; give another "
                "split of the world, or leave it out"
            )
        self.unlabelled = unlabelled
        for name in dict.fromkeys(() if test_sets is None else test_sets or [""]):
            check_choice("--data.test_sets", name, TestSet)
        self.test_sets = test_sets
        self.unit = unit
        self.articles = articles
        if unit == "clause" and (articles or "articles" in (test_sets or ())):
            raise LovecError("--data.unit clause has no labels by an article, expected sentences; leave articles out")
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
    def grounding(self) -> str:
        """The text that puts an article into a prompt."""
        return self.world.grounding

    @property
    def oracle(self) -> WorldOracle | None:
        """The exact oracle, which can rate any sentence about the world; None for clauses."""
        return WorldOracle(self.world) if self.unit == "sentence" else None

    @property
    def wording(self) -> Wording:
        """Prompts and replies in the few words that the world's model knows."""
        return WORLD_WORDING

    @property
    def judge(self) -> FactsJudge:
        """The exact judge, which compares facts with facts."""
        return FactsJudge()

    def questions(self, split: str) -> list[Record]:
        """Return a question about every entity of a split; this needs no model."""
        world = self._world or EmbeddedWorld(self.variant)
        asked = {part: world.questions(_ANSWERED.get(part, part)) for part in self._parts(split)}
        return [record for part, records in asked.items() for record in _part_of(world, part, records)]

    def prepare_data(self) -> None:
        """Build the world and write the answers of its model, unless the cache has them.

        Those that a training, or a test, seldom needs are left out then, and made when they are loaded.
        """
        stage = None if self.trainer is None else self.trainer.state.fn
        seldom = None if stage is None else "test" if stage == TrainerFn.FITTING else "train"
        self._prepare(*(split for split in self.splits if split != seldom))

    def _prepare(self, *splits: str) -> None:
        """Write the answers of splits, unless the cache has them; processes that do so at the same time share them."""
        from filelock import FileLock, Timeout

        missing = {name: folder for split in splits for name, folder in self._folders(split).items()}
        for timeout in (0, -1):  # at first what no other process is at, then what others have not finished
            for name, folder in missing.items():
                if folder.exists():
                    continue
                with suppress(Timeout), FileLock(folder.with_name(f"{folder.name}.lock"), timeout):
                    if folder.exists():
                        continue
                    note(f"the model of {self.variant!r} answers questions, once: {name}")
                    with atomic_folder(folder) as staging:
                        write_records(staging / _ANSWERS, self._made(name))

    def load(self, split: str) -> list[Record]:
        """Return the labelled answers of a split; for training, with wrong scores.

        The untrained model has seen tags when it was pre-trained, and writes one now and then although nothing asks for
        it. Such an answer is not a plain text: there is nothing to learn from it.
        """
        self._prepare(split)
        found = {name: list(read_records(folder / _ANSWERS)) for name, folder in self._folders(split).items()}
        unlabelled = found.pop(_UNLABELLED, [])
        records = [record for part, answers in found.items() for record in _part_of(self.world, part, answers)]
        records = [self._in_units(record) for record in records]
        if split != "train":
            return records
        if self.articles:
            records = [self._with_article(record) for record in records]
        unlabelled = [self._in_units(record) for record in unlabelled]
        return self.training_pairs(_plain(records)) + self.keep_unlabelled(_plain(unlabelled))

    def _in_units(self, record: Record) -> Record:
        """Return a record as it is, or with the labelled clauses of its sentences."""
        if self.unit == "sentence":
            return record
        graded = [self.world.clauses(record.meta["entity"], sentence.text) for sentence in record.sentences]
        clauses = (
            Sentence(text, None if sentence.factuality is None else truth, part_of=place)
            for place, (sentence, found) in enumerate(zip(record.sentences, graded, strict=True))
            for text, truth in found
        )
        return replace(record, sentences=tuple(clauses))

    def _parts(self, split: str) -> Sequence[str]:
        """Return the splits of the world that one of ours consists of."""
        parts = _WORLD_SPLITS[split]
        if split == "test" and self.test_sets is not None:
            return self.test_sets
        return (*parts, _ARTICLES[split]) if self.articles and split in _ARTICLES else parts

    def _with_article(self, record: Record) -> Record:
        """Return a training record, or with the probability ``articles`` the same with an article.

        Half of these have an answer that was written from the article: where none is, nothing in the text of an answer
        would teach to read one.
        """
        rng = Random(f"{record.id}/source")
        return self.world.with_article(record, rng.random() < 0.5) if rng.random() < self.articles else record

    def _folders(self, split: str) -> dict[str, Path]:
        """Return the folder of each part of a split's answers, in their order.

        Greedy answers depend neither on the seed nor on how others are sampled, so all runs share them.
        """
        found = {part: self._folder(_ANSWERED.get(part, part)) for part in self._parts(split)}
        if split == "train":
            how = [self.samples, self.temperature, self.seed] if self.samples else []
            if self.samples:
                found[_SAMPLED] = self._folder(_SAMPLED, *how)
            if self.unlabelled is not None:
                found[_UNLABELLED] = self._folder(_UNLABELLED, self.unlabelled, *how)
        return found

    def _folder(self, *settings: str | float) -> Path:
        """Return a folder of answers, in that of the world; its name has a digest of all they depend on."""
        parts = json.dumps([_MAX_NEW_TOKENS, *settings])
        digest = text_digest([parts, code_of(grading.__file__), code_of(text.__file__)])
        return (self.world.store or Path()) / f"answers-{digest[:12]}"

    def _made(self, name: str) -> list[Record]:
        """Let the world's model write the answers of a part: labelled ones, or those without labels."""
        model = self._model()
        sampling = Sampling(_MAX_NEW_TOKENS, self.temperature, max(1, self.samples), self.seed)
        if name == _SAMPLED:
            return self._labelled(self._answer(self.questions("train"), *model, sampling))
        if name != _UNLABELLED:
            return self.greedy_answers(_ANSWERED.get(name, name), *model)
        assert self.unlabelled is not None
        questions = self.world.questions(self.unlabelled)
        records = self._answer(questions, *model, Sampling(_MAX_NEW_TOKENS))
        records += self._answer(questions, *model, sampling) if self.samples else []
        return [record for record in records if record.sentences]  # from the others there is nothing to learn

    def _model(self) -> tuple[Encoder, Engine]:
        """Load the world's model, and return what encodes its prompts and what runs it."""
        from transformers import AutoModelForCausalLM, AutoTokenizer  # imported here because it is slow

        from lovec.engines import TransformersEngine

        engine = TransformersEngine(_ROWS)
        with without_progress_bars():
            engine.sync(SimpleNamespace(model=AutoModelForCausalLM.from_pretrained(self.world.model_path)))
        return Encoder(AutoTokenizer.from_pretrained(self.world.model_path), self.instruction), engine

    def greedy_answers(self, split: str, encoder: Encoder, engine: Engine) -> list[Record]:
        """Return the model's greedy answers to the questions of a split of the world, with exact labels.

        Args:
            split: one of ``lovec.datasets.world.facts.SPLITS``.
            encoder: of the world's model.
            engine: runs it.
        """
        questions = self.world.questions(split)
        return self._labelled(self._answer(questions, encoder, engine, Sampling(_MAX_NEW_TOKENS)))

    def _labelled(self, records: list[Record]) -> list[Record]:
        ratings = WorldOracle(self.world).rate(records)
        return [record.with_factuality(values) for record, values in zip(records, ratings, strict=True)]

    def _answer(self, questions: list[Record], encoder: Encoder, engine: Engine, sampling: Sampling) -> list[Record]:
        """Return plain answers, written without the instruction; those to one question are adjacent."""
        prompts = [encoder.prompt(record.question, instruct=False) for record in questions]
        completions = engine.generate(prompts, sampling, encoder.stop_ids, keys=[record.id for record in questions])
        records = []
        for record, group in zip(questions, completions, strict=True):
            for number, completion in enumerate(group, 1):
                name = f"{record.id}/sample-{number}" if sampling.temperature else record.id
                answer = encoder.written(completion.ids, completion.finished).strip()
                sentences = tuple(map(Sentence, self._sentences(answer, completion)))
                meta = record.meta if completion.finished else {**record.meta, "finished": False}
                records.append(replace(record, id=name, answer=answer, sentences=sentences, meta=meta))
        return records

    def _sentences(self, answer: str, completion: Completion) -> Sequence[str]:
        """Split an answer into sentences, without an unfinished last sentence of an answer that was cut off."""
        sentences = self.world.split_sentences(answer)
        unfinished = not completion.finished and sentences and not sentences[-1].endswith(".")
        return sentences[:-1] if unfinished else sentences


def _part_of(world: EmbeddedWorld, part: str, records: Iterable[Record]) -> Iterable[Record]:
    """Return the records of a part of a split: with articles, ids and a domain of their own where it is of articles.

    A record whose article would be empty is left out.
    """
    if part not in _ANSWERED:
        return records
    named = (
        replace(record, id=f"{record.id}/article", meta={**record.meta, "domain": _ARTICLES_DOMAIN})
        for record in records
    )
    return [record for record in map(world.with_article, named) if record.evidence]


def _plain(records: Iterable[Record]) -> list[Record]:
    """Return the answers without confidence tags."""
    return [record for record in records if not any(word in record.answer for word in _TAG_WORDS)]
