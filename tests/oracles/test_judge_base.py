"""The self-judge of a policy that continues an adapter."""

from __future__ import annotations

import pytest

from lovec.encoding import Encoder
from lovec.oracles import SelfJudge
from lovec.policy import Policy, PolicyConfig
from lovec.types import Record, Sentence

RECORDS = [
    Record("a", "Who is Ada?", evidence=("Ada wrote notes.",), sentences=(Sentence("She wrote."), Sentence("No.")))
]


def ratings(policy: Policy, encoder: Encoder) -> list[float | None]:
    judge = SelfJudge(readout="mean")
    judge.attach(policy, encoder)
    return judge.rate(RECORDS)[0]


def test_the_base_judges_and_not_the_reference(model: str, adapter: str) -> None:
    """The reference is the adapter that training started from; the judge is the model without any."""
    continued = Policy(PolicyConfig(model=model, adapter=adapter))
    assert continued.continued
    encoder = Encoder(continued.tokenizer)
    found = ratings(continued, encoder)
    assert found == pytest.approx(ratings(Policy(PolicyConfig(model=model)), encoder), abs=1e-6)
    judge = SelfJudge(readout="mean")
    judge.attach(continued, encoder)
    with continued.reference():  # what the adapter would have said is told apart
        judge.engine.sync(continued)
        scores = judge.engine.score([encoder.prompt("Who?")], [[70]])
    with continued.without_adapter():
        judge.engine.sync(continued)
        assert abs(judge.engine.score([encoder.prompt("Who?")], [[70]])[0][0] - scores[0][0]) > 1e-4
