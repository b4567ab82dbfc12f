"""An engine that runs a copy of the policy's model in vLLM, in the same process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from lovec.core.files import read_adapter_config
from lovec.core.settings import Count, PlainWord, Positive, PositiveShare, Setting, checked
from lovec.encoding.choices import choice_tree
from lovec.engines.adapters import AdapterFolders
from lovec.engines.choice_scoring import TokenQuery, score_by_paths
from lovec.engines.common import (
    by_prompt,
    check_vllm_temperature,
    checked_texts,
    reply_scores,
    sample_rows,
    with_choices,
)
from lovec.engines.token_scoring import check_starts
from lovec.engines.vllm_local import RANKS, LocalVllm, VllmRequest
from lovec.types import Completion, LovecError, OnToken, Sampling, TokenScores


@dataclass(frozen=True, slots=True)
class _AdapterShape:
    """What vLLM must know of the adapters when it loads.

    Attributes:
        rank: the largest rank of them.
        targets: names of the layers that they change; empty where the names are not listed, or the output layer is
            among them. In that case vLLM's log-probabilities of prompt tokens must not be used: it computes them for
            other numbers of rows than those of sampled tokens.
    """

    rank: int
    targets: tuple[str, ...]

    @classmethod
    def of(cls, configs: Sequence[dict[str, Any]]) -> _AdapterShape:
        """Read PEFT configurations."""
        rank = max(max(int(c["r"]), *map(int, (c.get("rank_pattern") or {}).values()), 0) for c in configs)
        targets = [c["target_modules"] for c in configs]
        if any(isinstance(names, str) or any("lm_head" in name for name in names) for names in targets):
            return cls(rank, ())
        return cls(rank, tuple(sorted({name for names in targets for name in names})))


@checked(remember=True)
class VllmEngine:
    """Samples and scores with vLLM, which loads a second copy of the base model and the policy's adapter.

    vLLM is loaded at the first ``sync`` or ``open``. The base model is never changed; every new state of the adapter
    is loaded under a new name, so that nothing cached for an older one is used. Random numbers are vLLM's: the same
    seed gives other samples than another engine, from the same distribution.

    Args:
        max_rows: contexts that callers should pass together; vLLM batches and caches as its memory allows.
        dtype: precision of the weights (float32, bfloat16, ...); null takes the policy's.
        max_model_len: longest context in tokens; null takes the model's.
        gpu_memory_utilization: share of the device's memory for weights and cache (on a CPU, of the machine's memory).
        kv_cache_gib: size of the KV cache in GiB, instead of what that share leaves; null keeps the share.
        block_size: tokens per block of the KV cache; null takes vLLM's own (16 on a GPU, 128 on a CPU, where 32 is
            the smallest). Only whole blocks are reused, so small ones save computation in scoring.
        tensor_parallel_size: number of GPUs that share the model.
        enforce_eager: do without CUDA graphs, which is slower but loads faster.
        max_lora_rank: largest rank of an adapter; null takes the policy's.
        sleep: release the device's memory after sampling, and after scoring when a caller says that it is done
            (``score`` without contexts). Logs a warning once where vLLM has no such mode.
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
        max_rows: Count = 256,
        dtype: PlainWord | None = None,
        max_model_len: Count | None = None,
        gpu_memory_utilization: PositiveShare = 0.4,
        kv_cache_gib: Positive | None = None,
        block_size: Count | None = None,
        tensor_parallel_size: Count = 1,
        enforce_eager: bool = False,
        max_lora_rank: Annotated[int, Setting(at_least=1, at_most=RANKS[-1])] | None = None,
        sleep: bool = False,
        settings: dict[str, Any] | None = None,
    ) -> None:
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
        self._loaded: tuple[str, str, _AdapterShape | None] | None = None  # what self._local was loaded for
        self._prompt_logps = True  # whether vLLM's log-probabilities of prompt tokens are right
        self._folders: AdapterFolders | None = None
        self._folder: Path | None = None  # folder of the adapter that vLLM has loaded
        self._adapted = False

    def sync(self, policy: Any) -> None:
        """Load the policy's adapter if it has changed; run without one where the policy's adapters are switched off.

        Raises:
            LovecError: vLLM is not installed, cannot load the model or the adapter, or has changed transformers' class
                of the model.
        """
        model = str(getattr(policy.model, "name_or_path", ""))
        if not model or getattr(policy.model, "drawn_at_random", False):
            raise LovecError(
                f"the weights of the policy's model ({model or 'no name'}) were made in memory and are on no disk, "
                "where vLLM loads its own copy from; save the model to a folder and give that"
            )
        shape = _AdapterShape.of([config.to_dict() for config in policy.peft.peft_config.values()])
        self._load(model, self._dtype or str(policy.model.dtype).removeprefix("torch."), shape)
        if (name := _changed_class(policy.model)) is not None:
            self.close()
            raise LovecError(
                f"vLLM runs {model} with transformers' own {name}, which it changes in this process, so that the "
                "policy can no longer be computed; start a vLLM server and use lovec.engines.RemoteVllm"
            )
        folders = self._adapter_folders()
        folder = folders.write(policy)
        self._adapted = folder is not None
        self._load_adapter(folder)
        folders.clean()

    def open(self, model: str, adapter: str | None = None) -> None:
        """Run a model without a policy.

        Args:
            model: folder or hub id.
            adapter: PEFT adapter folder; None runs the base model.

        Raises:
            LovecError: vLLM is not installed, or cannot load one of them.
        """
        shape = None if adapter is None else _AdapterShape.of([read_adapter_config(adapter)])
        self._load(model, self._dtype or "auto", shape)
        self._adapted, self._folder = adapter is not None, None  # the folder may hold other weights by now
        self._load_adapter(None if adapter is None else self._adapter_folders().readable(Path(adapter)))

    @property
    def context_length(self) -> int | None:
        """The most tokens that a context and what follows it may have."""
        return self._running().context_length

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        stop_ids: Sequence[int],
        keys: Sequence[str] | None = None,
        on_token: OnToken | None = None,
    ) -> list[list[Completion]]:
        """Sample ``sampling.n`` completions per prompt; each ends with the first of ``stop_ids``, if one is sampled.

        Every completion has a seed of its own, which depends on (seed, key, index of the sample) only. A completion
        also ends where the model's context is full.

        Args:
            prompts: token ids of each prompt, at least one.
            sampling: how to sample; the temperature is 0 or between 0.01 and 2.
            stop_ids: ids that end a completion.
            keys: names of the prompts for their random streams (default: position in ``prompts``).
            on_token: called with every token when it is drawn; returns False to end that completion after it.

        Returns:
            ``[prompts][n]`` completions; ``logps`` are of logits / temperature (temperature 0: of the plain logits),
            renormalised over the tokens that ``top_p`` leaves.

        Raises:
            LovecError: a prompt is empty or leaves no room for a token, or a setting is out of range.
        """
        local = self._running()
        rows = sample_rows(prompts, sampling, keys, on_token, local.context_length)
        check_vllm_temperature(sampling.temperature)
        _check_ids(prompts, local.vocabulary)
        requests = []
        for row in rows:
            options = row.vllm_options(sampling, stop_ids)
            options["logprobs"] = len(options.get("logprob_token_ids", ()))  # besides the sampled token's own
            requests.append(VllmRequest(row.ids, options, on_token=row.on_token))
        replies = local.run(requests, self._adapted)
        self.prefill_tokens += sum(reply.computed(len(row.ids)) for row, reply in zip(rows, replies, strict=True))
        local.rest()
        return by_prompt([reply.completion(stop_ids, sampling) for reply in replies], sampling)

    def score(self, contexts: Sequence[Sequence[int]], choices: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the exact log-probability of every whole choice after every context: ``[contexts][choices]``.

        There is about one request per choice, for the log-probabilities of the tokens along the choice and of its last
        one. Blocks of a context that are in vLLM's cache, from this call or an earlier one, are not computed again. A
        call without contexts lets vLLM release its memory where ``sleep`` is on.

        Args:
            contexts: token ids of each context, at least one.
            choices: token ids of each choice, at least one; choices may share first tokens and differ in length.

        Raises:
            LovecError: a context or choice is empty, or the longest choice does not fit after a context.
        """
        local = self._running()
        tree = choice_tree(choices)
        texts = checked_texts(contexts, room=tree.longest, limit=local.context_length, name="context")
        if not texts:
            local.rest()
            return []
        _check_ids([*texts, *choices], local.vocabulary)
        return score_by_paths(texts, tree, self._ask)

    def token_logps(
        self,
        contexts: Sequence[Sequence[int]],
        starts: Sequence[int],
        choices: Sequence[Sequence[int]] = (),
        top: int = 0,
    ) -> list[TokenScores]:
        """Return the log-probabilities of the tokens of every context from an index on, and of choices after it.

        vLLM computes the contexts once, except that a context whose tokens are in its cache already, which holds no
        log-probabilities, is computed again. Choices are scored afterwards, as by ``score``.

        Args:
            contexts: token ids of each context, at least one; there has to be room for one more token.
            starts: index of the first token of each context whose log-probability is asked for, from 1 to its length.
            choices: token ids of each choice; none scores no choice.
            top: number of the most probable tokens to return for every place, at most ``lovec.types.MOST_TOP``.

        Raises:
            LovecError: as for ``score``; a start lies outside its context; ``top`` is out of range; or the adapter
                changes the output layer, where vLLM's log-probabilities of given tokens are not those of the model.
        """
        local = self._running()
        texts = checked_texts(contexts, room=1, limit=local.context_length, name="context")
        check_starts(texts, starts, top)
        if not self._prompt_logps:
            raise LovecError(
                "vLLM's log-probabilities of given tokens are wrong under an adapter of the output layer or with "
                "unnamed target modules; use lovec.engines.TransformersEngine, or list the target_modules without "
                "lm_head"
            )
        _check_ids(texts, local.vocabulary)
        places = [at for at, (text, start) in enumerate(zip(texts, starts, strict=True)) if start < len(text)]
        found = dict.fromkeys(range(len(texts)), TokenScores(()))
        for fresh in (False, True):
            requests = [
                VllmRequest(
                    texts[at],
                    {"max_tokens": 1, "temperature": 0.0, "logprobs": 0},
                    scored=len(texts[at]) - starts[at],
                    top=top,
                    fresh=fresh,
                )
                for at in places
            ]
            replies = list(zip(places, local.run(requests, self._adapted), strict=True)) if places else []
            self.prefill_tokens += sum(reply.computed(len(texts[at])) for at, reply in replies)
            scores = {at: reply_scores(reply, top) for at, reply in replies}
            found |= {at: tokens for at, tokens in scores.items() if tokens is not None}
            places = [at for at, tokens in scores.items() if tokens is None]
        scored = self.score(texts, choices) if choices and texts else [[]] * len(texts)
        return with_choices([found[at] for at in range(len(texts))], scored)

    def close(self) -> None:
        """Release vLLM's memory and remove the adapter folders; the next ``sync`` or ``open`` loads vLLM again."""
        if self._local is not None:
            self._local.close()
        if self._folders is not None:
            self._folders.close()
        self._local = self._folders = self._folder = self._loaded = None

    def _ask(self, queries: Sequence[TokenQuery]) -> list[tuple[list[float | None], list[float]]]:
        """Return the log-probabilities of the node's tokens (empty if not asked for) and of the query's tokens."""
        requests = [
            VllmRequest(
                query.prompt,
                {"max_tokens": 1, "temperature": 0.0, "logprob_token_ids": list(query.tokens)},
                scored=len(query.node) if query.with_path and self._prompt_logps else 0,
            )
            for query in queries
        ]
        replies = self._running().run(requests, self._adapted)
        pairs = list(zip(queries, replies, strict=True))
        self.prefill_tokens += sum(reply.computed(len(query.context)) for query, reply in pairs)
        return [(reply.prompt_logps, [reply.candidates[0][t] for t in query.tokens]) for query, reply in pairs]

    def _load(self, model: str, dtype: str, adapter: _AdapterShape | None) -> None:
        """Load a model, with room for adapters of a shape (None: for none), unless it is loaded already."""
        if adapter is not None and not adapter.rank <= (self._max_lora_rank or RANKS[-1]) <= RANKS[-1]:
            raise LovecError(
                f"the adapter has rank {adapter.rank}, max_lora_rank is {self._max_lora_rank}; raise it to that rank, "
                f"at most {RANKS[-1]}"
            )
        target, loaded = (model, dtype, adapter), self._loaded
        if loaded is not None and (loaded == target or (adapter is None and loaded[:2] == target[:2])):
            return
        if self._local is not None:
            self._local.close()
            self._local = self._loaded = None
        options: dict[str, Any] = {"dtype": dtype, **self._options}
        if adapter is not None:
            rank = max(adapter.rank, self._max_lora_rank or 0)
            options |= {"enable_lora": True, "max_lora_rank": next(r for r in RANKS if r >= rank)}
            options |= {"lora_target_modules": list(adapter.targets)} if adapter.targets else {}
        self._local = LocalVllm(model, options, self._sleep)
        self._loaded, self._folder = target, None
        self._prompt_logps = adapter is None or bool(adapter.targets)

    def _load_adapter(self, folder: Path | None) -> None:
        """Load the adapter in a folder into vLLM, unless it is loaded already."""
        if folder is not None and folder != self._folder:
            self._running().load_adapter(folder)
            self._folder = folder

    def _adapter_folders(self) -> AdapterFolders:
        if self._folders is None:
            self._folders = AdapterFolders()
        return self._folders

    def _running(self) -> LocalVllm:
        if self._local is None:
            raise LovecError("the engine has no model yet; call sync(policy) or open(model) first")
        return self._local


def _changed_class(model: Any) -> str | None:
    """Return the name of a class among the model's modules whose call vLLM has replaced; None if there is none."""
    classes = {type(module) for module in model.modules()}
    return next((c.__name__ for c in classes if str(c.__call__.__module__).startswith("vllm.")), None)


def _check_ids(texts: Sequence[Sequence[int]], vocabulary: int) -> None:
    """Refuse token ids that vLLM would crash on.

    Raises:
        LovecError: an id is negative, or not below the size of the vocabulary.
    """
    highest, lowest = max(map(max, texts), default=0), min(map(min, texts), default=0)
    if lowest < 0 or highest >= vocabulary:
        wrong = lowest if lowest < 0 else highest
        raise LovecError(
            f"token id {wrong} is not one of the model's {vocabulary}; encode with the model's own tokenizer"
        )
