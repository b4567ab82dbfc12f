"""Count what the score of a sentence costs beside reading it, for three tokenizers: tagging and a training step.

    python benchmarks/score_cost.py           # -> benchmarks/results/score_cost.json, docs/speed.md
    python benchmarks/score_cost.py --print   # printed
    python benchmarks/score_cost.py --page    # only the page, from that file

Nothing is run: tokens, attention pairs and positions of the output layer are counted on the trie of what has to be
computed, and operations follow from a model's sizes (see ``cost.py``). An answer has six sentences of 25 tokens, each
with its tag, behind a prompt of 190 tokens, which is not counted: it is computed once for many answers. Tagging reads
the answer, tags included, in one forward pass without the output layer, and adds what scores need. A training step
learns from the text, and adds what scores need. "Exact" scores every string up to its closing word; "first tokens" what
tells the scores apart, which is the lower bound of a step of expected reward, Distil and SFT-regression.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from common import publish, read_json, results_and_page
from cost import LLAMA_3_8B, forward_flops, step_flops, unique
from mix import write_model
from page_parts import replace_between, versions_text

from lovec.encoding import Encoder, distinct_prefixes
from lovec.models import resolve_model
from lovec.models.gguf import SMOLLM2
from lovec.policy import PolicyConfig, TokenSequence, load_tokenizer

RESULTS, PAGE = results_and_page("score_cost", "docs/speed.md")
BEGIN, END = "<!-- score cost: written by benchmarks/score_cost.py -->", "<!-- end of the score cost -->"
PROMPT, SENTENCES, TOKENS = 190, 6, 25
SCORINGS = {"exact": list, "first tokens": distinct_prefixes}


@dataclass(frozen=True)
class Answer:
    """A tagged answer as token ids, and where its tags are.

    Attributes:
        sequence: prompt and completion.
        places: length of everything before each score.
    """

    sequence: TokenSequence
    places: tuple[int, ...]

    @classmethod
    def of(cls, head: Sequence[int], tails: Sequence[Sequence[int]]) -> Answer:
        """Build one whose sentences have tokens of their own; scores are 3, 0, 10, 1, 8, 5 of the scale.

        Args:
            head: token ids of the opening tag word.
            tails: token ids of every score with its closing word.
        """
        fresh = count(1 << 30)
        prompt = [next(fresh) for _ in range(PROMPT)]
        completion: list[int] = []
        places = []
        for score in (3, 0, 10, 1, 8, 5)[:SENTENCES]:
            completion += [*(next(fresh) for _ in range(TOKENS)), *head]
            places.append(len(completion))
            completion += tails[score]
        return cls(TokenSequence(tuple(prompt), (*completion, next(fresh))), tuple(places))

    def choices(self, strings: Sequence[Sequence[int]]) -> list[TokenSequence]:
        """Return every string behind what stands before each score."""
        prompt, completion = self.sequence.prompt, self.sequence.completion
        return [TokenSequence((*prompt, *completion[:place]), tuple(s)) for place in self.places for s in strings]


def count_costs(
    config: Mapping[str, Any], head: Sequence[int], tails: Sequence[Sequence[int]]
) -> Iterator[dict[str, Any]]:
    """Yield what tagging and training compute with each scoring, per sentence, and the ratio to what has no scores.

    Args:
        config: values of the transformers config of a Llama.
        head: token ids of the opening tag word.
        tails: token ids of every score with its closing word.
    """
    answer = Answer.of(head, tails)
    learned = answer.sequence
    read = TokenSequence((*learned.prompt, *learned.completion[:-1]), learned.completion[-1:])
    for use, sequence, outputs in (("tagging", read, 1), ("training", learned, 0)):  # reading needs no output
        prompt = replace(unique([TokenSequence(learned.prompt, (0,))]), outputs=outputs)
        bare = unique([sequence]) - prompt
        for name, strings in SCORINGS.items():
            scored = unique([sequence, *answer.choices(strings(tails))]) - prompt
            flops = [forward_flops(config, s) if use == "tagging" else step_flops(config, s) for s in (scored, bare)]
            yield {
                "use": use,
                "scoring": name,
                "tokens": bare.tokens / SENTENCES,
                "score_tokens": (scored.tokens - bare.tokens) / SENTENCES,
                "score_outputs": (scored.outputs - bare.outputs) / SENTENCES,
                "flops_ratio": flops[0] / flops[1],
            }


def measure() -> dict[str, Any]:
    """Return the counts for the tokenizers and sizes of the world's model, Llama-3-8B and SmolLM2-135M."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))  # splits tags as Llama 3 does
        models = {
            "world-small": resolve_model("world-small"),
            "Llama-3-8B": folder,
            "SmolLM2-135M": resolve_model(SMOLLM2),
        }
        for name, path in models.items():
            config = json.loads(Path(path, "config.json").read_text(encoding="utf-8"))
            config |= LLAMA_3_8B if name == "Llama-3-8B" else {}
            config["head_dim"] = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
            encoder = Encoder(load_tokenizer(PolicyConfig(model=path)))
            head = encoder.pieces(f" {encoder.tags.open}")
            rows += [{"model": name, **row} for row in count_costs(config, head, encoder.tails)]
    return {"sentence": TOKENS, "counts": rows}


def table(results: Mapping[str, Any]) -> str:
    """Return the results as a Markdown table."""
    lines = [
        "| Model | Use | Scoring | tokens, with the tag | more for its score | more outputs | operations |",
        "|---|---|---|--:|--:|--:|--:|",
    ]
    for row in results["counts"]:
        counts = " | ".join(f"{row[name]:.1f}" for name in ("tokens", "score_tokens", "score_outputs"))
        lines.append(f"| {row['model']} | {row['use']} | {row['scoring']} | {counts} | {row['flops_ratio']:.3f} |")
    return "\n".join(lines)


def main() -> None:
    """Count as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--print", action="store_true", help="print the results instead of writing them")
    parser.add_argument("--page", action="store_true", help="only write the table from the file")
    flags = parser.parse_args()
    if not flags.page:
        results = measure()
        print(table(results))
        publish(RESULTS, results, flags.print)
    if not flags.print:
        results = read_json(RESULTS)
        note = f"Counted per sentence of {results['sentence']} tokens. {versions_text(results)}."
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(replace_between(text, BEGIN, END, f"{table(results)}\n\n{note}"), encoding="utf-8")


if __name__ == "__main__":
    main()
