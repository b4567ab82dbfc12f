"""Reports: tables, plots and one HTML page of what tests measured."""

from lovec.reports.reliability import reliability, reliability_diagram
from lovec.reports.results_table import markdown_results, print_results
from lovec.reports.surface import reward_surface

__all__ = [
    "markdown_results",
    "print_results",
    "reliability",
    "reliability_diagram",
    "reward_surface",
]
