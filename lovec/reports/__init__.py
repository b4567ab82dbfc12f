"""Reports: what was measured, for people and for files."""

from lovec.reports.reliability import reliability, reliability_diagram
from lovec.reports.results_table import markdown_table, print_results, read_results, write_results
from lovec.reports.surface import reward_surface

__all__ = [
    "markdown_table",
    "print_results",
    "read_results",
    "reliability",
    "reliability_diagram",
    "reward_surface",
    "write_results",
]
