"""The benchmark of confidences by a source on people's labels: cross-fitting, and the page it writes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from scripts import load_script


@pytest.fixture(scope="module")
def script() -> Any:
    return load_script("grounded_text")


def test_maps_do_not_see_the_labels_that_they_are_measured_on(script: Any) -> None:
    pairs = {f"p{at}": ([at / 10, 1 - at / 10], [float(at % 2), 0.0]) for at in range(10)}
    for constant in (True, False):
        found = script.cross_fitted(pairs, constant)
        assert list(map(len, found.values())) == [2] * 10 and found.keys() == pairs.keys()
        for name, (confidences, _) in pairs.items():
            changed = script.cross_fitted({**pairs, name: (confidences, [1.0, 1.0])}, constant)
            assert changed[name][0] == found[name][0] and changed[name][1] != found[name][1]
            assert any(changed[other][0] != found[other][0] for other in pairs)
        if constant:
            assert {len({*row}) for row, _ in found.values()} == {1}
    equal = script.cross_fitted({name: ([0.3, 0.3], labels) for name, (_, labels) in pairs.items()})
    assert equal == script.cross_fitted(pairs, constant=True)  # nothing can be told apart


def test_rows_of_all_answers_and_of_those_that_an_adapter_was_not_trained_on(script: Any) -> None:
    answers = [{"data": "wikibio", "id": f"w{at}", "true": [1.0, at % 2, 0.0], "supported": [None] * 3}
               for at in range(12)] + [
        {"data": "factcheck-gpt", "id": f"f{at}", "true": [1.0, None, 0.0], "supported": [0.5, None, at % 2]}
        for at in range(12)]  # fmt: skip
    plain = {a["id"]: [0.9, 0.4 + int(a["id"][1:]) / 50, 0.1] for a in answers}
    made = {"date": "", "commit": ""}
    entries = [
        {"data": "factcheck-gpt", "method": script.PLAIN, "values": plain, **made},
        {"data": "wikibio", "method": script.PLAIN, "values": plain, **made},
        {"data": "wikibio", "method": f"{script.TRAINED}, by source, mean", **made,
         "values": {f"w{at}": [0.8, None, 0.2] for at in range(6)}},
    ]  # fmt: skip
    rows = list(script.rows_of(answers, entries))
    sizes = {(row["data"], row["answers"], row["truth"]): (row["passages"], row["n"]) for row in rows
             if row["method"] == script.PLAIN}  # fmt: skip
    assert sizes == {("factcheck-gpt", "all", "true"): (12, 24), ("factcheck-gpt", "all", "supported"): (12, 24),
                     ("wikibio", "all", "true"): (12, 36), ("wikibio", "held out", "true"): (6, 18)}  # fmt: skip
    held = [row for row in rows if row["answers"] == "held out"]
    assert [(row["method"], row["map"]) for row in held] == [
        (script.CONSTANT, None), (script.PLAIN, None), (script.PLAIN, "isotonic"),
        (f"{script.TRAINED}, by source, mean", None), (f"{script.TRAINED}, by source, mean", "isotonic"),
    ]  # fmt: skip
    assert held[3]["n"] == 12 and held[3]["brier"][0] == pytest.approx(0.04)
    shown = script.table(
        {"rows": rows, "confidences": entries, "date": "", "commit": "", "versions": {}, "machine": ""}
    )
    assert shown.count("**") == 8 and f"| {script.TRAINED}, by source + isotonic |" in shown


def test_the_page_is_of_its_results(script: Any) -> None:
    results = json.loads(script.RESULTS.read_text())
    begin, end = script.MARKS
    assert f"{begin}\n{script.table(results)}\n{end}" in script.PAGE.read_text()
    rows = json.loads(json.dumps(list(script.rows_of(results["answers"], results["confidences"]))))
    assert [(r["method"], r["n"]) for r in rows] == [(r["method"], r["n"]) for r in results["rows"]]
    assert [r["brier"] for r in rows] == [pytest.approx(r["brier"], abs=1e-5) for r in results["rows"]]
