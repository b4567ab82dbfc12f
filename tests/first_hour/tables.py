"""What the blocks of README and docs are run with: the files a reader has, what is replaced, what is left out."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
from dataclasses import dataclass, replace
from pathlib import Path

from lovec.datasets.evidence import SEPARATOR
from lovec.datasets.jsonl import read_records, write_records
from lovec.datasets.pairs import with_rejected
from lovec.labelling.recipe import write_recipe
from lovec.metrics.results import write_results
from lovec.types import Record, ResultRow, Sentence

PEOPLE = ("Ada Lovelace", "Charles Babbage", "Mary Somerville", "George Boole", "Emmy Noether", "Sofia Kovalevskaya",
          "Grace Hopper", "Kurt Goedel")  # fmt: skip

REPLACED = (
    (r"(?m)^git clone .*$", ":", "the checkout is there"),
    (r"(?m)^\. \.venv/bin/activate$", ":", "the environment is active"),
    (r" --config (llama3-8b|gemma2-9b|vllm|vllm-server)\.yaml", "", "a model of 8B needs a GPU: the small one instead"),
    (r"meta-llama/Meta-Llama-3-8B-Instruct|/models/mine\b", "MODEL", "a model of 8B: the small one instead"),
    (r"--adapter atlas(?!\S)", "--adapter runs/dpo", "SmolLM2's weights are a package of their own: that of a run"),
    (r"adapter=\"atlas\"", 'adapter="runs/dpo"', "SmolLM2's weights are a package of their own: the adapter of a run"),
    (r"model=\"smollm2\"", 'model="MODEL"', "SmolLM2's weights are a package of their own: the small one"),
    (r"MoritzLaurer/[\w-]+", "NLI", "a model of the hub: a tiny random one"),
    (r"--oracle\.model gpt-4o\b", "--oracle.model judge --oracle.base_url ENDPOINT --yes", "a paid judge: on loopback"),
    (r"http://localhost:8000/v1", "ENDPOINT", "a server of the reader's: on loopback"),
    (r"https://api\.openai\.com/v1", "ENDPOINT", "a paid endpoint: on loopback"),
    (r"(?m)^(lovec serve .*?)(?: --port \d+)?( +#.*)?$", r"\1 --port PORT &\nuntil curl -sf http://127.0.0.1:PORT/health"
     r" > health; do sleep 0.2; kill -0 $! || break; done", "the server runs in the background"),
    (r"(?m)^(?=lovec label |for .*; do.*\n +lovec label )", "rm -rf runs/labels\n",
     "a block's commands are alternatives: each begins without the labels of another"),
    (r"(?m)^(?=lovec tag (?:.*\\\n)*.*--out ((\S+)\.\w+))", r"rm -f \1 \2.manifest.json\n",
     "a block's commands are alternatives: each begins without the file of another"),
    (r"(?m)^(?=lovec calibrate (\w+)\.(?:csv|jsonl)\b)", r"rm -rf \1.calibration\n",
     "a block's commands are alternatives: each begins without the folder of another"),
    (r"(?m)^(?=lovec apply \S+ (\w+)\.csv)", r"rm -f \1.calibrated.csv\n",
     "a block's commands are alternatives: each begins without the file of another"),
    (r"127\.0\.0\.1:8080|localhost:8080", "127.0.0.1:PORT", "a free port"),
    (r"(?m)^make demo\b.*$", "lovec demo --quick", "the demo in full is the first milestone"),
)  # fmt: skip
"""Pattern, replacement and reason. MODEL, NLI, ENDPOINT and PORT stand for what is there when the block runs."""

LEFT_OUT = (
    (r"^pip install", "needs a package index"),
    (r"^make (?!demo)", "the other targets are this checkout's own"),
    (r"^lovec demo", "it is the first milestone"),
    (r"^lovec join tags\.jsonl +#", "the shards are made where the page of `lovec tag` explains them"),
    (r"^hf ", "needs the network"),
    (r"^pandoc", "needs pandoc"),
    (r"--data (WildHallu|TriviaQA|PopQA)\b", "needs a data set of the hub"),
    (r"microsoft/", "needs a model of the hub"),
    (r"wandb|WandbLogger", "needs an account at a logging service"),
    (r"--trainer\.devices [2-9]", "needs several GPUs"),
    (r"--config qlora\.yaml", "needs bitsandbytes"),
    (r"--batch true", "needs a server with the Batch API"),
    (r"--engine openai", "needs a chat server and money"),
)
"""Pattern and reason of lines that are not run."""

WRITES = {
    "fit": "**/adapter_model.safetensors",
    "test": "**/results.json",
    "predict": "**/predictions/*.jsonl",
    "sweep": "**/*.json",
    "label": "**/*.jsonl",
    "calibrate": "**/calibration*.json",
    "export": "**/README.md",
    "report": "**/index.html",
    "curves": "**/*.svg",
    "score": "**/scores.csv",
    "join": "**/*.manifest.json",
    "demo": "**/results.json",
}
"""Command, and a pattern of files of which it writes at least one; all others print something."""

QUICK = ("--trainer.max_steps", "4", "--trainer.limit_val_batches", "0", "--trainer.enable_progress_bar", "false")
BRIEF = {
    "fit": ("--trainer.max_steps", "8", "--trainer.limit_val_batches", "0"),
    "test": ("--trainer.limit_test_batches", "2"),
    "predict": ("--trainer.limit_predict_batches", "2"),
    "validate": ("--trainer.limit_val_batches", "2"),
    "sweep": ("--trainer.max_steps", "2", "--trainer.limit_val_batches", "1"),
}
"""Options that are added to the commands of pages, so that trying them all takes minutes."""


@dataclass(frozen=True)
class Milestone:
    """Something a new user has, and how long it may take.

    Attributes:
        name: its name in the results.
        has: what it is.
        minutes: from the beginning to here, on two idle cores.
        script: the commands that lead to it from the milestone before.
    """

    name: str
    has: str
    minutes: float
    script: str


MILESTONES = (
    Milestone("answer", "an answer of a real model as a page with confidences", 1, """\
lovec tag --ask "Tell me about the city of Hamburg." --adapter atlas --out answer.html
"""),
    Milestone("picture", "the demo's table and its report", 5, "lovec demo --world\n"),
    Milestone("labels", "labelled answers to questions of one's own", 15, """\
lovec label --questions questions.jsonl --model world --max_new_tokens 224 --out runs/labels \\
    --oracle OpenAIOracle --oracle.model judge --oracle.base_url ENDPOINT --yes
"""),
    Milestone("adapter", "an adapter trained on them that tags a text", 30, """\
lovec fit --config sft.yaml --config runs/labels/recipe.yaml --trainer.default_root_dir runs/labels/sft
lovec fit --config dpo.yaml --config runs/labels/recipe.yaml --trainer.default_root_dir runs/labels/dpo \\
    --model.policy.adapter runs/labels/sft/adapter --model.sft_weight 0
lovec tag page.txt --adapter runs/labels/dpo --about "Ada Lovelace"
"""),
    Milestone("report", "a test of it and a report", 45, """\
lovec test --config dpo.yaml --config runs/labels/recipe.yaml --trainer.default_root_dir runs/labels/dpo
lovec report runs/labels/dpo
"""),
)  # fmt: skip
"""In their order; the clock runs on from one to the next. ``questions.jsonl`` and ``page.txt`` are there."""


def why_left_out(line: str) -> str:
    """Return the reason why a line of a script is not run; "" where it is."""
    return next((reason for pattern, reason in LEFT_OUT if re.search(pattern, line.strip())), "")


def replaced(script: str, values: dict[str, str]) -> str:
    """Return a script with everything replaced that is not on this machine."""
    for pattern, new, _ in REPLACED:
        script = re.sub(pattern, new, script)
    script = re.sub(r"(?<!-)\blovec label (?=[^\n]*(?:\n +[^\n]*)*OpenAIOracle)(?![^\n]*(?:\n +[^\n]*)*--yes)",
                    "lovec label --yes ", script)  # fmt: skip
    for name, value in values.items():
        script = re.sub(rf"\b{name}\b", value, script)
    return script


def write_files(folder: Path) -> None:
    """Write the files that readers have, as the pages name them."""
    page = "Ada Lovelace was born in London in 1815. She wrote notes on the Analytical Engine. She built it in 1840.\n"
    (folder / "page.txt").write_text(page)
    (folder / "page.md").write_text(f"# Ada Lovelace\n\n{page}")
    labelled = []
    for i, name in enumerate(PEOPLE):
        texts = (f"{name} was a mathematician.", f"{name} lived in London.", f"{name} wrote {i} books.")
        sentences = tuple(Sentence(text, factuality=(i + j) % 3 / 2) for j, text in enumerate(texts))
        question = f"In a paragraph, could you tell me what you know about {name}?"
        labelled.append(Record(f"p{i}", question, answer=" ".join(texts), sentences=sentences, meta={"entity": name}))
    for file in ("labelled.jsonl", "bios.jsonl", "train.jsonl", "dataset-generated.json"):
        write_records(folder / file, labelled)
    again = [replace(row, id=f"{row.id}-{i}") for i in range(5) for row in labelled]
    write_records(folder / "labels.jsonl", again)
    write_records(folder / "twice.jsonl", [replace(row, id=f"{row.id}-{i}") for i in range(2) for row in labelled[:4]])
    for split in ("train", "dev", "test"):
        write_records(folder / "runs" / "labels" / f"{split}.jsonl", labelled)
    write_recipe(folder / "runs" / "labels", "world", trained_offline=True, instruction=None)
    (folder / "runs/dpo").mkdir(parents=True, exist_ok=True)
    write_records(folder / "runs/dpo/dev.jsonl", [tagged(row) for row in again])
    for file in ("test.jsonl", "pairs.jsonl"):
        write_records(folder / file, [with_rejected(row, 0) for row in labelled])
    questions = [Record(row.id, row.question, meta=row.meta) for row in labelled]
    answers = [Record(row.id, row.question, answer=row.answer, meta=row.meta) for row in labelled]
    write_records(folder / "questions.jsonl", questions)
    for file in ("answers.jsonl", "more.jsonl", "in.jsonl"):
        write_records(folder / file, answers)
    for file in ("a.jsonl", "b.jsonl", "tagged.jsonl"):
        write_records(folder / file, [tagged(row) for row in labelled] if file == "tagged.jsonl" else labelled)
    write_scores(folder)
    for file in ("people.jsonl", "judge.jsonl"):
        write_records(folder / file, labelled)
    (folder / "prompt_entities.txt").write_text("\n".join(PEOPLE) + "\n")
    facts = [{"text": f"{name} was a mathematician.", "label": "S"} for name in PEOPLE]
    rows = [{"input": f"Question: Tell me a bio of {name}.", "output": fact["text"], "topic": name, "cat": ["x", "y"],
             "annotations": [{"text": fact["text"], "is-relevant": True, "human-atomic-facts": [fact]}]}
            for name, fact in zip(PEOPLE, facts, strict=True)]  # fmt: skip
    (folder / "ChatGPT.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    marked = {"id": "en-1", "model_input": "Who was Ada?", "model_output_text": "Ada wrote. She swam.",
              "soft_labels": [{"start": 15, "end": 20, "prob": 0.8}],
              "predicted": {"soft_labels": [{"start": 11, "end": 20, "prob": 0.9}]}}  # fmt: skip
    (folder / "marked.jsonl").write_text(json.dumps(marked) + "\n")
    with sqlite3.connect(folder / "enwiki-20230401.db") as file:
        file.execute("CREATE TABLE documents (title PRIMARY KEY, text)")
        pages = [(name, f"<s>{name} was a mathematician.</s>{SEPARATOR}More about {name}.") for name in PEOPLE]
        file.executemany("INSERT INTO documents VALUES (?, ?)", pages)


def write_scores(folder: Path) -> None:
    """Write tables of scores and labels, and the verdicts that people gave a server's answers."""
    names = "confidence,label,question,p_true,entropy,correct,rarity,human,gpt"
    lines, verdicts = [names], []
    for at in range(48):
        score, true = (at * 7 % 12 + 0.5) / 12, int(at * 5 % 12 < at * 7 % 12 + 2)
        human = "" if at % 4 else str(true)
        cells = (round(score, 3), true, f"q{at // 4}", round(score**2, 3), round(2 - 2 * score + at % 3 / 5, 3), true)
        lines.append(",".join([*map(str, cells), "rare" if at // 4 % 2 else "famous", human, str(int(score > 0.4))]))
        verdict = {"response_id": f"r{at // 4}", "index": at % 4, "confidence": score, "factuality": true}
        verdicts.append(json.dumps({**verdict, "readouts": {"mean": score}}))
    for file in ("results.csv", "scores.csv", "new.csv", "newer.csv", "held_out.csv"):
        (folder / file).write_text("\n".join(lines) + "\n")
    (folder / "verdicts.jsonl").write_text("\n".join(verdicts) + "\n")


def tagged(record: Record) -> Record:
    """Return a labelled record as a model might have tagged it: the truer, the surer, and not always."""
    sentences = []
    for at, sentence in enumerate(record.sentences):
        score = round(10 * (sentence.factuality or 0.0)) if (len(record.id) + at) % 4 else 5
        others = tuple(0.5 if i == score else 0.05 for i in range(11))
        sentences.append(replace(sentence, score=score, distribution=others))
    return replace(record, sentences=tuple(sentences))


def write_tests(folder: Path) -> None:
    """Write what tests of the runs ``comparison`` and ``dpo`` leave, for the quick form, which does not run them."""
    records = [replace(row, meta={"domain": "in-domain"}) for row in read_records(folder / "tagged.jsonl")]
    metrics: dict[str, float | None] = {"brier": 0.1, "ece_m": 0.1, "spearman": 0.5, "mean_factuality": 0.5}
    for run in ("comparison", "dpo"):
        test = folder / "runs" / run / "test" / "world"
        test.mkdir(parents=True, exist_ok=True)
        name = "dpo.iterative.jsonl"
        write_records(test / name, records)
        row = ResultRow("DPO", "method", "in-domain", "iterative", "sentence", "stated", 0, 24, metrics, file=name)
        write_results(test / "results.json", [row])


def option(words: list[str], name: str) -> str | None:
    """Return the value of an option; None where it is not given."""
    return words[words.index(name) + 1] if name in words[:-1] else None


def quick_words(words: list[str], model: str, seen: set[tuple[str, ...]]) -> list[str] | None:
    """Return the words of a command for the quick form, or None where a like command has run already.

    Training and testing run once per recipe, on a few records and a tiny model; intervals are of few draws; the server,
    sweeps and the demo, which take their time, do not run at all.

    Args:
        words: the command line behind ``lovec``.
        model: the model instead of the world's.
        seen: commands and recipes that have run; this one is added.
    """
    command = words[0]
    if command in ("serve", "sweep", "demo", "world") or option(words, "--data") == "World":
        return None
    if command == "calibrate" and words[1].startswith("runs/") and "--data" not in words:
        return [*words, "--data", "labels.jsonl"]  # the run was on records of the tests
    if command == "score" or (command == "calibrate" and not words[1].startswith("runs/")):
        return words if "--draws" in words else [*words, "--draws", "50"]
    if command not in ("fit", "test", "validate", "predict"):
        return words
    kind = (command, str(option(words, "--config")), str(option(words, "--model")))
    if kind in seen or "--ckpt_path" in words or "--print_config" in words or "comparison.yaml" in words:
        return None  # the tests of README let the parser read all of them
    seen.add(kind)
    data = ["--data", "tinyrun.Rows", "--data.n", "4", "--data.batch_size", "2"]
    if "distil.yaml" in words:  # which compares the answers to a question with each other
        data = ["--data", "Demonstrations", "--data.path", "twice.jsonl", "--data.val_path", "labelled.jsonl"]
    data = [] if "--data" in words else data
    brief = list(QUICK) if command == "fit" else ["--trainer.enable_progress_bar", "false"]
    if "grpo.yaml" in words:
        brief += ["--model.oracle", "tinyrun.Lengths", "--model.group_size", "2", "--model.max_new_tokens", "8"]
    return [*words, "--model.policy.model", model, "--model.evaluation.max_new_tokens", "8", *data, *brief]


def full_script(script: str) -> str:
    """Return a script whose training and testing commands are brief."""
    lines = []
    for line in script.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True) if re.match(r"lovec \w", line) else []
        brief = BRIEF.get(words[1], ()) if len(words) > 1 and "--print_config" not in words else ()
        lines.append(shlex.join([*words, *brief]) if brief else line)
    return "\n".join(lines) + "\n"
