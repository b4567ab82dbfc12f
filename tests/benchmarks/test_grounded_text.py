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
    equal = {name: ([0.5, 0.5], labels) for name, (_, labels) in pairs.items()}
    for given in (pairs, equal):
        found = script.cross_fitted(given)
        assert found.keys() == given.keys() and all(len(row) == 2 for row, _ in found.values())
        for name, (confidences, _) in given.items():
            changed = script.cross_fitted({**given, name: (confidences, [1.0, 1.0])})
            assert changed[name][0] == found[name][0] and changed[name][1] != found[name][1]
            assert any(changed[other][0] != found[other][0] for other in given)
    assert {len({*row}) for row, _ in found.values()} == {1}  # the mean label of the others


def test_rows_are_of_every_set_of_answers_that_a_method_has_measured(script: Any) -> None:
    answers = [{"data": "wikibio", "id": f"w{at}", "true": [1.0, at % 2, 0.0], "supported": [None] * 3}
               for at in range(12)] + [
        {"data": "factcheck-gpt", "id": f"f{at}", "true": [1.0, None, 0.0], "supported": [0.5, None, at % 2]}
        for at in range(12)]  # fmt: skip
    plain = {a["id"]: [0.9, 0.4 + int(a["id"][1:]) / 50, 0.1] for a in answers}
    trained = f"{script.TRAINED}, by source, mean"
    made = {"date": "", "commit": ""}
    entries = [
        {"data": data, "method": "overlap", **made, "values": {k: v for k, v in plain.items() if k[0] == data[0]}}
        for data in script.DATA
    ]
    some = {f"w{at}": [0.8, None, 0.2] for at in range(6)}
    entries.append({"data": "wikibio", "method": trained, "values": some, **made})
    rows = list(script.rows_of(answers, entries))
    sizes = [(row["data"], row["truth"], row["passages"], row["n"]) for row in rows if row["method"] == "overlap"]
    assert sizes[::2] == [("factcheck-gpt", "true", 12, 24), ("factcheck-gpt", "supported", 12, 24),
                          ("wikibio", "true", 12, 36), ("wikibio", "true", 6, 18)]  # fmt: skip
    held = [row for row in rows if row["passages"] == 6]
    assert [(row["method"], row["map"]) for row in held] == [
        (script.CONSTANT, None), ("overlap", None), ("overlap", "isotonic"), (trained, None), (trained, "isotonic"),
    ]  # fmt: skip
    assert held[3]["n"] == 12 and held[3]["brier"][0] == pytest.approx(0.04)
    about = {"date": "", "commit": "", "versions": {}, "machine": ""}
    shown = script.table({"rows": rows, "confidences": entries, **about})
    assert shown.count("**") == 8 and f"| {script.TRAINED}, by source + isotonic |" in shown
    assert shown.index("12 answers, 36") < shown.index("6 answers, 18")


def test_the_page_is_of_its_results(script: Any) -> None:
    results = json.loads(script.RESULTS.read_text())
    begin, end = script.MARKS
    assert f"{begin}\n{script.table(results)}\n{end}" in script.PAGE.read_text()
    entries = [entry for entry in results["confidences"] if entry["data"] == "wikibio" and entry["method"] == "overlap"]
    (_, plain, mapped) = script.rows_of(results["answers"], entries)
    for row in (plain, mapped):
        (stored,) = (
            r
            for r in results["rows"]
            if all(r[name] == row[name] for name in ("data", "truth", "method", "map", "passages"))
        )
        assert stored["n"] == row["n"] and stored["brier"] == pytest.approx(row["brier"], abs=1e-5)
