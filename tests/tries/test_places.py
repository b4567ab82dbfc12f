"""New tokens of rows of different lengths, padded or one after the other."""

from __future__ import annotations

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
