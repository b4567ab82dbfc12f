"""The engine that runs a copy of the policy's model in vLLM, in the same process."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lovec.choices import ChoiceTree
from lovec.engines.adapters import AdapterFolders
from lovec.engines.choices_by_tokens import Question, score_by_paths, score_by_tokens
from lovec.engines.common import check_vllm_temperature, checked_keys, checked_texts, room_behind, stream_key
from lovec.engines.vllm_local import RANKS, LocalVllm, Reply, Request
from lovec.types import Completion, LovecError, OnToken, Sampling


@dataclass(frozen=True, slots=True)
class _Shape:
    """What vLLM must know of adapters when it loads.

    Attributes:
        rank: the largest.
        targets: names of the layers they change; empty where they are not listed, or the output layer is among them.
            Then vLLM's log-probabilities of prompts, which it computes for other numbers of rows than samples, are
            not to be trusted.
    """

    rank: int
    targets: tuple[str, ...]

    @classmethod
    def of(cls, configs: Sequence[dict[str, Any]]) -> _Shape:
        """Read PEFT configurations."""
        rank = max(max(int(c["r"]), *map(int, (c.get("rank_pattern") or {}).values()), 0) for c in configs)
        listed = [c["target_modules"] for c in configs]
        if any(isinstance(names, str) or any("lm_head" in name for name in names) for names in listed):
            return cls(rank, ())
        return cls(rank, tuple(sorted({name for names in listed for name in names})))


class VllmEngine:
    """Samples and scores with vLLM: a second copy of the base model, and the policy's adapter.

    vLLM is loaded at the first ``sync`` or ``open``. The base is never written to; every change of the adapter is
    loaded under a new name, so that no cached state outlives it. Random numbers are vLLM's: the same seed gives other
    samples than another engine, of the same distribution.

    Args:
        max_rows: contexts that callers should ask about together; vLLM batches and caches as its memory allows.
        dtype: precision of the weights (float32, bfloat16, ...); null takes the policy's.
        max_model_len: longest context in tokens; null takes the model's.
        gpu_memory_utilization: share of the device's memory for weights and cache (of the machine's on a CPU).
        kv_cache_gib: size of the cache in GiB, in place of what that share leaves; null keeps the share.
        block_size: tokens that are cached as one piece; null takes vLLM's own (16 on a GPU, 128 on a CPU, where 32 is
            the smallest). Small pieces save computation in scoring.
        tensor_parallel_size: GPUs that share the model.
        enforce_eager: no CUDA graphs: slower, loads faster.
        max_lora_rank: largest rank of an adapter; null takes the policy's.
        sleep: give the device's memory back after sampling, and after scoring where a caller says it is done
            (``score`` without contexts). Where vLLM has no such mode it says so once.
        settings: further arguments of ``vllm.LLM``.

    Attributes:
        prefill_tokens: context tokens computed so far, as vLLM counts them. Cached tokens, sampled tokens and the
            tokens of choices are not counted.
        max_rows: as given.
        shares_model: False.

    Raises:
        LovecError: an option is out of range.
    """

    shares_model = False

    def __init__(
        self,
        max_rows: int = 256,
        dtype: str | None = None,
        max_model_len: int | None = None,
        gpu_memory_utilization: float = 0.4,
        kv_cache_gib: float | None = None,
        block_size: int | None = None,
        tensor_parallel_size: int = 1,
        enforce_eager: bool = False,
        max_lora_rank: int | None = None,
        sleep: bool = False,
        settings: dict[str, Any] | None = None,
    ) -> None:
        if max_rows < 1:
            raise LovecError(f"max_rows is {max_rows}, expected at least 1")
        if max_lora_rank is not None and not 1 <= max_lora_rank <= RANKS[-1]:
            raise LovecError(f"max_lora_rank is {max_lora_rank}, expected 1 to {RANKS[-1]}")
        self.max_rows = max_rows
        self.prefill_tokens = 0
        self._dtype = dtype
        self._max_lora_rank = max_lora_rank
        self._sleep = sleep
        self._options: dict[str, Any] = {
            "gpu_memory_utilization": gpu_memory_utilization,
            "tensor_parallel_size": tensor_parallel_size,
            "enforce_eager": enforce_eager,
            **({} if max_model_len is None else {"max_model_len": max_model_len}),
            **({} if block_size is None else {"block_size": block_size}),
            **({} if kv_cache_gib is None else {"kv_cache_memory_bytes": int(kv_cache_gib * 2**30)}),
            **(settings or {}),
        }
        self._local: LocalVllm | None = None
        self._loaded: tuple[str, str, _Shape | None] | None = None  # what self._local was made for
        self._along = True  # whether it tells the log-probabilities of prompts right
        self._folders: AdapterFolders | None = None
        self._folder: Path | None = None  # of the adapter that vLLM holds
        self._adapted = False

    def sync(self, policy: Any) -> None:
        """Take the policy's adapter, where it has changed; none where its adapters are switched off.

        Raises:
            LovecError: vLLM is missing, or cannot load the model or the adapter.
        """
        model = str(getattr(policy.model, "name_or_path", ""))
        if not model or getattr(policy.model, "drawn_at_random", False):
            raise LovecError(
                f"the weights of the policy's model ({model or 'no name'}) were made in memory and are on no disk; "
                "vLLM loads its own copy: save the model to a folder and give that"
            )
        shape = _Shape.of([config.to_dict() for config in policy.peft.peft_config.values()])
        self._load(model, self._dtype or str(policy.model.dtype).removeprefix("torch."), shape)
        if self._folders is None:
            self._folders = AdapterFolders()
        folder = self._folders.take(policy)
        self._adapted = folder is not None
        self._take(folder)
        self._folders.clean()

    def open(self, model: str, adapter: str | None = None) -> None:
        """Run a model without a policy.

        Args:
            model: folder or hub id.
            adapter: PEFT folder; None runs the base.

        Raises:
            LovecError: vLLM is missing, or cannot load one of them.
        """
        shape = None
        if adapter is not None:
            path = Path(adapter) / "adapter_config.json"
            if not path.is_file():
                raise LovecError(f"there is no adapter in {adapter}; give a PEFT adapter folder")
            shape = _Shape.of([json.loads(path.read_text(encoding="utf-8"))])
        self._load(model, self._dtype or "auto", shape)
        self._adapted, self._folder = adapter is not None, None  # the folder may hold other weights by now
        self._take(None if adapter is None else Path(adapter))

    @property
    def context_length(self) -> int | None:
        """Most tokens that a context and what follows it may have."""
        return self._running().context_length

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        stop_ids: Sequence[int],
        keys: Sequence[str] | None = None,
        on_token: OnToken | None = None,
    ) -> list[list[Completion]]:
        """Sample ``sampling.n`` completions a prompt; a row ends at the first of ``stop_ids``, which it keeps.

        Every completion has a seed of its own, which depends on (seed, key, index of the sample) alone. It also ends
        where the model's context is full.

        Args:
            prompts: token ids, at least one each.
            sampling: how to sample; the temperature is 0 or between 0.01 and 2.
            stop_ids: ids that end a completion.
            keys: names of the prompts for their random streams (default: position in ``prompts``).
            on_token: hears every token as it is drawn, and ends that completion behind it by False.

        Returns:
            [prompts][n] completions; ``logps`` are of logits / temperature (temperature 0: of the plain logits).

        Raises:
            LovecError: a prompt is empty or leaves no room for a token, or a setting is out of range.
        """
        local = self._running()
        names = checked_keys(sampling, keys, len(prompts))
        check_vllm_temperature(sampling.temperature)
        limit = local.context_length
        texts = checked_texts(prompts, room=1, limit=limit, name="prompt")
        _check_ids(texts, local.vocabulary)
        rows = [(p, i) for p in range(len(texts)) for i in range(sampling.n)]
        requests = [
            Request(
                texts[p],
                {
                    "max_tokens": room_behind(texts[p], sampling.max_new_tokens, limit),
                    "temperature": sampling.temperature,
                    "seed": stream_key(sampling.seed, names[p], i) % 2**63,
                    "stop_token_ids": list(stop_ids),
                    "logprobs": 0,
                },
            )
            for p, i in rows
        ]
        replies = local.run(requests, self._adapted, None if on_token is None else _by_row(on_token, rows))
        self.prefill_tokens += sum(len(r.prompt) - found.cached for r, found in zip(requests, replies, strict=True))
        local.rest()
        stops = frozenset(stop_ids)
        done = {row: _completion(reply, stops) for row, reply in zip(rows, replies, strict=True)}
        return [[done[p, i] for i in range(sampling.n)] for p in range(len(texts))]

    def score(self, contexts: Sequence[Sequence[int]], choices: Sequence[Sequence[int]]) -> list[list[float]]:
        """Exact log-probability of every whole choice after every context: [contexts][choices].

        Every choice is a prompt of one more token, together with the log-probabilities of the tokens on its way.
        Whatever whole blocks of a context are in vLLM's cache, from this call or an earlier one, are not computed
        again. A call without contexts lets vLLM rest where ``sleep`` is on.

        Args:
            contexts: token ids, at least one each.
            choices: token ids, at least one each; they may share first tokens and differ in length.

        Raises:
            LovecError: a context or choice is empty, or the longest choice does not fit behind a context.
        """
        local = self._running()
        tree = ChoiceTree(choices)
        texts = checked_texts(contexts, room=tree.longest, limit=local.context_length, name="context")
        if not texts:
            local.rest()
            return []
        _check_ids([*texts, *choices], local.vocabulary)
        if self._along:
            return score_by_paths(texts, tree, self._ask)
        return score_by_tokens(texts, tree, lambda questions: [logps for _, logps in self._ask(questions)])

    def close(self) -> None:
        """Give vLLM's memory back and remove what was written; the next ``sync`` or ``open`` loads it again."""
        if self._local is not None:
            self._local.close()
        if self._folders is not None:
            self._folders.close()
        self._local = self._folders = self._folder = self._loaded = None

    def _ask(self, questions: Sequence[Question]) -> list[tuple[list[float | None], list[float]]]:
        """Answers: log-probabilities of the node's tokens, and of those asked for behind it."""
        requests = [
            Request(
                q.prompt,
                {"max_tokens": 1, "temperature": 0.0, "logprob_token_ids": list(q.tokens)},
                way=len(q.node) if q.along else 0,
            )
            for q in questions
        ]
        replies = self._running().run(requests, self._adapted)
        self.prefill_tokens += sum(
            max(0, len(q.context) - reply.cached) for q, reply in zip(questions, replies, strict=True)
        )
        return [
            (reply.way, [reply.logps[0][token] for token in q.tokens])
            for q, reply in zip(questions, replies, strict=True)
        ]

    def _load(self, model: str, dtype: str, adapter: _Shape | None) -> None:
        """Have vLLM run a model, with room for adapters of a shape (None: for none)."""
        if adapter is not None and not adapter.rank <= (self._max_lora_rank or RANKS[-1]) <= RANKS[-1]:
            raise LovecError(
                f"the adapter has rank {adapter.rank}, max_lora_rank is {self._max_lora_rank}; give one of that size, "
                f"{RANKS[-1]} at most"
            )
        wanted = (model, dtype, adapter)
        if self._local is not None and (
            self._loaded == wanted or (self._loaded and adapter is None and self._loaded[:2] == wanted[:2])
        ):
            return
        if self._local is not None:
            self._local.close()
            self._local = None
        options: dict[str, Any] = {"dtype": dtype, **self._options}
        if adapter is not None:
            rank = max(adapter.rank, self._max_lora_rank or 0)
            options |= {"enable_lora": True, "max_lora_rank": next(r for r in RANKS if r >= rank)}
            options |= {"lora_target_modules": list(adapter.targets)} if adapter.targets else {}
        self._local = LocalVllm(model, options, self._sleep)
        self._loaded, self._folder = wanted, None
        self._along = adapter is None or bool(adapter.targets)

    def _take(self, folder: Path | None) -> None:
        """Have vLLM hold the adapter of a folder, if it does not yet."""
        if folder is not None and folder != self._folder:
            self._running().load_adapter(folder)
            self._folder = folder

    def _running(self) -> LocalVllm:
        if self._local is None:
            raise LovecError("the engine has no model yet; call sync(policy) or open(model) first")
        return self._local


def _check_ids(texts: Sequence[Sequence[int]], vocabulary: int) -> None:
    highest, lowest = max(map(max, texts), default=0), min(map(min, texts), default=0)
    if lowest < 0 or highest >= vocabulary:
        wrong = lowest if lowest < 0 else highest
        raise LovecError(
            f"token id {wrong} is not one of the model's {vocabulary}; encode with the model's own tokenizer"
        )


def _by_row(on_token: OnToken, rows: Sequence[tuple[int, int]]) -> Callable[[int, int], bool]:
    """``on_token`` for requests, given prompt and sample of each."""
    return lambda row, token: on_token(*rows[row], token)


def _completion(reply: Reply, stops: frozenset[int]) -> Completion:
    logps = tuple(position[token] for token, position in zip(reply.ids, reply.logps, strict=True))
    return Completion(tuple(reply.ids), logps, reply.ids[-1] in stops)
