"""Whether all weights of a model were there when transformers loaded it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lovec.core.errors import LovecError
from lovec.core.notices import counted

_SHOWN = 3  # names of missing weights in a message


def check_whole(loading_info: Mapping[str, Any], name: str, fix: str) -> None:
    """Refuse a model that was loaded without some of its weights: transformers draws them at random.

    Args:
        loading_info: what ``from_pretrained`` returns beside the model with ``output_loading_info=True``. Weights that
            are tied to others, or computed, are not missing in it.
        name: what was loaded.
        fix: what to do about it.

    Raises:
        LovecError: weights are missing.
    """
    if missing := sorted(loading_info["missing_keys"]):
        shown = ", ".join(missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
        raise LovecError(f"{name} lacks {counted(len(missing), 'weight')} of its model ({shown}); {fix}")
