"""Options of a short training of the real model, SmolLM2."""

from __future__ import annotations

from pathlib import Path

CITIES = Path(__file__).parents[1] / "real" / "cities.jsonl"
"""Answers of five sentences about real cities, with labels; ten of the sixty sentences are wrong."""

LABELLED = ("--data", "Demonstrations", "--data.path", str(CITIES), "--data.val_path", str(CITIES))


def brief(folder: Path, answers: int = 2) -> list[str]:
    """Return the options of two steps in a folder."""
    return [
        *("--model.policy.model", "smollm2", "--model.optimizer.lr", "1e-3", "--data.batch_size", str(answers)),
        *("--trainer.max_steps", "2", "--trainer.limit_val_batches", "0", "--trainer.log_every_n_steps", "1"),
        *("--trainer.default_root_dir", str(folder)),
    ]
