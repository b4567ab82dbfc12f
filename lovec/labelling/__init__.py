"""From questions to preference pairs, stage by stage: every stage is a file, and a killed one goes on where it was."""

from lovec.labelling.sources import DATASETS, FileSource, NamedSource, Source
from lovec.labelling.stage import Counts, Outcome, Progress, Stage, read_counts, run_stage
from lovec.labelling.steps import Answers, Labels, Pairs, Sentences, imported

__all__ = [
    "DATASETS",
    "Answers",
    "Counts",
    "FileSource",
    "Labels",
    "NamedSource",
    "Outcome",
    "Pairs",
    "Progress",
    "Sentences",
    "Source",
    "Stage",
    "imported",
    "read_counts",
    "run_stage",
]
