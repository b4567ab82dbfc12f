"""Models by their names: offline ones, those of GGUF files, and those of the hub."""

from lovec.models.names import NO_MODEL, absolute_name, check_model, offline_model, resolve_model

__all__ = ["NO_MODEL", "absolute_name", "check_model", "offline_model", "resolve_model"]
