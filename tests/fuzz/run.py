"""Try many inputs on everything that reads foreign text.

    python tests/fuzz/run.py                          # 10,000 examples of every target
    python tests/fuzz/run.py --examples 1000 tags http

Prints a line per target, and for a failure the smallest input that was found; put it into ``corpus``, so that the
normal tests try it from then on.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parents[1]):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from hypothesis import HealthCheck, Phase, given, seed, settings  # noqa: E402
from targets import TARGETS, Target  # noqa: E402


def failure(target: Target, examples: int, number: int) -> tuple[int, bytes, Exception] | tuple[int, None, None]:
    """Return how many examples were tried, and the smallest one that fails with its error.

    Args:
        target: what is tried.
        examples: how many examples are tried at most.
        number: seed of the examples.
    """
    tried, last = 0, b""

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(target.examples)
    def check(data: bytes) -> None:
        nonlocal tried, last
        tried, last = tried + 1, data
        target.check(data)

    try:
        check()
    except Exception as error:
        return tried, last, error
    return tried, None, None


def main(words: Sequence[str] | None = None) -> int:
    """Try inputs and return 0 if none fails."""
    parser = argparse.ArgumentParser(description="try many inputs on everything that reads foreign text")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"some of {', '.join(TARGETS)}; without any, all")
    parser.add_argument("--examples", type=int, default=10_000, help="examples of each target")
    parser.add_argument("--seed", type=int, default=0, help="seed of the examples")
    options = parser.parse_args(words)
    if unknown := set(options.targets) - set(TARGETS):
        parser.error(f"there is no target {sorted(unknown)[0]}; there are {', '.join(TARGETS)}")
    failed = 0
    for name in options.targets or TARGETS:
        begin = time.monotonic()
        tried, data, error = failure(TARGETS[name], options.examples, options.seed)
        seconds = time.monotonic() - begin
        failed += error is not None
        print(f"{name:12} {tried:6} examples {seconds:7.1f} s  {'FAILED' if error else 'ok'}", flush=True)
        if error is not None:
            print("".join(traceback.format_exception(error)))
            print(f"the smallest input: {data!r}\nput it into {HERE / 'corpus' / name}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
