"""A peer in a process and an environment of its own, which needs no lovec: ``python peer_worker.py KIND MODEL``.

It reads requests as lines of JSON and answers each with a line: what came of it, and the CPU-seconds, seconds and peak
of resident memory (MiB) that it took. ``real_peers.py`` starts it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from usage import used


def vllm(model: str) -> Callable[[dict[str, Any]], Any]:
    """Return what samples with vLLM's engine: ids per prompt and sample."""
    from vllm import LLM, SamplingParams

    engine = LLM(model, dtype="float32", enforce_eager=True, max_model_len=1024, max_num_seqs=64)

    def run(request: dict[str, Any]) -> Any:
        if request["fresh"]:
            engine.reset_prefix_cache()
        params = SamplingParams(**request["params"])
        outputs = engine.generate([{"prompt_token_ids": ids} for ids in request["prompts"]], params, use_tqdm=False)
        return [[list(sample.token_ids) for sample in output.outputs] for output in outputs]

    return run


def lm_polygraph(model: str) -> Callable[[dict[str, Any]], Any]:
    """Return what answers a question and gives LM-Polygraph's uncertainty of the answer."""
    from lm_polygraph import WhiteboxModel, estimators
    from lm_polygraph.utils.estimate_uncertainty import estimate_uncertainty
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    # It asks for the attention weights, which only this implementation returns.
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").eval()
    box = WhiteboxModel(base, tokenizer, model_path=model)

    def run(request: dict[str, Any]) -> Any:
        tokens = request["tokens"]
        box.generation_parameters.max_new_tokens = box.generation_parameters.min_new_tokens = tokens
        estimator = getattr(estimators, request["method"])()
        return [float(estimate_uncertainty(box, estimator, text).uncertainty) for text in request["texts"]]

    return run


def uqlm(model: str) -> Callable[[dict[str, Any]], Any]:
    """Return what gives uqlm's LUQ of the sentences of an answer, with the model as its own judge of entailment."""
    import asyncio

    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, BaseMessage
    from langchain_core.outputs import ChatGeneration, ChatResult
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
    from uqlm import LongTextUQ

    tokenizer = PreTrainedTokenizerFast.from_pretrained(
        model, model_input_names=["input_ids", "attention_mask"]
    )  # by this class, since it has transformers 4
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    roles = {"system": "system", "human": "user", "ai": "assistant"}

    class Chat(BaseChatModel):
        """The model, greedy at temperature 0."""

        temperature: float
        tokens: int

        @property
        def _llm_type(self) -> str:
            return "transformers"

        def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
            turns = [{"role": roles[message.type], "content": message.content} for message in messages]
            inputs = tokenizer.apply_chat_template(
                turns, add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
            drawn = {"do_sample": True, "temperature": self.temperature, "top_k": 0} if self.temperature else {}
            with torch.inference_mode():
                out = base.generate(**inputs, max_new_tokens=self.tokens, pad_token_id=0, **drawn)
            text = tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
            return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])

    def run(request: dict[str, Any]) -> Any:
        writer, judge = Chat(temperature=1.0, tokens=request["tokens"]), Chat(temperature=0.0, tokens=4)
        method = LongTextUQ(writer, granularity="sentence", nli_llm=judge)

        async def scored() -> Any:
            samples = await method.generate_candidate_responses(
                prompts=[request["question"]], num_responses=request["samples"]
            )
            return await method.score([request["answer"]], samples, show_progress_bars=False)

        return asyncio.run(scored()).data["claims_data"]

    return run


KINDS = {"uqlm": uqlm, "vllm": vllm, "lm-polygraph": lm_polygraph}


def main() -> None:
    """Answer requests until there are no more."""
    torch.set_num_threads(1)
    replies = os.fdopen(os.dup(1), "w")  # what libraries print goes to the log
    os.dup2(2, 1)
    run = KINDS[sys.argv[1]](sys.argv[2])
    print(json.dumps("ready"), file=replies, flush=True)
    for line in sys.stdin:
        result, usage = used(partial(run, json.loads(line)))
        print(json.dumps({"result": result, "used": usage}), file=replies, flush=True)


if __name__ == "__main__":
    main()
