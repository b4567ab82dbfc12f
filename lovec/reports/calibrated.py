"""Scores made elsewhere beside what a calibration makes of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from scipy.stats import binomtest

from lovec.calibration.conformal import Guarantee, Passage, holds, retention
from lovec.calibration.fitting import Fitted, Words
from lovec.calibration.scores import ROWS, ScoreCalibration, group_passages
from lovec.core.notices import counted
from lovec.core.provenance import file_digest
from lovec.datasets.scored import ScoredFile, ScoredMethod
from lovec.types import LovecError

CALIBRATED = "calibrated"
"""Name of the method that a calibration makes; where the file has one of that name, it says from what it is made."""


def chosen_methods(file: ScoredFile, calibration: ScoreCalibration | None = None) -> list[ScoredMethod]:
    """Return the methods of a file that are calibrated together.

    Args:
        file: what was read.
        calibration: whose columns they are; None takes all with confidences.

    Raises:
        LovecError: one is missing, or they did not rate the same rows.
    """
    by_name = {method.name: method for method in file.methods if method.missing < len(method.factuality)}
    names = list(by_name) if calibration is None else [column.key for column in calibration.columns]
    if not names:
        raise LovecError(f"{file.path} has labels but no confidences; name their column with --confidence COLUMN")
    if unknown := [name for name in names if name not in by_name]:
        raise LovecError(f"{file.path} has no {unknown[0]!r}, which the calibration maps; it has {', '.join(by_name)}")
    methods = [by_name[name] for name in names]
    if any(not torch.equal(method.factuality, methods[0].factuality) for method in methods):
        raise LovecError(
            f"the methods {', '.join(names)} of {file.path} rated different rows, so that they cannot be calibrated "
            "together; name one with --confidence"
        )
    return methods


def with_calibrated(file: ScoredFile, calibration: ScoreCalibration) -> tuple[ScoredFile, list[str]]:
    """Add to the methods of a file what a calibration makes of them, and say how far its promises were kept.

    Args:
        file: what was read.
        calibration: the calibration.

    Returns:
        The file with a method more, and a sentence per thing to know.

    Raises:
        LovecError: the file lacks a column of the calibration, or a score is out of its range.
    """
    methods = chosen_methods(file, calibration)
    directed = torch.stack([method.confidence for method in methods], 1).numpy()
    first = methods[0]
    taken = CALIBRATED in [method.name for method in file.methods]  # `lovec apply` has written it
    name = f"{CALIBRATED} from {', '.join(column.key for column in calibration.columns)}" if taken else CALIBRATED
    groups = first.group.tolist()
    judged = first.judged
    if judged is not None:
        of_all = torch.stack([m.judged.confidence for m in methods if m.judged and m.judged.confidence is not None], 1)
        judged = replace(judged, confidence=torch.from_numpy(calibration.confidences(of_all.numpy())))
    confidence = torch.from_numpy(calibration.confidences(directed))
    added = replace(first, name=name, confidence=confidence, order_only="", judged=judged, spans=None)
    notes = [f"{name}: {calibration.describe()}."]
    if Path(file.path).is_file() and file_digest(file.path) in calibration.sources:
        notes.append(
            f"{name}: it was fitted to this very file, which flatters it; measure it on rows that are new to it."
        )
    if (drift := calibration.drift(directed, groups)) is not None:
        notes.append(f"{name}: {drift}.")
    ranks, truth = calibration.ranks(directed), first.factuality.numpy()
    for promised in calibration.guarantees:
        notes.append(told_of_promise(promised, group_passages(ranks, truth, groups, promised.true_from).values()))
    of_kind: dict[str, list[int]] = {}
    for at, value in enumerate(first.by or ()):
        of_kind.setdefault(value, []).append(at)
    for kind in calibration.kinds:
        if (own := of_kind.get(kind.value)) is not None:
            passages = group_passages(ranks, truth, groups, kind.guarantee.true_from, np.array(own))
            notes.append(
                f"{calibration.by} {kind.value or '(none)'}, {told_of_promise(kind.guarantee, passages.values())}"
            )
    return replace(file, methods=(*file.methods, added)), notes


def cross_fitted(file: ScoredFile, methods: list[ScoredMethod], fitted: Fitted) -> ScoredFile:
    """Return a file with the methods that were calibrated and the cross-fitted confidences, each without its group."""
    rows = [
        (confidence, truth, number)
        for number, (confidences, truths) in enumerate(fitted.after.values())
        for confidence, truth in zip(confidences, truths, strict=True)
    ]
    confidence, truth, group = (torch.tensor(values) for values in zip(*rows, strict=True))
    added = replace(
        methods[0],
        name=f"{CALIBRATED}, cross-fitted",
        confidence=confidence.double(),
        factuality=truth.double(),
        group=group,
        order_only="",
        spans=None,
    )
    return replace(file, methods=(*methods, added))


def told_of_promise(promised: Guarantee, passages: Collection[Passage], words: Words = ROWS) -> str:
    """Say in a sentence how far a promise was kept on labelled passages.

    Args:
        promised: the promise, and its threshold.
        passages: passages that the threshold was not computed from.
        words: what rows and groups are called.
    """
    found = retention(passages, promised.threshold)
    kept = f"{100 * found.share:.1f} % of {counted(found.sentences, words.item)} kept"
    goal = f"--keep_factual {promised.keep_factual:g}"
    if promised.kind == "errors":
        return f"{goal}: {100 * found.errors:.1f} % kept and false (at most {100 * promised.alpha:.3g}); {kept}."
    held = sum(holds(passage, promised.threshold, promised.share) for passage in passages)
    low, high = binomtest(held, len(passages)).proportion_ci(method="wilson")
    part = (
        "nothing false is kept" if promised.kind == "all-true" else f"{100 * promised.share:.3g} % of the kept are true"
    )
    return (
        f"{goal}: {part} in {100 * held / len(passages):.1f} % of {counted(len(passages), words.group)} "
        f"({100 * low:.1f} to {100 * high:.1f}); {kept}."
    )
