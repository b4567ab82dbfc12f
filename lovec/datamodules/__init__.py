"""LightningDataModules: what is served to training and to measurement, one optimiser batch an item."""

from lovec.datamodules.base import Batch, RecordsDataModule
from lovec.datamodules.factscore import FActScore
from lovec.datamodules.files import FilesDataModule
from lovec.datamodules.preferences import Demonstrations, Preferences
from lovec.datamodules.prompts import Prompts
from lovec.datamodules.testsets import Bios, PopQA, QuestionSet, TriviaQA, WildHallu
from lovec.datamodules.world import World

__all__ = [
    "Batch",
    "Bios",
    "Demonstrations",
    "FActScore",
    "FilesDataModule",
    "PopQA",
    "Preferences",
    "Prompts",
    "QuestionSet",
    "RecordsDataModule",
    "TriviaQA",
    "WildHallu",
    "World",
]
