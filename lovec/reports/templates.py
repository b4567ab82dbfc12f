"""The Jinja2 templates and the longer texts of reports, which stand in files of their own beside this one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Template

HERE = Path(__file__).parent
"""Folder of the templates, style sheets and texts."""


def load_template(name: str, filters: Mapping[str, Any], **options: Any) -> Template:
    """Load a template of reports; an undefined name in it is an error.

    Args:
        name: name of the file, such as "table.md.j2".
        filters: functions, by the names under which the template calls them.
        options: options of ``jinja2.Environment``.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    layout: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    environment = Environment(loader=FileSystemLoader(HERE), undefined=StrictUndefined, **layout, **options)
    environment.filters |= filters
    return environment.get_template(name)


@cache
def texts() -> dict[str, Any]:
    """Return the titles and captions of the plots ("plots") and the notes below the tables ("tables"), by name."""
    import yaml

    content: dict[str, Any] = yaml.safe_load((HERE / "texts.yaml").read_text(encoding="utf-8"))
    return content
