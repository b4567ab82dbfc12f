"""Compare lovec with its peers on a real model and real rows: training, sampling, tagging, confidences of an answer.

    python benchmarks/real_peers.py --bios FOLDER            # -> benchmarks/results/real_peers.json, docs/speed.md
    python benchmarks/real_peers.py --only DPO --rounds 3    # some work, or fewer rounds than seven: printed
    python benchmarks/real_peers.py --page                   # only the page, from that file

The model is SmolLM2-135M-Instruct in float32, on one thread; FOLDER has FActScore's labelled files. Every piece of work
runs in a process of its own. Its sides take turns, in alternating order, after a round of warm-up; given are medians,
and the ratios within a round. Nothing is measured unless the sides compute the same: losses and gradients with TRL,
greedy tokens in sampling, and scores in tagging. TRL needs the extra ``parity``. vLLM, LM-Polygraph and uqlm run
in environments of their own (``--vllm PYTHON`` and so on); rows of those that are not given stay as they are in the
file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from common import provenance, read_json, results_and_page, write_json
from flops import cost
from page_parts import replace_between, versions_text
from real_rows import Biographies, Cities
from sides import SMALLEST, WHOLE, Case, Lovec
from speed import OURS, TRL, differences, trl_side
from speed_page import table
from usage import Usage, used

from lovec.baselines import LUQ, BaselineResources, Samples, Wording
from lovec.encoding import Encoder
from lovec.engines import TransformersEngine
from lovec.policy import PolicyConfig, load_base, load_tokenizer
from lovec.taggers import IterativeTagger
from lovec.types import LovecError, Record, Sampling

RESULTS, PAGE = results_and_page("real_peers", "docs/speed.md")
BEGIN, END = "<!-- peers: written by benchmarks/real_peers.py -->", "<!-- end of peers -->"
TRAINING = {"SFT": (4, 1), "DPO": (2, 1), "GRPO": (1, 4)}
"""Rows, pairs, or questions and answers to each, of a step on cities."""
LONGER = {"SFT": (2, 1), "DPO": (1, 1), "GRPO": (1, 2)}
"""The same on biographies."""
GENERATE, FORWARD, VLLM = "transformers' generate", "transformers, a forward pass only", "vLLM"
TARGETS = {("SFT", TRL): 0.8, ("DPO", TRL): 0.6, ("GRPO", TRL): 0.6, ("tagging", FORWARD): 1 / 0.7}
"""The most that is aimed at, of the peer's CPU-seconds, by work and peer."""
QUESTIONS, SAMPLES, TOKENS = 8, 4, 32
"""Questions, samples of each, and tokens of a sample, in sampling."""
LUQ_SAMPLES = 10
LEAST_SAME = 0.95
"""Share of tokens or scores in which a peer must agree: where two are nearly as probable, rounding decides."""


@dataclass
class Work:
    """What is measured.

    Attributes:
        sides: by name, what does the work once and returns what it took.
        pairs: which side is compared with which: lovec's, and the peer's.
        checks: how far peers are from lovec.
    """

    sides: dict[str, Callable[[], Usage]]
    pairs: list[tuple[str, str]]
    checks: dict[str, dict[str, float]] = field(default_factory=dict)


class Peer:
    """A peer in a process of its own, see ``peer_worker.py``.

    Args:
        python: the Python of its environment.
        kind: "vllm", "lm-polygraph" or "uqlm".
        model: folder of the model.
        log: takes what it prints.
    """

    def __init__(self, python: str, kind: str, model: str, log: Path) -> None:
        settings = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
        settings |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCHDYNAMO_DISABLE": "1"}
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [python, str(Path(__file__).with_name("peer_worker.py")), kind, model],
                env={**os.environ, **settings},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.kind, self.log = kind, log
        self._read()

    def __call__(self, **request: Any) -> tuple[Any, Usage]:
        """Let it do some work; return the result and what it took."""
        assert self.process.stdin is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        reply = self._read()
        return reply["result"], Usage(*reply["used"])

    def _read(self) -> Any:
        assert self.process.stdout is not None
        if line := self.process.stdout.readline():
            return json.loads(line)
        raise SystemExit(f"{self.kind} ended early:\n{self.log.read_text(errors='replace')[-2000:]}")


@contextmanager
def peer(python: str | None, kind: str, model: str, folder: Path) -> Iterator[Peer | None]:
    """Run a peer until the end of the block; None where its environment is not given."""
    if python is None:
        yield None
        return
    running = Peer(python, kind, model, folder / f"{kind}.log")
    try:
        yield running
    finally:
        running.process.stdin.close()  # type: ignore[union-attr]
        running.process.wait(60)


class Base:
    """SmolLM2 without an adapter: model, encoder and engine."""

    def __init__(self) -> None:
        self.name = Cities().model(Path())
        config = PolicyConfig(model=self.name)
        self.model, tokenizer = load_base(config).eval(), load_tokenizer(config)
        self.model.generation_config.eos_token_id = None  # all sides write the same number of tokens
        self.encoder = Encoder(tokenizer, scoring="prefix")
        self.engine = TransformersEngine()
        self.engine.sync(SimpleNamespace(model=self.model))

    def padded(self, prompts: Sequence[Sequence[int]], side: str = "left") -> dict[str, torch.Tensor]:
        """Return prompts as transformers takes them."""
        from peers import padded

        rows = {"input_ids": prompts, "attention_mask": [[1] * len(ids) for ids in prompts]}
        return {name: padded(values, "cpu", side=side) for name, values in rows.items()}

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Sequence[int]], tokens: int, **options: Any) -> list[list[int]]:
        """Let transformers' generate write so many tokens after every prompt."""
        inputs = self.padded(prompts)
        out = self.model.generate(**inputs, max_new_tokens=tokens, pad_token_id=0, top_k=0, **options)
        ids: list[list[int]] = out[:, inputs["input_ids"].shape[1] :].tolist()
        return ids


def training(objective: str, source: Any, sizes: tuple[int, int], folder: Path) -> Work:
    """Compare a training step with TRL's, with the micro-batches that TRL does better with: one example, or all.

    TRL's operations are those of the micro-batches that need fewer.
    """
    case = Case(objective, source, *sizes)
    ours = Lovec(case, source.model(folder), folder)
    theirs = trl_side(case, ours, folder)
    checks = differences(case, {OURS: ours, TRL: theirs})
    counted = [
        cost(partial(side.step, budget), side.parameters).flops
        for side, budget in ((ours, WHOLE), (theirs, WHOLE), (theirs, SMALLEST))
    ]
    checks[TRL]["operations"] = counted[0] / min(counted[1:])
    taken = {budget: used(partial(theirs.step, budget))[1].cpu for budget in (SMALLEST, WHOLE)}
    best = min(taken, key=lambda budget: taken[budget])
    sides = {OURS: lambda: used(partial(ours.step, WHOLE))[1], TRL: lambda: used(partial(theirs.step, best))[1]}
    return Work(sides, [(OURS, TRL)], checks)


def sampling(base: Base, vllm: Peer | None) -> Work:
    """Compare sampling of a fixed number of tokens."""
    rows = Cities().answers(QUESTIONS, 1)
    prompts = [base.encoder.prompt(row.question) for row in rows]
    greedy, drawn = (Sampling(TOKENS, temperature, n) for temperature, n in ((0.0, 1), (1.0, SAMPLES)))
    expected = [list(c.ids) for [c] in base.engine.generate(prompts, greedy, ())]
    checks = {GENERATE: _same(expected, base.generate(prompts, TOKENS, do_sample=False), GENERATE)}
    sides = {
        OURS: lambda: used(lambda: base.engine.generate(prompts, drawn, ()))[1],
        GENERATE: lambda: used(
            lambda: base.generate(prompts, TOKENS, do_sample=True, num_return_sequences=SAMPLES)
        )[1],
    }  # fmt: skip
    if vllm is not None:
        params: dict[str, Any] = {"max_tokens": TOKENS, "ignore_eos": True}
        found, _ = vllm(prompts=prompts, params=params | {"temperature": 0}, fresh=True)
        checks[VLLM] = _same(expected, [ids for [ids] in found], VLLM)
        params |= {"temperature": 1.0, "n": SAMPLES}
        sides[VLLM] = lambda: vllm(prompts=prompts, params=params, fresh=True)[1]
    return Work(sides, [(OURS, name) for name in checks], checks)


def tagging(base: Base, vllm: Peer | None) -> Work:
    """Compare the scoring of given sentences, one after the other since each follows the scores before it.

    Peers are asked for the first token that tells scores apart, after the same context. In what is compared, 1 and 10
    are left out, since they begin alike.
    """
    rows, encoder = Cities().answers(QUESTIONS, 1), base.encoder
    tagged = IterativeTagger(base.engine, encoder).tag(rows)
    begin = _common(*encoder.choices)
    first = [ids[len(begin)] for ids in encoder.choices]
    allowed = [token for token in first if first.count(token) == 1]
    expected, steps = [], []
    for at in range(len(rows[0].sentences)):
        steps.append([_context(encoder, row, at) + begin for row in tagged])
        for row in tagged:
            shares = dict(zip(first, row.sentences[at].distribution or (), strict=True))
            expected.append([max(allowed, key=lambda token: shares[token])])
    whole = base.padded([_context(encoder, row, len(row.sentences)) for row in tagged], "right")

    def generated() -> list[list[int]]:
        options = {"do_sample": False, "prefix_allowed_tokens_fn": lambda *_: allowed}
        return [ids for prompts in steps for ids in base.generate(prompts, 1, **options)]

    def read() -> None:
        with torch.inference_mode():
            base.model(**whole, use_cache=False, logits_to_keep=1)

    checks = {GENERATE: _same(expected, generated(), GENERATE)}
    sides = {
        OURS: lambda: used(lambda: _tag(base, rows))[1],
        GENERATE: lambda: used(generated)[1],
        FORWARD: lambda: used(read)[1],
    }
    if vllm is not None:
        params = {"max_tokens": 1, "temperature": 0, "allowed_token_ids": allowed}

        def asked() -> tuple[list[list[int]], Usage]:
            replies = [vllm(prompts=prompts, params=params, fresh=not at) for at, prompts in enumerate(steps)]
            total = Usage(*(sum(part) for part in zip(*(usage for _, usage in replies), strict=True)))
            return [ids for found, _ in replies for [ids] in found], total

        checks[VLLM] = _same(expected, asked()[0], VLLM)
        sides[VLLM] = lambda: asked()[1]
    return Work(sides, [(OURS, name) for name in sides if name != OURS], checks)


def answers(base: Base, polygraph: Peer | None, uqlm: Peer | None) -> Work:
    """Compare confidences of an answer with those that ten other answers give (LUQ), and with LM-Polygraph's P(True).

    All judge with the model itself: lovec's baseline by its yes or no, uqlm by the word that it writes.
    """
    (row,) = Cities().answers(1, 1)
    encoder, engine = base.encoder, base.engine
    prompt = encoder.prompt(row.question)
    plain = len(encoder.pieces(" ".join(s.text for s in row.sentences)))
    written = len(_context(encoder, row, len(row.sentences))) - len(prompt)

    def luq() -> None:
        baseline = LUQ(LUQ_SAMPLES)
        samples = Samples(max_new_tokens=plain)
        baseline.attach(BaselineResources(engine, encoder, Wording(), samples))
        baseline.confidences([row])

    tag, write = "lovec, a given answer", "lovec, writing and scoring it"
    sides = {
        tag: lambda: used(lambda: _tag(base, [row]))[1],
        write: lambda: used(lambda: engine.generate([prompt], Sampling(written, 0.0), ()))[1],
        "LUQ": lambda: used(luq)[1],
    }
    pairs = [(tag, "LUQ"), (write, "LUQ")]
    if polygraph is not None:
        asked = {"texts": [row.question], "tokens": plain, "method": "PTrue"}
        sides["LM-Polygraph, P(True)"] = lambda: polygraph(**asked)[1]
        pairs.append((write, "LM-Polygraph, P(True)"))
    if uqlm is not None:
        text = " ".join(sentence.text for sentence in row.sentences)
        given = {"question": row.question, "answer": text, "tokens": plain, "samples": LUQ_SAMPLES}
        sides["uqlm, LUQ"] = lambda: uqlm(**given)[1]
        pairs.append((tag, "uqlm, LUQ"))
    return Work(sides, pairs)


def _tag(base: Base, rows: Sequence[Record]) -> None:
    base.engine.score([], [[0]])  # frees the cache of the call before
    IterativeTagger(base.engine, base.encoder).tag(rows)


def _context(encoder: Encoder, row: Record, at: int) -> list[int]:
    """Return the ids up to where the score of a sentence follows; those of the whole answer where there is none."""
    ids = list(encoder.prompt(row.question))
    for place, sentence in enumerate(row.sentences[: at + 1]):
        ids += encoder.head(sentence.text, first=place == 0)
        if place < at:
            ids += encoder.tails[sentence.score or 0]
    return ids


def _common(*rows: Sequence[int]) -> list[int]:
    """Return the ids that all rows begin with."""
    alike = takewhile(lambda ids: len(set(ids)) == 1, zip(*rows, strict=False))
    return [ids[0] for ids in alike]


def _same(expected: Sequence[Sequence[int]], found: Sequence[Sequence[int]], name: str) -> dict[str, float]:
    """Return the share of tokens that are the same up to each row's first difference.

    Raises:
        LovecError: it is too small, so that a comparison would mean nothing.
    """
    same = sum(len(_common(a, b)) for a, b in zip(expected, found, strict=True))
    share = same / sum(map(len, expected))
    if share < LEAST_SAME:
        raise LovecError(f"{name} agrees with lovec in {share:.2f} of the tokens, expected {LEAST_SAME}")
    return {"same": share}


def measured(work: Work, rounds: int) -> Iterator[dict[str, Any]]:
    """Measure work in rounds after one of warm-up; yield a row for each pair of sides."""
    taken: dict[str, list[Usage]] = {name: [] for name in work.sides}
    for number in range(rounds + 1):
        for name in list(work.sides)[:: 1 if number % 2 else -1]:
            usage = work.sides[name]()
            if number:
                taken[name].append(usage)
            print(f"round {number} of {rounds}: {name}, {usage.cpu:.2f} CPU-seconds", file=sys.stderr, flush=True)
    for ours, other in work.pairs:
        row: dict[str, Any] = {"lovec": ours, "peer": other, "rounds": rounds, "checks": work.checks.get(other)}
        for what in Usage._fields:
            values = [[getattr(usage, what) for usage in taken[name]] for name in (ours, other)]
            ratios = [a / b for a, b in zip(*values, strict=True) if b > 0]
            row[what] = {
                "lovec": statistics.median(values[0]),
                "peer": statistics.median(values[1]),
                "ratio": statistics.median(ratios) if ratios else None,
                "range": [min(ratios), max(ratios)] if ratios else None,
            }
        yield row


BESIDE: dict[str, tuple[Callable[..., Work], tuple[str, ...]]] = {
    "sampling": (sampling, ("vllm",)),
    "tagging": (tagging, ("vllm",)),
    "an answer": (answers, ("lm-polygraph", "uqlm")),
}
"""Work without training, and the peers that run in environments of their own."""


def names(bios: Path | None) -> list[str]:
    """Return all work that can be measured."""
    steps = [f"{name}, {source}" for source in ("cities", "biographies")[: 2 if bios else 1] for name in TRAINING]
    return [*steps, *BESIDE]


def measure(name: str, flags: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Measure one piece of work."""
    torch.set_num_threads(1)
    objective, _, source = name.partition(", ")
    with ExitStack() as stack:
        if source:
            cities = source == "cities"
            rows = Cities() if cities else Biographies(flags.bios)
            work = training(objective, rows, (TRAINING if cities else LONGER)[objective], folder)
        else:
            base = Base()
            build, kinds = BESIDE[name]
            options = [(getattr(flags, kind.replace("-", "_")), kind) for kind in kinds]
            work = build(
                base, *(stack.enter_context(peer(python, kind, base.name, folder)) for python, kind in options)
            )
        return [{"work": name, **row} for row in measured(work, flags.rounds)]


def lines(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a Markdown table."""
    cells = []
    for row in rows:
        cpu, wall, memory = (row[what] for what in Usage._fields)
        low, high = cpu["range"]
        trained = row["peer"] == TRL
        cells.append(
            (
                row["work"],
                row["lovec"],
                row["peer"],
                f"{cpu['lovec']:.2f}",
                f"{cpu['peer']:.2f}",
                f"{cpu['ratio']:.2f} ({low:.2f} to {high:.2f})",
                _target(row),
                f"{wall['ratio']:.2f}",
                f"{memory['ratio']:.2f}" if trained else "-",
                f"{row['checks']['operations']:.2f}" if trained else "-",
            )
        )
    heads = ("Work", "Side", "Peer", "CPU-seconds", "peer's", "ratio", "target", "wall time", "memory", "operations")
    return table(heads, cells)


def _target(row: Mapping[str, Any]) -> str:
    """Return what the ratio of a row is aimed at, and whether it is reached."""
    target = TARGETS.get((row["work"].partition(",")[0], row["peer"]))
    if target is None:
        return "-"
    return f"{target:.2f}: {'reached' if row['cpu']['ratio'] <= target else '**missed**'}"


def page(text: str, results: Mapping[str, Any]) -> str:
    """Return the page with the table of these results."""
    order = names(Path()).index
    rows = sorted(results["comparisons"], key=lambda row: order(row["work"]))
    note = f"Medians of {min(row['rounds'] for row in rows)} rounds. {versions_text(results)}."
    return replace_between(text, BEGIN, END, f"{lines(rows)}\n\n{note}")


def write_page() -> None:
    """Write the page from the file of results."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), read_json(RESULTS)), encoding="utf-8")


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bios", type=Path, help="folder of FActScore's labelled files")
    parser.add_argument("--vllm", help="Python of an environment with vLLM")
    parser.add_argument("--lm_polygraph", help="Python of an environment with LM-Polygraph")
    parser.add_argument("--uqlm", help="Python of an environment with uqlm")
    parser.add_argument("--only", nargs="+", help="beginnings of the names of the work; the others' rows are kept")
    parser.add_argument("--rounds", type=int, default=7, help="rounds; with fewer than 7 the results are printed only")
    parser.add_argument("--page", action="store_true", help="only write the page from the results")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.page:
        write_page()
        return
    if flags.work:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(flags.work, flags, Path(folder))))
        return
    for name in names(flags.bios):
        if flags.only and not name.startswith(tuple(flags.only)):
            continue
        print(f"{name}: begins", flush=True)
        done = subprocess.run(
            [sys.executable, __file__, *sys.argv[1:], "--work", name],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        rows = json.loads(done.stdout.splitlines()[-1])
        print(lines(rows), flush=True)
        if flags.rounds >= 7:
            publish(rows)


def publish(rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows into the file of results, in place of older ones of the same comparison, and the page."""
    earlier = read_json(RESULTS)["comparisons"] if RESULTS.exists() else []
    merged = {(row["work"], row["lovec"], row["peer"]): row for row in [*earlier, *rows]}
    origin = provenance()
    origin["versions"]["trl"] = version("trl")
    write_json(RESULTS, origin | {"comparisons": list(merged.values())})
    write_page()


if __name__ == "__main__":
    main()
