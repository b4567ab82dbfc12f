"""An OpenAI-compatible endpoint whose answers carry a confidence for every sentence."""

from lovec.serving.app import Limits, make_app
from lovec.serving.worker import Worker

__all__ = ["Limits", "Worker", "make_app"]
