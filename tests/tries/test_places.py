"""New tokens of rows of different lengths, padded or one after the other."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lovec.tries.places import TokenPlaces


@given(st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(any), st.booleans())
def test_places_of_tokens(lengths: list[int], packed: bool) -> None:
    places = TokenPlaces(lengths, torch.device("cpu"), packed)
    width = max(lengths)
    padded = torch.full((len(lengths), width), -1)
    for row, length in enumerate(lengths):
        padded[row, width - length :] = 100 * row + torch.arange(length)
    tokens = places.packed_from(padded)
    flat = [100 * row + at for row, length in enumerate(lengths) for at in range(length)]
    assert tokens.tolist() == ([flat] if packed else padded.tolist())
    wanted = [(row, at) for row, length in enumerate(lengths) for at in range(length)]
    rows, columns = torch.tensor(wanted).T
    assert tokens[places.of(rows, columns)].tolist() == flat
    last = places.last(2).view(len(lengths), 2)
    for row, length in enumerate(lengths):
        found = (tokens[0] if packed else tokens[row])[last[row]].tolist()
        assert found[2 - min(length, 2) :] == [100 * row + at for at in range(length)][-2:]
    heads = torch.tensor([flat, [-value for value in flat]])[None, :, :, None].expand(1, 2, len(flat), 3)
    back = places.padded_from(heads)
    assert back.shape == (len(lengths), 2, width, 3)
    assert back[:, 0, :, 2].tolist() == padded.clamp(min=0).tolist()
    assert back[:, 1, :, 0].tolist() == (-padded.clamp(min=0)).tolist()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_only_other_devices_than_cpus_pad_the_queries_of_rows(device: str) -> None:
    lengths, calls = [2, 0, 5, 1], []
    places = TokenPlaces(lengths, torch.device(device), packed=True)
    packed = torch.arange(2.0 * 8 * 3, device=device).view(1, 2, 8, 3)

    def attend(query: torch.Tensor, rows: slice, width: int) -> torch.Tensor:
        calls.append((tuple(query.shape), list(range(4))[rows], width))
        return 2 * query.transpose(1, 2)

    out = places.in_rows(attend, packed)
    assert out.shape == (1, 8, 2, 3)
    if device == "cpu":
        assert torch.equal(out, 2 * packed.transpose(1, 2))
        assert calls == [((1, 2, 2, 3), [0], 2), ((1, 2, 5, 3), [2], 5), ((1, 2, 1, 3), [3], 1)]
    else:
        assert calls == [((4, 2, 5, 3), [0, 1, 2, 3], 5)]
