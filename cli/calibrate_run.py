"""``lovec calibrate RUN``: fit the map from a model's scores to how often its sentences are true."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from lovec.core.files import check_adapter_folder, check_output
from lovec.core.hub import CALIBRATION_FILE, SHIPPED, HubName, trained_recipe
from lovec.core.notices import counted, listed
from lovec.core.provenance import Provenance
from lovec.core.settings import Count, PositiveShare, Probability, checked
from lovec.datasets.layouts import read_any
from lovec.datasets.rows import check_rows
from lovec.taggers import FreeFormTagger, IterativeTagger, Session, open_session
from lovec.taggers.scoring_check import scoring_difference
from lovec.taggers.served_confidence import ServedConfidence
from lovec.taggers.session import adapter_folder, session_provenance
from lovec.text.untag import bare_statements
from lovec.types import (
    BY_SOURCE,
    FREE_FORM,
    ITERATIVE,
    FittedMode,
    LovecError,
    Mode,
    Oracle,
    Promise,
    Readout,
    Record,
    Sampling,
    check_ready,
    checked_ratings,
)

from .arguments import add_working_directory, find_recipe
from .calibrate_scores import AskedPromises, report
from .console import locked, quiet, remark, say_next, warn
from .errors import UsageError
from .parser import with_underscores
from .progress import heartbeat
from .saved_recipe import RecipeFilter, parse_recipe, recipe_text
from .signatures import SignatureParser
from .tag_options import check_engine
from .unseen import run_of, unseen

if TYPE_CHECKING:  # it imports scipy and torch, which nothing that is mistyped should wait for
    from jsonargparse import Namespace

    from lovec.calibration import Calibration, Fitted
    from lovec.serving.feedback import Verdict


@checked("--{}")
@dataclass
class CalibrateSettings:
    """What is fitted, to what, and what is promised.

    Attributes:
        data: file with labelled answers, in any layout that lovec reads; null takes the validation records of the data
            set that the run was trained on. Answers that training has seen are left out.
        feedback: file of people's verdicts, which `lovec serve --feedback` has written: map and thresholds are fitted
            to them, and no model is loaded. Features and promises stay those of the calibration that is there, unless
            others are given.
        config: recipe whose data section says where the validation records are; null is the run's own recipe.
        readout: what is mapped: "mean" of the distribution over all scores (null, without a calibration that is
            fitted again), or the "stated" score.
        features: names of several features to map together instead, such as [mean, entropy, logp_mean], see
            docs/calibrate.md; null maps the readout alone.
        keep_factual: probability of a guarantee, such as 0.9, for which a threshold is computed; may be given several
            times, or as a list.
        promise: what such a guarantee is about: "all-true" (with that probability all kept sentences of an answer are
            true), "share" (at least a share of them is), or "errors" (the kept sentences that are false are on
            average at most a share of 1 minus that probability of all sentences). With `feedback`, null is that of the
            calibration that is there, and otherwise "all-true"; likewise below.
        share: for "share", the share of the kept sentences that is true; null is 1.
        true_from: factuality from which a sentence counts as true, for the guarantees; null is 0.5.
        max_new_tokens: longest answer that the model writes, in tokens.
    """

    data: str | None = None
    feedback: str | None = None
    config: str | None = None
    readout: Readout | None = None
    features: list[str] | None = None
    keep_factual: Probability | list[Probability] | None = None
    promise: Promise | None = None
    share: PositiveShare | None = None
    true_from: PositiveShare | None = None
    max_new_tokens: Count = 512

    def __post_init__(self) -> None:
        self.promises.checked(self.feedback is not None)

    @property
    def mapped(self) -> str | tuple[str, ...] | None:
        """The readout or the features that are named; None where none are."""
        return tuple(self.features) if self.features else self.readout

    @property
    def promises(self) -> AskedPromises:
        """The guarantees that are asked for."""
        given = self.keep_factual if isinstance(self.keep_factual, list) else [self.keep_factual]
        asked = tuple(probability for probability in given if probability is not None)
        return AskedPromises(asked, self.promise, self.share, self.true_from)


_KINDS: Mapping[str, str] = {
    ITERATIVE: "given texts (iterative tagging)",
    FREE_FORM: "answers of the model (free-form tagging)",
    BY_SOURCE[ITERATIVE]: "given texts with evidence (by source)",
    BY_SOURCE[FREE_FORM]: "answers of the model with evidence (by source)",
}
_NO_RECORDS: Mapping[str, str] = {
    ITERATIVE: "confidences by knowledge stay as they are: every labelled record has evidence, so its labels are by "
    "source",
    BY_SOURCE[ITERATIVE]: "confidences by source stay as they are: no labelled record has evidence",
}
_WRITTEN: Mapping[str, tuple[str, str]] = {
    FREE_FORM: ("answers that the model writes itself", "given texts"),
    BY_SOURCE[FREE_FORM]: ("by source, answers that the model writes with evidence", "given texts with evidence"),
}
"""Answers that an oracle has to label, and what they take the map of otherwise."""


def run(words: list[str]) -> None:
    """Fit and write the calibration of an adapter.

    Args:
        words: the command line after ``calibrate``.

    Raises:
        LovecError: there is no adapter, the model cannot be opened, or there are no labels to fit to.
    """
    add_working_directory()  # classes of the user's own
    parser = SignatureParser(
        prog="lovec calibrate",
        description="Fit the map from a model's scores to how often its sentences are true. It is written beside the "
        "adapter; tag, serve, predict, test and export apply it from then on. With a FILE of scores and labels in "
        "place of the run, scores of any origin are calibrated: `lovec calibrate FILE --help`.",
    )
    parser.add_argument("source", metavar="RUN", help="folder of a run, such as runs/dpo, or of a PEFT adapter")
    parser.add(CalibrateSettings)
    parser.add(open_session, "adapter", "raw")
    options = parser.instantiate(parser.parse_args(_collected(words)))
    settings = parser.call(CalibrateSettings, options)
    check_engine(options.engine)
    sources = [name for name in ("data", "feedback", "config") if getattr(settings, name)]
    if len(sources) > 1:
        raise UsageError(f"--{' and --'.join(sources)} say what to fit to; give one of them")
    if HubName.parse(options.source) is not None:
        raise _not_written(options.source, "is on the hub")
    adapter = Path(adapter_folder(options.source))
    if adapter == SHIPPED.get(options.source):
        raise _not_written(options.source, "comes with the package")
    check_adapter_folder(str(adapter), written=True)
    for given in filter(None, (settings.data, settings.feedback)):
        check_rows(given)
    if settings.config is not None:
        find_recipe(settings.config)
    check_output(adapter / CALIBRATION_FILE, [settings.data, settings.feedback, settings.config])
    if settings.feedback is None:
        path = _from_answers(parser, options, settings, adapter)
    else:
        path = _from_verdicts(settings, adapter, session_provenance({**options.as_dict(), "adapter": str(adapter)}))
    print(f"{path} written: tag, serve, predict, test and export apply it, --raw does not")
    source = shlex.quote(options.source)
    say_next(
        (f"lovec tag page.txt --adapter {source}", "confidences by this map"),
        (f"lovec serve --adapter {source}", "a page to try it, and an endpoint"),
        ("lovec test --config RECIPE", "with the run's recipe: rows for the deployed confidences"),
    )


def _collected(words: Sequence[str]) -> list[str]:
    """Return the words with every ``--keep_factual`` but the first as one that adds to those before, as with a FILE."""
    spelt, given = with_underscores(words), False
    for at, word in enumerate(spelt):
        name, equals, value = word.partition("=")
        if name == "--keep_factual":
            spelt[at] = f"{name}{'+' * given}{equals}{value}"  # jsonargparse takes the last one only without the plus
            given = True
    return spelt


def _not_written(adapter: str, where: str) -> LovecError:
    """Return the error for an adapter beside which nothing is written."""
    return LovecError(
        f"{adapter} {where}, and a map is written beside the adapter; make a folder of it first, with lovec export "
        f"{adapter} FOLDER"
    )


def _from_answers(parser: SignatureParser, options: Namespace, settings: CalibrateSettings, adapter: Path) -> Path:
    """Fit to labelled answers, which the model tags, and return the path of what was written."""
    from lovec.calibration import calibrate, weights_digest, write_calibrations

    digest = weights_digest(adapter)
    with heartbeat("reading the labelled records"):
        records, oracle, names = _labelled(settings, Path(options.source))
        check_ready(oracle)
    records, notes = unseen(records, run_of(adapter))
    for note in notes:
        warn(note)
    with quiet(), heartbeat("loading the model"):
        session = parser.call(open_session, options, adapter=str(adapter), raw=True)
    with session, quiet(), locked(adapter, folder=True), heartbeat("calibrate"):
        kept = _earlier(adapter, session.provenance)
        made: dict[str, Calibration] = {}
        fits: dict[str, Fitted] = {}
        for mode in get_args(FittedMode):
            sourced = mode in BY_SOURCE.values()
            own = [record for record in records if session.encoder.has_source(record) == sourced]
            if not own and (records or sourced):
                if session.encoder.grounding is not None and mode in _NO_RECORDS:
                    remark(_NO_RECORDS[mode])
                continue
            answers, texts = _WRITTEN.get(mode, ("", ""))
            theirs = f"{answers} {'keep their earlier map' if mode in kept else f'get the map of {texts}'}"
            if answers and (reason := _no_labels(session, oracle, mode)) is not None:
                remark(f"{theirs}: {reason}")
                continue
            tagged = _answered(session, own, oracle, settings) if answers else _tagged(session, own, settings)
            promised, true_from = settings.promises.made()
            try:
                made[mode], fits[mode] = calibrate(
                    tagged,
                    adapter=digest,
                    base=session.model,
                    mode=mode,
                    readout=settings.mapped or "mean",
                    promised=promised,
                    true_from=true_from,
                    data=names,
                    provenance=session.provenance,
                )
            except LovecError as error:
                if not answers:
                    raise LovecError(f"{_KINDS[mode]}: {error}") from None
                warn(f"{theirs}: {error}")
        path = write_calibrations(adapter, {**kept, **made})
    for mode, fitted in fits.items():
        _report(mode, made[mode], fitted)
    return path


def _from_verdicts(settings: CalibrateSettings, adapter: Path, provenance: Provenance) -> Path:
    """Fit to the verdicts in a file of a server, and return the path of what was written.

    A calibration that is there stays where there are verdicts on fewer than ``LEAST_PASSAGES`` answers of its mode.

    Raises:
        LovecError: no verdict is on answers of this model, or no map can be fitted to them.
    """
    from lovec.calibration import calibrate_answers, weights_digest, write_calibrations
    from lovec.calibration.calibration import rank_by
    from lovec.calibration.fitting import LEAST_PASSAGES, SENTENCES, Answer, feature_names
    from lovec.reports.calibrated import told_of_promise

    made: dict[str, Calibration] = {}
    left: list[str] = []
    fits: dict[Mode, tuple[Fitted, list[str]]] = {}
    verdicts = _verdicts(str(settings.feedback), provenance)
    digest = weights_digest(adapter)
    with locked(adapter, folder=True), heartbeat("calibrate"):
        kept = _earlier(adapter, provenance)
        for mode, given in verdicts.items():
            before = ServedConfidence(kept).calibration(mode)
            readout = settings.mapped or (before.readout if before else "mean")
            features = feature_names(readout)
            answers = [
                Answer(
                    own[0].response_id,
                    [[v.readouts[n] for n in features] if v.readouts.keys() >= {*features} else None for v in own],
                    [v.factuality for v in own],
                )
                for own in given
            ]
            usable = sum(any(row is not None for row in answer.rows) for answer in answers)
            theirs = f"{_KINDS[mode]} {'keep the calibration that is there' if mode in kept else 'get no map'}"
            if mode in kept and usable < LEAST_PASSAGES:
                left.append(
                    f"{theirs}: {settings.feedback} has verdicts with {listed(features)} on "
                    f"{counted(usable, 'answer')} of this kind, expected {LEAST_PASSAGES} or more to replace it"
                )
                continue
            promised, true_from = settings.promises.made(before.guarantees if before is not None else ())
            try:
                made[mode], fitted = calibrate_answers(
                    answers,
                    adapter=digest,
                    base=provenance.parts["base"]["name"],
                    mode=mode,
                    levels=len(provenance.parts["prompt"]["scale"]),
                    readout=readout,
                    promised=promised,
                    true_from=true_from,
                    data=[str(settings.feedback)],
                    provenance=provenance,
                    earlier=before.map if before is not None and before.readout == readout else None,
                )
            except LovecError as error:
                left.append(f"{theirs}: {error}")
                continue
            fits[mode] = fitted, []
            if before is not None and before.readout == readout:
                for found in before.guarantees:
                    passages = [answer.passage(partial(rank_by, before.map), found.true_from) for answer in answers]
                    fits[mode][1].append(f"the threshold before: {told_of_promise(found, passages, SENTENCES)}")
        if not made:
            raise LovecError("; ".join(left))
        for reason in left:
            warn(reason)
        path = write_calibrations(adapter, {**kept, **made})
    for mode, (fitted, lines) in fits.items():
        _report(mode, made[mode], fitted)
        for line in lines:
            print(f"  {line}")
    return path


def _verdicts(path: str, provenance: Provenance) -> dict[Mode, list[list[Verdict]]]:
    """Return the verdicts on the answers of a model in a file of a server, by the mode of tagging and the answer.

    Raises:
        LovecError: there are none.
    """
    from lovec.serving.feedback import read_verdicts, scores_digest

    digest, others = scores_digest(provenance), 0
    found: dict[Mode, list[list[Verdict]]] = {}
    for verdicts in read_verdicts(path):
        if verdicts[0].scores == digest:
            found.setdefault(verdicts[0].mode, []).append(verdicts)
        else:
            others += 1
    if not found:
        raise LovecError(
            f"{path} has verdicts on {counted(others, 'answer')}, none of them of this model, adapter and prompt; give "
            "the file that `lovec serve --feedback` has written with the same ones"
        )
    if others:
        warn(f"{path}: {counted(others, 'answer is', 'answers are')} of another model, adapter or prompt, and left out")
    return found


def _earlier(adapter: Path, provenance: Provenance | None) -> dict[str, Calibration]:
    """Return the calibrations that are there and were fitted to scores of this model; others are replaced."""
    from lovec.calibration import read_calibrations

    try:
        return read_calibrations(adapter, provenance)
    except LovecError as error:
        remark(f"the calibration that is there is replaced: {error}")
        return {}


def _labelled(settings: CalibrateSettings, source: Path) -> tuple[list[Record], Oracle | None, list[str]]:
    """Return labelled records, an oracle for other answers to their questions if there is one, and where they are from.

    Raises:
        LovecError: there are no records, or nothing says where they are.
    """
    if settings.data is not None:
        return list(read_any(settings.data)), None, [Path(settings.data).name]
    from .training import prepare

    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder, "recipe.yaml")
        if settings.config is None:
            recipe.write_text(recipe_text(_own_recipe(source)), encoding="utf-8")
        with quiet():
            cli = prepare("validate", ["--config", settings.config or str(recipe), "--trainer.logger", "false"])
    data = cli.datamodule
    data.prepare_data()
    name = f"validation records of {getattr(data, 'title', type(data).__name__)}"
    oracle: Oracle | None = cli.model.oracle or getattr(data, "oracle", None)
    return list(data.load("validation")), oracle, [name]


def _own_recipe(source: Path) -> dict[str, Any]:
    """Return the data section of the recipe of a run's adapter: what a stranger could have written in it is not taken.

    Raises:
        LovecError: there is no recipe, or it names files or classes that only the user may name.
    """
    found = trained_recipe(source)
    if found is None:
        raise LovecError(
            f"{source} has no recipe of a training run (logs/version_0/config.yaml), so nothing says what to fit to; "
            "give --data FILE with labelled answers, or --config RECIPE"
        )
    recipe = parse_recipe(found.read_text(encoding="utf-8"), str(found))
    chosen = RecipeFilter()
    taken = chosen.taken({"data": recipe.get("data", {}), "model": {"class_path": "lovec.modules.SFT"}}, str(source))
    if refused := [left.option for left in chosen.left_out if left.needed]:
        raise LovecError(
            f"{found} sets {', '.join(refused)}, which is not taken from the folder of a run; give "
            f"--config {found} if you trust it, or --data FILE with labelled answers"
        )
    return taken


def _no_labels(session: Session, oracle: Oracle | None, mode: str) -> str | None:
    """Return why nobody can label answers that the model writes; None where the oracle can."""
    if oracle is None:
        return "there is no oracle to label them"
    if mode == BY_SOURCE[FREE_FORM] and not getattr(oracle, "reads_evidence", False):
        return f"{type(oracle).__name__} says what is true, and not what evidence supports"
    if hasattr(oracle, "attach") and session.policy is None:
        return "their judge needs the policy in this process (--engine transformers)"
    return None


def _likelihoods(settings: CalibrateSettings) -> bool:
    return any(name.startswith("logp") for name in settings.features or ())


def _tagged(session: Session, records: Sequence[Record], settings: CalibrateSettings) -> list[Record]:
    """Return labelled answers, tagged as given texts."""
    engine, encoder = session.engine, session.encoder
    given = [bare_statements(record, encoder.tags) for record in records if record.sentences]
    remark(f"{counted(len(given), 'labelled answer is', 'labelled answers are')} tagged")
    if (found := scoring_difference(engine, encoder, given)) is not None:
        remark(found.describe())
        if found.is_large:
            warn(found.advice("--scoring"))
    return IterativeTagger(engine, encoder, "mean", likelihoods=_likelihoods(settings)).tag(given)


def _answered(
    session: Session, records: Sequence[Record], oracle: Oracle | None, settings: CalibrateSettings
) -> list[Record]:
    """Return what the model answers to the questions of records, with their evidence, and how the oracle labels it."""
    assert oracle is not None
    if (attach := getattr(oracle, "attach", None)) is not None:
        attach(session.policy, session.encoder)
    evidence = " with evidence" if any(map(session.encoder.has_source, records)) else ""
    remark(f"{counted(len(records), 'question is', 'questions are')} answered{evidence}, and the answers labelled")
    tagger = FreeFormTagger(
        session.engine,
        session.encoder,
        Sampling(settings.max_new_tokens),
        "mean",
        distributions=True,
        likelihoods=_likelihoods(settings),
    )
    answers = tagger.tag([Record(record.id, record.question, record.evidence, meta=record.meta) for record in records])
    rated = checked_ratings(oracle, answers)
    return [record.with_factuality(row) for record, row in zip(answers, rated, strict=True)]


def _report(mode: str, made: Calibration, fitted: Fitted) -> None:
    """Print what a map does, before and after, and what is promised."""
    report(f"{_KINDS[mode]}: {made.describe()}", made, fitted, list(map(made.describe_guarantee, made.guarantees)))
