"""Measure `lovec serve` in front of a vLLM server against that server alone: throughput, waits, disconnects.

    python benchmarks/serving.py --adapter runs/sft/adapter   # -> benchmarks/results/serving.json and a page
    python benchmarks/serving.py --page                       # only write the page from that file

It must be run by the Python of an environment with vLLM (`make vllm-env`). The adapter is one of the embedded world's
model, with which it is merged, so that both servers run the same weights. Both get the same prompts, token by token,
from the same client, and take turns; lovec's share of the work, the scores of every sentence, is on top.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common import ROOT, provenance, read_json, versions_text, write_json
from vllm_grpo import START_S, is_healthy, vllm_version

RESULTS = ROOT / "benchmarks" / "results" / "serving.json"
PAGE = ROOT / "docs" / "results" / "serving.md"
STREAMS = (1, 8, 32)
MOST_TOKENS = 256
LEAST_RATIO, MOST_WAIT = 0.9, 1.5
"""What is aimed at: requests per second by those of vLLM alone, and the wait beside a long request by that without."""
BESIDE = {
    "alone": "alone",
    "text": "beside a text of 400 sentences that is tagged",
    "answers": "beside eight answers to one request",
}
DISCONNECTS, AT_ONCE = 200, 20
SERVER = "--block-size 32 --dtype float32 --enforce-eager --logprobs-mode processed_logprobs"
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCHDYNAMO_DISABLE": "1",  # compiling a part of the sampler would be measured
}


@contextmanager
def started(command: Sequence[str], log: Path, address: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until the end of the block, which begins when it answers its health check."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env={**os.environ, **SETTINGS}, stdout=output, stderr=output, start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_S
        while not is_healthy(f"{address}/health"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"a server did not start; see {log}")
            time.sleep(0.5)
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(60)


def free_port() -> int:
    """Return a port of loopback that nothing listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def merged(adapter: Path, folder: Path) -> Path:
    """Return the folder of the world's model with an adapter merged into it, which is written unless it is there."""
    from lovec.datasets.world import ensure_world

    if not folder.exists():
        command = [sys.executable, "-m", "lovec.cli", "export", str(adapter), str(folder), "--merged"]
        subprocess.run([*command, "--model", str(ensure_world("world").model_path), "--any_base"], cwd=ROOT, check=True)
    return folder


class Bench:
    """Both servers, the questions, and a client.

    Args:
        client: an ``httpx.AsyncClient``.
        bare: address of the vLLM server.
        serve: address of lovec's.
        questions: what is asked, the same of both.
        prompts: token ids of the questions, as lovec encodes them.
        stop_ids: ids that end an answer.
        text: a long text, to be tagged.
    """

    def __init__(
        self,
        client: Any,
        bare: str,
        serve: str,
        questions: Sequence[str],
        prompts: Sequence[Sequence[int]],
        stop_ids: Sequence[int],
        text: str,
    ) -> None:
        self.client, self.bare, self.serve, self.text = client, bare, serve, text
        self.questions, self.prompts, self.stop_ids = questions, prompts, stop_ids

    async def ask_bare(self, number: int) -> int:
        """Let vLLM alone answer a question; return the tokens of the answer."""
        body = {"model": "world", "prompt": list(self.prompts[number]), "max_tokens": MOST_TOKENS, "temperature": 0.0}
        body |= {"stop_token_ids": list(self.stop_ids), "ignore_eos": True}
        return await self._tokens(f"{self.bare}/v1/completions", body)

    async def ask_lovec(self, number: int) -> int:
        """Let lovec answer a question; return the tokens of the answer, those of its tags included."""
        return await self._tokens(f"{self.serve}/v1/chat/completions", self._chat(number))

    def _chat(self, number: int, **more: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": self.questions[number]}]
        return {"messages": messages, "max_tokens": MOST_TOKENS, "temperature": 0.0, **more}

    async def _tokens(self, address: str, body: Mapping[str, Any]) -> int:
        reply = await self.client.post(address, json=body)
        reply.raise_for_status()
        return int(reply.json()["usage"]["completion_tokens"])

    async def rate(self, ask: Callable[[int], Awaitable[int]], streams: int) -> tuple[float, int]:
        """Ask all questions with so many requests at a time; return requests per second, and tokens of the answers."""
        numbers, tokens = iter(range(len(self.questions))), 0

        async def stream() -> None:
            nonlocal tokens
            for number in numbers:
                written = await ask(number)
                tokens += written

        begin = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(streams):
                group.create_task(stream())
        return len(self.questions) / (time.perf_counter() - begin), tokens

    async def rates(self, rounds: int, groups: Sequence[int]) -> list[dict[str, Any]]:
        """Return the requests per second of both at every number of streams: medians over rounds, in turns.

        Args:
            rounds: number of rounds.
            groups: process groups of vLLM and of lovec, whose processor time is taken.
        """
        rows = []
        for streams in STREAMS:
            found: dict[str, list[float]] = {"bare": [], "lovec": []}
            tokens, seconds = {}, {"vllm, bare": 0.0, "vllm, lovec": 0.0, "lovec": 0.0}
            await self.rate(self.ask_bare, streams)  # fills the prefix cache
            before = await self.metric(self.bare, "vllm:request_success_total")
            await self.rate(self.ask_lovec, streams)
            calls = await self.metric(self.bare, "vllm:request_success_total") - before
            for _ in range(rounds):
                for name, ask in (("bare", self.ask_bare), ("lovec", self.ask_lovec)):
                    before_vllm, before_lovec = map(seconds_of, groups)
                    rate, tokens[name] = await self.rate(ask, streams)
                    found[name].append(rate)
                    seconds[f"vllm, {name}"] += seconds_of(groups[0]) - before_vllm
                    seconds["lovec"] += seconds_of(groups[1]) - before_lovec
            ratios = [two / one for one, two in zip(found["bare"], found["lovec"], strict=True)]
            row = {name: statistics.median(values) for name, values in found.items()}
            spread: dict[str, Any] = {"low": min(ratios), "high": max(ratios), "calls": calls / len(self.questions)}
            spread["seconds"] = {name: value / rounds / len(self.questions) for name, value in seconds.items()}
            rows.append({"streams": streams, **row, "ratio": statistics.median(ratios), **spread, "tokens": tokens})
            print(rows[-1], flush=True)
        return rows

    async def first_sentence(self, number: int) -> float:
        """Return the seconds until the first sentence of a streamed answer."""
        begin = time.perf_counter()
        body = self._chat(number, stream=True)
        async with self.client.stream("POST", f"{self.serve}/v1/chat/completions", json=body) as reply:
            async for line in reply.aiter_lines():
                if line.startswith("data: {") and any(
                    choice["delta"].get("confidence") for choice in json.loads(line[6:])["choices"]
                ):
                    return time.perf_counter() - begin
        raise SystemExit("an answer had no sentence")

    async def waits(self, times: int) -> dict[str, Any]:
        """Return the median seconds to a first sentence alone, and beside a long text, and beside eight answers."""
        found: dict[str, list[float]] = {"alone": [], "text": [], "answers": []}
        longs = {
            "text": ("/v1/tag", {"text": self.text, "question": self.questions[0]}),
            "answers": ("/v1/chat/completions", self._chat(0, temperature=1.0, n=8)),
        }
        for at in range(times):
            number = at % len(self.questions)
            found["alone"].append(await self.first_sentence(number))
            for name, (path, body) in longs.items():
                long = asyncio.create_task(self.client.post(f"{self.serve}{path}", json=body))
                while not await self.metric(self.serve, "lovec_running"):
                    await asyncio.sleep(0.01)
                seconds = await self.first_sentence(number)
                if not long.done():  # otherwise it was not long enough to be in the way
                    found[name].append(seconds)
                long.cancel()
                await asyncio.gather(long, return_exceptions=True)
                await self.idle()
        medians = {name: statistics.median(values) if values else None for name, values in found.items()}
        return medians | {"times": {name: len(values) for name, values in found.items()}}

    async def metric(self, address: str, name: str) -> float:
        """Return the sum of a metric of a server over its labels."""
        text = (await self.client.get(f"{address}/metrics")).text
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))

    async def idle(self) -> None:
        """Wait until neither server works."""
        deadline = time.monotonic() + 120
        while await self.metric(self.serve, "lovec_running") or await self.metric(
            self.bare, "vllm:num_requests_running"
        ):
            if time.monotonic() > deadline:
                raise SystemExit("a server goes on although nobody waits")
            await asyncio.sleep(0.05)

    async def leave(self, times: int) -> None:
        """Begin requests, half of them streams, and disconnect while they are being answered."""

        async def one(number: int) -> None:
            body = self._chat(number % len(self.questions), max_tokens=1024, temperature=2.0, stream=number % 2 == 0)
            try:
                async with asyncio.timeout(0.3 + 0.02 * (number % AT_ONCE)):
                    await self.client.post(f"{self.serve}/v1/chat/completions", json=body)
            except TimeoutError:
                pass

        for begin in range(0, times, AT_ONCE):
            await asyncio.gather(*map(one, range(begin, min(begin + AT_ONCE, times))))
        await self.idle()


def seconds_of(group: int) -> float:
    """Return the processor seconds of the processes of a group that are running."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[2]) == group:
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def state_of(pid: int) -> dict[str, int]:
    """Return the memory in MiB, the threads and the open files of a process."""
    words = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return {"mib": int(words["VmRSS"].split()[0]) // 1024, "threads": int(words["Threads"]), "files": files}


async def measure(
    flags: argparse.Namespace, model: Path, bare: str, serve: str, groups: Sequence[int]
) -> dict[str, Any]:
    """Return everything that is measured on the two servers."""
    import httpx2 as httpx

    from lovec.datasets.world import ensure_world
    from lovec.engines import VllmServer
    from lovec.taggers import open_session

    records = [record for split in ("test", "dev") for record in ensure_world("world").questions(split)]
    questions = [record.question for record in records[: flags.requests]]
    with open_session(str(model), engine=VllmServer(f"{bare}/v1")) as session:
        prompts, stop_ids = [session.encoder.prompt(question) for question in questions], session.encoder.stop_ids
    limits = httpx.Limits(max_connections=128, max_keepalive_connections=64)
    async with httpx.AsyncClient(timeout=600, limits=limits) as client:
        text = " ".join(f"It has {number} rooms." for number in range(400))
        bench = Bench(client, bare, serve, questions, prompts, stop_ids, text)
        rows = await bench.rates(flags.rounds, groups)
        waits = await bench.waits(flags.waits)
        await bench.leave(AT_ONCE)
        before = state_of(groups[1])
        await bench.leave(DISCONNECTS)
        left = {"times": DISCONNECTS, "before": before, "after": state_of(groups[1])}
    return {"requests": len(questions), "rounds": flags.rounds, "rates": rows, "waits": waits, "left": left}


def run(flags: argparse.Namespace) -> dict[str, Any]:
    """Start both servers and measure."""
    flags.out.mkdir(parents=True, exist_ok=True)
    model = merged(flags.adapter, flags.out / "model")
    bare, serve = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    ports = [address.rpartition(":")[2] for address in (bare, serve)]
    vllm = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--port", ports[0]]
    lovec = [sys.executable, "-m", "lovec.cli", "serve", "--model", str(model), "--engine", f"{bare}/v1"]
    with (
        started(
            [*vllm, "--served-model-name", "world", str(model), *SERVER.split()], flags.out / "vllm.log", bare
        ) as behind,
        started([*lovec, "--port", ports[1]], flags.out / "lovec.log", serve) as front,
    ):
        return asyncio.run(measure(flags, model, bare, serve, (behind.pid, front.pid)))


def page(results: Mapping[str, Any]) -> str:
    """Return the page of the results in Markdown."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Mapping[str, Any]) -> Iterator[str]:
    yield "# Serving in front of vLLM"
    yield ""
    yield (
        "Written by `benchmarks/serving.py` from `benchmarks/results/serving.json`. `lovec serve` with a vLLM server "
        "behind it, against that server alone: the same weights (an adapter of the embedded world's model, merged), "
        f"the same prompts, greedy answers, {results['requests']} requests, median of {results['rounds']} rounds in "
        "turns, in brackets the range. Client and both servers share the machine's cores. "
        f"{versions_text(results)}."
    )
    yield from (
        "",
        "| Streams | vLLM alone, requests/s | lovec, requests/s | ratio | calls of vLLM per request | "
        "processor ms per request: vLLM alone | vLLM behind lovec | lovec |",
    )
    yield "|---|---|---|---|---|---|---|---|"
    for row in results["rates"]:
        ratio = f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
        costs = [f"{1000 * value:.0f}" for value in row["seconds"].values()]
        cells = [str(row["streams"]), f"{row['bare']:.2f}", f"{row['lovec']:.2f}", ratio, f"{row['calls']:.1f}", *costs]
        yield f"| {' | '.join(cells)} |"
    missed = [str(row["streams"]) for row in results["rates"] if row["ratio"] < LEAST_RATIO]
    verdict = f"missed at {', '.join(missed)} streams" if missed else "reached"
    yield ""
    yield (
        f"Aimed at was a ratio of {LEAST_RATIO} or more: **{verdict}**. vLLM alone writes the answer and no more. "
        "Behind lovec it also computes the exact probability of every whole score at every sentence, in calls of "
        f"their own. If only vLLM's processor time counted, the ratio would be {_bounds(results)}; the rest is "
        "lovec's own work."
    )
    waits = results["waits"]
    yield from ("", "| Time to the first sentence | seconds | by alone | times |", "|---|---|---|---|")
    late = []
    for name, label in BESIDE.items():
        if waits[name] is None:
            continue
        by = waits[name] / waits["alone"]
        late += [label] if by > MOST_WAIT else []
        yield f"| {label} | {waits[name]:.3f} | {by:.2f} | {waits['times'][name]} |"
    verdict = f"missed {' and '.join(late)}" if late else "reached"
    yield ""
    yield f"Aimed at was {MOST_WAIT} times the time alone or less: **{verdict}**."
    left = results["left"]
    before, after = left["before"], left["after"]
    yield ""
    yield (
        f"After {left['times']} more clients that disconnected while they were being answered, half of them reading "
        f"streams, neither server was working; lovec's had {after['files']} open files (before: {before['files']}), "
        f"{after['threads']} threads ({before['threads']}) and {after['mib']} MiB of memory ({before['mib']})."
    )


def _bounds(results: Mapping[str, Any]) -> str:
    """Return vLLM's processor time for the answers alone by that for answers and scores, at every number of streams."""
    return ", ".join(
        f"{row['seconds']['vllm, bare'] / row['seconds']['vllm, lovec']:.2f} at {row['streams']}"
        for row in results["rates"]
    )


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adapter", type=Path, help="adapter of the embedded world's model")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--waits", type=int, default=10, help="measurements of the time to a first sentence")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "serving", help="folder of model and logs")
    parser.add_argument("--page", action="store_true", help="only write the page from the file")
    flags = parser.parse_args()
    if not flags.page:
        if flags.adapter is None:
            parser.error("--adapter is missing: give one of the embedded world's model")
        origin = provenance()
        origin["versions"]["vllm"] = vllm_version()
        write_json(RESULTS, origin | run(flags))
    PAGE.write_text(page(read_json(RESULTS)), encoding="utf-8")


if __name__ == "__main__":
    main()
