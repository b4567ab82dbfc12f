"""``lovec score``: published figures come out; whatever a file holds is measured, or refused in one clear line."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
from commandline import error_of, write_rows
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score

from lovec.cli import main
from lovec.datasets.columns import Columns
from lovec.datasets.scored import read_scored
from lovec.reports.scores import measured_files

RLCR = Path(__file__).resolve().parents[3] / "shared" / "data" / "rlcr_gpqa" / "confidences.jsonl"
PUBLISHED = {
    "Base": (0.5035332589285714, 0.5094419642857144, 0.4920361915483561, 0.3950892857142857),
    "RLCR": (0.266725, 0.155, 0.5496798818025117, 0.41517857142857145),
}


def made(n: int, seed: int = 0) -> list[dict[str, object]]:
    """Rows with a passage, a confidence and a label, four rows per passage."""
    draw = random.Random(seed)
    rows = [{"passage": f"p{at // 4}", "confidence": round(draw.random(), 2)} for at in range(n)]
    return [{**row, "label": int(draw.random() < row["confidence"])} for row in rows]


def results(folder: str) -> dict[tuple[str, str], dict[str, float | None]]:
    """The metrics in results.json, by method and level."""
    rows = json.loads(Path(folder, "results.json").read_text())["rows"]
    return {(row["method"], row["level"]): row["metrics"] for row in rows}


@pytest.mark.skipif(not RLCR.exists(), reason=f"needs {RLCR}")
def test_published_figures_come_out(here):
    Path("confidences.jsonl").symlink_to(RLCR)
    assert main(["score", "confidences.jsonl", "--draws", "0"]) == 0
    found = results("confidences.score")
    for method, published in PUBLISHED.items():
        metrics = found[method, "sentence"]
        ours = [metrics[name] for name in ("brier", "ece_m", "auroc", "mean_factuality")]
        assert ours == pytest.approx(published, abs=1e-9, rel=0)


def test_all_metrics_are_measured_with_intervals_over_passages(here, capsys):
    rows = made(400)
    write_rows("made.csv", rows)
    assert main(["score", "made.csv", "--draws", "50"]) == 0
    out, err = capsys.readouterr()
    guessed, *rest = err.splitlines()
    assert guessed == "made.csv: columns guessed: confidence = confidence; label = label; group = passage"
    assert rest == ["next: python -m webbrowser made.score/index.html      # look at the page"]
    assert "50 draws of the groups" in out and out.splitlines()[-1].startswith("written to made.score: index.html")
    metrics = results("made.score")["made", "sentence"]
    confidence, label = ([row[name] for row in rows] for name in ("confidence", "label"))
    assert metrics["brier"] == pytest.approx(brier_score_loss(label, confidence))
    assert metrics["auroc"] == pytest.approx(roc_auc_score(label, confidence))
    assert metrics["auprc"] == pytest.approx(average_precision_score(label, confidence))
    assert metrics["spearman"] == pytest.approx(spearmanr(confidence, label).statistic)
    parts = metrics["miscalibration"] - metrics["discrimination"] + metrics["uncertainty"]
    assert parts == pytest.approx(metrics["brier"])
    groups = results("made.score")["made", "passage"]
    means = [sum(confidence[at : at + 4]) / 4 - sum(label[at : at + 4]) / 4 for at in range(0, 400, 4)]
    assert groups["brier"] == pytest.approx(sum(gap * gap for gap in means) / 100)
    (line, _) = json.loads(Path("made.score/tables/scores.json").read_text())["lines"]
    assert line["cells"][0]["low"] < metrics["brier"] < line["cells"][0]["high"]
    assert {path.suffix for path in Path("made.score/tables").iterdir()} == {".csv", ".json", ".md", ".tex"}
    png = Path("made.score/plots/reliability.png").read_bytes()
    assert png.startswith(b"\x89PNG") and Path("made.score/plots/risk-coverage.svg").read_text().startswith("<?xml")
    page = Path("made.score/index.html").read_text()
    assert page.count("<svg") == 2 and "smECE" in page and "95 % of such curves" in page
    assert "Those of ECE-M and smECE lie too high" in page
    assert "Bold:" not in page + out  # of one method nothing is best
    assert main(["report", "made.score"]) == 0  # what it writes can be reported like a test
    out, page = capsys.readouterr().out, Path("made.score/report/index.html").read_text()
    assert "Bold:" not in page + out and " plots in " not in out and not Path("made.score/report/plots").exists()


def test_a_report_of_scores_does_not_take_them_for_a_test_of_lovec(here, capsys):
    rows = [{**row, "confidence_A": row["confidence"], "confidence_B": 0.5} for row in made(60)]
    for row in rows:
        del row["confidence"]
    assert main(["score", write_rows("s.csv", rows), "--draws", "0"]) == 0
    (main_row, *_) = json.loads(Path("s.score/results.json").read_text())["rows"]
    assert main_row["mode"] == "scored"
    for earlier in (False, True):
        if earlier:  # as versions before wrote it
            path = Path("s.score/results.json")
            path.write_text(path.read_text().replace('"mode": "scored"', '"mode": "iterative"'))
        assert main(["report", "s.score", "--out", "report"]) == 0, capsys.readouterr().err
        html, table = Path("report/index.html").read_text(), Path("report/tables/main.md").read_text()
        assert "By its stated score." in html  # the domain of such scores says nothing
        assert "of 2 methods in scores made elsewhere" in html and "Scores made elsewhere" in table
        for text in (html, table):
            assert not any(words in text for words in ("Iterative", "iterative tagging", "trained", "Short answers"))


def test_several_files_and_columns_are_methods_side_by_side(here, capsys):
    rows = [{**row, "other": 100 * row["confidence"], "worse": -row["confidence"]} for row in made(40)]
    write_rows("a.jsonl", rows)
    Path("b.jsonl.gz").write_bytes(gzip.compress(Path("a.jsonl").read_bytes()))
    words = ["--confidence", "confidence", "--confidence", "other", "--uncertainty", "worse", "--label", "label"]
    assert main(["score", "a.jsonl", *words, "--draws", "0", "--group", "", "--out", "out"]) == 0
    out, err = capsys.readouterr()
    found = results("out")
    assert (
        list(found) == [(name, "sentence") for name in ("confidence", "other", "worse")] and len(err.splitlines()) == 1
    )
    first, other, worse = found.values()
    assert other["auroc"] == worse["auroc"] == first["auroc"] and other["spearman"] == pytest.approx(first["spearman"])
    assert other["brier"] is worse["brier"] is worse["smooth_ece"] is None is not first["brier"]
    assert "other: its confidences lie between" in out and "say --confidence_scale 100 if" in out
    assert "worse: its numbers are uncertainties without a scale" in out
    words = ["a.jsonl", "b.jsonl.gz", "--confidence", "other", "--confidence_scale", "100", "--draws", "0"]
    assert main(["score", *words, "--redo"]) == 0
    found = results("a.score")
    assert found["a", "sentence"] == found["b", "sentence"]
    assert found["a", "sentence"]["brier"] == pytest.approx(first["brier"])


@pytest.mark.parametrize(
    ("name", "content", "words", "said"),
    [
        ("x.jsonl", b"", "", "x.jsonl is empty, expected JSON Lines, JSON, CSV or Parquet"),
        ("x.csv", b"confidence,label\n", "", "x.csv holds no row, expected rows with a confidence and a label"),
        ("x.npy", b"\x93NUMPY\0\0", "", "x.npy is a binary file"),
        ("x.pkl", b"\x80\x04\x95", "", "runs code when it is opened"),
        ("x.csv", b"a,b\n1,2\n", "", "cannot tell which column is the confidence (a, b); name it with --confidence CO"),
        ("x.csv", b"confidence,b\n1,2\n", "", "which column is the label (confidence, b); name it with --label COLUMN"),
        ("x.csv", b"confidence,label\n1,\n", "--label label", "x.csv: the column 'label' is empty in every row"),
        ("x.csv", b"confidence,label\n1,1\n", "--label labl", "no row has a label in the column 'labl'; did you mean"),
        ("x.csv", b"confidence,label\n1,1\n", "--confidence p", "no row has a confidence in the column 'p'; its colu"),
        ("x.csv", b"confidence,label\n1,1\n", "--group p", "no row has a group in the column 'p'"),
        ("x.csv", b"confidence,label\n1,unknown\n", "", "x.csv has no row with a label"),
        ("x.csv", b"confidence,label\nhigh,1\n", "", 'x.csv:2: confidence is "high", expected a number'),
        ("x.csv", b"confidence,label\n.5,maybe\n", "", 'x.csv:2: label is "maybe", expected a number, true or fal'),
        ("x.csv", b"confidence,label\n.5,7\n", "", "x.csv:2: label is 7, expected a number from 0 to 1; say --label_"),
        ("x.csv", b"confidence,label\n.5,7\n", "--label_scale 5", "from 0 to 5; as --label_scale says"),
        ("x.csv", b"confidence,label\n11,1\n", "--confidence_scale 10", "confidence is 11, expected a number from"),
        ("x.csv", b"confidence,label\ninf,1\n", "", 'x.csv:2: confidence is "inf", expected a number'),
        ("x.csv", b"confidence,label\n1e999,1\n", "", "expected a number"),
        ("x.jsonl", b'{"confidence": NaN, "label": 1}', "", "NaN is not JSON; an unknown value is null"),
        ("x.jsonl", b'{"confidence": true, "label": 1}', "", "x.jsonl:1: confidence is true, expected a number"),
        ("x.jsonl", b'{"confidence": [1], "label": [1, 0]}', "", "confidence is [1], expected a list of 2 numbers"),
        ("x.jsonl", b'{"prompt": 1}', "--layout rlcr", "x.jsonl:1: has the keys prompt, not the layout rlcr; the near"),
    ],
)  # fmt: skip
def test_bad_files_are_one_line(here, capsys, name, content, words, said):
    Path(name).write_bytes(content)
    code, error = error_of(capsys, "score", name, *words.split())
    assert code == 1 and said in error and name in error
    assert [path.name for path in Path().iterdir()] == [name]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("none.csv", 1, "cannot read none.csv (No such file or directory)"),
        ("made.csv --draws -1", 1, "--draws is -1"),
        ("made.csv --label_scale 0", 1, "label_scale is 0"),
        ("made.csv --confidence_scale nan", 1, "confidence_scale is nan"),
        ("made.csv --out made.csv", 1, "the output made.csv is also the input"),
        ("made.csv --out .", 1, "the output . holds the input made.csv"),
        ("made.csv --out mine --redo", 1, "mine exists and `lovec score` has not written it; give another --out"),
        ("made.csv --labl x", 2, "unknown option --labl; did you mean --label?"),
        ("made.csv --layout uqml", 2, "uqml"),
        ("", 2, "must be given"),
    ],
)
def test_wrong_options_are_one_line(here, capsys, words, code, said):
    write_rows("made.csv", made(4))
    Path("mine").mkdir()
    Path("mine/index.html").write_text("Written by me.")
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    found, error = error_of(capsys, "score", *words.split())
    assert found == code and said in error
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


def test_what_says_little_is_measured_and_said(here, capsys):
    write_rows("one.csv", [{"confidence": 0.5, "label": 1}])
    assert main(["score", "one.csv", "--draws", "5"]) == 0
    metrics = results("one.score")["one", "sentence"]
    assert metrics["brier"] == 0.25 and metrics["spearman"] is metrics["auroc"] is None
    rows = [{"confidence": 0.5, "label": "S"}, {"confidence": 0.5, "label": "S"}, {"confidence": "", "label": "S"}]
    write_rows("same.csv", [*rows, {"confidence": 0.1, "label": "IR"}])
    capsys.readouterr()
    assert main(["score", "same.csv", "--draws", "5"]) == 0
    out = capsys.readouterr().out
    assert "same: all labels are 1, so nothing can be ranked." in out
    assert "same: all confidences are equal, so they rank nothing." in out
    assert "same: 1 of 3 labelled rows left out, without a confidence." in out
    assert "same: 1 row left out, without a label." in out
    assert results("same.score")["same", "sentence"]["malformed"] == pytest.approx(1 / 3)


def test_rows_of_one_group_have_no_intervals(here, capsys):
    rows = [{"prompt": "Same", "confidence": n / 10, "label": int(n % 3 > 0)} for n in range(10)]
    write_rows("same.csv", rows)
    assert main(["score", "same.csv", "--draws", "5"]) == 0
    out = capsys.readouterr().out
    assert "same: all rows are of one group, so nothing is known of others and there are no intervals" in out
    assert " to " not in out.partition("SC")[0] and "percentile bootstrap" not in out
    assert main(["calibrate", "same.csv"]) == 1
    assert "all labelled rows have the same 'prompt'" in (error := capsys.readouterr().err) and '--group ""' in error
    assert main(["score", "same.csv", "--draws", "5", "--group", "", "--redo"]) == 0
    assert "percentile bootstrap" in capsys.readouterr().out


def test_a_second_run_replaces_only_its_own_output_and_only_when_told(here, capsys):
    write_rows("made.csv", made(20))
    words = ["score", "made.csv", "--draws", "5"]
    assert main(words) == 0
    first = {path: path.read_bytes() for path in Path("made.score").rglob("*") if path.is_file()}
    code, error = error_of(capsys, *words)
    assert code == 1 and error == "made.score exists; give --redo to replace it, or another --out"
    assert main([*words, "--redo"]) == 0
    assert {path: path.read_bytes() for path in Path("made.score").rglob("*") if path.is_file()} == first
    write_rows("made.csv", made(20, seed=1))
    assert main([*words, "--redo"]) == 0
    assert Path("made.score/results.json").read_bytes() != first[Path("made.score/results.json")]


def judged(n: int, labelled: int) -> list[dict[str, object]]:
    """Rows of which people have labelled the first; a judge calls some wrong ones true, and cannot tell of others."""
    draw = random.Random(0)
    rows: list[dict[str, object]] = []
    for at, row in enumerate(made(n)):
        truth = row.pop("label")
        verdict = "true" if truth or draw.random() < 0.3 else "false" if draw.random() < 0.5 else "unknown"
        rows.append({**row, "human": truth if at < labelled else "", "gpt_label": verdict})
    return rows


def test_a_judge_beside_people(here, capsys):
    rows = judged(800, 120)
    assert main(["score", write_rows("r.csv", rows), "--label", "human", "--judge", "gpt_label", "--draws", "100"]) == 0
    said = capsys.readouterr()
    assert "prediction-powered" in said.out and "With a judge's labels" in said.out
    assert "numbers that are not read" not in said.err
    table = json.loads(Path("r.score/tables/judged.json").read_text())
    assert "prediction-powered" in Path("r.score/index.html").read_text()
    found = {line["name"]: line["cells"] for line in table["lines"]}
    people, judge, powered = (found[name] for name in ("people alone", "judge alone, biased", "prediction-powered"))
    told = [row["gpt_label"] == "true" for row in rows if row["gpt_label"] != "unknown"]
    assert people[0]["value"] == pytest.approx(sum(row["human"] for row in rows[:120]) / 120)
    assert judge[0]["value"] == pytest.approx(sum(told) / len(told))
    assert [cells[-1]["value"] for cells in (people, judge, powered)] == [120, len(told), 800]
    widths = [[cell["high"] - cell["low"] for cell in cells[:3]] for cells in (people, powered)]
    assert all(second < first for first, second in zip(*widths, strict=True))
    only = write_rows("people.csv", [{k: v for k, v in row.items() if k != "gpt_label"} for row in rows[:120]])
    assert main(["score", only, "--label", "human", "--draws", "100"]) == 0
    assert results("people.score") == {  # the first table is of people's rows, as without a judge
        ("people", level): metrics for (_, level), metrics in results("r.score").items()
    }


def test_a_judge_beside_people_in_lists_and_without_confidences(here):
    rows = judged(80, 40)
    nested = [
        {"id": at // 4, "claims": [{"human": r["human"], "judge": r["gpt_label"]} for r in rows[at : at + 4]]}
        for at in range(0, 80, 4)
    ]
    options = ["--label", "claims.human", "--judge", "claims.judge", "--uncertainty", "claims.u", "--group", "id"]
    for row in nested:
        for number, claim in enumerate(row["claims"]):
            claim["u"] = number + 7.5
    assert main(["score", write_rows("n.jsonl", nested), *options, "--draws", "0"]) == 0
    table = json.loads(Path("n.score/tables/judged.json").read_text())
    assert [column["heading"] for column in table["columns"]] == ["mean f", "rows"]


def test_the_column_of_a_judge_is_not_guessed_as_that_of_people(here, capsys):
    rows = [{"correct": row["human"], "label": row["gpt_label"], **row} for row in judged(80, 40)]
    rows = [{name: row[name] for name in row if name not in ("human", "gpt_label")} for row in rows]
    assert main(["score", write_rows("r.csv", rows), "--judge", "label", "--draws", "0"]) == 0
    assert "label = correct" in capsys.readouterr().err


def test_a_judge_that_is_not_there(here, capsys):
    path = write_rows("r.csv", judged(80, 40))
    options = ["--label", "human", "--confidence", "confidence", "--group", "passage", "--judge"]
    _, said = error_of(capsys, "score", path, *options, "gtp_label")
    assert "no row has a judge's label in the column 'gtp_label'; did you mean gpt_label?" in said
    _, said = error_of(capsys, "score", path, "--layout", "factscore", "--judge", "gpt_label")
    assert "are read from tables, and factscore is a layout" in said
    nobody = write_rows("none.csv", [{**row, "human": ""} for row in judged(80, 40)])
    _, said = error_of(capsys, "score", nobody, *options, "gpt_label")
    assert "the column 'human' is empty in every row, expected a label" in said


def test_too_few_groups_beside_a_judge_leave_the_ordinary_metrics(here):
    columns = Columns(confidence=("confidence",), label="human", group="passage", judge="gpt_label")
    rows = judged(80, 40)
    told = [{**row, "gpt_label": row["gpt_label"] if at > 75 else "unknown"} for at, row in enumerate(rows)]
    for table, who in ((judged(80, 4), "people have labelled 4 rows"), (told, "the judge can tell")):
        scores = measured_files([read_scored(write_rows("r.csv", table), columns)], 0)
        [said] = [note for note in scores.notes if "nothing is measured with the judge's labels" in note]
        assert f": {who}" in said and "of 1 group among those with a confidence" in said and not scores.judged
        labelled = [row for row in table if row["human"] != ""]
        brier = sum((row["confidence"] - row["human"]) ** 2 for row in labelled) / len(labelled)
        assert scores.measured[0].values["brier"].value == pytest.approx(brier)


def test_a_calibration_of_all_rows_beside_a_judge(here):
    rows = [{**row, "confidence": row["confidence"] ** 3} for row in judged(400, 200)]
    human = write_rows("human.csv", [row for row in rows if row["human"] != ""])
    assert main(["calibrate", human, "--label", "human", "--confidence", "confidence", "--group", "passage"]) == 0
    path = write_rows("r.csv", rows)
    options = ["--label", "human", "--judge", "gpt_label", "--calibration", "human.calibration", "--draws", "20"]
    assert main(["score", path, "--group", "passage", *options]) == 0
    table = json.loads(Path("r.score/tables/judged.json").read_text())
    lines = {(line["section"], line["name"]): line["cells"] for line in table["lines"]}
    before, after = (lines[name, "prediction-powered"] for name in ("confidence", "calibrated"))
    assert before[0] == after[0] and before[-1]["value"] == after[-1]["value"] == 400
    assert before[1]["value"] != after[1]["value"]


def test_marked_characters_are_measured_beside_the_rest(here, capsys):
    answers = [" Ada wrote. She swam.", "Bo ran. He sat.", "Cy ran."]
    soft = [[{"start": 16, "end": 21, "prob": 0.8}], [{"start": 8, "end": 15, "prob": 0.4}], []]
    predicted = [
        {"soft_labels": [{"start": 12, "end": 21, "prob": 0.9}]},
        {"soft_labels": [{"start": 8, "end": 15, "prob": 0.7}], "hard_labels": []},
        {"hard_labels": []},
    ]
    rows = [
        {"id": f"en-{at}", "model_input": "Who?", "model_output_text": text, "soft_labels": s, "predicted": p}
        for at, (text, s, p) in enumerate(zip(answers, soft, predicted, strict=True))
    ]
    write_rows("marked.jsonl", rows)
    assert main(["score", "marked.jsonl", "--draws", "50"]) == 0
    out = capsys.readouterr().out
    assert "IoU" in out and "SC of characters" in out
    metrics = results("marked.score")["marked", "sentence"]
    assert metrics["span_iou"] == pytest.approx((5 / 9 + 1 + 1) / 3)
    labels, doubts = [0] * 16 + [1] * 5, [0] * 12 + [1] * 9
    assert metrics["span_correlation"] == pytest.approx((spearmanr(labels, doubts).statistic + 1 + 1) / 3)
    pairs = [(1, 1), (0.1, 0.2), (1, 1), (0.3, 0.6), (1, 1)]  # confidence and factuality of the sentences
    assert metrics["brier"] == pytest.approx(sum((c - f) ** 2 for c, f in pairs) / 5)


def test_a_tagged_file_of_marked_answers_is_measured_by_its_own_units(here):
    soft = [{"start": 12, "end": 21, "prob": 0.75}]
    rows = [
        {
            "id": "en-1",
            "question": "Who?",
            "answer": " Ada wrote. She swam.",
            "sentences": [{"text": "Ada wrote.", "confidence": 0.9}, {"text": "She swam.", "confidence": 0.2}],
            "meta": {"soft_labels": soft},
        }
    ]
    write_rows("tagged.jsonl", rows)
    assert main(["score", "tagged.jsonl", "--draws", "0"]) == 0
    metrics = results("tagged.score")["tagged", "sentence"]
    assert metrics["span_iou"] == 1 and metrics["mean_factuality"] == pytest.approx((1 + 0.25) / 2)
    doubts = [0] + [0.1] * 10 + [0] + [0.8] * 9
    assert metrics["span_correlation"] == pytest.approx(spearmanr(doubts, [0] * 12 + [1] * 9).statistic)
