"""Between the lead, which has fragments whole, and the ranks; each rank in a thread."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from mend_optim.model.copies import gather
from mend_optim.model.layout import Layout
from mend_optim.ranks.carrier import Carrier
from mend_optim.ranks.pieces import Division, Piece
from tests.unit.ranks.test_assembly import local_tensors, models


class Ranks:
    """An exchange between threads: what `all_to_all_single` does."""

    def __init__(self, size: int) -> None:
        self.given: dict[int, list[Tensor]] = {}
        self.told: dict[int, tuple[bytes, int]] = {}
        self.met = Barrier(size, timeout=20)
        self.size = size


class Rank:
    """One end of it."""

    def __init__(self, ranks: Ranks, rank: int) -> None:
        self.ranks, self.rank, self.size = ranks, rank, ranks.size
        self.sent = 0

    def transfer(self, given: Tensor, to: Sequence[int], taken: Tensor, of: Sequence[int]) -> None:
        assert len(given) == sum(to)
        assert len(taken) == sum(of)
        self.sent += len(given)
        self.ranks.given[self.rank] = list(torch.split(given, list(to)))
        self.ranks.met.wait()
        parts = [self.ranks.given[rank][self.rank] for rank in range(self.size)]
        assert [len(part) for part in parts] == list(of)
        taken.copy_(torch.cat(parts))
        self.ranks.met.wait()

    def tell_along(self, data: bytes, nbytes: int) -> list[bytes]:
        assert len(data) <= nbytes
        self.ranks.told[self.rank] = (data, nbytes)
        self.ranks.met.wait()
        told = [self.ranks.told[rank] for rank in range(self.size)]
        assert len({size for _, size in told}) == 1
        self.ranks.met.wait()
        return [each.ljust(nbytes, b"\0") for each, _ in told]


Model = tuple[list[Tensor], list[list[Piece]], int]


@given(models())
@settings(max_examples=25)
def test_what_ranks_have_comes_together_and_goes_back(model: Model) -> None:
    tensors, pieces, fragments = model
    division = Division(pieces)
    names = list(division.tensors)
    layout = Layout(names, [tensors[int(name[1:])] for name in names], fragments)
    wholes = [torch.empty(fragment.numel) for fragment in layout.fragments]
    for fragment, whole in zip(layout.fragments, wholes, strict=True):
        gather(fragment, [tensors[int(name[1:])] for name in names], whole)
    ranks = Ranks(division.ranks)

    def play(number: int) -> tuple[list[Tensor], list[Tensor], list[Tensor], int]:
        rank = Rank(ranks, number)
        carrier = Carrier(rank, division, layout.fragments)
        own = local_tensors(tensors, pieces[number])
        copies, collected, spread = [], [], []
        for p, part in enumerate(carrier.own):
            flat = torch.empty(part.numel)
            gather(part.local, own, flat)
            out = torch.full((layout.fragments[p].numel,), torch.nan) if number == 0 else None
            carrier.collect(p, flat if carrier.sends(p) else None, out)
            collected += [] if out is None else [out]
            sent = rank.sent
            spread.append(carrier.spread(p, wholes[p] if number == 0 else None))
            rank.sent = sent
            copies.append(flat)
        return copies, collected, spread, rank.sent

    with ThreadPoolExecutor(division.ranks) as pool:
        played = list(pool.map(play, range(division.ranks)))
    assert all(map(torch.equal, played[0][1], wholes))
    for copies, _, spread, _ in played:
        assert all(map(torch.equal, copies, spread))
    # The lead's own parts do not travel, and of copies one does.
    assert [sent for *_, sent in played] == [
        0 if rank == 0 else sum(piece.numel for piece in division.sent_by(rank))
        for rank in range(division.ranks)
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_the_default_dtype_of_a_script_rounds_nothing(dtype: torch.dtype) -> None:
    """It holds for the couriers' threads, too. Ranks may have two."""
    values = torch.randn(6, generator=torch.Generator().manual_seed(0))
    halves = [Piece("w", (6,), "torch.float32", (((at, at + 3),),)) for at in (0, 3)]
    layout = Layout(["w"], [values], 1)
    ranks = Ranks(2)

    def play(number: int) -> tuple[Tensor, Tensor | None]:
        carrier = Carrier(
            Rank(ranks, number), Division([[half] for half in halves]), layout.fragments
        )
        own = carrier.spread(0, None if number else values)
        out = None if number else torch.empty(6, dtype=torch.float32)
        carrier.collect(0, own, out)
        return own, out

    torch.set_default_dtype(dtype)
    try:
        with ThreadPoolExecutor(2) as pool:
            (first, out), (second, _) = pool.map(play, range(2))
    finally:
        torch.set_default_dtype(torch.float32)
    assert first.dtype == second.dtype == torch.float32
    assert out is not None
    assert torch.equal(torch.cat([first, second]), values)
    assert torch.equal(out, values)


@given(models())
@settings(max_examples=25)
def test_numbers_of_pieces_and_bytes_come_along(model: Model) -> None:
    tensors, pieces, fragments = model
    division = Division(pieces)
    names = list(division.tensors)
    layout = Layout(names, [tensors[int(name[1:])] for name in names], fragments)
    ranks = Ranks(division.ranks)

    def play(number: int) -> list[tuple[list[list[int]], list[bytes]]]:
        carrier = Carrier(Rank(ranks, number), division, layout.fragments)
        played = []
        for p, part in enumerate(carrier.own):
            counts = [100 * number + i for i in range(len(part.pieces))]
            told = carrier.collect_counts(p, counts if carrier.sends(p) else [])
            played.append((told, carrier.tell(b"x" * (number + p))))
        return played

    with ThreadPoolExecutor(division.ranks) as pool:
        played = list(pool.map(play, range(division.ranks)))
    for p in range(len(layout.fragments)):
        expected = []
        for number in range(division.ranks):
            carrier = Carrier(Rank(ranks, number), division, layout.fragments)
            count = len(carrier.own[p].pieces) if carrier.sends(p) else 0
            expected.append([100 * number + i for i in range(count)])
        assert played[0][p][0] == expected
        longest = division.ranks - 1 + p
        for number, rank in enumerate(played):
            assert number == 0 or rank[p][0] == []
            told = [(b"x" * (n + p)).ljust(longest, b"\0") for n in range(division.ranks)]
            assert rank[p][1] == told
