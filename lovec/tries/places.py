"""Where the new tokens of rows of different lengths lie in a tensor: padded on the left, or one after the other.

Linear layers compute padding like tokens. Without it a batch is one long row, and only attention, whose keys lie in
rows, has its queries padded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class TokenPlaces:
    """The places of new tokens.

    Args:
        lengths: number of new tokens of each row, B in all.
        device: of the tensors.
        packed: whether the tokens lie one after the other, [1, N, ...]; else each row is padded, [B, W, ...].

    Attributes:
        width: W, the most new tokens of a row.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device, packed: bool) -> None:
        self.width = max(lengths)
        self.packed = packed
        # On the CPU whatever the default device is: what is read of them here would wait for another one.
        self._counts = counts = torch.tensor(lengths, device="cpu")
        ends, rows = counts.cumsum(0), torch.arange(len(lengths), device="cpu")
        self._begins = ends - counts if packed else self.width - counts
        self._row = torch.repeat_interleave(rows, counts).to(device)
        columns = torch.arange(int(ends[-1]), device="cpu") - torch.repeat_interleave(ends, counts) + self.width
        self._column = columns.to(device)
        self._rows = len(lengths)

    def of(self, rows: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the places of tokens, as indices of the first two dimensions of what the model computes.

        Args:
            rows: [P] the row of each, on the CPU.
            tokens: [P] which of the new tokens of its row it is, on the CPU; for one before the first, any place.
        """
        at = (self._begins[rows] + tokens).clamp(min=0)
        rows = torch.zeros_like(rows) if self.packed else rows
        return rows.to(self._row.device), at.to(self._row.device)

    def last(self, number: int) -> Tensor:
        """Return the places of the last tokens of all rows, one row after the other, along the dimension of tokens.

        Args:
            number: of tokens of a row. A row may have one less; what comes in place of that means nothing.
        """
        at = self._begins + self._counts
        return (at[:, None] + torch.arange(-number, 0, device="cpu")).clamp(min=0).flatten().to(self._row.device)

    def packed_from(self, padded: Tensor) -> Tensor:
        """Return the tokens of rows, [B, W, ...], one after the other, [1, N, ...]; padded ones as they are."""
        return padded[self._row, self._column][None] if self.packed else padded

    def in_rows(self, attend: Callable[[Tensor, slice, int], Tensor], packed: Tensor) -> Tensor:
        """Compute attention, whose keys lie in rows, for heads of tokens one after the other.

        On a CPU every row has a call of its own, so that no padding is computed. Elsewhere there is one call for all
        rows, whose queries are padded: fewer kernels.

        Args:
            attend: takes queries of some rows, [R, H, W, D], which rows these are, and W; returns [R, W, H, D].
            packed: queries one after the other, [1, H, N, D].

        Returns:
            [1, N, H, D].
        """
        if packed.device.type != "cpu":
            return self.packed_from(attend(self.padded_from(packed), slice(None), self.width))
        spans = zip(self._begins.tolist(), self._counts.tolist(), strict=True)
        parts = [
            attend(packed[:, :, begin : begin + count], slice(row, row + 1), count)
            for row, (begin, count) in enumerate(spans)
            if count
        ]
        return torch.cat(parts, dim=1)

    def padded_from(self, packed: Tensor) -> Tensor:
        """Return heads of tokens one after the other, [1, H, N, D], in rows, [B, H, W, D], with zeros before them."""
        padded = packed.new_zeros(self._rows, self.width, packed.shape[1], packed.shape[3])
        padded[self._row, self._column] = packed[0].transpose(0, 1)
        return padded.transpose(1, 2)
