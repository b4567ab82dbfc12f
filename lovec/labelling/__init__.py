"""From questions to preference pairs in stages: each writes a file, and an interrupted one resumes where it stopped."""

from lovec.labelling.sources import Source, open_file, stage_file
from lovec.labelling.stage import Counts, Outcome, Progress, Stage, read_counts, run_stage
from lovec.labelling.steps import AnswerStep, LabelStep, PairStep, SplitStep, copy_records

__all__ = [
    "AnswerStep",
    "Counts",
    "LabelStep",
    "Outcome",
    "PairStep",
    "Progress",
    "Source",
    "SplitStep",
    "Stage",
    "copy_records",
    "open_file",
    "read_counts",
    "run_stage",
    "stage_file",
]
