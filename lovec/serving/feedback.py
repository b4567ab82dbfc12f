"""What people say of answers that a server gave: kept in a file of numbers, and watched for broken promises and drift.

A response is remembered by what was read of its sentences, without any text, until its verdicts come.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, ClassVar

from pydantic import Field

from lovec.calibration import Calibration, Rated, Watch
from lovec.calibration.features import FEATURES, feature_row
from lovec.core.notices import counted
from lovec.core.plain import PlainObject, Share, Within, checked_number
from lovec.core.provenance import Provenance
from lovec.core.settings import LARGEST
from lovec.datasets.jsonl import read_objects
from lovec.serving.body import read_json
from lovec.serving.wire import MOST_PARTS, RequestRefused, Strict, validated
from lovec.taggers import Session
from lovec.tagging import ApiTagger
from lovec.types import ITERATIVE, MODES, LovecError, Mode, error_in

if TYPE_CHECKING:
    from lovec.serving.responses import Response

log = logging.getLogger(__name__)

_BEGIN = b'{"response_id": '  # of every line of the file

REMEMBERED = 10_000
"""Number of the latest responses that verdicts are taken on."""


class _Verdict(Strict, extra="forbid"):
    index: int = Field(ge=0)
    factuality: float = Field(ge=0, le=1)


class LabelRequest(Strict, extra="forbid"):
    """Verdicts on the sentences of an answer.

    Attributes:
        id: id of the response; of several choices, the first is meant.
        sentences: a verdict on each sentence of the answer that can be judged: its place in `confidence`, from 0, and
            how true it is, from 0 to 1. Sentences that are left out count as ones that nobody can judge.
    """

    id: str
    sentences: list[_Verdict] = Field(min_length=1, max_length=MOST_PARTS)


def _readouts(value: Any, name: str) -> dict[str, float]:
    """Return the readouts in a file, by name."""
    if not isinstance(value, Mapping) or not value.keys() <= FEATURES.keys():
        raise LovecError(f"{name} are {str(value)[:60]!r}, expected an object with keys of {', '.join(FEATURES)}")
    return {key: checked_number(number, f"{key} of {name}", -LARGEST, LARGEST) for key, number in value.items()}


@dataclass(frozen=True, slots=True)
class Reading:
    """What a server has read of a sentence.

    Attributes:
        confidence: what users got, in [0, 1]; None where it had none.
        rank: what thresholds are on, in [0, 1], see ``Calibration.rank``; None without a calibration or a readout.
        readouts: what a calibration can be fitted to, see ``lovec.calibration.features.FEATURES``.
    """

    confidence: float | None
    rank: float | None
    readouts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Verdict(PlainObject):
    """A line of the file: what a server has read of a sentence, and what somebody has said of it.

    Attributes:
        response_id: id of the response.
        index: place of the sentence in it.
        mode: how it was tagged.
        scores: digest of what decides the scores, see `scores_digest`.
        calibration: digest of this and of the calibration.
        confidence: see `Reading`.
        rank: see `Reading`.
        readouts: see `Reading`.
        factuality: the verdict, in [0, 1].
        time: when it came, in UTC.
    """

    what: ClassVar[str] = "a verdict"

    response_id: str
    index: Annotated[int, Within(0, 2**31 - 1)]
    mode: Mode
    scores: str
    calibration: str
    confidence: Share | None
    rank: Share | None
    readouts: Annotated[Mapping[str, float], _readouts]
    factuality: Share
    time: str


@dataclass(frozen=True, slots=True)
class _Remembered:
    mode: Mode
    readings: Sequence[Reading | None]
    """By place; None for what is not a statement."""


class Feedback:
    """Takes verdicts on answers, writes them into a file, and watches them.

    What the file holds is watched again from the start, as far as it is of the same calibration and of scores that are
    decided by the same.

    Args:
        path: the file, JSON Lines; it is made where there is none, and locked.
        session: the model.

    Raises:
        LovecError: the file cannot be written or holds something else, or another server has it.
    """

    def __init__(self, path: str | os.PathLike[str], session: Session | ApiTagger) -> None:
        served = self._served = session.served
        self._scores = scores_digest(session.provenance)
        method = [session.method, session.readout] if isinstance(session, ApiTagger) and session.method else []
        self._calibrations = {
            mode: scores_digest(served.calibration(mode), session.provenance, by=method if mode == ITERATIVE else ())
            for mode in MODES
        }
        promises = {mode: served.calibrations.get(mode) for mode in MODES}
        self.watches = {mode: Watch.over(found.guarantees if found else ()) for mode, found in promises.items()}
        self.sentences = dict.fromkeys(MODES, 0)
        self._remembered: OrderedDict[str, _Remembered | None] = OrderedDict()
        self._remembering, self._writing = threading.Lock(), threading.Lock()
        self._file = _opened(path)
        try:
            others = 0
            for own in read_verdicts(path):
                if self._calibrations[own[0].mode] == own[0].calibration:
                    self._watch(own)
                else:
                    others += 1
        except BaseException:
            self._file.close()
            raise
        if others:
            log.warning(
                "%s of %s are of another model or calibration, and are not watched", counted(others, "answer"), path
            )
        for problem in self.problems():
            log.warning("%s", problem)

    def remember(self, response: Response) -> None:
        """Remember what was read of the sentences of a response that is complete.

        Args:
            response: the response; of several answers only the first is remembered, since they depend on each other.
        """
        calibration = self._served.calibration(response.mode)
        readings = [
            Reading(
                sentence.confidence,
                None if calibration is None else calibration.rank(sentence),
                {name: row[0] for name in FEATURES if (row := feature_row(sentence, [name])) is not None},
            )
            if sentence.is_statement
            else None
            for sentence in response.sentences
        ]
        with self._remembering:
            self._remembered[response.id] = _Remembered(response.mode, readings)
            if len(self._remembered) > REMEMBERED:
                self._remembered.popitem(last=False)

    def take(self, body: bytes) -> dict[str, Any]:
        """Take the verdicts on an answer, and return what there is to say.

        Args:
            body: the bytes of a request.

        Raises:
            RequestRefused: it is none, or its verdicts are on an answer that is unknown or has some already, on
                something else than a statement, or two on one sentence.
        """
        request = validated(LabelRequest, read_json(body))
        with self._remembering:
            if request.id not in self._remembered:
                message = f"there is no response {request.id!r} among the latest {REMEMBERED:,} of this server"
                raise RequestRefused(message, "id", 404)
            remembered = self._remembered[request.id]
            if remembered is None:
                raise RequestRefused(f"there are verdicts on {request.id!r} already", "id", 409)
            verdicts = self._verdicts(request, remembered)
            self._remembered[request.id] = None
        with self._writing:
            before = self.problems()
            try:
                self._append(verdicts)
            except OSError as error:
                with self._remembering:
                    self._remembered[request.id] = remembered
                log.error("verdicts cannot be written: %s", error.strerror)
                raise RequestRefused(
                    "the server cannot write its file of verdicts; its log says why", status=500
                ) from None
            self._watch(verdicts)
            problems = self.problems()
        if len(problems) > len(before):
            for problem in problems:
                log.warning("%s", problem)
        return {"object": "labels", "id": request.id, "sentences": len(verdicts), "problems": problems}

    def problems(self) -> list[str]:
        """Return in one sentence each which promises are broken and which maps have drifted."""
        used = [mode for mode in MODES if self.watches[mode].answers]
        return [
            f"{mode} tagging: {problem}" if len(used) > 1 else problem
            for mode in used
            for problem in self.watches[mode].problems()
        ]

    def close(self) -> None:
        """Close the file, so that another server may have it."""
        self._file.close()

    def _verdicts(self, request: LabelRequest, remembered: _Remembered) -> list[Verdict]:
        time, found = datetime.now(UTC).isoformat(timespec="seconds"), dict[int, Verdict]()
        for at, said in enumerate(request.sentences):
            place, number = f"sentences[{at}].index", said.index
            if number in found:
                raise RequestRefused(f"sentence {number} has two verdicts, expected one", place)
            if not remembered.readings:
                raise RequestRefused("this answer has no sentences, so it takes no verdicts", place)
            if number >= len(remembered.readings):
                last = len(remembered.readings) - 1
                raise RequestRefused(f"there is no sentence {number} in this answer, the last is {last}", place)
            if (reading := remembered.readings[number]) is None:
                raise RequestRefused(f"sentence {number} is not a statement (see its kind); leave it out", place)
            calibration = self._calibrations[remembered.mode]
            read = (reading.confidence, reading.rank, reading.readouts)
            of = (remembered.mode, self._scores, calibration)
            found[number] = Verdict(request.id, number, *of, *read, said.factuality, time)
        return list(found.values())

    def _append(self, verdicts: Iterable[Verdict]) -> None:
        """Write verdicts, all or none of them."""
        end = self._file.seek(0, os.SEEK_END)
        try:
            content = "".join(f"{json.dumps(verdict.to_dict())}\n" for verdict in verdicts).encode()
            if self._file.write(content) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(end)
            raise

    def _watch(self, verdicts: Sequence[Verdict]) -> None:
        """Watch the verdicts on one answer."""
        mode = verdicts[0].mode
        rated = [Rated(verdict.confidence, verdict.rank, verdict.factuality) for verdict in verdicts]
        self.watches[mode] = self.watches[mode].after(rated)
        self.sentences[mode] += len(verdicts)


def read_verdicts(path: str | os.PathLike[str]) -> Iterator[list[Verdict]]:
    """Yield the verdicts on each answer from a file of a server.

    Raises:
        LovecError: the file cannot be read, or holds something else.
    """
    verdicts = (_read(path, number, row) for number, row in read_objects(path))
    for _, group in groupby(verdicts, key=lambda verdict: verdict.response_id):
        yield list(group)


def scores_digest(*of: Calibration | Provenance | None, by: Sequence[str | None] = ()) -> str:
    """Return the digest of what decides the scores of a model, None where it is not known; with a calibration, too.

    Args:
        of: the parts.
        by: the method and the readout that score given texts behind an API.
    """
    parts = [*(None if part is None else part.to_dict() for part in of), *by]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _opened(path: str | os.PathLike[str]) -> BinaryIO:
    """Open and lock the file; a line that was not written to its end, since the machine was stopped, is removed.

    A whole verdict that lacks only its line break, as some editors leave it, gets it.

    Raises:
        LovecError: it cannot be opened, or another server has it.
    """
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "a+b", buffering=0)
    except OSError as error:
        raise LovecError(f"cannot write --feedback {path} ({error.strerror}); give the path of a file") from None
    try:  # filelock locks another file beside it, which would stay there, and of which a link to this one knows nothing
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise LovecError(f"--feedback {path} belongs to another server that is running; give another file") from None
    if not os.path.isfile(path):
        file.close()
        raise LovecError(f"--feedback {path} is not a regular file; give the path of a file")
    content_end = file.seek(0, os.SEEK_END)
    whole = _end_of_lines(file, content_end)
    for begin in {0, whole}:  # of what is not ours nothing is removed
        file.seek(begin)
        if not _BEGIN.startswith(file.read(len(_BEGIN))):
            file.close()
            raise LovecError(
                f"--feedback {path} holds something else than verdicts; give a file that `lovec serve` wrote"
            )
    if whole < content_end:
        file.seek(whole)
        try:
            Verdict.from_dict(json.loads(file.read(content_end - whole)))
        except (LovecError, ValueError):
            log.warning("%s: the last line is not whole and is removed", path)
            file.truncate(whole)
        else:
            file.write(b"\n")
    return file


def _end_of_lines(file: BinaryIO, end: int) -> int:
    """Return where the last line break of the first ``end`` bytes of a file ends; 0 without any."""
    while end > 0:
        begin = max(end - (1 << 16), 0)
        file.seek(begin)
        if (at := file.read(end - begin).rfind(b"\n")) >= 0:
            return begin + at + 1
        end = begin
    return 0


def _read(path: str | os.PathLike[str], number: int, row: Mapping[str, Any]) -> Verdict:
    """Return the verdict of a line.

    Raises:
        LovecError: it holds something else.
    """
    with error_in(f"--feedback {path}:{number}: ", "; give a file that `lovec serve` wrote"):
        return Verdict.from_dict(row)
