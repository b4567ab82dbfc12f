"""Plain answers of a model to questions, asked without the instruction."""

from __future__ import annotations

from collections.abc import Mapping

from lovec.encoding.encoder import Encoder
from lovec.types import Completion, Engine, Sampling


def plain_completions(
    engine: Engine, encoder: Encoder, questions: Mapping[str, str], sampling: Sampling
) -> dict[str, list[Completion]]:
    """Let a model answer questions, without the instruction that asks for confidences.

    Args:
        engine: runs the model.
        encoder: makes its prompts.
        questions: by the key of their random streams, so that an answer does not depend on the other questions.
        sampling: how to sample.

    Returns:
        ``sampling.n`` completions by key; none of a question that leaves no room for an answer in the model's context.
    """
    prompts = {key: encoder.prompt(question, instruct=False) for key, question in questions.items()}
    room = engine.context_length
    fitting = {key: ids for key, ids in prompts.items() if room is None or len(ids) < room}
    completions = engine.generate(list(fitting.values()), sampling, encoder.stop_ids, keys=list(fitting))
    return dict(zip(fitting, completions, strict=True))
