"""Take a trained policy out of the house: a PEFT adapter or a merged model, in a folder with a model card."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from lovec.encoding import Encoder
from lovec.policy import Policy, PolicyConfig, check_adapter, load_tokenizer
from lovec.taggers.models import resolve_model
from lovec.taggers.session import adapter_folder, asked_how, base_of, settings_file
from lovec.types import LovecError

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")

_CARD = """\
---
base_model: {base_yaml}
library_name: {library}
pipeline_tag: text-generation
tags:
- lovec
- confidence
- calibration{lora_tag}
---

# {title}

A language model that ends every sentence of an answer with `{open} X {close}`, X from 0 (surely wrong) to 10 (surely
right): how likely it takes the sentence to be true. {what} of `{base}`, made with lovec {version}.

## Use

The model was trained with this system prompt (for a template without a system role it stands before the user turn),
and needs it:

````text
{instruction}
````

```bash
lovec tag --model {model_word}{adapter_word} --ask "In a paragraph, could you tell me what you know about Jupiter?"
```

{plain}
A score of 7 means: about 7 of 10 such sentences are true, as far as the figures below go. It is no proof of any one of
them.

## Training

{training}

## Figures

{figures}

## Licence

The licence of `{base}` governs these weights. Look it up before you pass them on.
"""

_PEFT = """\
With plain transformers and peft:

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({base!r})
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained({base!r}), "FOLDER")
```

With vLLM, FOLDER being this one: `vllm serve {base} --enable-lora --max-lora-rank {rank} --lora-modules lovec=FOLDER`.
"""

_MERGED = """\
With plain transformers:

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = AutoModelForCausalLM.from_pretrained("FOLDER")
```

With vLLM, FOLDER being this one: `vllm serve FOLDER`.
"""


@dataclass(frozen=True, slots=True)
class Source:
    """What is exported.

    Attributes:
        adapter: PEFT adapter folder.
        run: folder of the run that wrote it; None where only an adapter was given.
        base: hub id or folder of the base model, as the adapter names it or the user says.
    """

    adapter: Path
    run: Path | None
    base: str

    @classmethod
    def find(cls, path: str, base: str | None = None) -> Source:
        """The adapter at ``path``, or that of the run at ``path``.

        Raises:
            LovecError: there is none, or it names no base model.
        """
        adapter = Path(adapter_folder(path))
        check_adapter(str(adapter))
        named = base or base_of(str(adapter))
        if named is None:
            raise LovecError(f"{adapter} does not name its base model; give it with --model")
        run = adapter.parent if adapter.name == "adapter" else None
        return cls(adapter, run, named)

    def recipe(self) -> Path | None:
        """The newest resolved recipe that the run has logged."""
        if self.run is None:
            return None
        found = self.run.glob("logs/version_*/config.yaml")
        return max(found, key=lambda path: int(path.parent.name.rpartition("_")[2]), default=None)


def export_adapter(source: Source, out: Path, figures: str, force: bool = False) -> Path:
    """Copy the adapter into a folder with a model card; plain peft and vLLM load it.

    Args:
        source: what to export.
        out: the folder to make.
        figures: what the card shows under "Figures", in Markdown.
        force: replace a folder that holds something.

    Raises:
        LovecError: ``out`` holds something and ``force`` is False.
    """
    config = PolicyConfig(resolve_model(source.base))
    instruction, tags = asked_how(config.model, str(source.adapter))
    encoder = Encoder(load_tokenizer(config), instruction, tags)
    with _whole(out, force) as folder:
        for name in ADAPTER_FILES:
            shutil.copyfile(source.adapter / name, folder / name)
        _describe(source, folder, encoder, figures, merged=False)
    return out


def export_merged(
    source: Source, out: Path, figures: str, dtype: Literal["float32", "bfloat16"] = "float32", force: bool = False
) -> Path:
    """Write base and adapter as one model, in safetensors with tokenizer and chat template.

    Both are added in float32 and the sum is rounded to ``dtype`` once: in bfloat16 log-probabilities move by about as
    much as bfloat16 itself rounds; in float32 they stay the same to 1e-4. So the whole model is in memory in
    float32, whatever ``dtype`` is.

    Args:
        source: what to export.
        out: the folder to make.
        figures: what the card shows under "Figures", in Markdown.
        dtype: precision of the merged weights, "float32" or "bfloat16".
        force: replace a folder that holds something.

    Raises:
        LovecError: ``out`` holds something and ``force`` is False, or the model cannot be loaded or merged.
    """
    _check_free(out, force)  # before a model is loaded
    config = PolicyConfig(resolve_model(source.base), adapter=str(source.adapter), dtype="float32")
    instruction, tags = asked_how(config.model, str(source.adapter))
    policy = Policy(config, reference=False)
    encoder = Encoder(policy.tokenizer, instruction, tags)
    try:
        model = policy.peft.merge_and_unload(safe_merge=True)
    except ValueError as error:  # peft found NaN in the sum
        raise LovecError(f"{source.adapter} cannot be merged into {source.base}: {error}") from error
    model.to({"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype])
    with _whole(out, force) as folder:
        model.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)
        _describe(source, folder, encoder, figures, merged=True)
    return out


def _describe(source: Source, folder: Path, encoder: Encoder, figures: str, merged: bool) -> None:
    """Write the card, how the model is asked, and the recipe beside the weights."""
    import lovec  # here, for its version only

    for name, text in settings_file(encoder).items():
        (folder / name).write_text(text, encoding="utf-8")
    training = "No recipe was found beside the adapter."
    if (recipe := source.recipe()) is not None:
        shutil.copyfile(recipe, folder / "recipe.yaml")
        training = _told(recipe)
    rank = json.loads((source.adapter / "adapter_config.json").read_text(encoding="utf-8")).get("r")
    card = _CARD.format(
        base=source.base,
        base_yaml=json.dumps(source.base),  # a JSON string is a YAML one, whatever it holds
        library="transformers" if merged else "peft",
        lora_tag="" if merged else "\n- lora",
        title=(source.run or source.adapter).resolve().name,
        what="The weights" if merged else f"A LoRA adapter (rank {rank})",
        open=encoder.tags.open,
        close=encoder.tags.close,
        version=lovec.__version__,
        instruction=encoder.instruction,
        model_word="FOLDER" if merged else source.base,
        adapter_word="" if merged else " --adapter FOLDER",
        plain=_MERGED if merged else _PEFT.format(base=source.base, rank=rank),
        training=training,
        figures=figures,
    )
    (folder / "README.md").write_text(card, encoding="utf-8")


def _told(recipe: Path) -> str:
    """What a resolved recipe says, in two lines."""
    import yaml

    held: dict[str, Any] = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    model, data = held["model"], held["data"]
    start = model["init_args"]["policy"].get("adapter")
    return (
        f"Objective: `{model['class_path']}`, {'continued from another adapter' if start else 'from a fresh adapter'}. "
        f"Data: `{data['class_path']}`. Seed: {held['seed_everything']}.\n\n"
        "Every setting is in [recipe.yaml](recipe.yaml)."
    )


@contextmanager
def _whole(out: Path, force: bool) -> Iterator[Path]:
    """Inside: a new folder to write into, which becomes ``out`` if nothing fails."""
    _check_free(out, force)
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh, old = (out.with_name(f".{out.name}.{os.getpid()}.{kind}") for kind in ("new", "old"))
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    try:
        yield fresh
        if out.exists():
            os.replace(out, old)
        os.replace(fresh, out)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def _check_free(out: Path, force: bool) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())) and not force:
        raise LovecError(f"{out} exists and is not empty; choose another folder, or replace it with --force")
