"""Measure a policy: tag records, label free-form answers, compute metrics, write results."""

from lovec.evaluation.comparison import Comparison
from lovec.evaluation.evaluator import EvaluationConfig, Evaluator
from lovec.evaluation.module import EvaluationModule
from lovec.evaluation.sharding import ShardedStrategy

__all__ = ["Comparison", "EvaluationConfig", "EvaluationModule", "Evaluator", "ShardedStrategy"]
