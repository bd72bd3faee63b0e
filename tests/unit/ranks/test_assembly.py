"""Between a rank's flat copy of a fragment and that of the whole fragment."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mend_optim.model.copies import gather, scatter
from mend_optim.model.layout import Layout
from mend_optim.ranks.assembly import LocalPart, local_part
from mend_optim.ranks.pieces import Division, Piece, dealt, runs_of

KIND = "torch.float32"


@st.composite
def models(draw: st.DrawFn) -> tuple[list[Tensor], list[list[Piece]], int]:
    """The whole tensors of a model, the pieces of each rank, and a number of fragments. Each tensor
    is dealt out over the ranks in one dimension, copied, or on one rank alone."""
    ranks = draw(st.integers(1, 3))
    shapes = draw(
        st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=4)
    )
    pieces: list[list[Piece]] = [[] for _ in range(ranks)]
    for number, shape in enumerate(shapes):
        how, d = draw(st.integers(-1, ranks)), draw(st.integers(0, len(shape) - 1))
        blocks = draw(st.integers(1, 3))
        for rank in range(ranks):
            indices = [np.arange(size) for size in shape]
            if how == ranks:
                indices[d] = dealt(indices[d], ranks, rank, blocks)
            elif how not in (-1, rank):
                continue
            where = tuple(map(runs_of, indices))
            pieces[rank].append(Piece(f"w{number}", tuple(shape), KIND, where))
    tensors = [torch.randn(shape) for shape in shapes]
    return tensors, pieces, draw(st.integers(1, len(tensors)))


def local_tensors(tensors: list[Tensor], pieces: list[Piece]) -> list[Tensor]:
    """The parts of the ranks, the obvious way."""
    indices = [
        np.ix_(*(np.array([i for run in runs for i in range(*run)], int) for runs in piece.where))
        for piece in pieces
    ]
    whole = [tensors[int(piece.name[1:])].numpy() for piece in pieces]
    return [torch.from_numpy(t[i].copy()) for t, i in zip(whole, indices, strict=True)]


def parts_of(layout: Layout, p: int, pieces: list[list[Piece]]) -> list[LocalPart]:
    return [local_part(layout.fragments[p], layout.names, held) for held in pieces]


@given(models())
def test_what_ranks_gather_is_the_whole_and_what_they_get_is_their_part(
    model: tuple[list[Tensor], list[list[Piece]], int],
) -> None:
    tensors, pieces, fragments = model
    layout = Layout([f"w{i}" for i in range(len(tensors))], tensors, fragments)
    division = Division(pieces)
    for fragment in layout.fragments:
        wanted, assembled = torch.empty(fragment.numel), torch.full((fragment.numel,), torch.nan)
        gather(fragment, tensors, wanted)
        for rank, part in enumerate(parts_of(layout, fragment.index, pieces)):
            own = local_tensors(tensors, pieces[rank])
            flat = torch.empty(part.numel)
            gather(part.local, own, flat)
            sent = part.only(frozenset(division.sent_by(rank)))
            sent.put(part.excerpt(flat, sent), assembled)
            taken = torch.full((part.numel,), torch.nan)
            part.take(wanted, taken)
            assert torch.equal(taken, flat)
        assert torch.equal(assembled, wanted)


@given(models())
def test_a_correction_of_parts_is_the_parts_of_a_correction(
    model: tuple[list[Tensor], list[list[Piece]], int],
) -> None:
    tensors, pieces, fragments = model
    layout = Layout([f"w{i}" for i in range(len(tensors))], tensors, fragments)
    before = [local_tensors(tensors, held) for held in pieces]
    for fragment in layout.fragments:
        values = torch.randn(fragment.numel)
        for part, own in zip(parts_of(layout, fragment.index, pieces), before, strict=True):
            taken = torch.empty(part.numel)
            part.take(values, taken)
            scatter(part.local, taken, own, replace=False)
        scatter(fragment, values, tensors, replace=False)
    for held, own in zip(pieces, before, strict=True):
        after = local_tensors(tensors, held)
        assert all(torch.equal(a, b) for a, b in zip(own, after, strict=True))
