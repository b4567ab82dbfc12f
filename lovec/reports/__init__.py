"""Reports: what was measured, for people and for files."""

from lovec.reports.reliability import reliability, reliability_diagram
from lovec.reports.surface import reward_surface
from lovec.reports.table import markdown_table, print_table, read_results, write_results

__all__ = [
    "markdown_table",
    "print_table",
    "read_results",
    "reliability",
    "reliability_diagram",
    "reward_surface",
    "write_results",
]
