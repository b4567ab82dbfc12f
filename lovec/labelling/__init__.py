"""From questions to preference pairs in stages: each writes a file, and an interrupted one resumes where it stopped."""

from lovec.labelling.joining import join_file, join_folder
from lovec.labelling.sources import Shard, Source, open_file, stage_file
from lovec.labelling.stage import STAGES, Counts, Outcome, Progress, Stage, read_counts, run_stage
from lovec.labelling.steps import AnswerStep, LabelStep, PairStep, SplitStep, copy_records

__all__ = [
    "STAGES",
    "AnswerStep",
    "Counts",
    "LabelStep",
    "Outcome",
    "PairStep",
    "Progress",
    "Shard",
    "Source",
    "SplitStep",
    "Stage",
    "copy_records",
    "join_file",
    "join_folder",
    "open_file",
    "read_counts",
    "run_stage",
    "stage_file",
]
