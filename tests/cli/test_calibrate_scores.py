"""``lovec calibrate FILE``, ``lovec apply`` and ``lovec score --calibration``: files of any origin, from end to end."""

from __future__ import annotations

import csv
import json
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from answers import answers
from commandline import error_of, write_rows

import lovec
import lovec.reports.scores
from lovec.calibration import Promised, calibrate, calibrate_scores
from lovec.calibration.scores import Column, ScoreCalibration, calibrate_columns, calibration_text
from lovec.cli import main
from lovec.datasets.jsonl import write_records
from lovec.datasets.rows import read_rows
from lovec.metrics.functional import ece_m


def made_rows(groups: int, seed: int = 0) -> list[dict[str, object]]:
    """Rows of a table: four per question, surer than they should be."""
    rng = np.random.default_rng(seed)
    odds = rng.normal(size=4 * groups) + np.repeat(rng.normal(size=groups), 4)
    truth = rng.random(4 * groups) < 1 / (1 + np.exp(-(odds - 0.7)))
    return [
        {
            "question": f"What is {at // 4}?",
            "text": f'A text, number "{at}"',
            "p_true": round(float(1 / (1 + np.exp(-odds[at]))), 4),
            "entropy": round(float(5 - 2 * odds[at] + rng.normal()), 3),
            "rarity": "rare" if at // 4 % 3 == 0 else "famous",
            "correct": int(truth[at]),
        }
        for at in range(4 * groups)
    ]


def judged_rows() -> list[dict[str, object]]:
    """Rows of which a judge has labelled all, and people some."""
    return [
        {**row, "human": row["correct"] if at < 160 else "", "gpt": int(row["correct"] or at % 5 == 0)}
        for at, row in enumerate(made_rows(200))
    ]


def table(path: str, separator: str = ",") -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file, delimiter=separator))


def fitted(*words: str) -> None:
    assert main(["calibrate", *words, "--draws", "20"]) == 0


@pytest.fixture(autouse=True)
def _plots_where_they_are_tested(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots take most of the time of these commands: only the test that looks at them has them drawn."""
    if request.function is not test_a_table_gets_calibrated_confidences_and_a_threshold:
        monkeypatch.setattr(lovec.reports.scores, "_plots", lambda scores, folder: ())


def test_a_table_gets_calibrated_confidences_and_a_threshold(here, capsys):
    write_rows("labelled.csv", made_rows(150))
    new = made_rows(300, seed=1)
    write_rows("new.csv", new)
    fitted("labelled.csv", "--keep_factual", "[0.8, 0.7]")
    out, err = capsys.readouterr()
    assert "columns guessed: confidence = p_true; label = correct; group = question" in err
    assert "confidence: p_true, calibrated (" in out and "600 rows of 150 groups" in out
    assert "--keep_factual 0.8: all kept rows of a group are true" in out and "those with p_true above 0." in out
    page = Path("labelled.calibration/index.html").read_text()
    assert page.count("<svg") == 2 and "calibrated, cross-fitted" in page and "those with p_true above" in page
    assert main(["apply", "labelled.calibration", "new.csv", "--keep_factual", "0.8"]) == 0
    rows = table("new.calibrated.csv")
    calibration = lovec.load_calibration("labelled.calibration")
    scores = [row["p_true"] for row in new]
    found = [float(row["calibrated"]) for row in rows]
    assert found == pytest.approx(calibration(scores).tolist(), abs=1e-6)
    assert [row["kept"] == "true" for row in rows] == calibration.keeps(scores, keep_factual=0.8).tolist()
    assert [{k: v for k, v in row.items() if k not in ("calibrated", "kept")} for row in rows] == table("new.csv")
    truth = [row["correct"] for row in new]
    assert float(ece_m(found, truth)) < 0.04 < float(ece_m(scores, truth))
    capsys.readouterr()
    assert main(["score", "new.csv", "--calibration", "labelled.calibration", "--draws", "20"]) == 0
    out = capsys.readouterr().out
    (held,) = [line for line in out.splitlines() if line.startswith("--keep_factual 0.8:")]
    kept = [row["kept"] == "true" for row in rows]
    whole = [all(t for t, k in zip(truth[a : a + 4], kept[a : a + 4], strict=True) if k) for a in range(0, 1200, 4)]
    assert f"nothing false is kept in {sum(whole) / 3:.1f} % of 300 groups" in held and sum(whole) / 300 > 0.74
    methods = {row["method"]: row for row in json.loads(Path("new.score/results.json").read_text())["rows"]}
    assert methods["calibrated"]["metrics"]["ece_m"] < methods["p_true"]["metrics"]["ece_m"]
    assert main(["score", "labelled.csv", "--calibration", "labelled.calibration", "--draws", "0"]) == 0
    assert "fitted to this very file" in capsys.readouterr().out


def test_the_page_has_the_intervals_that_are_printed(here, capsys):
    # By their names, groups of which there are more than 10 come in another order.
    write_rows("labelled.csv", made_rows(60))
    fitted("labelled.csv")
    lines = capsys.readouterr().out.splitlines()
    page = Path("labelled.calibration/tables/scores.md").read_text()
    for metric in ("BS", "ECE-M"):
        (line,) = [line for line in lines if line.startswith(f"  {metric} ")]
        before, after = re.findall(r"[\d.]+ \([\d.]+ to [\d.]+\)", line)
        assert before in page and after in page


def test_the_help_says_what_several_columns_are(capsys):
    assert main(["calibrate", "labelled.csv", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "given several times, all are combined into one confidence" in said and "intervals, at least 1" in said
    assert "each is a method" not in said and "only their order" not in said
    assert main(["score", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "given several times, each is a method" in said and "only their order is measured" in said


def test_what_is_not_kept_can_be_left_out(here, capsys):
    write_rows("labelled.csv", made_rows(100))
    write_rows("new.jsonl", made_rows(50, seed=1))
    fitted("labelled.csv", "--uncertainty", "entropy", "--keep_factual", "0.8")
    for words, rule in (
        (["--keep_factual", "0.8"], lambda c, scores: c.keeps(scores, keep_factual=0.8)),
        (["--min_confidence", "0.6"], lambda c, scores: c(scores) >= 0.6),
    ):
        assert main(["apply", "labelled.calibration", "new.jsonl", *words, "--drop", "--redo"]) == 0
        calibration = lovec.load_calibration("labelled.calibration/calibration.json")
        all_rows = [json.loads(line) for line in Path("new.jsonl").read_text().splitlines()]
        keep = rule(calibration, [row["entropy"] for row in all_rows])
        rows = [json.loads(line) for line in Path("new.calibrated.jsonl").read_text().splitlines()]
        assert 0 < len(rows) < 200 and all(row["kept"] is True for row in rows)
        assert [row["text"] for row in rows] == [r["text"] for r, kept in zip(all_rows, keep, strict=True) if kept]
    assert main(["apply", "labelled.calibration", "new.jsonl", "--out", "new.tsv"]) == 0
    assert Path("new.tsv").read_text().splitlines()[0].split("\t")[-1] == "calibrated"
    words = ["--min_confidence", "1", "--drop", "--out", "none.csv"]
    assert main(["apply", "labelled.calibration", "new.jsonl", *words]) == 0
    assert Path("none.csv").read_text() == ",".join([*made_rows(1)[0], "calibrated", "kept"]) + "\n"
    shifted = [{**row, "entropy": row["entropy"] + 6} for row in made_rows(50, seed=1)]
    write_rows("shifted.jsonl", shifted)
    capsys.readouterr()
    assert main(["apply", "labelled.calibration", "shifted.jsonl"]) == 0
    assert "warning: these 200 rows look unlike those that the calibration was fitted to" in capsys.readouterr().err


def test_promises_for_each_kind_by_itself(here, capsys):
    write_rows("labelled.csv", made_rows(150))
    new = [*made_rows(20, seed=1), {**made_rows(1)[0], "rarity": "unheard of"}]
    write_rows("new.csv", new)
    fitted("labelled.csv", "--keep_factual", "0.7", "--promise_by", "rarity")
    assert "--keep_factual 0.7 for each rarity by itself: famous keeps " in capsys.readouterr().out
    assert main(["apply", "labelled.calibration", "new.csv", "--keep_factual", "0.7"]) == 0
    err = capsys.readouterr().err
    assert "promised for each rarity by itself: all kept rows" in err
    assert "warning: nothing is kept of what the calibration has not seen: unheard of" in err
    calibration = lovec.load_calibration("labelled.calibration")
    kept = calibration.keeps([row["p_true"] for row in new], keep_factual=0.7, by=[row["rarity"] for row in new])
    assert [row["kept"] == "true" for row in table("new.calibrated.csv")] == kept.tolist() and not kept[-1]
    assert main(["score", "new.csv", "--calibration", "labelled.calibration", "--draws", "0"]) == 0
    assert "rarity rare, --keep_factual 0.7: nothing false is kept in" in capsys.readouterr().out


def test_a_missing_threshold_is_computed_with_the_promise_that_is_there(here, capsys):
    write_rows("labelled.csv", made_rows(100))
    promise = ["--promise", "share", "--share", "0.6", "--true_from", "0.4", "--promise_by", "rarity"]
    fitted("labelled.csv", "--keep_factual", "0.6", *promise)
    code, said = error_of(capsys, "apply", "labelled.calibration", "labelled.csv", "--keep_factual", "0.7")
    assert code == 1
    again = shlex.split(said.split("`")[1].replace("FILE", "labelled.csv"))[2:]
    fitted(*again)
    guarantees = lovec.load_calibration("labelled.calibration").guarantees
    assert [(found.keep_factual, found.kind, found.share, found.true_from) for found in guarantees] == [
        (0.6, "share", 0.6, 0.4),
        (0.7, "share", 0.6, 0.4),
    ]
    assert main(["apply", "labelled.calibration", "labelled.csv", "--keep_factual", "0.7"]) == 0
    assert "promised for each rarity by itself: " in capsys.readouterr().err


def test_new_rows_without_their_kinds_are_refused_where_promises_are_by_kind(here, capsys):
    write_rows("labelled.csv", made_rows(100))
    fitted("labelled.csv", "--keep_factual", "0.6", "--promise_by", "rarity")
    without = [{name: value for name, value in row.items() if name != "rarity"} for row in made_rows(20, seed=1)]
    for name in ("without.csv", "without.jsonl"):
        write_rows(name, without)
        code, said = error_of(capsys, "apply", "labelled.calibration", name, "--keep_factual", "0.6")
        assert code == 1 and f"{name}: no row has a kind in the column 'rarity'; its columns are question" in said
        assert not Path(name.replace(".", ".calibrated.")).exists()
    assert main(["apply", "labelled.calibration", "without.csv", "--min_confidence", "0.5"]) == 0
    write_rows("empty.csv", [{**row, "rarity": ""} for row in without])
    capsys.readouterr()
    assert main(["apply", "labelled.calibration", "empty.csv", "--keep_factual", "0.6"]) == 0
    assert "warning: nothing is kept of what the calibration has not seen: (none)" in capsys.readouterr().err
    assert {row["kept"] for row in table("empty.calibrated.csv")} == {"false"}


def test_tagged_records_give_what_the_calibration_of_their_run_would(here, capsys):
    records = answers(50)
    write_records("tagged.jsonl", records)
    fitted("tagged.jsonl", "--keep_factual", "0.8")
    own, _ = calibrate(
        records, adapter="a", base="b", mode="iterative", promised=[Promised.keep_factual(0.8)], draws=20
    )
    made = lovec.load_calibration("tagged.calibration")
    assert made.map == own.map and made.guarantees == own.guarantees and made.layout == "lovec"
    assert main(["apply", "tagged.calibration", "tagged.jsonl", "--keep_factual", "0.8"]) == 0
    rows = [json.loads(line) for line in Path("tagged.calibrated.jsonl").read_text().splitlines()]
    sentences = [(record.id, sentence) for record in records for sentence in record.sentences]
    assert [(row["id"], row["text"]) for row in rows] == [(name, sentence.text) for name, sentence in sentences]
    assert [row["calibrated"] for row in rows] == pytest.approx([own.confidence(s) for _, s in sentences], abs=1e-6)
    assert [row["kept"] for row in rows] == [own.keeps(s, own.guarantees[0]) for _, s in sentences]


def uqlm(groups: int, seed: int = 0, graded: bool = True) -> dict[str, object]:
    """Results of uqlm as it writes them, one claim list per answer."""
    rng = np.random.default_rng(seed)
    data: dict[str, list[object]] = {"prompts": [], "responses": [], "claims_data": []}
    for at in range(groups):
        odds = rng.normal(size=5) + rng.normal()
        claims = [
            {"claim": f"Claim {i} of {at}.", "removed": False, "entailment": round(float(1 / (1 + np.exp(-z))), 4)}
            | ({"correct": bool(rng.random() < 1 / (1 + np.exp(-2 * z)))} if graded else {})
            for i, z in enumerate(odds)
        ]
        data["prompts"].append(f"Question {at}?")
        data["responses"].append(f"Answer {at}.")
        data["claims_data"].append(claims)
    return {"data": data, "metadata": {}}


def test_results_of_uqlm_from_nothing_to_a_threshold(here, capsys):
    Path("uqlm.json").write_text(json.dumps(uqlm(80)))
    Path("new.json").write_text(json.dumps(uqlm(30, seed=1, graded=False)))
    fitted("uqlm.json", "--keep_factual", "0.7")
    assert "confidence: entailment, calibrated (" in capsys.readouterr().out
    assert main(["apply", "uqlm.calibration", "new.json", "--keep_factual", "0.7", "--drop"]) == 0
    rows = [json.loads(line) for line in Path("new.calibrated.jsonl").read_text().splitlines()]
    assert 0 < len(rows) < 150 and set(rows[0]) == {"id", "question", "text", "entailment", "calibrated", "kept"}
    expected = lovec.load_calibration("uqlm.calibration")([row["entailment"] for row in rows]).tolist()
    assert [row["calibrated"] for row in rows] == pytest.approx(expected, abs=1e-6)


def saved(name: str, made: ScoreCalibration) -> str:
    Path(name).mkdir()
    Path(name, "calibration.json").write_text(calibration_text(made))
    return name


def test_the_columns_of_a_table_stay_as_they_are(here):
    rows = made_rows(20)
    made, _ = calibrate_scores({"p": [row["p_true"] for row in rows]}, [row["correct"] for row in rows], draws=1)
    saved("made", made)
    cells = ["[1.10]", "{1: 2}", "['a', None]", " [1,2] ", "1e3", "nan", "", '"', "a\nb", "true"]
    with open("new.csv", "w", newline="") as file:
        csv.writer(file, delimiter=";").writerows(
            [["p", "other"], *([f"0.{at}", cell] for at, cell in enumerate(cells))]
        )
    assert main(["apply", "made", "new.csv"]) == 0
    assert [(row["p"], row["other"]) for row in table("new.calibrated.csv", ";")] == [
        (f"0.{at}", cell) for at, cell in enumerate(cells)
    ]
    assert main(["apply", "made", "new.csv", "--out", "new.jsonl"]) == 0  # which has lists and objects of its own
    others = [json.loads(line)["other"] for line in Path("new.jsonl").read_text().splitlines()]
    assert others[:4] == [[1.1], {"1": 2}, ["a", None], [1, 2]] and others[6] is None
    # what is read of a list is its numbers, also where the list is written again as it was
    Path("lists.csv").write_text('p,other\n"[0.10, 0.90]",[1.10]\n')
    assert main(["apply", "made", "lists.csv"]) == 0
    [row] = table("lists.calibrated.csv")
    assert (row["p"], row["other"]) == ("[0.10, 0.90]", "[1.10]")
    assert json.loads(row["calibrated"]) == pytest.approx(made([0.1, 0.9]).tolist(), abs=1e-6)


def test_a_table_is_written_as_it_was_read(here):
    rows = made_rows(20)
    made, _ = calibrate_scores({"p": [row["p_true"] for row in rows]}, [row["correct"] for row in rows], draws=1)
    saved("made", made)
    Path("de.csv").write_bytes("\ufefftext;p\r\nFür;0,25\r\nWider;1\r\n;\r\n".encode())
    low, high = (f"{value:.6g}".replace(".", ",") for value in made([0.25, 1.0]).tolist())
    assert main(["apply", "made", "de.csv"]) == 0
    written = f"\ufefftext;p;calibrated\r\nFür;0,25;{low}\r\nWider;1;{high}\r\n;;\r\n"
    assert Path("de.calibrated.csv").read_bytes() == written.encode()
    assert main(["apply", "made", "de.csv", "--out", "de.tsv"]) == 0
    assert Path("de.tsv").read_bytes().startswith(f"text\tp\tcalibrated\nFür\t0,25\t{low}\n".encode())
    Path("en.csv").write_text('text,p\n"A, b",0.25\n')
    assert main(["apply", "made", "en.csv"]) == 0
    assert Path("en.calibrated.csv").read_text() == f'text,p,calibrated\n"A, b",0.25,{low.replace(",", ".")}\n'


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        ('p\n0.5\n\n0.9\n""\n0.1\n', ["0.5", "0.9", "", "0.1"]),
        ("p,note\n0.5,a\n,\n0.9,b\n,\n", ["0.5", "", "0.9", ""]),
    ],
)
def test_rows_without_any_value_stay_rows(here, capsys, text, scores):
    rows = made_rows(20)
    made, _ = calibrate_scores({"p": [row["p_true"] for row in rows]}, [row["correct"] for row in rows], draws=1)
    saved("made", made)
    Path("new.csv").write_text(text)
    assert main(["apply", "made", "new.csv"]) == 0
    found = table("new.calibrated.csv")
    assert [row["p"] for row in found] == scores == [row["p"] for row in table("new.csv")]
    assert [row["calibrated"] == "" for row in found] == [score == "" for score in scores]
    assert f"4 rows; {scores.count('')} without a score get no confidence" in capsys.readouterr().err
    assert main(["apply", "made", "new.csv", "--out", "new.jsonl"]) == 0
    assert [json.loads(line)["p"] or "" for line in Path("new.jsonl").read_text().splitlines()] == scores
    [(_, *_), *_] = read = list(read_rows("new.csv"))
    assert [row["p"] for _, row in read] == [
        score for score in scores if score
    ]  # who reads scores only leaves them out


def test_infinity_in_a_column_of_parquet(here, capsys):
    rows = made_rows(20)
    made, _ = calibrate_scores({"p": [row["p_true"] for row in rows]}, [row["correct"] for row in rows], draws=1)
    saved("made", made)
    others = [math.inf, -math.inf, math.nan, 1.5]
    pyarrow.parquet.write_table(
        pyarrow.table({"p": [0.5, 0.6, 0.7, 0.8], "x": others, "deep": [[x] for x in others]}), "x.parquet"
    )
    assert main(["apply", "made", "x.parquet"]) == 0
    found = [json.loads(line) for line in Path("x.calibrated.jsonl").read_text().splitlines()]
    assert [(row["x"], row["deep"]) for row in found] == [(x, [x]) for x in ("inf", "-inf", None, 1.5)]
    pyarrow.parquet.write_table(pyarrow.table({"p": [0.5, math.inf]}), "p.parquet")
    said = error_of(capsys, "apply", "made", "p.parquet")[1]
    assert said == 'p.parquet:2: confidence is "inf", expected a number'


def test_a_column_in_single_precision_keeps_what_a_table_of_text_does(here, capsys):
    rng = np.random.default_rng(0)
    scores = rng.integers(1, 11, 1200)
    rows = [
        {"confidence": int(score) / 10, "correct": int(rng.random() < score / 10), "kind": "ab"[at % 2]}
        for at, score in enumerate(scores)
    ]
    write_rows("old.csv", rows)
    write_rows("new.csv", rows[::-1])
    columns = {name: [row[name] for row in rows[::-1]] for name in rows[0]}
    columns["confidence"] = pyarrow.array(columns["confidence"], pyarrow.float32())
    pyarrow.parquet.write_table(pyarrow.table(columns), "single.parquet")
    fitted("old.csv", "--keep_factual", "0.7", "--promise_by", "kind")
    said = []
    for name, applied in (("new.csv", "new.calibrated.csv"), ("single.parquet", "single.calibrated.jsonl")):
        assert main(["apply", "old.calibration", name, "--keep_factual", "0.7"]) == 0
        capsys.readouterr()
        assert main(["score", name, "--calibration", "old.calibration", "--draws", "0"]) == 0
        promises = re.findall("--keep_factual 0.7: .* kept", capsys.readouterr().out)
        found = [(float(row["calibrated"]), str(row["kept"]).lower()) for _, row in read_rows(applied)]
        said.append((found, promises))
    assert said[0] == said[1] and {kept for _, kept in said[0][0]} == {"true", "false"} and len(said[0][1]) == 3


def test_columns_of_a_calibration_may_stand_in_any_order(here, capsys):
    rows = made_rows(60)
    write_rows("new.csv", rows)
    scores = {name: [row[name] for row in rows] for name in ("entropy", "p_true")}
    truth, groups = [row["correct"] for row in rows], [row["question"] for row in rows]
    options = {"uncertainty": ["entropy"], "promised": [Promised.keep_factual(0.6)], "draws": 1}
    made, _ = calibrate_scores(scores, truth, groups, **options)
    assert [column.key for column in made.columns] == ["entropy", "p_true"]
    assert main(["apply", saved("made", made), "new.csv", "--keep_factual", "0.6"]) == 0
    found = table("new.calibrated.csv")
    assert [float(row["calibrated"]) for row in found] == pytest.approx(made(scores).tolist(), abs=1e-6)
    assert [row["kept"] == "true" for row in found] == made.keeps(scores, keep_factual=0.6).tolist()
    columns = [Column("p_true"), Column("entropy", "confidence", 100.0)]
    directed = [column.directed(scores[column.key]) for column in columns]
    made, _ = calibrate_columns(columns, directed, truth, groups, draws=1)
    said = error_of(capsys, "apply", saved("two", made), "new.csv", "--redo")[1]
    assert said.startswith("the columns p_true, entropy of the calibration have different scales, expected the same")


def test_scores_without_a_name_are_applied(here):
    rows = [{"scores": [r["p_true"] for r in four], "true": [r["correct"] for r in four]}
            for four in zip(*[iter(made_rows(60))] * 4, strict=True)]  # fmt: skip
    write_rows("numbers.jsonl", rows)
    fitted("numbers.jsonl")
    made = lovec.load_calibration("numbers.calibration")
    assert (made.layout, made.columns[0].key) == ("conformal", "")
    assert main(["apply", "numbers.calibration", "numbers.jsonl"]) == 0
    found = [json.loads(line) for line in Path("numbers.calibrated.jsonl").read_text().splitlines()]
    scores = [score for row in rows for score in row["scores"]]
    assert [row["confidence"] for row in found] == scores
    assert [row["calibrated"] for row in found] == pytest.approx(made(scores).tolist(), abs=1e-6)
    assert main(["score", "numbers.jsonl", "--calibration", "numbers.calibration", "--draws", "0"]) == 0


def test_what_was_calibrated_before_is_measured_beside_what_is_now(here, capsys):
    write_rows("labelled.csv", made_rows(60))
    fitted("labelled.csv")
    assert main(["apply", "labelled.calibration", "labelled.csv"]) == 0
    flat = [{**row, "calibrated": 0.5} for row in table("labelled.calibrated.csv")]
    write_rows("both.csv", flat)
    words = ["--confidence", "p_true", "--confidence", "calibrated", "--calibration", "labelled.calibration"]
    assert main(["score", "both.csv", *words, "--draws", "0"]) == 0
    assert "calibrated from p_true: confidence: p_true, calibrated (" in capsys.readouterr().out
    found = {row["method"]: row["metrics"] for row in json.loads(Path("both.score/results.json").read_text())["rows"]
             if row["level"] == "sentence"}  # fmt: skip
    assert found.keys() == {"p_true", "calibrated", "calibrated from p_true"}
    assert found["calibrated"]["mean_confidence"] == 0.5 != found["calibrated from p_true"]["mean_confidence"]
    write_rows("taken.csv", [{**row, "calibrated, cross-fitted": 0.5} for row in flat])
    words = ["--confidence", "p_true", "--confidence", "calibrated, cross-fitted", "--draws", "20"]
    words += ["--label", "correct", "--group", "question"]
    code, said = error_of(capsys, "calibrate", "taken.csv", *words)
    assert code == 1 and "two methods of taken.csv are called 'calibrated, cross-fitted'" in said


def test_cells_that_are_lists_hold_several_rows(here, capsys):
    rows = [
        {"passage": f"p{at}", "score": [row["entropy"] for row in four], "correct": [row["correct"] for row in four]}
        for at, four in enumerate(zip(*[iter(made_rows(60))] * 4, strict=True))
        for four in [list(four)]
    ]
    write_rows("lists.jsonl", rows)
    words = ["--uncertainty", "score", "--label", "correct", "--group", "passage"]
    fitted("lists.jsonl", *words, "--keep_factual", "0.7")
    assert main(["apply", "lists.calibration", "lists.jsonl", "--keep_factual", "0.7"]) == 0
    found = [json.loads(line) for line in Path("lists.calibrated.jsonl").read_text().splitlines()]
    assert all(len(row["calibrated"]) == len(row["kept"]) == 4 for row in found)
    words = ["lists.calibration", "lists.jsonl", "--keep_factual", "0.7", "--drop", "--redo"]
    code, said = error_of(capsys, "apply", *words)
    assert code == 1 and said == "a row holds several scores, of which --drop cannot leave out some; omit --drop"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("calibrate none.csv", 1, "cannot read none.csv"),
        ("calibrate labelled.csv --label nothing --confidence p_true", 1, "no row has a label in the column 'nothing'"),
        ("calibrate labelled.csv --promise_by rarity", 2, "--promise_by needs --keep_factual"),
        ("calibrate labelled.csv --keep_factual 1", 1, "--keep_factual is 1"),
        ("calibrate labelled.csv --keep_factual x", 2, "--keep_factual is x, expected a number, or a list such as"),
        ("calibrate labelled.csv --keep_factual [0.9,]", 2, "--keep_factual is [0.9,], expected a number, or a list"),
        ("calibrate labelled.csv --share 0.5", 1, "--share is 0.5, which only --promise share takes"),
        (
            "calibrate labelled.csv --keep_factual 0.8 --share 0.5",
            1,
            "--share is 0.5, which only --promise share takes",
        ),
        ("calibrate labelled.csv --promise errors", 2, "--promise says what --keep_factual promises; give"),
        ("calibrate labelled.csv --true_from 0.9", 2, "--true_from says what --keep_factual promises; give"),
        ("calibrate labelled.csv --promise share --share 0.9", 2, "--promise says what --keep_factual promises; give"),
        ("calibrate labelled.csv --promise none", 1, "--promise is 'none'"),
        ("calibrate labelled.csv --draws 0", 1, "--draws is 0"),
        ("calibrate labelled.csv --out labelled.csv", 1, "the output labelled.csv is also the input"),
        ("calibrate labelled.csv --out full", 1, "full exists and `lovec calibrate` has not written it"),
        ("calibrate labelled.csv --out made", 1, "made exists; give --redo to replace it"),
        ("calibrate labelled.csv --readout mean", 2, "unknown option --readout"),
        ("apply made labelled.csv --drop", 2, "give --keep_factual or --min_confidence"),
        (
            "apply made labelled.csv --keep_factual 0.9",
            1,
            "no threshold for --keep_factual 0.9, only for none",
        ),
        ("apply made labelled.csv --min_confidence 2", 1, "--min_confidence is 2"),
        (
            "apply made labelled.csv --keep_factual 0.8",
            1,
            "calibrate again with it: `lovec calibrate FILE --keep_factual 0.8 --redo`",
        ),
        ("apply made other.csv", 1, "no row has a score in the column 'p_true'; did you mean p_truth?"),
        ("apply made has.csv", 1, "the rows have a column 'calibrated' already"),
        ("apply made scale.csv", 1, "scale.csv:2: p_true is 50, and the calibration was fitted to numbers from 0 to 1"),
        ("apply made empty.csv", 1, "empty.csv holds no row"),
        ("apply made labelled.csv --out labelled.csv", 1, "the output labelled.csv is also the input"),
        ("apply made labelled.csv --out full/kept.tsv", 1, "full/kept.tsv exists and is not empty; give --redo"),
        ("apply made none.csv --out new.parquet", 2, "--out is new.parquet, expected a name that ends in .csv, .tsv"),
        ("apply made labelled.csv --out new.csv.gz", 2, "--out is new.csv.gz, expected a name that ends in .csv, .tsv"),
        ("apply labelled.csv labelled.csv", 1, "labelled.csv"),
        ("score labelled.csv --calibration none", 1, "there is no calibration none"),
    ],
)
def test_mistakes_are_said_in_one_line(here, capsys, words, code, said):
    rows = made_rows(30)
    write_rows("labelled.csv", rows)
    write_rows("other.csv", [{"p_truth": row["p_true"]} for row in rows])
    write_rows("has.csv", [{**row, "calibrated": 1} for row in rows])
    write_rows("scale.csv", [{**row, "p_true": 50} for row in rows])
    Path("empty.csv").write_text("p_true\n")
    Path("full").mkdir()
    Path("full/kept.tsv").write_text("x")
    made, _ = calibrate_scores({"p_true": [row["p_true"] for row in rows]}, [row["correct"] for row in rows], draws=1)
    Path("made/tables").mkdir(parents=True)
    Path("made/tables/scores.csv").write_text("")
    Path("made/index.html").write_text("Written by lovec")
    Path("made/calibration.json").write_text(calibration_text(made))
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main(words.split()) == code
    lines = [line for line in capsys.readouterr().err.splitlines() if "columns guessed" not in line]
    assert len(lines) == 1 and lines[0].startswith("lovec: error: ") and said in lines[0]
    assert before == {p: p.read_bytes() for p in Path().rglob("*") if p.is_file() and not p.name.endswith(".lock")}


def test_a_judge_stands_beside_people(here, capsys):
    rows = judged_rows()
    write_rows("judged.csv", rows)
    words = "--confidence p_true --label human --judge gpt --keep_factual 0.8 --promise errors".split()
    fitted("judged.csv", *words)
    out = capsys.readouterr().out
    made = lovec.load_calibration("judged.calibration")
    assert "with the labels of the judge in gpt" in out and "with the judge" in out
    assert (made.fitted.sentences, made.fitted.passages, made.judge) == (160, 40, "gpt")
    [promised] = made.guarantees
    assert promised.certainty == 0.9 and (promised.passages, promised.sentences) == (40, 160)
    fitted("judged.csv", *words[:4], *words[6:], "--out", "alone")
    [alone] = lovec.load_calibration("alone").guarantees
    assert alone.certainty is None and alone.threshold < promised.threshold < 1
    page = Path("judged.calibration/index.html").read_text()
    assert "which 0.9 of such thresholds keep" in page
    capsys.readouterr()
    write_rows("few.csv", [{**row, "human": row["human"] if at < 60 else ""} for at, row in enumerate(rows)])
    fitted("few.csv", *words)
    assert "rows of 15 groups, fewer than the 20" in capsys.readouterr().err
    assert lovec.load_calibration("few.calibration").guarantees[0].certainty is None
    words += ["--group", "question", "--redo"]
    for more, said in (("--uncertainty entropy", "a single column"), ("--promise_by rarity", "give one of them")):
        assert said in error_of(capsys, "calibrate", "judged.csv", *words, *more.split())[1]


def test_a_calibration_is_fitted_again_to_new_labels(here, capsys):
    write_rows("old.csv", made_rows(150))
    fitted(
        "old.csv", "--uncertainty", "entropy", "--keep_factual", "0.8", "--promise_by", "rarity", "--true_from", "0.4"
    )
    # things have changed: of what was true, a third is wrong now
    changed = [{**row, "correct": int(row["correct"] and at % 3 > 0)} for at, row in enumerate(made_rows(150, seed=1))]
    write_rows("new.csv", changed)
    capsys.readouterr()
    fitted("old.calibration", "--feedback", "new.csv")
    out = capsys.readouterr().out
    old, new = (lovec.load_calibration(f"{name}.calibration") for name in ("old", "new"))
    assert (new.fitted.data, new.by, new.columns[0].key) == (("new.csv",), "rarity", "entropy")
    [before], [after] = old.guarantees, new.guarantees
    assert (after.alpha, after.true_from) == (before.alpha, 0.4) and after.threshold > before.threshold
    assert "the threshold before: --keep_factual 0.8: nothing false is kept in" in out
    entropy = np.array([row["entropy"] for row in changed])
    truth = np.array([row["correct"] for row in changed])
    metrics = new.fitted.metrics
    assert metrics["before"]["brier"][0] == pytest.approx(((old(entropy) - truth) ** 2).mean())
    assert metrics["before"]["ece_m"][0] > 0.1 > metrics["after"]["ece_m"][0]
    for words, said in (
        ("old.calibration", "give labels with --feedback FILE"),
        ("old.calibration --feedback new.csv --confidence p_true", "name no others"),
        ("new.csv --feedback old.csv", "holds no calibration"),
    ):
        assert said in error_of(capsys, "calibrate", *words.split(), "--out", "x")[1], words


def test_group_and_label_of_a_calibration_are_kept(here, capsys):
    # neither name would be guessed: "label" and "none" would
    rows = [
        {"case_nr": row["question"], "p_true": row["p_true"], "human_says": row["correct"], "label": at % 2}
        for at, row in enumerate(made_rows(100))
    ]
    write_rows("old.csv", rows)
    words = ["--keep_factual", "0.8", "--confidence", "p_true"]
    fitted("old.csv", *words, "--group", "case_nr", "--label", "human_says")
    assert "400 rows of 100 groups" in capsys.readouterr().out
    fitted("old.calibration", "--feedback", "old.csv", "--out", "new")
    old, new = (lovec.load_calibration(name) for name in ("old.calibration", "new"))
    assert (new.group, new.label, new.guarantees) == ("case_nr", "human_says", old.guarantees)
    for more in ([], ["--confidence", "p_true", "--confidence", "label", "--redo"]):
        capsys.readouterr()
        assert main(["score", "old.csv", "--calibration", "old.calibration", "--draws", "0", *more]) == 0
        assert "of 100 groups (" in capsys.readouterr().out
        found = json.loads(Path("old.score/results.json").read_text())["rows"]
        truth = np.mean([row["human_says"] for row in rows])
        assert all(row["metrics"]["mean_factuality"] == pytest.approx(truth) for row in found)
    # who names others gets them
    more = ["--group", "", "--label", "label", "--out", "other"]
    fitted("old.calibration", "--feedback", "old.csv", *more)
    other = lovec.load_calibration("other")
    assert (other.group, other.label, other.fitted.passages) == ("", "label", 400)
    write_rows("new.csv", [{"p_true": row["p_true"], "human_says": row["human_says"]} for row in rows])
    code, said = error_of(capsys, "score", "new.csv", "--calibration", "old.calibration")
    assert code == 1 and "no row has a group in the column 'case_nr'" in said and '--group ""' in said


def test_a_promise_that_is_made_again_says_the_same(here, capsys):
    write_rows("old.csv", made_rows(150))
    fitted("old.csv", *"--keep_factual 0.8 --promise share --share 0.7 --true_from 0.9".split())
    new = write_rows("new.csv", made_rows(150, seed=1))
    for words, expected in (
        ("", (0.2, "share", 0.7, 0.9)),
        ("--keep_factual 0.6", (0.4, "share", 0.7, 0.9)),
        ("--keep_factual 0.6 --share 0.8", (0.4, "share", 0.8, 0.9)),
        ("--keep_factual 0.6 --promise errors --true_from 0.5", (0.4, "errors", 1.0, 0.5)),
    ):
        fitted("old.calibration", "--feedback", new, *words.split(), "--out", "again", "--redo")
        [found] = lovec.load_calibration("again").guarantees
        assert (found.alpha, found.kind, found.share, found.true_from) == expected, words
    words = "--keep_factual 0.6 --promise errors --share 0.8 --out x".split()
    code, said = error_of(capsys, "calibrate", "old.calibration", "--feedback", new, *words)
    assert code == 1 and "which only --promise share takes" in said
    code, said = error_of(capsys, "calibrate", "old.calibration", "--feedback", new, "--true_from", "0.4", "--out", "x")
    assert code == 2 and "--true_from says what --keep_factual promises" in said


def test_the_judge_of_a_calibration_is_kept(here, capsys):
    rows = judged_rows()
    write_rows("old.csv", rows)
    words = "--confidence p_true --label human --judge gpt --keep_factual 0.8 --promise errors".split()
    fitted("old.csv", *words)
    fitted("old.calibration", "--feedback", "old.csv", "--out", "new")
    old, new = (lovec.load_calibration(name) for name in ("old.calibration", "new"))
    assert new.judge == "gpt" and new.guarantees == old.guarantees and new.guarantees[0].certainty == 0.9
    fitted("old.calibration", "--feedback", "old.csv", "--judge", "", "--out", "alone")
    alone = lovec.load_calibration("alone")
    assert alone.judge == "" and alone.guarantees[0].certainty is None
    write_rows("without.csv", [{name: value for name, value in row.items() if name != "gpt"} for row in rows])
    code, said = error_of(capsys, "calibrate", "old.calibration", "--feedback", "without.csv", "--out", "x")
    assert code == 1 and "'gpt'" in said


def test_the_scale_of_confidences_is_that_of_the_calibration(here, capsys):
    rows = [{**row, "rating": round(100 * float(str(row["p_true"])), 1)} for row in made_rows(100)]
    write_rows("old.csv", rows)
    for name, more, other in (("ranks", [], "100"), ("scaled", ["--confidence_scale", "100"], "10")):
        fitted("old.csv", "--confidence", "rating", "--keep_factual", "0.8", *more, "--out", name)
        found = []
        for words in ([], ["--confidence", "rating"], more):
            assert main(["score", "old.csv", "--calibration", name, "--draws", "0", "--redo", *words]) == 0
            found.append(json.loads(Path("old.score/results.json").read_text())["rows"])
        assert found[0] == found[1] == found[2]
        for command in (["score", "old.csv", "--calibration", name], ["calibrate", name, "--feedback", "old.csv"]):
            code, said = error_of(capsys, *command, "--confidence_scale", other, "--out", "x")
            assert code == 1 and f"--confidence_scale is {other}, and the calibration was fitted to" in said


def test_the_scale_of_labels_is_that_of_the_calibration(here, capsys):
    rows = [{**row, "correct": 2 * int(str(row["correct"]))} for row in made_rows(100)]
    write_rows("old.csv", rows)
    # none of the new rows is wholly true
    write_rows(
        "new.csv",
        [{**row, "correct": int(int(str(row["correct"])) > 0), "other": at % 2} for at, row in enumerate(rows)],
    )
    words = "--keep_factual 0.8 --promise errors --true_from 0.9".split()
    fitted("old.csv", "--label_scale", "2", *words)
    fitted("old.calibration", "--feedback", "new.csv", "--out", "without")
    fitted("old.calibration", "--feedback", "new.csv", "--label_scale", "2", "--out", "with")
    without, given = (lovec.load_calibration(name) for name in ("without", "with"))
    assert without.label_scale == given.label_scale == 2 and without.guarantees == given.guarantees
    assert without.guarantees[0].kept < 0.5
    assert main(["score", "new.csv", "--calibration", "old.calibration", "--draws", "0"]) == 0
    rows = json.loads(Path("new.score/results.json").read_text())["rows"]
    assert all(row["metrics"]["mean_factuality"] < 0.5 for row in rows)
    # the scale belongs to its column
    fitted("old.calibration", "--feedback", "new.csv", "--label", "other", "--out", "other")
    assert lovec.load_calibration("other").label_scale is None
    # files of earlier versions do not know it
    path = Path("old.calibration/calibration.json")
    path.write_text(json.dumps({name: v for name, v in json.loads(path.read_text()).items() if name != "label_scale"}))
    assert lovec.load_calibration("old.calibration").label_scale is None


@pytest.mark.parametrize("option", ["--label_scale", "--confidence_scale", "--label", "--uncertainty"])
def test_a_layout_has_no_columns_and_no_scale_of_columns(here, capsys, option):
    write_records("records.jsonl", answers(30))
    for command in ("score", "calibrate"):
        code, said = error_of(capsys, command, "records.jsonl", option, "10", "--layout", "lovec")
        assert code == 1 and f"{option} works only with plain tables; records.jsonl has the layout" in said


def test_a_calibration_of_samples_keeps_their_question_as_the_group(here, capsys):
    records = answers(60)
    samples = [replace(record, question=f"Q{at // 3}?") for at, record in enumerate(records)]
    write_records("samples.jsonl", samples)
    fitted("samples.jsonl", "--keep_factual", "0.6", "--group", "question")
    made = lovec.load_calibration("samples.calibration")
    assert made.group == "question" and made.fitted.passages == made.guarantees[0].passages == 20
    fitted("samples.calibration", "--feedback", "samples.jsonl", "--out", "again")
    assert lovec.load_calibration("again").guarantees == made.guarantees
    fitted("samples.calibration", "--feedback", "samples.jsonl", "--group", "", "--out", "none")
    assert lovec.load_calibration("none").fitted.passages == made.fitted.sentences
    fitted("samples.jsonl", "--out", "by_record")
    assert lovec.load_calibration("by_record").group == "" and lovec.load_calibration("by_record").fitted.passages == 60
    capsys.readouterr()
    assert main(["score", "samples.jsonl", "--calibration", "samples.calibration", "--draws", "0"]) == 0
    assert "% of 20 groups" in capsys.readouterr().out


def test_the_threshold_before_is_tried_on_the_labels_of_people(here, capsys):
    rows = made_rows(100)
    made, _ = calibrate_scores(
        {"p_true": [row["p_true"] for row in rows]},
        [row["correct"] for row in rows],
        [row["question"] for row in rows],
        promised=[Promised.keep_factual(0.8)],
        draws=1,
    )
    Path("old").mkdir()
    Path("old/calibration.json").write_text(calibration_text(made))
    # people, who have labelled some of them, find false only what is not kept
    new = [{**row, "human": int(row["p_true"] > 0.3) if at < 100 else "", "gpt": 1} for at, row in enumerate(rows)]
    write_rows("new.csv", new)
    fitted("old", "--feedback", "new.csv", *"--label human --judge gpt --group question".split())
    out = capsys.readouterr().out
    assert "the threshold before: --keep_factual 0.8: nothing false is kept in 100.0 % of 25 groups" in out


def test_a_run_is_told_from_a_file(here, capsys):
    from lovec.cli.calibrate import scores_file

    write_rows("labelled.csv", made_rows(2))
    Path("runs").mkdir()
    for words, file in (
        ("labelled.csv", "labelled.csv"),
        ("--label correct labelled.csv --redo", "labelled.csv"),
        ("--redo labelled.csv", "labelled.csv"),
        ("missing.jsonl.gz", "missing.jsonl.gz"),
        ("runs --data labelled.csv", None),
        ("--data labelled.csv runs", None),
        ("--data=labelled.csv runs", None),
        ("org/name", None),
        ("--help", None),
        ("", None),
    ):
        assert scores_file(words.split()) == file, words
    assert error_of(capsys, "calibrate", "runs")[0] == 1


def uqlm_frame(rows):
    return [
        {
            "prompt": row["question"] + str(at),
            "response": row["text"],
            "sampled_responses": '["a"]',
            "noncontradiction": row["p_true"],
            "exact_match": round(row["p_true"] ** 2, 4),
            "response_correct": row["correct"],
        }
        for at, row in enumerate(rows)
    ]


def polygraph(rows):
    return [
        {
            "uncertainty": row["entropy"],
            "input_text": row["question"] + str(at),
            "generation_text": row["text"],
            "model_path": "m",
            "estimator": "SemanticEntropy",
            "correct": row["correct"],
        }
        for at, row in enumerate(rows)
    ]


@pytest.mark.parametrize(
    ("estimator", "kind", "written"),
    [("PTrue", "surprisal", lambda p: -math.log(p)), ("Verbalized1S", "complement", lambda p: 1 - p)],
)
def test_scores_of_lm_polygraph_are_given_in_the_numbers_of_the_file(here, capsys, estimator, kind, written):
    rows = made_rows(100)
    found = [
        {**row, "estimator": estimator, "uncertainty": written(r["p_true"])}
        for row, r in zip(polygraph(rows), rows, strict=True)
    ]
    write_rows("polygraph.jsonl", found)
    fitted("polygraph.jsonl", "--keep_factual", "0.8", "--promise", "errors")
    calibration = lovec.load_calibration("polygraph.calibration")
    assert [column.kind for column in calibration.columns] == [kind]
    least = float(re.search(rf"those with {estimator} below ([\d.]+)", capsys.readouterr().out)[1])
    assert calibration([written(0.95)])[0] > calibration([written(0.05)])[0]
    given = [row["uncertainty"] for row in found]
    assert main(["apply", "polygraph.calibration", "polygraph.jsonl", "--keep_factual", "0.8"]) == 0
    applied = [row for _, row in read_rows("polygraph.calibrated.jsonl")]
    assert calibration(given) == pytest.approx([row["calibrated"] for row in applied], abs=1e-6)
    kept = [row["kept"] for row in applied]
    assert calibration.keeps(given, keep_factual=0.8).tolist() == kept and 0 < sum(kept) < len(kept)
    assert all((u < least) == keep for u, keep in zip(given, kept, strict=True) if abs(u - least) > 1e-4)
    # files of earlier versions say that these are confidences; `lovec apply` reads them as before
    path = Path("polygraph.calibration/calibration.json")
    data = json.loads(path.read_text())
    data["columns"][0]["kind"] = "confidence"
    path.write_text(json.dumps(data))
    assert main(["apply", "polygraph.calibration", "polygraph.jsonl", "--keep_factual", "0.8", "--redo"]) == 0
    again = [row for _, row in read_rows("polygraph.calibrated.jsonl")]
    for u, before, after in zip(given, applied, again, strict=True):
        # read as probabilities, numbers of seven digits are others in the last of them, and tie with other ones
        assert after == {**before, "calibrated": pytest.approx(before["calibrated"], abs=2e-6), "kept": after["kept"]}
        assert before["kept"] == after["kept"] or abs(u - least) <= 1e-4


@pytest.mark.parametrize(
    ("name", "made", "words", "columns"),
    [
        ("uqlm.csv", uqlm_frame, [], ["noncontradiction", "exact_match"]),
        ("uqlm.csv", uqlm_frame, ["--confidence", "noncontradiction"], ["noncontradiction"]),
        ("polygraph.jsonl", polygraph, [], ["SemanticEntropy"]),
        ("selfcheck.csv", lambda rows: [{"passage": r["question"], "selfcheck": r["entropy"], "correct": r["correct"]}
                                        for r in rows], ["--uncertainty", "selfcheck"], ["selfcheck"]),
        ("ratings.csv", lambda rows: [{"rating": round(100 * r["p_true"]), "correct": r["correct"]} for r in rows],
         ["--confidence", "rating", "--confidence_scale", "100"], ["rating"]),
    ],
)  # fmt: skip
def test_results_of_other_tools(here, name, made, words, columns):
    write_rows(name, made(made_rows(60)))
    new = [{k: v for k, v in row.items() if "correct" not in k} for row in made(made_rows(10, seed=1))]
    write_rows(f"new-{name}", new)
    fitted(name, *words, "--keep_factual", "0.6")
    calibration = lovec.load_calibration(Path(name).stem + ".calibration")
    assert [column.key for column in calibration.columns] == columns
    assert main(["apply", Path(name).stem + ".calibration", f"new-{name}", "--keep_factual", "0.6"]) == 0
    out = Path(f"new-{Path(name).stem}.calibrated{Path(name).suffix}")
    rows = table(str(out)) if out.suffix == ".csv" else [json.loads(line) for line in out.read_text().splitlines()]
    found = [float(row["calibrated"]) for row in rows]
    fields = ["uncertainty"] if made is polygraph else columns
    expected = calibration(*([float(row[name]) for row in new] for name in fields))
    assert found == pytest.approx(expected.tolist(), abs=1e-6) and len(set(found)) > 5
