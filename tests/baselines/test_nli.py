"""Judging by natural language inference: the softmax by hand, any label order, padding, and texts that are too long."""

from __future__ import annotations

import gc
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tinynli import tiny_nli
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from lovec.baselines import Claim, NLIJudge
from lovec.baselines.nli import _loaded, nli_labels
from lovec.types import LovecError, Record

RECORD = Record("r", "Who is Ada?")
PAIRS = [
    ("Ada was born in London in 1815. She wrote notes.", "She was born in 1815."),
    ("Ada wrote.", "She rained."),
    ("No.", "It was noon when she came to London to write the first of her notes on the engine."),
    ("Ada was born in London in 1815. She wrote notes.", "No."),
    ("It rained.", "It rained."),
]
CLAIMS = [Claim(RECORD, premise, hypothesis) for premise, hypothesis in PAIRS]
NO_RESOURCES: Any = None  # the judge has a model of its own


def judge(model: str, **options: Any) -> NLIJudge:
    nli = NLIJudge(model, device="cpu", **options)
    nli.attach(NO_RESOURCES)
    return nli


def by_hand(path: str, pairs: Sequence[tuple[str, str]], entail: int, contradict: int) -> list[float]:
    """Return the softmax over two of the labels, by one plain forward pass per pair."""
    model: Any = AutoModelForSequenceClassification.from_pretrained(path).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    support = []
    for premise, hypothesis in pairs:
        with torch.no_grad():
            logits = model(**tokenizer(premise, hypothesis, return_tensors="pt")).logits[0].tolist()
        e, c = math.exp(logits[entail]), math.exp(logits[contradict])
        support.append(e / (e + c))
    return support


@pytest.mark.parametrize(
    ("labels", "entail", "contradict"),
    [
        (["entailment", "neutral", "contradiction"], 0, 2),
        (["CONTRADICTION", "ENTAILMENT", "NEUTRAL"], 1, 0),
        (["neutral", "Contradicts", "Entails"], 2, 1),
    ],
)
@pytest.mark.parametrize("arch", ["bert", "roberta"])
def test_support_is_the_softmax_over_two_labels(
    tmp_path: Path, arch: str, labels: list[str], entail: int, contradict: int
) -> None:
    path = tiny_nli(tmp_path, arch, labels)
    support = judge(path).support(CLAIMS)
    assert support == pytest.approx(by_hand(path, PAIRS, entail, contradict), abs=1e-6)
    assert len({round(value, 4) for value in support}) == len(PAIRS)
    assert max(support) - min(support) > 0.05


@pytest.mark.parametrize("arch", ["bert", "roberta"])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_no_result_depends_on_its_batch(tmp_path: Path, arch: str, rows: int) -> None:
    path = tiny_nli(tmp_path, arch)
    together = judge(path).support(CLAIMS)
    assert judge(path, batch_size=rows).support(CLAIMS) == pytest.approx(together, abs=1e-6)
    assert judge(path).support(CLAIMS[::-1]) == pytest.approx(together[::-1], abs=1e-6)


def test_without_a_padding_token_pairs_run_one_by_one(tmp_path: Path) -> None:
    """A decoder classifies by the last token, and without a padding token cannot tell which one is the last."""
    path = tiny_nli(tmp_path, "llama", pad=False)
    assert AutoTokenizer.from_pretrained(path).pad_token is None
    assert judge(path).support(CLAIMS) == pytest.approx(by_hand(path, PAIRS, 0, 2), abs=1e-6)


def test_no_claims_no_support(tmp_path: Path) -> None:
    assert judge(tiny_nli(tmp_path)).support([]) == []


# Too long


@pytest.mark.parametrize(("arch", "limit"), [("bert", 128), ("roberta", 128)])
def test_the_end_of_a_long_text_is_cut_and_logged(
    tmp_path: Path, arch: str, limit: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = tiny_nli(tmp_path, arch)  # a token a byte
    long = "Ada wrote notes. " * 20
    tokenizer = AutoTokenizer.from_pretrained(path)
    fits = limit - len(tokenizer("", "She wrote.")["input_ids"])
    nli = judge(path)
    support = nli.support([Claim(RECORD, long, "She wrote."), *CLAIMS[1:2]])
    assert support == pytest.approx(by_hand(path, [(long[:fits], "She wrote."), PAIRS[1]], 0, 2), abs=1e-6)
    assert support[0] != pytest.approx(by_hand(path, [(long[: fits - 1], "She wrote.")], 0, 2)[0], abs=1e-7)
    assert list(nli.cut.ids) == ["r"]
    assert [r.message for r in caplog.records if r.name == "lovec.baselines.nli"] == [
        f"texts too long for the NLI model {path} ({limit} tokens) are cut at their end, for 1 records so far: r"
    ]


def test_cut_texts_are_logged_when_the_number_of_their_records_has_doubled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nli = judge(tiny_nli(tmp_path))
    for number in range(8):
        nli.support([Claim(replace(RECORD, id=f"r{number}"), "Ada wrote notes. " * 20, "She wrote.")])
    counts = [r.message.split("for ")[-1].split()[0] for r in caplog.records if r.name == "lovec.baselines.nli"]
    assert len(nli.cut.ids) == 8 and counts == ["1", "2", "4", "8"]


def test_a_sentence_that_leaves_no_room_is_not_supported(tmp_path: Path) -> None:
    path = tiny_nli(tmp_path)
    nli = judge(path)
    huge = Claim(RECORD, "Ada.", "word " * 40)
    assert nli.support([huge, CLAIMS[1]]) == [0.0, pytest.approx(by_hand(path, PAIRS[1:2], 0, 2)[0], abs=1e-6)]
    assert list(nli.cut.ids) == ["r"]
    assert judge(path, max_length=40).support(CLAIMS[2:3]) == [0.0]
    assert judge(path, max_length=64).support(CLAIMS[:1]) != judge(path).support(CLAIMS[:1])


def test_special_tokens_in_a_text_are_read_as_characters(tmp_path: Path) -> None:
    """A sample that writes [SEP] must not end the premise."""
    path = tiny_nli(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    nli = judge(path)
    (pairs, _) = nli._classifier.pairs([("A[SEP]B", "C[PAD]")], None)  # type: ignore[union-attr]
    assert pairs[0]["input_ids"].count(tokenizer.sep_token_id) == 2  # type: ignore[index]
    assert tokenizer.pad_token_id not in pairs[0]["input_ids"]  # type: ignore[index]


# Labels and models that will not do


@pytest.mark.parametrize(
    "labels",
    [
        ["LABEL_0", "LABEL_1", "LABEL_2"],
        ["entailment", "not_entailment"],
        ["entailment", "neutral", "partial entailment", "contradiction"],
    ],
)
def test_a_model_with_other_labels_is_refused_by_their_names(labels: list[str]) -> None:
    with pytest.raises(LovecError, match=f"labels of the NLI model 'x' are {', '.join(labels)}; expected one with"):
        nli_labels(dict(enumerate(labels)), "x")
    assert nli_labels({0: "contradiction", 1: "not_entailment", 2: "entailment"}, "x") == (2, 0)


def test_wrong_use_raises_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(LovecError, match=r"cannot load the NLI model .*expected a folder or hub id of a sequence"):
        judge(str(tmp_path / "nowhere"))
    with pytest.raises(LovecError, match=r"NLIJudge has no model yet; call attach"):
        NLIJudge("x").support(CLAIMS)
    with pytest.raises(LovecError, match="batch_size is 0, expected at least 1"):
        NLIJudge("x", batch_size=0)
    with pytest.raises(LovecError, match="are odd, entailment, contradicted or not, contradiction"):
        judge(tiny_nli(tmp_path, labels=["odd", "entailment", "contradicted or not", "contradiction"]))
    weights = Path(tiny_nli(tmp_path)) / "model.safetensors"
    save_file(
        {name: w for name, w in load_file(weights).items() if "classifier" not in name}, weights, {"format": "pt"}
    )
    with pytest.raises(LovecError, match=r"the NLI model .* lacks 2 weights of its model \(classifier\.bias, class"):
        judge(str(weights.parent))


def test_judges_of_one_model_share_it_while_they_live(tmp_path: Path) -> None:
    path = tiny_nli(tmp_path)
    first, second = judge(path), judge(path)
    assert first._classifier is second._classifier
    del first, second
    gc.collect()
    assert (path, "cpu") not in _loaded
