"""The examples at the end of every command's ``--help``: real command lines, and what each is for."""

from __future__ import annotations

from collections.abc import Mapping

EXAMPLES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "fit": (
        ("lovec fit --config sft.yaml", "train; writes runs/sft/adapter"),
        ("lovec fit --config dpo.yaml", "continue runs/sft/adapter; writes runs/dpo/adapter"),
        ("lovec fit --config dpo.yaml --ckpt_path auto", "go on where a training was stopped"),
        (
            "lovec fit --config dpo.yaml --config llama3-8b.yaml --data Preferences --data.path pairs.jsonl",
            "a model of 8B, on data of your own",
        ),
    ),
    "validate": (
        ("lovec validate --config dpo.yaml", "measure runs/dpo/adapter on the dev split"),
        ("lovec validate --config dpo.yaml --trainer.limit_val_batches 1", "one batch, for a quick look"),
        (
            "lovec validate --config dpo.yaml --config llama3-8b.yaml --data Preferences --data.path pairs.jsonl",
            "a model of 8B, on data of your own",
        ),
    ),
    "test": (
        ("lovec test --config dpo.yaml", "measure runs/dpo/adapter; writes runs/dpo/test"),
        ("lovec test --config comparison.yaml", "baselines and trained adapters side by side"),
        (
            "lovec test --config dpo.yaml --config llama3-8b.yaml --data Bios --data.labels labelled.jsonl",
            "a model of 8B, on labelled answers",
        ),
    ),
    "predict": (
        ("lovec predict --config dpo.yaml", "tag the test split; writes runs/dpo/predictions"),
        ("lovec predict --config dpo.yaml --trainer.limit_predict_batches 1", "one batch, for a quick look"),
        (
            "lovec predict --config dpo.yaml --config llama3-8b.yaml --data Bios --data.labels labelled.jsonl",
            "a model of 8B, on labelled answers",
        ),
    ),
    "sweep": (
        ("lovec sweep --config grpo.yaml --vary model.group_size=4,8", "two values of one option"),
        (
            "lovec sweep --config dpo.yaml --vary model.beta=0.1,0.3 --vary model.optimizer.lr=1e-4,3e-4 --grid",
            "all combinations",
        ),
        ("lovec sweep --config dpo.yaml --vary model.beta=0.1,0.3 --seeds 0,1", "means over two seeds"),
    ),
    "label": (
        (
            "lovec label --questions questions.jsonl --model world-small --oracle OpenAIOracle --oracle.model gpt-4o "
            "--max_cost 20",
            "answers by a model, labels by an API",
        ),
        ("lovec label --answers answers.jsonl --oracle LabelFile --oracle.path labels.jsonl", "labels of a file"),
        ("lovec label --labelled labelled.jsonl --out runs/labels", "pairs and splits of labelled records"),
    ),
    "agreement": (
        ("lovec agreement people.jsonl oracle.jsonl", "do the oracle's labels agree with people's?"),
        (
            "lovec agreement people.jsonl oracle.jsonl --width 0.1",
            "how many labels of people an interval of ten points takes, with and without the oracle's",
        ),
        ("lovec agreement people.jsonl oracle.jsonl --json", "as JSON"),
    ),
    "calibrate": (
        ("lovec calibrate runs/dpo", "fit to the validation records of the run"),
        ("lovec calibrate runs/dpo --keep_factual 0.9", "and a threshold for a guarantee"),
        ("lovec calibrate scores.csv --keep_factual 0.9", "scores of any origin, in any file that `lovec score` reads"),
    ),
    "apply": (
        ("lovec apply scores.calibration new.csv", "a confidence for each row, in new.calibrated.csv"),
        ("lovec apply scores.calibration new.csv --keep_factual 0.9 --drop", "only the rows that the guarantee keeps"),
    ),
    "tag": (
        ('lovec tag page.txt --adapter runs/dpo --about "Ada Lovelace"', "a confidence for each sentence"),
        ("lovec tag page.txt --adapter runs/dpo --doubt 0.5", "only the sentences below 0.5, with their lines"),
        ("lovec tag page.txt --model smollm2 --method likelihood", "a baseline, with any model and no adapter"),
        ("lovec tag --ask_file q.jsonl --model gpt-4o --engine openai --out tags.jsonl", "a model behind an API"),
        ('lovec tag --ask "Who was Ada Lovelace?" --adapter runs/dpo --out answer.html', "let the model write; a page"),
    ),
    "join": (
        ("lovec join tags.jsonl", "the shards of `lovec tag --out tags.jsonl --shard 1/8` and so on"),
        ("lovec join runs/labels", "the shards of `lovec label --out runs/labels --shard 1/8` and so on"),
    ),
    "serve": (
        ("lovec serve --adapter runs/dpo", "a page to try it, and an endpoint, on this machine"),
        ("lovec serve --adapter runs/dpo --host 0.0.0.0 --port 80", "for others, too; set LOVEC_API_KEY"),
        ("lovec serve --model acme/lovec --engine http://127.0.0.1:8000/v1", "in front of a vLLM server"),
        ("lovec serve --model gpt-4o --engine openai --calibration gpt.calibration", "in front of an API"),
    ),
    "export": (
        ("lovec export runs/dpo exported/dpo", "the adapter and a model card"),
        ("lovec export runs/dpo exported/merged --merged --dtype bfloat16", "the whole model"),
        ("lovec export runs/dpo exported/dpo --push acme/lovec", "and upload it to the hub"),
    ),
    "score": (
        ("lovec score results.csv", "columns and layout are recognised"),
        ("lovec score results.csv --confidence verbal --confidence logit --label correct", "two methods side by side"),
        ("lovec score new.csv --calibration scores.calibration", "before and after a calibration"),
        ("lovec score results.csv --label human --judge gpt", "few labels of people, and a judge's of all rows"),
    ),
    "report": (
        ("lovec report runs/dpo", "a page in runs/dpo/report"),
        ("lovec report runs/sft runs/dpo --out report", "two runs on one page"),
    ),
    "curves": (
        ("lovec curves runs/dpo", "a table and runs/dpo/curves.svg"),
        ("lovec curves runs/dpo runs/grpo", "two runs in one plot, runs/curves.svg"),
    ),
    "world": (
        ("lovec world", "the folder of the world's model"),
        ("lovec world --variant world-small", "that of the smaller one"),
    ),
    "completion": (
        ("lovec completion bash", "the script; a line below it says where it belongs"),
        ("lovec completion zsh", "that for zsh"),
    ),
    "demo": (
        ("lovec demo --world", "on an embedded world of invented things"),
        ("lovec demo --quick", "on a smaller world: half as long"),
        ("lovec demo --methods sft,dpo --out runs/mine", "some of the methods"),
    ),
}
"""By command."""


def examples_of(command: str) -> str:
    """Return the end of a command's help, with a line for each example and one for what it is for; "" without any."""
    lines = [f"  {line}\n      {purpose}" for line, purpose in EXAMPLES.get(command, ())]
    return "\n".join(["", "examples:", *lines, ""]) if lines else ""
