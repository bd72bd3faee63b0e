"""Which elements the ranks have: runs, cover and overlap, and who sends what."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim import UsageError
from mend_optim.ranks.pieces import (
    Division,
    Held,
    Piece,
    Runs,
    count,
    dealt,
    decode_held,
    encode_held,
    runs_of,
    times_held,
)
from tests import reference

KIND = "torch.float32"
shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
dimensions = st.lists(st.integers(0, 4), unique=True, max_size=4)


@st.composite
def wheres(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Runs, ...]:
    """Any elements of a tensor: of each dimension some indices, in any order."""
    indices = [
        draw(st.lists(st.integers(0, size - 1), unique=True)) if size else [] for size in shape
    ]
    return tuple(runs_of(np.array(each, dtype=np.int64)) for each in indices)


@st.composite
def divided(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Piece]]:
    """A tensor, dealt out over a mesh of ranks in some of its dimensions; one piece a rank."""
    shape = draw(st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple))
    mesh = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    choices = [(draw(st.integers(-1, len(shape) - 1)), draw(st.integers(1, 2))) for _ in mesh]
    pieces = []
    for coordinates in np.ndindex(*mesh):
        indices = [np.arange(size) for size in shape]
        for (d, blocks), ways, rank in zip(choices, mesh, coordinates, strict=True):
            if d >= 0:
                indices[d] = dealt(indices[d], ways, rank, blocks)
        pieces.append(Piece("w", shape, KIND, tuple(map(runs_of, indices))))
    return shape, pieces


@given(st.lists(st.integers(0, 30)))
def test_runs_are_the_same_indices_in_the_same_order(indices: list[int]) -> None:
    runs = runs_of(np.array(indices, dtype=np.int64))
    assert [i for run in runs for i in range(*run)] == indices
    assert count(runs) == len(indices)
    assert all(start < stop for start, stop in runs)
    assert all(before[1] != after[0] for before, after in pairwise(runs))


@given(st.integers(0, 40), st.integers(1, 5), st.integers(1, 5))
def test_indices_are_dealt_as_the_slow_twin_deals_them(size: int, ways: int, blocks: int) -> None:
    got = [dealt(np.arange(size), ways, rank, blocks).tolist() for rank in range(ways)]
    assert got == reference.dealt_out(size, ways, blocks)


@given(st.data(), st.lists(st.integers(1, 4), max_size=3).map(tuple))
def test_the_cover_is_that_of_the_slow_twin(data: st.DataObject, shape: tuple[int, ...]) -> None:
    pieces = data.draw(st.lists(wheres(shape), min_size=1, max_size=3))
    times = times_held(shape, pieces)
    assert times is not None
    held = [reference.elements_held(where) for where in pieces]
    assert bool((times == 1).all()) == reference.covers(shape, held)


def test_a_piece_that_has_an_index_twice_is_no_cover() -> None:
    times = times_held((2,), [(((0, 1), (0, 1)),)])
    assert times is not None
    assert times.tolist() == [2, 0]


@given(divided())
def test_what_a_mesh_deals_out_is_whole(case: tuple[tuple[int, ...], list[Piece]]) -> None:
    shape, pieces = case
    division = Division([[piece] for piece in pieces])
    held = [reference.elements_held(piece.where) for piece in division.holders]
    assert reference.covers(shape, held)
    sent = [piece for rank in range(division.ranks) for piece in division.sent_by(rank)]
    assert sorted(piece.where for piece in sent) == sorted(piece.where for piece in set(pieces))
    copied = {piece for piece in pieces if piece.numel and pieces.count(piece) > 1}
    assert set(division.copied()) == copied


@given(divided(), st.data())
def test_a_rank_that_is_missing_leaves_a_gap(
    case: tuple[tuple[int, ...], list[Piece]], data: st.DataObject
) -> None:
    _, pieces = case
    gone = data.draw(st.sampled_from(pieces))
    left = [piece for piece in pieces if piece != gone]
    if gone.numel == 0 or not left:
        return
    with pytest.raises(UsageError, match=r"parameter w .* its .* elements; .*shards="):
        Division([[piece] for piece in left])


@given(divided())
def test_pieces_travel(case: tuple[tuple[int, ...], list[Piece]]) -> None:
    for as_listed in (True, False):
        held = Held(tuple(case[1]), as_listed)
        assert decode_held(encode_held(held)) == held


@given(divided())
def test_blocks_are_the_elements_of_a_piece(case: tuple[tuple[int, ...], list[Piece]]) -> None:
    shape, pieces = case
    whole = np.arange(int(np.prod(shape))).reshape(shape)
    for piece in pieces:
        part = np.full(piece.local_shape, -1)
        for there, here in piece.blocks():
            part[here] = whole[there]
        elements = reference.elements_held(piece.where)
        assert part.reshape(-1).tolist() == [int(whole[element]) for element in elements]
        assert piece.numel == len(elements)


def whole(name: str, *shape: int, dtype: str = KIND) -> Piece:
    return Piece(name, shape, dtype, tuple(((0, size),) for size in shape))


def rows(name: str, start: int, stop: int, of: int = 8) -> Piece:
    return Piece(name, (of, 2), KIND, (((start, stop),), ((0, 2),)))


def test_the_lead_sends_what_it_has_and_others_share_the_rest() -> None:
    copies = [whole("a", 3)]
    others = [rows("b", 4, 8), whole("c", 2), whole("d", 5)]
    division = Division([[*copies, rows("b", 0, 4)], [*copies, *others], [*copies, *others]])
    assert division.sent_by(0) == (whole("a", 3), rows("b", 0, 4))
    assert division.sent_by(1) == (rows("b", 4, 8),)
    assert division.sent_by(2) == (whole("c", 2), whole("d", 5))


def test_tensors_are_in_the_order_of_their_names() -> None:
    division = Division([[whole("x", 1), whole("y", 1)], [whole("b", 1), whole("y", 1)]])
    assert list(division.tensors) == ["b", "x", "y"]
    assert not division.as_listed
    assert Division([[whole("x", 1), whole("y", 1)]]).as_listed
    assert not Division([[whole("x", 1), whole("y", 1)]], as_listed=False).as_listed


def test_positions_are_in_the_order_of_the_ranks() -> None:
    division = Division([[whole(str(i), 1) for i in range(11)]])
    assert list(division.tensors) == list(map(str, range(11)))
    assert division.as_listed


@pytest.mark.parametrize(
    ("ranks", "told"),
    [
        (
            [[whole("w", 2)], [whole("w", 3)]],
            r"w must have one shape .*\[2\].*rank 0.*\[3\].*1",
        ),
        ([[whole("w", 2)], [whole("w", 2, dtype="torch.bfloat16")]], "one shape and dtype"),
        ([[whole("w", 2), whole("w", 2)]], "w must be one tensor on a rank, got two on rank 0"),
        ([[rows("w", 0, 4)], [rows("w", 4, 6)]], "got 12 of its 16 elements"),
        ([[rows("w", 0, 5)], [rows("w", 4, 8)]], "in two different parts"),
        ([[rows("w", 0, 4)], [rows("w", 0, 2)], [rows("w", 6, 8)]], "in two different parts"),
    ],
)
def test_what_does_not_fit_together_is_refused(ranks: list[list[Piece]], told: str) -> None:
    with pytest.raises(UsageError, match=told) as error:
        Division(ranks)
    assert "two names" in str(error.value) or "shards=" in str(error.value)


def test_a_tensor_without_elements_is_whole() -> None:
    empty = Piece("w", (0, 3), KIND, ((), ((0, 3),)))
    assert Division([[empty], [empty]]).sent_by(0) == (empty,)
