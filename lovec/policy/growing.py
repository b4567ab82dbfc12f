"""Sequences that grow while the policy computes them: what comes next may depend on what it says so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lovec.encoding.choices import choice_tree
from lovec.policy.sequences import TokenBatch, by_choice, by_token, completion_tokens
from lovec.tries import Trie
from lovec.tries.growing import FirstPart, GrowingKeys, NextPart
from lovec.types import LovecError

if TYPE_CHECKING:
    from lovec.policy.policy import Policy


class GrowingSequences:
    """Sequences whose tokens are computed part by part, each of them once, and with gradients where they are enabled.

    The policy's dropout and weights must not change in between.

    Args:
        policy: computes them; it must share prefixes.
        prompts: ids of the prompt of each sequence, at least one.
        choices: token ids of each choice whose probabilities are asked for, at least one each.
        slots: the most tokens of a sequence, those of the choices included at every place where they are asked for.

    Attributes:
        ids: the tokens of every sequence that are computed.
    """

    def __init__(
        self, policy: Policy, prompts: Sequence[Sequence[int]], choices: Sequence[Sequence[int]], slots: int
    ) -> None:
        self.ids: list[list[int]] = [[] for _ in prompts]
        self._policy, self._prompts = policy, prompts
        self._choices, self._tree = choices, choice_tree(choices)
        self._nodes = {prefix: number for number, (prefix, _) in enumerate(self._tree.nodes)}
        self._keys = GrowingKeys(len(prompts), slots)
        self._states: list[Tensor] = []  # of all tokens in the order in which they were computed
        self._count = 0
        self._where: list[list[int]] = [[] for _ in prompts]  # of every token its place among the states
        self._behind: dict[tuple[int, int], list[int]] = {}  # by sequence and length, places of the nodes of choices
        self._positions = np.full((len(prompts), slots), -1)  # of what is kept and seen later
        self._slots = [0] * len(prompts)

    def extend(self, new: Sequence[Sequence[int]], asked: Sequence[bool]) -> list[list[float]]:
        """Append tokens to the sequences.

        Args:
            new: tokens of each; a sequence may get none. The prompts are computed with the first ones.
            asked: for each, whether the probabilities of choices behind its new tokens are asked for.

        Returns:
            For every sequence that is asked, the log-probabilities of the choices.
        """
        states = self._next(new, asked) if self._count else self._begin(new, asked)
        self._count += len(states)
        self._states.append(states)
        rows = [row for row, wanted in enumerate(asked) if wanted]
        if not rows:
            return []
        with torch.no_grad():
            outputs = [self._outputs(row, len(self.ids[row]), choice) for row in rows for choice in self._choices]
            before = self._count - len(states)
            logps = self._policy.logps_of(
                states.detach(), [places - before for places in outputs], self._choice_tokens(len(rows))
            )
            found: list[list[float]] = by_choice(logps, self._choices).tolist()
        return found

    def choice_logps(self, batch: TokenBatch, starts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Return what ``Policy.choice_logps`` does, without another forward pass.

        Args:
            batch: the whole sequences; all of their inputs must have been computed.
            starts: for every sequence, the indices into its completion at which choices were asked for.

        Raises:
            LovecError: they are other sequences than those that were computed.
        """
        if [list(sequence.inputs) for sequence in batch.sequences] != self.ids:
            raise LovecError("what was computed of growing sequences is not what they are in the end")
        outputs = [
            np.array(where[len(sequence.prompt) - 1 :], np.int64)
            for where, sequence in zip(self._where, batch.sequences, strict=True)
        ]
        count = sum(map(len, outputs))
        outputs += [
            self._outputs(row, len(sequence.prompt) + start, choice)
            for row, (sequence, places) in enumerate(zip(batch.sequences, starts, strict=True))
            for start in places
            for choice in self._choices
        ]
        self._keys.finish()
        targets = [*completion_tokens(batch.sequences), *self._choice_tokens(sum(map(len, starts)))]
        logps = self._policy.logps_of(torch.cat(self._states), outputs, targets)
        return by_token(batch, logps[:count]), by_choice(logps[count:], self._choices)

    def _choice_tokens(self, places: int) -> list[int]:
        return [token for choice in self._choices for token in choice] * places

    def _outputs(self, row: int, length: int, choice: Sequence[int]) -> np.ndarray:
        """Return the places of the states from which the tokens of a choice behind a beginning are predicted."""
        nodes = self._behind[row, length]
        return np.array([nodes[self._nodes[tuple(choice[:end])]] for end in range(len(choice))], np.int64)

    def _begin(self, new: Sequence[Sequence[int]], asked: Sequence[bool]) -> Tensor:
        """Compute prompts and first tokens, what several begin with once."""
        trie = Trie()
        self.ids = [[*prompt, *more] for prompt, more in zip(self._prompts, new, strict=True)]
        numbers = [trie.add(ids) for ids in self.ids]
        added = {
            row: [trie.add(prefix, (numbers[row], len(self.ids[row]))) for prefix, _ in self._tree.nodes]
            for row, wanted in enumerate(asked)
            if wanted
        }
        tokens = trie.tokens()
        paths = [tokens.indices(number) for number in numbers]
        self._where = [path.tolist() for path in paths]
        for row, nodes in added.items():
            self._behind[row, len(self.ids[row])] = [int(tokens.indices(node)[-1]) for node in nodes]
        for row, path in enumerate(paths):
            self._positions[row, : len(path)] = range(len(path))
            self._slots[row] = len(path)
        part = FirstPart(self._keys, tokens, paths, self._policy.device)
        return self._policy.states_of(tokens.ids, tokens.positions, part)

    def _next(self, new: Sequence[Sequence[int]], asked: Sequence[bool]) -> Tensor:
        """Compute further tokens, one sequence after the other."""
        depths, count = np.array(self._tree.depths, np.int64), len(self._tree.ids)
        ids: list[int] = []
        positions: list[np.ndarray] = []
        visible, first = [], list(self._slots)
        for row, (more, wanted) in enumerate(zip(new, asked, strict=True)):
            begin, slot, nodes = len(self.ids[row]), self._slots[row], count if wanted else 0
            end, place = begin + len(more), self._count + len(ids)
            own = np.concatenate([np.arange(begin, end), end - 1 + depths[:nodes]])
            self._positions[row, slot : slot + len(more)] = own[: len(more)]
            kept = self._positions[row, : slot + len(own)]
            sees = (kept >= 0) & (kept <= own[:, None])
            if nodes:
                sees[len(more) :, slot + len(more) :] = self._tree.ancestors.numpy()
            visible.append(sees)
            self._where[row] += range(place, place + len(more))
            if wanted:
                self._behind[row, end] = [self._where[row][-1], *range(place + len(more), place + len(own))]
            self.ids[row] += more
            self._slots[row] += len(own)
            ids += [*more, *self._tree.ids[:nodes]]
            positions.append(own)
        longest = int(max(map(len, self.ids)) + depths.max(initial=0))
        part = NextPart(self._keys, first, visible, longest, self._policy.device)
        return self._policy.states_of(np.array(ids, np.int64), np.concatenate(positions), part)
