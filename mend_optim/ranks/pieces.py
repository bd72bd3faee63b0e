"""Which elements of which global tensor each rank has, as plain data.

A rank has, of every dimension of a tensor, some indices. Its piece is the tensor at all of them
together: local = global[np.ix_(indices of dimension 0, of dimension 1, …)]."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mend_optim.errors import UsageError
from mend_optim.protocol.handshake import name_order

#: Indices start, start + 1, …, stop - 1.
Run = tuple[int, int]
#: The indices of one dimension, in the order in which a rank has them.
Runs = tuple[Run, ...]
Indices = NDArray[np.int64]

SPLIT = "if each rank has a part of it, say how it is split with shards="
RENAME = (
    "if these are two parameters, give them two names in the optimizer, as in "
    "AdamW(model.named_parameters())"
)


# ── the indices of one dimension ──────────────────────────────────────────────────────────────────


def runs_of(indices: Indices) -> Runs:
    """The same indices as runs. `indices` is one-dimensional."""
    if not len(indices):
        return ()
    breaks = np.flatnonzero(np.diff(indices) != 1) + 1
    firsts = indices[np.concatenate(([0], breaks))]
    lasts = indices[np.concatenate((breaks - 1, [len(indices) - 1]))]
    return tuple((int(first), int(last) + 1) for first, last in zip(firsts, lasts, strict=True))


def count(runs: Runs) -> int:
    """How many indices there are."""
    return sum(stop - start for start, stop in runs)


def dealt(indices: Indices, ways: int, rank: int, blocks: int = 1) -> Indices:
    """The indices that the rank with this number gets when they are dealt out `ways` ways.

    They are cut into `blocks` chunks, each chunk into `ways`, and the rank has one of every chunk.
    Chunks are those of `torch.chunk`: ⌈n / k⌉ indices each, until there are no more. Megatron's
    fused q, k, v are 3 blocks. The result may be empty."""
    chunks = (_chunk(indices, blocks, block) for block in range(blocks))
    return np.concatenate([_chunk(each, ways, rank) for each in chunks])


def _chunk(indices: Indices, chunks: int, number: int) -> Indices:
    size = -(-len(indices) // chunks)
    return indices[number * size : (number + 1) * size]


# ── a piece ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Piece:
    """The elements that one rank has of one global tensor.

    A complex tensor counts as real ones, with a last dimension of 2 that every rank has whole."""

    #: The parameter's name. The same name on two ranks is the same global tensor.
    name: str
    #: The global shape.
    shape: tuple[int, ...]
    #: The dtype, as torch prints it.
    dtype: str
    #: For each dimension, the indices that the rank has. Invariant: each within [0, size).
    where: tuple[Runs, ...]

    @cached_property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of the rank's own tensor."""
        return tuple(map(count, self.where))

    @cached_property
    def numel(self) -> int:
        """How many elements the rank has."""
        return prod(self.local_shape)

    def blocks(self) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
        """Where the piece lies: pairs of a block in the global tensor and its place in the local
        one. The blocks are disjoint and make up the piece."""
        for runs in product(*map(_placed, self.where)):
            there = tuple(slice(start, stop) for (start, stop), _ in runs)
            here = tuple(slice(at, at + stop - start) for (start, stop), at in runs)
            yield there, here


def _placed(runs: Runs) -> Iterator[tuple[Run, int]]:
    """Each run, and at which local index it begins."""
    at = 0
    for start, stop in runs:
        yield (start, stop), at
        at += stop - start


class Held(NamedTuple):
    """The pieces of a rank, in the order of its parameters, and whether its optimizer lists them in
    that order, too."""

    pieces: tuple[Piece, ...]
    as_listed: bool = True


def encode_held(held: Held) -> bytes:
    """The pieces of a rank as bytes for the other ranks."""
    pieces = [[p.name, p.shape, p.dtype, p.where] for p in held.pieces]
    return json.dumps([pieces, held.as_listed]).encode()


def decode_held(data: bytes) -> Held:
    """The inverse of `encode_held`."""
    told, as_listed = json.loads(data)
    pieces = (
        Piece(
            name=name,
            shape=tuple(shape),
            dtype=dtype,
            where=tuple(tuple((start, stop) for start, stop in runs) for runs in where),
        )
        for name, shape, dtype, where in told
    )
    return Held(tuple(pieces), as_listed)


# ── the pieces of all ranks ───────────────────────────────────────────────────────────────────────


class Division:
    """How the ranks of a group divide global tensors among them.

    Law: of each tensor, the distinct pieces have every element exactly once. Ranks with the same
    piece have copies of it, and one of them sends it.

    Args:
        pieces: those of each rank, in the order of its parameters. Rank 0 is the lead.
        as_listed: whether the optimizer of each lists them in that order, too.

    Raises:
        UsageError: the law does not hold, a rank has a name twice, or a tensor has two shapes or
            dtypes. As all ranks know all pieces, all of them raise the same.
    """

    def __init__(self, pieces: Sequence[Sequence[Piece]], as_listed: bool = True) -> None:
        self.pieces = tuple(map(tuple, pieces))
        #: Each tensor, with one of its pieces, in the order that all learners have them in.
        #: Positions are in that of rank 0, then what rank 1 has besides, and so on.
        self.tensors: dict[str, Piece] = {}
        #: The ranks that have each distinct piece.
        self.holders: dict[Piece, tuple[int, ...]] = {}
        for rank, held in enumerate(self.pieces):
            _refuse_twins(rank, held)
            for piece in held:
                self._refuse_other_kind(rank, piece)
                self.holders[piece] = (*self.holders.get(piece, ()), rank)
        listed = list(self.tensors)
        order = name_order(listed)
        #: Whether that is also the order in which the ranks list them.
        self.as_listed = as_listed and order == sorted(order)
        self.tensors = {listed[i]: self.tensors[listed[i]] for i in order}
        distinct: dict[str, list[Piece]] = {name: [] for name in self.tensors}
        for piece in self.holders:
            distinct[piece.name].append(piece)
        for name, parts in distinct.items():
            _refuse_gaps(name, parts)
        #: Which rank sends each distinct piece to the lead.
        self.senders = self._choose_senders()

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return len(self.pieces)

    def sent_by(self, rank: int) -> tuple[Piece, ...]:
        """The pieces that this rank sends to the lead, in the order of its parameters."""
        return tuple(piece for piece in self.pieces[rank] if self.senders[piece] == rank)

    def copied(self) -> tuple[Piece, ...]:
        """The pieces with elements that several ranks have."""
        return tuple(
            piece for piece, ranks in self.holders.items() if piece.numel and len(ranks) > 1
        )

    def _choose_senders(self) -> dict[Piece, int]:
        """The lead sends what it has, because that does not travel. All else is spread over the
        ranks that have it, the largest pieces first, each by the one that sends least so far."""
        load = [0] * self.ranks
        senders: dict[Piece, int] = {}
        order = {name: place for place, name in enumerate(self.tensors)}
        by_size = sorted(self.holders, key=lambda p: (-p.numel, order[p.name], p.where))
        for piece in by_size:
            holders = self.holders[piece]
            sender = min(holders, key=lambda rank: (rank > 0, load[rank], rank))
            senders[piece] = sender
            load[sender] += piece.numel
        return senders

    def _refuse_other_kind(self, rank: int, piece: Piece) -> None:
        """Raise `UsageError` if a rank before has another shape or dtype under this name."""
        known = self.tensors.setdefault(piece.name, piece)
        if (known.shape, known.dtype) == (piece.shape, piece.dtype):
            return
        first = next(ranks[0] for held, ranks in self.holders.items() if held.name == piece.name)
        raise UsageError(
            f"parameter {piece.name} must have one shape and dtype on all ranks, got "
            f"{list(known.shape)} {known.dtype} on rank {first} and {list(piece.shape)} "
            f"{piece.dtype} on rank {rank}; {RENAME}; {SPLIT}"
        )


def _refuse_twins(rank: int, pieces: Sequence[Piece]) -> None:
    """Raise `UsageError` if a rank has two tensors of one name."""
    names: set[str] = set()
    for piece in pieces:
        if piece.name in names:
            raise UsageError(
                f"parameter {piece.name} must be one tensor on a rank, got two on rank {rank}; "
                + RENAME
            )
        names.add(piece.name)


def _refuse_gaps(name: str, parts: Sequence[Piece]) -> None:
    """Raise `UsageError` unless these pieces have every element of the tensor exactly once."""
    shape = parts[0].shape
    times = times_held(shape, [piece.where for piece in parts])
    if times is None or bool((times == 1).all()):
        return
    have = sum(piece.numel for piece in parts)
    fault = f"{have} of its {prod(shape)} elements"
    if bool((times > 1).any()):
        fault = "some of its elements in two different parts"
    raise UsageError(
        f"parameter {name} {list(shape)} must be on the ranks once, got {fault}; {SPLIT}"
    )


def times_held(shape: Sequence[int], wheres: Sequence[Sequence[Runs]]) -> Indices | None:
    """How many of the pieces have each element of a tensor, with elements in one where no piece
    tells them apart: along each dimension, all indices between two ends of runs are one.

    None for a tensor without elements."""
    if not prod(shape):
        return None
    cuts = [
        sorted({0, size, *(end for where in wheres for run in where[d] for end in run)})
        for d, size in enumerate(shape)
    ]
    at = [{cut: place for place, cut in enumerate(line)} for line in cuts]
    times = np.zeros([len(line) - 1 for line in cuts], dtype=np.int64)
    for where in wheres:
        cells = [
            np.array([c for start, stop in runs for c in range(line[start], line[stop])], np.int64)
            for runs, line in zip(where, at, strict=True)
        ]
        # Not `+=`: it would count a piece that has an element twice only once.
        np.add.at(times, np.ix_(*cells), 1)
    return times
