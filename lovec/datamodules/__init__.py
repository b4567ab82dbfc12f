"""LightningDataModules: the data sets, and the user's files, as batches for training, validation and test."""

from lovec.datamodules.atlas import Atlas
from lovec.datamodules.base import RecordBatch, RecordsDataModule
from lovec.datamodules.factscore import FActScore
from lovec.datamodules.files import FilesDataModule
from lovec.datamodules.halueval import HaluEval
from lovec.datamodules.preferences import Demonstrations, Preferences
from lovec.datamodules.prompts import Prompts
from lovec.datamodules.testsets import Bios, PopQA, QuestionSet, TriviaQA, WikiBio, WildHallu
from lovec.datamodules.world import World

__all__ = [
    "Atlas",
    "Bios",
    "Demonstrations",
    "FActScore",
    "FilesDataModule",
    "HaluEval",
    "PopQA",
    "Preferences",
    "Prompts",
    "QuestionSet",
    "RecordBatch",
    "RecordsDataModule",
    "TriviaQA",
    "WikiBio",
    "WildHallu",
    "World",
]
