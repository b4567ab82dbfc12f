"""The families of models that are tried, and the page about them.

python tests/helpers/families.py writes docs/models.md
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
FUSED = ("qkv_proj", "o_proj")
NO_THOUGHT = "<think>\n\n</think>\n\n"


@dataclass(frozen=True)
class Family:
    """A family of models.

    Attributes:
        arch: its tiny model, see ``lovec.models.tiny``.
        models: published models of it.
        before: what stands between question and answer in a prompt.
        end: token that ends an answer.
        layers: layers that get a LoRA by default.
        note: what is particular about it.
    """

    arch: str
    models: str
    before: str
    end: str
    layers: tuple[str, ...] = ATTENTION
    note: str = ""


_BAR = "\uff5c"  # DeepSeek's full-width bar
_LLAMA = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
_GEMMA = "<end_of_turn>\n<start_of_turn>model\n"
_QWEN = "<|im_end|>\n<|im_start|>assistant\n"
FAMILIES = (
    Family("llama", "Llama 3", _LLAMA, "<|eot_id|>"),
    Family("llama3", "Llama 3.1 to 3.3", _LLAMA, "<|eot_id|>", note="the date is always 26 Jul 2024"),
    Family("gemma2", "Gemma 2", _GEMMA, "<end_of_turn>"),
    Family("gemma3", "Gemma 3", _GEMMA, "<end_of_turn>"),
    Family("qwen2", "Qwen 2, Qwen 2.5", _QWEN, "<|im_end|>"),
    Family("smollm2", "SmolLM2", _QWEN, "<|im_end|>", note="digits are single tokens, so 10 is two"),
    Family("qwen3", "Qwen 3", _QWEN + NO_THOUGHT, "<|im_end|>", note="thinking off: an empty thought"),
    Family("qwen3thinking", "Qwen 3 Thinking", _QWEN + NO_THOUGHT, "<|im_end|>", note="its thought is ended at once"),
    Family("r1", "DeepSeek-R1-Distill", f"<{_BAR}Assistant{_BAR}>{NO_THOUGHT}", f"<{_BAR}end▁of▁sentence{_BAR}>",
           note="its thought is ended at once"),
    Family("mistral", "Mistral 7B v0.3, Nemo", "[/INST]", "</s>", note="the instruction is in the last user turn"),
    Family("olmo2", "OLMo 2", "\n<|assistant|>\n", "<|endoftext|>"),
    Family("phi3", "Phi-3, Phi-4-mini", "<|end|>\n<|assistant|>\n", "<|end|>", FUSED),
    Family("phi4", "Phi-4", "<|im_end|><|im_start|>assistant<|im_sep|>", "<|im_end|>", FUSED),
    Family("gptoss", "gpt-oss", "<|end|><|start|>assistant<|channel|>final<|message|>", "<|return|>",
           note="answers in the channel `final`, without reasoning"),
    Family("nemotron", "Nemotron-Mini", "\n<extra_id_1>Assistant\n", "</s>"),
)  # fmt: skip

_TEXT = """# Models

Every causal language model of transformers with a chat template may work. These families are tried: a model of each
architecture with two layers and random weights goes through encoding, training and tagging, and its log-probabilities
are compared with those of the model itself. This page is written by `make models` from what the tests check; of the
published models SmolLM2-135M-Instruct (`smollm2`) and Qwen2.5-Coder-0.5B-Instruct (a GGUF file, which
`benchmarks/second_model.py` fetches) were at hand; with these their rows are tested, too.

A model may also be a GGUF file: `model.gguf`, `org/name:file.gguf` of the hub, or `smollm2`, whose weights a package
holds ([Installation](install.md)). It is dequantised once into the cache, to float32, or to bfloat16 with
`policy.dtype: bfloat16`, and from then on it is a base like others; both are the same base to an adapter or a
calibration. An adapter finds its file again on another machine by the name that was given, or in the cache there.
Architectures that transformers cannot read from GGUF are refused by name.

| Models | System turn | Answer begins after | and ends with | LoRA on | Shared beginnings | |
|---|---|---|---|---|---|---|
{rows}

- **System turn**: where the template has none, the instruction stands in front of the first question.
- **Shared beginnings**: whether sequences that begin alike are computed once, see [Speed](speed.md). Where not, they
  are computed row by row, with the same results.
- **Thinking** is off: templates that know `enable_thinking` get `false`, a thought that a template begins is ended at
  once, and the prompt goes up to where the template puts the answer itself. What a model writes between `<think>` and
  `</think>` all the same, at the beginning of its answer, is not a sentence, gets no tag, and is left out when answers
  are labelled or rated. An adapter that reasons before it answers cannot be trained with lovec.
- **vLLM in the same process** (`VllmEngine`, version 0.32 on a CPU) gives the same distributions over the scores for
  all of them but OLMo 2, whose class in transformers it changes there, and gpt-oss, whose experts need a kernel that
  its build for the CPU lacks. Both end with an error that says so. Nemotron was not tried with it.
- **LongRoPE** (Phi-3 with a context of 128,000 tokens, Phi-4-mini): lovec reads as many tokens as the model saw in its
  first training (`original_max_position_embeddings`, often 4,096), since beyond that transformers computes all rows of
  a batch otherwise. vLLM does so wherever its `max_model_len` is above that number: give the number.
- **Dates**: templates that write today's date write 26 July 2024, so that a prompt is the same tomorrow.
- **LoRA**: a fused layer stands for its parts if all of them are asked for; else the model is refused by name.
- **Refused**: templates that write something else between question and answer once the answer is there, tokenizers that
  do not give the tags back, logits that are scaled (Cohere, Granite), and weights that are quantised by other methods
  than [NF4](machines.md#less-memory-a-base-in-4-bits). Each error says which, and what to do.
"""


def described(family: Family, policy: Any, encoder: Any) -> str:
    """Return the row of a family, from its tiny model."""
    has_system = encoder.tokenizer.decode(encoder.prompt("Who?")) != encoder.tokenizer.decode(
        encoder.prompt(f"{encoder.instruction}\n\nWho?", instruct=False)
    )
    shown = family.before.replace("\n", "\\n")
    shared = "yes" if policy.packing_disabled_reason is None else f"no: {policy.packing_disabled_reason}"
    own = "yes" if has_system else "in the question's turn"
    layers = ", ".join(family.layers)
    return f"| {family.models} | {own} | {_code(shown)} | {_code(family.end)} | {layers} | {shared} | {family.note} |"


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


def page() -> str:
    """Return the page, from a tiny model of every family."""
    from lovec.encoding import Encoder
    from lovec.models.tiny import build_tiny
    from lovec.policy import Policy, PolicyConfig

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for family in FAMILIES:
            policy = Policy(PolicyConfig(str(build_tiny(family.arch, Path(folder, family.arch))), lora_r=4))
            rows.append(described(family, policy, Encoder(policy.tokenizer, "Rate it.")))
    return _TEXT.format(rows="\n".join(rows))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
