"""The options of ``lovec label``, and their parser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import lovec.oracles  # noqa: F401 - options take oracles by their short names once these are imported
from lovec.core.settings import Count, NonNegative, PlainWord, Probability, Seed, checked, declared
from lovec.datasets.pairs import WrongScores
from lovec.labelling import ENTITY_KEY, RaySettings, Splitting, Writer
from lovec.labelling.writers import OpenAIWriter  # noqa: F401 - likewise
from lovec.taggers import open_session
from lovec.types import Oracle, Sampling

from .preflight import check_data
from .signatures import SignatureParser


@checked("--{}")
@dataclass
class LabelSettings:
    """What to begin with (one of questions, answers, labelled and data), and what to do.

    Attributes:
        questions: file with questions, for a model to answer (JSONL, JSON, CSV or Parquet, as all files).
        answers: records with answers, whole or split into sentences.
        labelled: labelled records, to make pairs of.
        split: split of the data set; null is its first one.
        evidence: where evidence is looked up for records that have none: FActScore's sqlite file, or JSONL with title
            and text.
        out: folder of the files.
        stages: comma list of answers, sentences, label, pairs, splits; null is all that follow what it begins with.
        shard: work on every n-th record only, in a folder of its own in --out: 3/8 is the third of eight shards, which
            `lovec join` puts together; null is all records.
        samples: answers per question; more than one need a temperature.
        writer: answers the questions in place of --model: OpenAIWriter, which asks any OpenAI-compatible server, or a
            class of your own such as my_file.MyWriter; its options are --writer.NAME.
        splitter: function that splits an answer into its sentences.
        abstentions: function that tells whether an answer declines to answer, or a class without arguments that makes
            one, such as a judge model.
        oracle: labels sentences: OpenAIOracle, SelfJudge, WorldOracle, LabelFile, TriviaQAOracle, or a class of your
            own such as my_file.MyOracle; its options are --oracle.NAME.
        chunk: records that are rated together and written at once.
        max_cost: US dollars to spend at most, for answers and labels together.
        batch: have OpenAIOracle and OpenAIWriter ask by the Batch API: half the price, within a day.
        dev_share: share of the entities whose records are in dev.jsonl.
        test_share: share of the entities whose records are in test.jsonl; the others are in train.jsonl.
        entity_key: key in meta that names what a record is about; records without it go by their question.
        seed: seed for sampling, for drawing wrong scores and for the splits.
        wrong_scores: wrong scores of the pairs: "uniform" over all but the true one (the paper), or "near", at most two
            points from it.
    """

    questions: str | None = None
    answers: str | None = None
    labelled: str | None = None
    split: PlainWord | None = None
    evidence: str | None = None
    out: Path = Path("runs/labels")
    stages: PlainWord | None = None
    shard: PlainWord | None = None
    samples: Count = 1
    writer: Writer | None = None
    splitter: str = "lovec.text.sentences.split_sentences"
    abstentions: str = "lovec.text.abstentions.is_abstention"
    oracle: Oracle | None = None
    chunk: Count = 64
    max_cost: NonNegative | None = None
    batch: bool = False
    dev_share: Probability = 0.1
    test_share: Probability = 0.1
    entity_key: PlainWord = ENTITY_KEY
    seed: Seed = 0
    wrong_scores: WrongScores = "uniform"

    def __post_init__(self) -> None:
        self.splitting  # noqa: B018 - checks the shares

    @property
    def splitting(self) -> Splitting:
        """How labelled records are split."""
        return Splitting(self.dev_share, self.test_share, self.seed, self.entity_key)


def label_parser(words: Sequence[str]) -> SignatureParser:
    """Return the parser of the command.

    Args:
        words: the command line after ``label``; the options of data sets are added only where it needs them.
    """
    parser = SignatureParser(
        prog="lovec label",
        description="Questions to answers, sentences, labels, preference pairs, and files to train, develop and test "
        "on, with a recipe of them. Every stage writes into --out, is continued where it was interrupted, and is not "
        "done twice.",
    )
    parser.add(LabelSettings)
    parser.add(RaySettings)
    parser.add_argument("--redo", action="store_true", help="make the files of the stages anew")
    parser.add_argument("--yes", action="store_true", help="make paid calls without asking")
    text = "begin with a data set, such as PopQA or World, or with a class of your own such as my_file.MySet; its "
    text += "options are --data.NAME, and --data.help CLASS lists them"
    if any(word.startswith("--data") for word in words):  # only this needs Lightning
        check_data(words)
        from lovec.datamodules import RecordsDataModule

        unused = {"labels", "val_labels", "evidence", *declared(RecordsDataModule)}  # no question depends on them
        parser.add_subclass_arguments(RecordsDataModule, "data", skip=unused, metavar="CLASS", help=text)
    else:
        parser.add_argument("--data", type=str, metavar="CLASS", help=text)
    parser.add(open_session, "engine", "instruction", "tag_words", "scale")
    parser.add(Sampling, "n", "seed", "top_p", "watched")
    return parser
