"""A real language model on a real vLLM server as a model behind an API, which the commands ask in words."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from served import chat, post, running
from vllmserver import VLLM_SERVER, vllm_server

import lovec
from lovec.core.errors import LovecError
from lovec.core.notices import counted
from lovec.models import resolve_model
from lovec.models.gguf import SMOLLM2
from lovec.tagging import ApiModel, ApiTagger

pytestmark = VLLM_SERVER

QUESTION = "In a paragraph, could you tell me what you know about Paris?"
SENTENCES = [
    "Paris is the capital of France.",
    "It lies in Australia.",
    "Its river is the Seine.",
    "Nobody lives there.",
]
TEXT = " ".join(SENTENCES)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server of SmolLM2."""
    pytest.importorskip("gguf", reason="the extra real is not installed")
    try:
        model = resolve_model(SMOLLM2)
    except LovecError as error:
        pytest.skip(str(error))
    with vllm_server(model, "smol", tmp_path_factory.mktemp("server")) as address:
        yield address


def by_api(url: str, cache: Path, method: Literal["p_true", "verbal"]) -> list[float | None]:
    tagged = lovec.tag(
        TEXT, QUESTION, model="smol", engine="openai", base_url=url, cache=str(cache / "replies.sqlite"), method=method
    )
    return [sentence["confidence"] for sentence in tagged["sentences"]]


def test_p_true_by_an_api_is_that_of_the_same_model_here(url: str, tmp_path: Path) -> None:
    """An API gives the 20 most probable tokens only, so that True and False written in other ways do not count."""
    here = [s["confidence"] for s in lovec.tag(TEXT, QUESTION, model=SMOLLM2, method="p_true")["sentences"]]
    there = by_api(url, tmp_path, "p_true")
    assert all(c is not None and 0 < c < 1 for c in there) and statistics.pstdev(here) > 0.005
    assert there == pytest.approx(here, abs=0.002)
    assert by_api(url, tmp_path, "p_true") == there


def test_replies_without_a_number_give_no_confidence(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The bare model answers this question in sentences of its own."""
    missing = by_api(url, tmp_path, "verbal").count(None)
    assert missing
    assert f"{counted(missing, 'sentence has', 'sentences have')} no confidence: " in caplog.text
    assert "the reply is '" in caplog.text and "expected 0 or 1" in caplog.text


def test_a_proxy_answers_and_scores_texts_as_the_command_does(url: str, tmp_path: Path) -> None:
    tagger = ApiTagger(ApiModel("smol", url), "p_true", max_new_tokens=48)
    with running(tagger) as server:
        status, answer = post(server, chat(QUESTION, max_tokens=48))
        whole = server.client().chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": QUESTION}], max_tokens=48, stream=True
        )
        pieces = [piece.choices[0].delta.content or "" for piece in whole if piece.choices]
        body = {"text": TEXT, "question": QUESTION}
        tagged = post(server, json.dumps(body).encode(), "/v1/tag")[1]
    choice = answer["choices"][0]
    assert status == 200 and choice["message"]["content"].strip() and answer["usage"]["completion_tokens"] > 0
    assert "".join(pieces).strip()
    # The bare model writes hardly any tags. A sentence has a valid one, or a problem that says what was wrong with it.
    entries = choice["message"]["confidence"]
    assert entries and all((entry["confidence"] is None) == ("problem" in entry) for entry in entries)
    assert [entry["confidence"] for entry in tagged["confidence"]] == pytest.approx(
        by_api(url, tmp_path, "p_true"), abs=1e-6
    )
