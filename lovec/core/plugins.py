"""Parts of lovec that other installed packages bring, by name: Python's entry points.

A package declares what it brings under the group that has lovec's own of the kind: ``lovec.commands``,
``lovec.layouts``, or the package of lovec that has such classes, such as ``lovec.oracles``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from lovec.core.errors import LovecError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class PluginError(LovecError):
    """What a package brings cannot be used; other packages, and lovec's own parts, can be."""


@dataclass(frozen=True)
class Plugin:
    """What a package brings under a name.

    Attributes:
        entries: its entry point; of several packages that claim the name, that of each.
    """

    entries: tuple[EntryPoint, ...]

    @property
    def entry(self) -> EntryPoint:
        """The entry point.

        Raises:
            PluginError: several packages claim the name.
        """
        if len(self.entries) > 1:
            packages = " and ".join(sorted(map(_package, self.entries)))
            raise PluginError(f"{_what(self.entries[0])} is of {packages}; remove all but one with pip uninstall")
        return self.entries[0]

    @property
    def path(self) -> str:
        """The import path of what it is, such as ``lovec_myoracle.MyOracle``; an error as of ``entry``."""
        return self.entry.value.partition("[")[0].strip().replace(":", ".")

    @property
    def purpose(self) -> str:
        """What its package is for, in a line, and the package; nothing of the package is imported."""
        return "; ".join(f"{_metadata(entry, 'Summary')} ({_package(entry)})".strip() for entry in self.entries)

    def load(self, kind: type) -> Any:
        """Import it.

        Args:
            kind: what it must be an instance of: a function, a class, a layout.

        Raises:
            PluginError: several packages claim the name, or it cannot be imported or is something else.
        """
        entry = self.entry
        try:
            loaded = entry.load()
            if not isinstance(loaded, kind):
                raise TypeError(f"{entry.value} is of type {type(loaded).__name__}, expected {kind.__name__}")
            return loaded
        except Exception as error:  # whatever the code of a stranger raises
            name = _metadata(entry, "Name")
            raise PluginError(
                f"{_what(entry)} of {_package(entry)} cannot be used ({type(error).__name__}: {error}); update it "
                f"with pip install --upgrade {name}, or remove it with pip uninstall {name}"
            ) from error


@cache
def plugins(group: str) -> Mapping[str, Plugin]:
    """Return what the installed packages bring, by name and sorted by it; nothing of it is imported.

    Whoever asks looks for lovec's own names first, so that no package can replace these.

    Args:
        group: of entry points, such as ``lovec.commands``.
    """
    from importlib.metadata import entry_points

    entries: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=group):
        entries.setdefault(entry.name, []).append(entry)
    return {name: Plugin(tuple(entries[name])) for name in sorted(entries)}


def _what(entry: EntryPoint) -> str:
    return f"{entry.name!r} in the entry points {entry.group}"


def _package(entry: EntryPoint) -> str:
    return f"{_metadata(entry, 'Name')} {_metadata(entry, 'Version')}"


def _metadata(entry: EntryPoint, key: str) -> str:
    return "" if entry.dist is None else str(entry.dist.metadata[key] or "")
