"""Load Jinja2 templates, in which an undefined name is an error."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Template


def load_template(path: Path, filters: Mapping[str, Any], **options: Any) -> Template:
    """Load a template, which may include others of its folder.

    Args:
        path: the file.
        filters: functions, by the names under which the template calls them.
        options: options of ``jinja2.Environment``.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    layout: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    environment = Environment(loader=FileSystemLoader(path.parent), undefined=StrictUndefined, **layout, **options)
    environment.filters |= filters
    return environment.get_template(path.name)
