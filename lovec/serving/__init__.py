"""An OpenAI-compatible server whose answers carry a confidence for every sentence."""

from lovec.serving.app import make_app
from lovec.serving.limits import RequestLimits
from lovec.serving.worker import EngineWorker

__all__ = ["EngineWorker", "RequestLimits", "make_app"]
