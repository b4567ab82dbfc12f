"""Which layers of a model get a LoRA: the names that were asked for, and the fused layers that stand for them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from torch import nn

from lovec.core.imports import gc_paused
from lovec.core.notices import listed
from lovec.types import LovecError

_FUSED: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    # GPT-NeoX, Falcon, Persimmon. Other models have other layers called dense, so it is taken beside these only.
    (("q_proj", "k_proj", "v_proj", "o_proj"), ("query_key_value", "dense")),
    (("q_proj", "k_proj", "v_proj"), ("query_key_value",)),
    (("q_proj", "k_proj", "v_proj"), ("qkv_proj",)),  # Phi-3, Phi-4
    (("gate_proj", "up_proj"), ("gate_up_proj",)),  # Phi-3, Phi-4, GLM
)
"""Layers that some models have as one, and what these models have instead of them; the first that fits is used."""


@dataclass(frozen=True)
class Targets:
    """The layers of a model that get a LoRA.

    Attributes:
        names: names of layers as PEFT compares them: whole names, or what follows a dot at their end.
        note: what is adapted, in one line, where this is not what was asked for by name; else None.
    """

    names: list[str]
    note: str | None = None

    @classmethod
    def of(cls, base: nn.Module, asked: Collection[str], trained: bool) -> Targets:
        """Find the layers of a model that names of layers stand for.

        A model that has several layers as one gets its LoRA there, if all of them were asked for: the update of the
        fused layer covers them all. It would cover too much if only some of them were asked for, so that is refused.

        Args:
            base: the model, without adapters.
            asked: names of layers, each as PEFT compares them.
            trained: whether the LoRA will be trained. If not, its update stays zero, and names without a layer are
                left to PEFT, which passes over them.

        Returns:
            The layers. Where every name has a layer these are the names that were asked for.

        Raises:
            LovecError: ``asked`` is a text; or the LoRA will be trained, and a name has no layer.
        """
        if isinstance(asked, str):
            raise LovecError(
                f"policy.target_modules is {asked!r}, expected a list of names of layers, as in "
                f"--model.policy.target_modules '[{','.join(_linear(base))}]'"
            )
        check_untied(base, asked, "policy.target_modules")
        found, missing = set(asked), set(asked) - _present(base, asked)
        replaced = []
        for parts, whole in _FUSED:
            if missing.issuperset(parts) and len(_present(base, whole)) == len(whole):
                missing -= set(parts)
                found = found - set(parts) | set(whole)
                replaced.append(f"{', '.join(whole)} instead of {', '.join(parts)}")
        if missing and trained:
            linear, kept = _linear(base), sorted(found - missing)
            example = kept + [whole for parts, (whole, *_) in _FUSED if missing & set(parts) and whole in linear]
            raise LovecError(
                f"this model has no layers {', '.join(sorted(missing))} to train a LoRA on"
                f"{', only ' + ', '.join(kept) if kept else ''}; its linear layers are {listed(linear)}: name those to "
                f"be trained, as in --model.policy.target_modules '[{','.join(dict.fromkeys(example or linear))}]'"
            )
        note = f"LoRA on {', '.join(sorted(found))} (this model has {' and '.join(replaced)})" if replaced else None
        return cls(sorted(found), note)


def check_untied(base: nn.Module, names: str | Collection[str], where: str) -> None:
    """Refuse a LoRA on the embeddings, and on an output layer that shares its weights with them.

    An update of one of the two is not one of the other, so it could not be merged into the weights that they share.

    Args:
        base: the model; it may have adapters.
        names: names of layers as PEFT compares them, or "all-linear", which leaves both out.
        where: what names them, for the error.

    Raises:
        LovecError: one of the names is that of such a layer.
    """
    if isinstance(names, str):
        return
    inner, outer = (getattr(base, f"get_{end}_embeddings", lambda: None)() for end in ("input", "output"))
    tied = outer is not None and inner is not None and outer.weight is inner.weight
    ends = [inner, outer] if tied else [inner]
    keys = {key for key, layer in base.named_modules() if any(layer is end for end in ends)}
    if found := sorted(name for name in names if any(key == name or key.endswith(f".{name}") for key in keys)):
        rest = sorted(set(names) - set(found)) or _linear(base)
        raise LovecError(
            f"{where} puts a LoRA on {', '.join(found)}, expected layers that are no embeddings"
            f"{' and share no weights with them' if tied else ''}; train one with --model.policy.target_modules "
            f"'[{','.join(rest)}]'"
        )


def _present(base: nn.Module, names: Collection[str]) -> set[str]:
    """Return those names that PEFT would find in the model."""
    with gc_paused():
        from peft import LoraConfig
        from peft.tuners.tuners_utils import check_target_module_exists

    configs = {name: LoraConfig(target_modules=[name]) for name in names}
    keys = [key for key, _ in base.named_modules() if key]
    return {name for name, config in configs.items() if any(check_target_module_exists(config, key) for key in keys)}


def _linear(base: nn.Module) -> list[str]:
    """Return the last names of the linear layers inside the model, each once, in its order; the output layer apart."""
    from transformers.pytorch_utils import Conv1D

    output = getattr(base, "get_output_embeddings", lambda: None)()
    layers = (key for key, m in base.named_modules() if isinstance(m, (nn.Linear, Conv1D)) and m is not output)
    return list(dict.fromkeys(key.rpartition(".")[2] for key in layers))
