"""From questions to training data in stages: each writes files, and an interrupted one resumes where it stopped."""

from lovec.labelling.joining import join_file, join_folder
from lovec.labelling.on_ray import OnRay
from lovec.labelling.ray_files import RaySettings
from lovec.labelling.recipe import RECIPE, next_commands, summary, write_recipe
from lovec.labelling.sources import Shard, Source, open_file, stage_file
from lovec.labelling.splitting import ENTITY_KEY, MANIFEST, SPLITS, Splitting, TooFewEntities, split_file
from lovec.labelling.stage import (
    STAGES,
    Counts,
    Outcome,
    Progress,
    Stage,
    check_stage_file,
    is_finished,
    read_counts,
    run_stage,
)
from lovec.labelling.steps import Answer, AnswerStep, EngineWriter, LabelStep, PairStep, SplitStep, Writer, copy_records

__all__ = [
    "ENTITY_KEY",
    "MANIFEST",
    "RECIPE",
    "SPLITS",
    "STAGES",
    "Answer",
    "AnswerStep",
    "Counts",
    "EngineWriter",
    "LabelStep",
    "OnRay",
    "Outcome",
    "PairStep",
    "Progress",
    "RaySettings",
    "Shard",
    "Source",
    "SplitStep",
    "Splitting",
    "Stage",
    "TooFewEntities",
    "Writer",
    "check_stage_file",
    "copy_records",
    "is_finished",
    "join_file",
    "join_folder",
    "next_commands",
    "open_file",
    "read_counts",
    "run_stage",
    "split_file",
    "stage_file",
    "summary",
    "write_recipe",
]
