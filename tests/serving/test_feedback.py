"""People's verdicts on the answers of a real server: what is taken and refused, kept, watched and calibrated again."""

from __future__ import annotations

import json
import re
import resource
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from served import Server, chat, post, running, served, streamed
from writer import Writer

import lovec.serving.feedback as feedback_module
from lovec.calibration import Promised, Rated, Watch, calibrate, read_calibrations
from lovec.cli import main
from lovec.datasets.jsonl import write_records
from lovec.serving.feedback import Feedback, Verdict, scores_digest
from lovec.taggers import FreeFormTagger, Session, open_session
from lovec.taggers.served_confidence import ServedConfidence
from lovec.types import FREE_FORM, ITERATIVE, LovecError, Mode, Record, Sampling, Sentence

TEXT = "# Ada\n\nAda ran. She wrote a note. It was noon in London."


@pytest.fixture(scope="module")
def session(model: str) -> Iterator[Session]:
    with open_session(model, engine=Writer(), instruction="Rate.", device="cpu") as session:
        yield session


@pytest.fixture(scope="module")
def calibrated(session: Session) -> Session:
    """The session with a calibration that promises, fitted to answers of which half of the sentences are true."""
    tagger = FreeFormTagger(session.engine, session.encoder, Sampling(60), "mean", True)
    tagged = list(tagger.tag([Record(f"q{i}", f"Who was {i}?") for i in range(40)]))
    labelled = [
        r.with_factuality([float((at + n) % 2) for at in range(len(r.sentences))]) for n, r in enumerate(tagged)
    ]
    options: dict[str, Any] = {"adapter": "-", "base": "tiny", "mode": "free-form", "draws": 50}
    made, _ = calibrate(labelled, promised=[Promised(0.2, "errors")], **options)
    # everything is kept, so that answers without a true sentence break the promise
    everything = [replace(g, threshold=float("-inf")) for g in made.guarantees]
    return replace(session, served=ServedConfidence({"free-form": replace(made, guarantees=tuple(everything))}))


def ask(server: Server, number: int = 0, **more: Any) -> dict[str, Any]:
    status, reply = post(server, chat(f"Who was {number}?", max_tokens=60, **more))
    assert status == 200, reply
    return reply


def rate(server: Server, name: str, factuality: Sequence[float] | dict[int, float]) -> tuple[int, dict[str, Any]]:
    pairs = factuality.items() if isinstance(factuality, dict) else enumerate(factuality)
    sentences = [{"index": index, "factuality": value} for index, value in pairs]
    return post(server, json.dumps({"id": name, "sentences": sentences}).encode(), "/v1/labels")


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def value(server: Server, name: str, **labels: str) -> float:
    wanted = ",".join(f'{key}="{text}"' for key, text in sorted(labels.items()))
    [found] = re.findall(rf"^{name}{{{wanted}}} (\S+)$", server.get("/metrics"), re.MULTILINE)
    return float(found)


def test_verdicts_on_every_kind_of_response_are_kept_without_texts(calibrated: Session, tmp_path: Path) -> None:
    file = tmp_path / "new" / "verdicts.jsonl"
    with running(replace(calibrated), feedback=file) as server:
        reply = ask(server)
        entries = reply["choices"][0]["message"]["confidence"]
        status, taken = rate(server, reply["id"], {1: 0, 0: 1})
        assert (status, taken) == (200, {"object": "labels", "id": reply["id"], "sentences": 2, "problems": []})
        [first, *_, last] = streamed(server, chat("Who was 1?", max_tokens=60, stream=True))
        assert first["id"] == last["id"] and rate(server, last["id"], [0.5])[0] == 200
        _, item = post(server, json.dumps({"input": "Who was 2?", "max_output_tokens": 60}).encode(), "/v1/responses")
        assert rate(server, item["id"], [1])[0] == 200
        _, text = post(server, json.dumps({"text": TEXT, "about": "Ada"}).encode(), "/v1/tag")
        assert rate(server, text["id"], {1: 1})[0] == 200
        parts = streamed(server, json.dumps({"text": TEXT, "about": "Ada", "stream": True}).encode(), "/v1/tag")
        assert len({part["id"] for part in parts}) == 1 and rate(server, parts[0]["id"], {3: 0})[0] == 200
        assert value(server, "lovec_rated_answers", mode="free-form") == 3
        assert value(server, "lovec_rated_sentences", mode="free-form") == 4
        assert value(server, "lovec_rated_answers", mode="iterative") == 2
    found = rows(file)
    assert [(row["index"], row["factuality"]) for row in found] == [(1, 0), (0, 1), (0, 0.5), (0, 1), (1, 1), (3, 0)]
    assert [row["mode"] for row in found] == ["free-form"] * 4 + ["iterative"] * 2
    assert {row["response_id"] for row in found[:2]} == {reply["id"]}
    for row in found[:2]:
        assert row["confidence"] == entries[row["index"]]["confidence"]
        assert row["rank"] == row["readouts"].get("mean")
        assert row.keys() == feedback_module.Verdict.__annotations__.keys() - {"what"}
    content = file.read_text()
    assert not any(entry["text"] in content for entry in entries) and "Ada" not in content


def test_what_is_refused(calibrated: Session, tmp_path: Path) -> None:
    file = tmp_path / "verdicts.jsonl"
    with running(replace(calibrated), feedback=file) as server:
        name = ask(server)["id"]
        _, text = post(server, json.dumps({"text": TEXT, "about": "Ada"}).encode(), "/v1/tag")
        for body, status, parameter, words in [
            ({"id": "chatcmpl-0", "sentences": [{"index": 0, "factuality": 1}]}, 404, "id", "no response 'chatcmpl-0'"),
            ({"id": name, "sentences": [{"index": 0, "factuality": 1.5}]}, 400, "sentences[0].factuality", "less than"),
            ({"id": name, "sentences": [{"index": 0, "factuality": -1}]}, 400, "sentences[0].factuality", "greater"),
            ({"id": name, "sentences": [{"index": 0, "factuality": True}]}, 400, "sentences[0].factuality", "number"),
            ({"id": name, "sentences": [{"index": 0, "factuality": "1"}]}, 400, "sentences[0].factuality", "number"),
            ({"id": name, "sentences": [{"index": 0}]}, 400, "sentences[0].factuality", "required"),
            ({"id": name, "sentences": [{"index": -1, "factuality": 1}]}, 400, "sentences[0].index", "greater"),
            ({"id": name, "sentences": [{"index": 99, "factuality": 1}]}, 400, "sentences[0].index", "no sentence 99"),
            ({"id": name, "sentences": []}, 400, "sentences", "at least 1"),
            ({"id": name, "sentences": [{"index": 0, "factuality": 1}], "by": "x"}, 400, "by", "Extra inputs"),
            ({"id": name, "sentences": [{"index": 0, "factuality": 1}] * 2}, 400, "sentences[1].index", "two verdicts"),
            (
                {"id": text["id"], "sentences": [{"index": 0, "factuality": 1}]},
                400,
                "sentences[0].index",
                "not a statement",
            ),
        ]:
            found, reply = post(server, json.dumps(body).encode(), "/v1/labels")
            assert (found, reply["error"]["param"]) == (status, parameter), reply
            assert words in reply["error"]["message"]
        empty = ask(server, 1, stop=ask(server, 1)["choices"][0]["message"]["content"][0])
        assert not empty["choices"][0]["message"]["confidence"]
        status, reply = rate(server, empty["id"], [1])
        assert status == 400 and "this answer has no sentences" in reply["error"]["message"]
        assert post(server, b"{}", "/v1/labels", Authorization="Bearer wrong")[0] == 401
        assert file.read_text() == ""
        assert rate(server, name, [1])[0] == 200
        assert rate(server, name, {1: 1})[0] == 409  # the first verdicts count
        assert len(rows(file)) == 1
    with running(replace(calibrated)) as server:
        status, reply = rate(server, "chatcmpl-0", [1])
        assert status == 404 and "--feedback FILE" in reply["error"]["message"]


def test_only_the_latest_responses_are_remembered(
    calibrated: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feedback_module, "REMEMBERED", 3)
    with running(replace(calibrated), feedback=tmp_path / "verdicts.jsonl") as server:
        names = [ask(server, number)["id"] for number in range(4)]
        assert [rate(server, name, [1])[0] for name in names] == [404, 200, 200, 200]
        several = ask(server, n=2, temperature=1.0)
        first = several["choices"][0]["message"]["confidence"]
        assert rate(server, several["id"], [1] * len(first))[0] == 200


def test_a_broken_promise_is_said_everywhere_and_after_a_restart(
    calibrated: Session, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "verdicts.jsonl"
    labels = {"mode": "free-form", "promise": "errors", "keep_factual": "0.8"}
    with running(replace(calibrated), feedback=file) as server:
        assert value(server, "lovec_promise_e_value", **labels) == 1
        assert "People's verdicts" not in server.get("/")
        sizes = []
        for number in range(12):
            reply = ask(server, number)
            sizes.append(len(reply["choices"][0]["message"]["confidence"]))
            _, taken = rate(server, reply["id"], [0] * sizes[-1])
        watched = value(server, "lovec_promise_e_value", **labels)
        assert watched >= 100 and value(server, "lovec_promise_broken", **labels) == 1
        assert value(server, "lovec_promise_loss", **labels) > 0.2
        assert value(server, "lovec_map_drifted", mode="iterative") == 0
        [problem, *_] = taken["problems"]
        assert problem.startswith("a promise does not hold: the kept sentences that are not true")
        page = server.get("/")
        assert (
            "People's verdicts on earlier answers: a promise does not hold" in page and page.count('id="problems"') == 1
        )
    assert sum(problem.split(";")[0] in record.message for record in caplog.records) == 1  # said once
    with running(replace(calibrated), feedback=file) as server:
        assert value(server, "lovec_promise_e_value", **labels) == pytest.approx(watched)
        assert value(server, "lovec_rated_sentences", mode="free-form") == sum(sizes)
        assert "a promise does not hold" in server.get("/")
        assert rate(server, rows(file)[0]["response_id"], [1])[0] == 404  # of another process
    other = calibrated.served.calibrations["free-form"]
    again = ServedConfidence({"free-form": replace(other, guarantees=())})
    with running(replace(calibrated, served=again), feedback=file) as server:
        assert value(server, "lovec_rated_answers", mode="free-form") == 0
        assert "12 answers of" in caplog.text and "another model or calibration" in caplog.text
    assert len(rows(file)) == sum(sizes)


def test_the_state_is_that_of_the_answers_one_by_one(calibrated: Session, tmp_path: Path) -> None:
    file = tmp_path / "verdicts.jsonl"
    with running(replace(calibrated), feedback=file) as server:
        names = [ask(server, number)["id"] for number in range(8)]
        with ThreadPoolExecutor(8) as pool:
            assert {status for status, _ in pool.map(lambda name: rate(server, name, [1, 0]), names)} == {200}
    watch = Watch.over(calibrated.served.calibrations["free-form"].guarantees)
    found = rows(file)
    assert len(found) == 16
    for first, second in zip(found[::2], found[1::2], strict=True):
        assert first["response_id"] == second["response_id"]
        watch = watch.after([Rated(row["confidence"], row["rank"], row["factuality"]) for row in (first, second)])
    taken = Feedback(file, calibrated)
    assert taken.watches["free-form"] == watch and taken.sentences["free-form"] == 16
    taken.close()


def test_a_model_without_a_calibration_has_its_confidences_watched(session: Session, tmp_path: Path) -> None:
    with running(replace(session), feedback=tmp_path / "verdicts.jsonl") as server:
        assert rate(server, ask(server)["id"], [1, 1])[0] == 200
        assert value(server, "lovec_map_e_value", mode="free-form") != 1
        assert "lovec_promise_e_value{" not in server.get("/metrics")
    assert {row["rank"] for row in rows(tmp_path / "verdicts.jsonl")} == {None}


def test_a_line_that_is_not_whole_is_removed_and_other_files_are_refused(
    calibrated: Session, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "verdicts.jsonl"
    with running(replace(calibrated), feedback=file) as server:
        assert rate(server, ask(server)["id"], [1, 1])[0] == 200
        with pytest.raises(LovecError, match="belongs to another server that is running"):
            Feedback(file, calibrated)
    whole = file.read_text()
    file.write_text(whole + whole.splitlines()[0][:40])
    Feedback(file, calibrated).close()
    assert file.read_text() == whole and "the last line is not whole" in caplog.text
    caplog.clear()
    file.write_text(whole.removesuffix("\n"))  # as some editors save it
    Feedback(file, calibrated).close()
    assert file.read_text() == whole and not caplog.text
    file.write_text(whole + '{"response_id": "q1", "question": "Who?"}\n')
    with pytest.raises(
        LovecError, match=r"verdicts.jsonl:3: a verdict (lacks|has the unknown key) .* expected the keys"
    ):
        Feedback(file, calibrated)
    file.write_text(whole.replace('"factuality": 1.0', '"factuality": 7'))
    with pytest.raises(
        LovecError, match=r"verdicts.jsonl:1: factuality of a verdict is 7, expected a number from 0 to 1"
    ):
        Feedback(file, calibrated)
    with pytest.raises(LovecError, match="cannot write --feedback"):
        Feedback(tmp_path, calibrated)
    for stranger in ("my notes, without an end", "notes\nwithout an end", f"{whole}notes", '{"id": 1}\n{"id'):
        file.write_text(stranger)
        with pytest.raises(LovecError, match="holds something else than verdicts"):
            Feedback(file, calibrated)
        assert file.read_text() == stranger


def test_the_command_serves_and_the_file_is_calibrated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "verdicts.jsonl"
    server = served(tmp_path, "--feedback", str(file))
    text = json.dumps({"text": "Ada ran. She wrote a note. It was noon. Bob sat. Eve left the house.", "about": "Ada"})
    for number in range(12):
        _, reply = post(server, text.encode(), "/v1/tag")
        assert rate(server, reply["id"], [float((number + at) % 3 > 0) for at in range(5)])[0] == 200
    size = file.stat().st_size
    # no room on the disk but for a part of a line
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))
    _, reply = post(server, text.encode(), "/v1/tag")
    status, error = rate(server, reply["id"], [1, 1])
    assert status == 500 and "cannot write its file of verdicts" in error["error"]["message"]
    assert file.stat().st_size == size and value(server, "lovec_rated_answers", mode="iterative") == 12
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert rate(server, reply["id"], [1, 1])[0] == 200
    openapi = json.loads(server.get("/openapi.json"))
    assert "LabelRequest" in openapi["components"]["schemas"] and "/v1/labels" in openapi["paths"]
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 143
    for flags in (["--out", str(tmp_path / "users")], ["--confidence", "readouts.mean", "--keep_factual", "0.5"]):
        assert main(["calibrate", str(file), "--draws", "20", *flags]) == 0
        assert "13 groups" in capsys.readouterr().out
    for folder, column in (("users", "confidence"), ("verdicts.calibration", "readouts.mean")):
        made = json.loads((tmp_path / folder / "calibration.json").read_text())
        assert (made["group"], [one["key"] for one in made["columns"]]) == ("response_id", [column])


def test_a_run_is_calibrated_again_from_the_verdicts_of_its_server(
    adapter: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server is told that most of what was true when it was calibrated is wrong; the next one says so."""
    run, file, labels = tmp_path / "run", tmp_path / "verdicts.jsonl", tmp_path / "labels.jsonl"
    shutil.copytree(adapter, run / "adapter")
    texts = [[f"Ada ran {n} miles.", f"She wrote {n} notes.", "It was noon.", "Bob sat."] for n in range(30)]
    records = [
        Record(
            f"t{n}", f"t{n}", sentences=tuple(Sentence(s, factuality=float((n + at) % 8 > 0)) for at, s in enumerate(t))
        )
        for n, t in enumerate(texts)
    ]
    write_records(labels, records)
    calibrate_run = ["calibrate", str(run), "--device", "cpu"]
    assert main([*calibrate_run, "--data", str(labels), "--keep_factual", "0.8", "--promise", "errors"]) == 0
    [first] = read_calibrations(run / "adapter").values()

    def confidences(server: Server, text: Sequence[str]) -> tuple[str, list[float]]:
        _, reply = post(server, json.dumps({"text": " ".join(text), "about": "Ada"}).encode(), "/v1/tag")
        return reply["id"], [entry["confidence"] for entry in reply["confidence"]]

    with running(open_session(adapter=str(run), device="cpu"), feedback=file) as server:
        for n, text in enumerate(texts):
            name, was = confidences(server, text)
            status, taken = rate(server, name, [float((n + at) % 4 == 0) for at in range(4)])
            assert status == 200
        assert "a promise does not hold" in taken["problems"][0]
    capsys.readouterr()
    assert main([*calibrate_run, "--feedback", str(file)]) == 0
    out = capsys.readouterr().out
    assert "given texts (iterative tagging)" in out and "120 sentences of 30 answers" in out
    assert "the threshold before: --keep_factual 0.8" in out
    [again] = read_calibrations(run / "adapter").values()
    assert (again.readout, again.levels, again.base) == (first.readout, first.levels, first.base)
    assert [(g.kind, g.alpha) for g in again.guarantees] == [("errors", 0.2)]
    assert again.guarantees[0].threshold > first.guarantees[0].threshold
    told = [row["confidence"] for row in rows(file)]
    truth = [row["factuality"] for row in rows(file)]
    brier = sum((c - f) ** 2 for c, f in zip(told, truth, strict=True)) / len(told)
    assert again.fitted.metrics["before"]["brier"][0] == pytest.approx(brier)  # what users got
    with running(open_session(adapter=str(run), device="cpu"), feedback=file) as server:
        name, now = confidences(server, texts[-1])
        assert max(now) < 0.6 < min(was)
        assert rate(server, name, [1, 0, 0, 0])[1]["problems"] == []  # the alarm was of the first calibration
    assert main([*calibrate_run, "--feedback", str(file)]) == 0  # of both: the scores are the same
    assert "124 sentences of 31 answers" in capsys.readouterr().out
    stranger = tmp_path / "stranger.jsonl"
    stranger.write_text(file.read_text().replace(rows(file)[0]["scores"], "0" * 16))
    for words, said in (
        ((str(stranger),), "verdicts on 31 answers, none of them of this model"),
        ((str(labels),), "give a file that `lovec serve` wrote"),
        ((str(file), "--data", str(labels)), "--data and --feedback say what to fit to"),
    ):
        assert main([*calibrate_run, "--feedback", *words]) > 0 and said in capsys.readouterr().err


def test_few_verdicts_leave_the_calibration_of_their_kind_as_it_is(
    adapter: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, file = tmp_path / "run", tmp_path / "verdicts.jsonl"
    shutil.copytree(adapter, run / "adapter")
    with open_session(adapter=str(run), device="cpu") as session:
        scores = scores_digest(session.provenance)

    def calibrated_from(rated: Mapping[Mode, int]) -> tuple[int, str, dict[str, Any]]:
        """Return the exit code, what is said and the calibrations, given the number of answers of each kind."""
        verdicts = [
            Verdict(f"{mode}-{n}", at, mode, scores, "", c, c, {"mean": c}, float((n + at) % 2), "")
            for mode, answers in rated.items()
            for n in range(answers)
            for at, c in enumerate(((n % 7) / 7, 0.1 + (n % 5) / 6))
        ]
        file.write_text("".join(f"{json.dumps(verdict.to_dict())}\n" for verdict in verdicts))
        code = main(["calibrate", str(run), "--feedback", str(file)])
        told = capsys.readouterr()
        return code, told.out + told.err, dict(read_calibrations(run / "adapter"))

    code, said, first = calibrated_from({FREE_FORM: 40, ITERATIVE: 1})  # of texts there is nothing to keep
    assert code == 0 and "given texts (iterative tagging) get no map: the labelled sentences are all of one" in said
    assert set(first) == {FREE_FORM}
    code, said, again = calibrated_from({FREE_FORM: 29, ITERATIVE: 3})  # nor now, so that they get a map, and a warning
    assert code == 0 and "below 200 sentences or 30 passages" in said
    assert "(free-form tagging) keep the calibration that is there" in said and "mean on 29 answers" in said
    assert again[FREE_FORM] == first[FREE_FORM] and again[ITERATIVE].fitted.passages == 3
    code, said, left = calibrated_from({FREE_FORM: 29})
    assert code == 1 and "expected 30 or more to replace it" in said and left == again
    code, _, last = calibrated_from({FREE_FORM: 30})
    assert code == 0 and last[FREE_FORM].fitted.passages == 30 and last[ITERATIVE] == again[ITERATIVE]
