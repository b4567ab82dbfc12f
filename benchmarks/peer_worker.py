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
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    box = WhiteboxModel(base, tokenizer, model_path=model)

    def run(request: dict[str, Any]) -> Any:
        tokens = request["tokens"]
        box.generation_parameters.max_new_tokens = box.generation_parameters.min_new_tokens = tokens
        estimator = getattr(estimators, request["method"])()
        return [float(estimate_uncertainty(box, estimator, text).uncertainty) for text in request["texts"]]

    return run


KINDS = {"vllm": vllm, "lm-polygraph": lm_polygraph}


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
