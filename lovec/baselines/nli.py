"""A natural language inference model as a judge: does a text entail a sentence, or contradict it?"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any
from weakref import WeakValueDictionary

from lovec.baselines.base import BaselineResources, Claim, Judge, Relation
from lovec.core.hub import HubName, hub_errors
from lovec.core.imports import without_progress_bars
from lovec.core.notices import DoublingWarning
from lovec.core.settings import NO_EFFECT, Count, checked
from lovec.core.weights import check_whole
from lovec.types import LovecError

log = logging.getLogger(__name__)
_NO_LIMIT = 10**6  # tokenizers without a longest input report a far larger number
_CHUNK = 4096  # claims whose token ids are in memory at once
_loaded: WeakValueDictionary[tuple[str, str], Any] = WeakValueDictionary()


@checked(remember=True)
class NLIJudge(Judge):
    """Judges with any transformers model that classifies pairs of texts as entailment or contradiction.

    Support is p(entailment) / (p(entailment) + p(contradiction)), the softmax over these two labels only, as in
    SelfCheckGPT and LUQ. Claims run in batches of similar length, and no result depends on its batch.

    Where a pair is too long, the end of its text is cut, never its sentence; a warning names the records. A sentence
    that leaves no room for any text is not supported.

    Args:
        model: folder or hub name of a sequence classification model and its tokenizer. Judges with the same model
            share it.
        batch_size: number of pairs that run together.
        device: device of the model; None takes a GPU if there is one.
        max_length: longest pair, in tokens; None takes the limit of tokenizer and model.

    Attributes:
        cut: the warning about records with a text that was cut, since ``attach``; ``cut.ids`` holds their ids.

    Raises:
        LovecError: an option is out of range.
    """

    def __init__(
        self,
        model: str,
        batch_size: Annotated[Count, NO_EFFECT] = 64,
        device: Annotated[str | None, NO_EFFECT] = None,
        max_length: Count | None = None,
    ) -> None:
        self.model = model
        self.batch_size = batch_size
        self.device = device
        self.max_length = max_length
        self._classifier: _Classifier | None = None

    def check_ready(self) -> None:
        """Read the labels of the NLI model, and not its weights.

        Raises:
            LovecError: as for ``attach``.
        """
        from transformers import AutoConfig

        with _reading(self.model):
            labels = AutoConfig.from_pretrained(self.model).id2label
        nli_labels(labels, self.model)

    def attach(self, resources: BaselineResources) -> None:
        """Load the NLI model; the resources are not needed.

        Raises:
            LovecError: there is no such model, it lacks weights, or its labels do not name entailment and
                contradiction.
        """
        from lovec.core.devices import device_of

        device = str(device_of(self.device))
        key = (self.model, device)
        classifier = _loaded.get(key)
        if classifier is None:
            _loaded[key] = classifier = _Classifier(self.model, device)
        self._classifier = classifier
        self._limit = self.max_length or classifier.longest
        self.cut = DoublingWarning(
            log,
            "texts too long for the NLI model %s (%s tokens) are cut at their end, for %d records so far: %s",
            self.model,
            self._limit,
        )

    def support(self, claims: Sequence[Claim]) -> list[float]:
        """Return the support of each claim in [0, 1].

        Raises:
            LovecError: ``attach`` has not been called.
        """
        if self._classifier is None:
            raise LovecError("NLIJudge has no model yet; call attach(resources) first")
        return [0.0 if found is None else found.support for found in self._classified(self._classifier, claims)]

    def relations(self, claims: Sequence[Claim]) -> list[Relation]:
        """Return the most probable of the labels entailment, contradiction and, for any other one, neutral.

        A pair that leaves no room for its text is neutral.

        Raises:
            LovecError: ``attach`` has not been called.
        """
        if self._classifier is None:
            raise LovecError("NLIJudge has no model yet; call attach(resources) first")
        found = self._classified(self._classifier, claims)
        return ["neutral" if one is None else one.relation for one in found]

    def _classified(self, classifier: _Classifier, claims: Sequence[Claim]) -> list[_Inference | None]:
        chunks = (claims[start : start + _CHUNK] for start in range(0, len(claims), _CHUNK))
        return [found for chunk in chunks for found in self._chunk_classified(classifier, chunk)]

    def _chunk_classified(self, classifier: _Classifier, claims: Sequence[Claim]) -> list[_Inference | None]:
        pairs, cut = classifier.pairs([(claim.premise, claim.hypothesis) for claim in claims], self._limit)
        for at in cut:
            self.cut.add(claims[at].record.id)
        self.cut.flush()
        inferred: list[_Inference | None] = [None] * len(claims)
        order = sorted((len(pair["input_ids"]), at) for at, pair in enumerate(pairs) if pair is not None)
        rows = self.batch_size if classifier.pads else 1
        for start in range(0, len(order), rows):
            places = [at for _, at in order[start : start + rows]]
            found = classifier.infer([pair for at in places if (pair := pairs[at]) is not None])
            for at, one in zip(places, found, strict=True):
                inferred[at] = one
        return inferred


@dataclass(frozen=True, slots=True)
class _Inference:
    """What the classifier says of a pair.

    Attributes:
        support: p(entailment) / (p(entailment) + p(contradiction)).
        relation: the most probable label.
    """

    support: float
    relation: Relation


class _Classifier:
    """A sequence classification model and its tokenizer.

    Attributes:
        longest: the most tokens of a pair; None without a limit.
        pads: whether pairs of different lengths can run together.

    Raises:
        LovecError: it cannot be loaded or lacks weights, or it does not have exactly one label each for entailment and
            contradiction.
    """

    def __init__(self, name: str, device: str) -> None:
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        with _reading(name):
            self._tokenizer: Any = AutoTokenizer.from_pretrained(name)
            options = {"dtype": torch.float32, "output_loading_info": True}
            model, loading_info = AutoModelForSequenceClassification.from_pretrained(name, **options)
        check_whole(
            loading_info, f"the NLI model {name}", "give a model that was trained on NLI, with all of its weights"
        )
        self._labels = nli_labels(model.config.id2label, name)
        self._model = model.to(device).eval()
        self.pads = self._tokenizer.pad_token_id is not None
        self.longest = _longest(self._tokenizer, model)

    def pairs(
        self, texts: Sequence[tuple[str, str]], limit: int | None
    ) -> tuple[list[dict[str, list[int]] | None], list[int]]:
        """Return the model's inputs for (premise, hypothesis) pairs, and the indices of those whose premise is cut.

        A pair whose hypothesis leaves no room for its premise is None, and counts as cut.
        """
        if not texts:
            return [], []
        encoded = self._encoded([p for p, _ in texts], [h for _, h in texts])
        long = [at for at, pair in enumerate(encoded) if limit is not None and len(pair["input_ids"]) > limit]
        pairs: list[dict[str, list[int]] | None] = list(encoded)
        for at in long:
            premise, hypothesis = texts[at]
            (without,) = self._encoded([""], [hypothesis])
            if limit is not None and len(without["input_ids"]) < limit:
                (pairs[at],) = self._encoded([premise], [hypothesis], truncation="only_first", max_length=limit)
            else:
                pairs[at] = None
        return pairs, long

    def infer(self, pairs: Sequence[Mapping[str, list[int]]]) -> list[_Inference]:
        """Classify pairs, which run as one batch."""
        import torch

        size = max(len(pair["input_ids"]) for pair in pairs)
        pad = {"input_ids": self._tokenizer.pad_token_id or 0, "token_type_ids": self._tokenizer.pad_token_type_id}
        batch = {
            name: torch.tensor([pair[name] + [pad.get(name, 0)] * (size - len(pair[name])) for pair in pairs])
            for name in pairs[0]
        }
        with torch.no_grad():
            logits = self._model(**{name: ids.to(self._model.device) for name, ids in batch.items()}).logits.double()
        entail, contradict = self._labels
        shares: list[float] = (logits[:, entail] - logits[:, contradict]).sigmoid().tolist()
        names: dict[int, Relation] = {entail: "entailment", contradict: "contradiction"}
        labels = (names.get(label, "neutral") for label in logits.argmax(-1).tolist())
        return list(map(_Inference, shares, labels))

    def _encoded(self, premises: list[str], hypotheses: list[str], **options: Any) -> list[dict[str, list[int]]]:
        """Return one dictionary per pair; special tokens in the texts are read as plain characters."""
        columns = self._tokenizer(
            premises,
            hypotheses,
            split_special_tokens=True,
            return_attention_mask=True,
            return_token_type_ids="token_type_ids" in self._tokenizer.model_input_names,
            verbose=False,
            **options,
        )
        return [{name: list(columns[name][i]) for name in columns} for i in range(len(premises))]


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Raise what transformers says of an NLI model that it cannot read as a ``LovecError``."""
    with hub_errors(HubName.parse(name), "NLI model"), without_progress_bars():
        try:
            yield
        except (OSError, ValueError) as error:
            raise LovecError(
                f"cannot load the NLI model {name!r}: {str(error).strip().splitlines()[0][:160]}; expected a "
                "folder or hub id of a sequence classification model"
            ) from None


def nli_labels(names: Mapping[int, str], model: str) -> tuple[int, int]:
    """Return the indices of entailment and contradiction among a classifier's labels.

    Args:
        names: label of every index (``config.id2label``), in upper or lower case.
        model: name of the model, for the error message.

    Raises:
        LovecError: there is not exactly one label for each.
    """
    plain = {index: str(label).lower() for index, label in names.items()}
    entail = [index for index, label in plain.items() if "entail" in label and not label.startswith("no")]
    contradict = [index for index, label in plain.items() if "contradict" in label]
    if len(entail) != 1 or len(contradict) != 1:
        raise LovecError(
            f"the labels of the NLI model {model!r} are {', '.join(map(str, names.values()))}; expected one with "
            "'entail' and one with 'contradict' in it: choose a model trained on three-way inference"
        )
    return entail[0], contradict[0]


def _longest(tokenizer: Any, model: Any) -> int | None:
    """Return the most tokens that tokenizer and position embeddings allow; None without a limit."""
    limits = [tokenizer.model_max_length] if tokenizer.model_max_length < _NO_LIMIT else []
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions:
        embeddings = getattr(model.base_model, "embeddings", None)
        offset = getattr(embeddings, "padding_idx", None)  # RoBERTa counts positions from the one after it
        limits.append(positions - (0 if offset is None else offset + 1))
    return min(limits, default=None)
