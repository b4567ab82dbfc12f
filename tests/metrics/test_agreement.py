"""Agreement of two label files: figures against scipy and by hand, and what does not match by name."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from scipy.stats import spearmanr

from lovec.cli import main
from lovec.datasets.jsonl import write_records
from lovec.metrics.agreement import BANDS, agreement, match
from lovec.types import LovecError, Record, Sentence, to_rating


def record(name: str, *labels: float | None, texts: str = "abcdefgh") -> Record:
    return Record(name, "Who?", sentences=tuple(Sentence(f"{t}.", f) for t, f in zip(texts, labels, strict=False)))


def test_figures_by_hand():
    found = agreement({"x": [(1.0, 1.0), (0.5, 0.6), (0.0, 0.2)], "y": [(0.3, 0.8)]})
    assert (found.n, found.passages) == (4, 2)
    assert found.exact == 0.25 and found.within_1 == 0.5
    assert found.mean_first == pytest.approx(0.45) and found.mean_second == pytest.approx(0.65)
    assert found.spearman == pytest.approx(0.8)  # ranks 4 3 1 2 and 4 2 1 3: 1 - 6 * 2 / (4 * 15)
    assert found.passage_spearman == pytest.approx(-1.0)  # 0.5, 0.3 and 0.6, 0.8
    assert found.confusion[BANDS.index("0")][BANDS.index("1-3")] == 1
    assert found.confusion[BANDS.index("1-3")][BANDS.index("7-9")] == 1
    assert sum(map(sum, found.confusion)) == 4


@pytest.mark.parametrize("seed", range(5))
def test_figures_equal_scipy(seed):
    rng = random.Random(seed)
    pairs = [(rng.randint(0, 10) / 10, rng.random()) for _ in range(200)]
    found = agreement({"x": pairs[:80], "y": pairs[80:]})
    assert found.spearman == pytest.approx(spearmanr(*zip(*pairs, strict=True)).statistic, abs=1e-12)
    gaps = [abs(to_rating(f) - to_rating(g)) for f, g in pairs]
    assert found.exact == pytest.approx(gaps.count(0) / 200)
    assert found.within_1 == pytest.approx((gaps.count(0) + gaps.count(1)) / 200)


def test_equal_means_of_answers_tie_whatever_their_number_of_sentences():
    for lengths in ((3, 4, 6), (3, 4, 6, 7, 9, 5)):
        constant = {str(n): [(0.7, at / n) for at in range(n)] for n in lengths}
        assert agreement(constant).passage_spearman is None
    tied = {"x": [(0.1, 0.2), (0.2, 0.3), (0.3, 0.4)], "y": [(0.2, 0.9)], "z": [(0.9, 1.0)]}
    assert agreement(tied).passage_spearman == pytest.approx(0.75**0.5)  # means 0.2, 0.2, 0.9 and 0.3, 0.9, 1


def test_every_rating_has_its_band():
    found = agreement({"x": [(rating / 10, rating / 10) for rating in range(11)]})
    assert [found.confusion[i][i] for i in range(5)] == [1, 3, 3, 3, 1]


def test_undefined_is_none():
    assert agreement({"x": [(0.5, 0.1), (0.5, 0.9)]}).spearman is None
    assert agreement({"x": [(0.5, 0.1)]}).passage_spearman is None
    nothing = agreement({})
    assert nothing.n == 0 and nothing.exact is None and nothing.mean_first is None
    with pytest.raises(LovecError, match="expected a number"):
        agreement({"x": [(0.5, 7.0)]})


def test_matching_is_by_id_and_text():
    first = [record("a", 0.1, 0.2, 0.3), record("b", 0.4), record("c", 0.5, 0.6)]
    second = [record("d", 1.0), record("c", 0.5, None), record("a", 0.9, 0.8, 0.7, texts="cax")]
    found = match(first, second)
    assert found.pairs == {"a": [(0.1, 0.8), (0.3, 0.9)], "c": [(0.5, 0.5)]}
    assert found.unlabelled == 1
    assert (found.only_first, found.only_second, found.differing) == (("b",), ("d",), ("a",))
    assert found.sentences == 2


def test_a_sentence_that_stands_twice_is_matched_in_order():
    found = match([record("a", 0.1, 0.2, texts="xx")], [record("a", 0.3, 0.4, 0.5, texts="xxx")])
    assert found.pairs == {"a": [(0.1, 0.3), (0.2, 0.4)]} and found.sentences == 1


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_records("a.jsonl", [record("x", 1.0, 0.5, 0.0), record("only", 1.0)])
    write_records("b.jsonl", [record("x", 1.0, 0.6, 0.2)])
    assert main(["agreement", "a.jsonl", "b.jsonl"]) == 0
    said = capsys.readouterr().out
    assert "Spearman 1.000 over 3 sentences" in said
    assert "same rating 33.3 %, within 1 66.7 %" in said
    assert "1 record only in A: only" in said
    assert main(["agreement", "a.jsonl", "b.jsonl", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["n"] == 3 and found["passage_spearman"] is None and found["unmatched"]["only_first"] == ["only"]
    assert found["judge"] is None  # intervals are over records, and there is one
    write_records("c.jsonl", [record("z", 1.0)])
    assert main(["agreement", "a.jsonl", "c.jsonl"]) == 1
    assert (
        "share no labelled sentence: 2 and 1 records have ids that the other file lacks (x and z)"
        in capsys.readouterr().err
    )
    assert main(["agreement", "a.jsonl", str(Path("none.jsonl"))]) == 1
    assert "cannot read none.jsonl" in capsys.readouterr().err


def test_what_the_second_file_is_worth_beside_the_first(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = random.Random(0)
    truth = [[float(rng.random() < 0.6) for _ in range(4)] for _ in range(300)]
    told = [[f if rng.random() < 0.9 else None if rng.random() < 0.5 else 1.0 for f in row] for row in truth]
    write_records("people.jsonl", [record(f"r{n}", *row) for n, row in enumerate(truth[:40])])
    write_records("judge.jsonl", [record(f"r{n}", *row) for n, row in enumerate(told)])
    assert main(["agreement", "people.jsonl", "judge.jsonl", "--width", "0.1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["judge"]
    untold = sum(g is None for row in told for g in row)
    assert (found["rows"], found["untold"], found["labels"], found["groups"]) == (1200, untold, 160, 40)
    both = [
        g - f for fs, gs in zip(truth[:40], told, strict=False) for f, g in zip(fs, gs, strict=True) if g is not None
    ]
    assert found["bias"]["value"] == pytest.approx(sum(both) / len(both))
    assert found["people"]["value"] == pytest.approx(sum(map(sum, truth[:40])) / 160)
    assert found["effective"] > 320 and found["needed_powered"] < found["needed"] / 2
    assert main(["agreement", "people.jsonl", "judge.jsonl", "--width", "0.001"]) == 0
    said = capsys.readouterr().out
    assert f"B as a judge of 1200 sentences, {untold} of which it cannot tell" in said
    assert f"160 labels of A with B's are worth {found['effective']:.0f} of A alone" in said
    assert "an interval of 0.1 points takes" in said and "more labels of B, too, with B's" in said
    assert main(["agreement", "people.jsonl", "judge.jsonl", "--width", "0"]) == 1
    assert "--width is 0" in capsys.readouterr().err


def test_how_many_labels_are_needed_is_not_known_where_they_are_alike(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_records("people.jsonl", [record(name, 1.0, 1.0) for name in "ab"])
    write_records("judge.jsonl", [record("a", 1.0, 1.0), record("b", 1.0, 0.0), record("c", 0.0)])
    assert main(["agreement", "people.jsonl", "judge.jsonl"]) == 0
    said = capsys.readouterr().out
    assert "how many labels an interval of 4 points takes is not known: those of A are alike" in said
    assert main(["agreement", "people.jsonl", "judge.jsonl", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["judge"]["needed"] is None


def test_sentences_that_one_file_lacks_are_rows_of_the_judge_only():
    first = [record("a", 0.1, 0.2, None, texts="xyz"), record("b", 1.0)]
    second = [record("a", 0.5, 0.6, 0.7, 0.8, texts="xxzy"), record("c", None)]
    judged = match(first, second).judged
    assert judged.judge[:4].tolist() == [0.5, 0.6, 0.7, 0.8] and judged.judge[4].isnan()
    assert [f if f == f else None for f in judged.people.tolist()] == [0.1, None, None, 0.2, None]
    assert judged.group.tolist() == [0, 0, 0, 0, 1]
    first, second = [record("a", 0.1, 0.2, 0.3, texts="xxx")], [record("a", 0.8, 0.9, texts="xx")]
    assert match(first, second).judged.people.tolist() == [0.1, 0.2]
