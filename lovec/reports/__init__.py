"""Reports: what was measured, for people and for files."""

from lovec.reports.table import markdown_table, print_table, read_results, write_results

__all__ = ["markdown_table", "print_table", "read_results", "write_results"]
