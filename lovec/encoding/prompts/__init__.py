"""The prompts that models are asked with, one text file each: the paper's, word for word, and a few of our own.

Trailing spaces in the paper's prompts are meant: editors must keep them.
"""

from importlib.resources import files


def prompt(name: str) -> str:
    """Return the text of ``NAME.txt`` in this folder, without the line break at its end."""
    return files(__name__).joinpath(f"{name}.txt").read_text(encoding="utf-8").removesuffix("\n")
