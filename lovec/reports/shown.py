"""What a page of results is made of: plots, the results of a place, and tagged answers."""

from __future__ import annotations

from dataclasses import dataclass

from lovec.reports.table import Table
from lovec.types import Record


@dataclass(frozen=True, slots=True)
class Picture:
    """A plot on the page.

    Attributes:
        name: name of its file, without the ending.
        title: what the plot shows.
        caption: how to read it.
        svg: what ``lovec.reports.style.write_plot`` wrote.
        themed: whether it takes the page's colours, see ``inline_svg``.
        note: what is not drawn, and why; "" where all is.
    """

    name: str
    title: str
    caption: str
    svg: str
    themed: bool = True
    note: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """The results of one mode, domain and readout.

    Attributes:
        mode: evaluation mode.
        domain: domain of the questions.
        readout: "stated", "mean" or "deployed".
        table: a line per method.
        pictures: reliability first.
    """

    mode: str
    domain: str
    readout: str
    table: Table
    pictures: tuple[Picture, ...]

    @property
    def keys(self) -> tuple[str, str, str]:
        """Mode, domain and readout."""
        return self.mode, self.domain, self.readout


@dataclass(frozen=True, slots=True)
class MethodAnswers:
    """The tagged answers of a method in one mode.

    Attributes:
        method: name of the method.
        mode: "iterative" or "free-form".
        records: the tagged answers that are shown.
        total: number of all answers.
        sentences: number of the sentences of all answers.
        readout: what the confidences are: "stated", "mean" or "deployed".
        kept: per score of the scale as a threshold, the share of all sentences that it keeps, and the mean factuality
            of those that are labelled (None if none is). The threshold 0 keeps every sentence, the others those with
            such a confidence.
    """

    method: str
    mode: str
    records: tuple[Record, ...]
    total: int
    sentences: int
    readout: str
    kept: tuple[tuple[float, float | None], ...]
