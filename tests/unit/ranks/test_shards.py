"""This rank's part of a parameter, against the part that torch itself puts there."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import example, given, reject
from hypothesis import strategies as st
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from mend_optim import UsageError
from mend_optim.model.copies import own_part
from mend_optim.ranks.pieces import Division, Piece, decode_held
from mend_optim.ranks.shards import Split, megatron, piece_of, split_of
from tests.support.older_torch import needs_fully_shard

kinds = pytest.importorskip("torch.distributed.tensor.placement_types")
Partial, Replicate, Shard, Strided = (
    kinds.Partial,
    kinds.Replicate,
    kinds.Shard,
    kinds._StridedShard,
)


@dataclass
class Mesh:
    """A mesh of devices, at one place of it."""

    sizes: list[int]
    at: tuple[int, ...]

    def size(self, dim: int) -> int:
        return self.sizes[dim]

    def get_local_rank(self, dim: int) -> int:
        return self.at[dim]


@dataclass
class Distributed:
    """What `piece_of` reads of a DTensor."""

    shape: tuple[int, ...]
    placements: list[Any]
    device_mesh: Mesh
    dtype: torch.dtype = torch.float32

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def is_complex(self) -> bool:
        return self.dtype.is_complex

    def to_local(self) -> Tensor:
        return placed(torch.empty(self.shape), self.placements, self.device_mesh)


class UnevenError(Exception):
    """Versions of torch differ in how they stride over parts of unequal length."""


def placed(whole: Tensor, placements: list[Any], mesh: Mesh) -> Tensor:
    """The part that torch puts at one place of a mesh. It splits by one dimension at a time."""
    for dim, placement in enumerate(placements):
        if not placement.is_replicate():
            if isinstance(placement, Strided):
                parts = mesh.sizes[dim] * placement.split_factor
                if whole.shape[placement.dim] % parts:
                    raise UnevenError
            split = placement._split_tensor(whole, mesh.sizes[dim], with_padding=False)[0]
            whole = split[mesh.at[dim]]
    return whole


@st.composite
def distributed(draw: st.DrawFn) -> tuple[tuple[int, ...], list[int], list[Any]]:
    """A shape, a mesh, and a placement for each dimension of the mesh."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    dims = st.integers(0, len(shape) - 1)
    placements = st.one_of(
        st.builds(Shard, dims),
        st.builds(lambda d, f: Strided(d, split_factor=f), dims, st.integers(2, 3)),
        st.just(Replicate()),
    )
    return shape, sizes, [draw(placements) for _ in sizes]


@given(distributed())
def test_the_piece_is_what_torch_puts_there(
    case: tuple[tuple[int, ...], list[int], list[Any]],
) -> None:
    shape, sizes, placements = case
    whole = torch.arange(int(np.prod(shape))).view(shape)
    pieces: list[Piece] = []
    for at in np.ndindex(*sizes):
        mesh = Mesh(sizes, at)
        tensor: Any = Distributed(shape, placements, mesh)
        try:
            expected = placed(whole, placements, mesh)
        except UnevenError:
            reject()
        piece = piece_of("w", tensor)
        own = torch.full(piece.local_shape, -1)
        for there, here in piece.blocks():
            own[here] = whole[there]
        assert torch.equal(own, expected)
        pieces.append(piece)
    Division([[piece] for piece in pieces])


@dataclass
class Stacked(Distributed):
    """One that was split over the last dimension of the mesh, then by `fully_shard` over the one
    before, and so on."""

    def to_local(self) -> Tensor:
        return self.part_of(torch.empty(self.shape))

    def part_of(self, whole: Tensor) -> Tensor:
        for size, at in reversed(
            list(zip(self.device_mesh.sizes, self.device_mesh.at, strict=True))
        ):
            parts = torch.chunk(whole, size)
            whole = parts[at] if at < len(parts) else whole[:0]
        return whole


@given(st.integers(1, 40), st.lists(st.integers(1, 4), min_size=2, max_size=3))
@example(9, [4, 2])
def test_fully_shard_deals_what_others_have_left_although_its_dimension_comes_first(
    size: int, sizes: list[int]
) -> None:
    """By blocks, parts would be as long only where all are."""
    factors = [int(np.prod(sizes[at + 1 :])) for at in range(len(sizes))]
    placements = [*(Strided(0, split_factor=f) for f in factors[:-1]), Shard(0)]
    whole = torch.arange(size)
    pieces: list[Piece] = []
    for at in np.ndindex(*sizes):
        tensor: Any = Stacked((size,), placements, Mesh(sizes, at))
        piece = piece_of("w", tensor)
        own = torch.cat([whole[there] for there, _ in piece.blocks()] or [whole[:0]])
        assert torch.equal(own, tensor.part_of(whole))
        pieces.append(piece)
    Division([[piece] for piece in pieces])


def test_a_part_that_is_not_where_its_placements_tell_is_refused() -> None:
    class Longer(Distributed):
        def to_local(self) -> Tensor:
            return torch.empty(3, 2)

    tensor: Any = Longer((4, 2), [Shard(0)], Mesh([2], (0,)))
    with pytest.raises(UsageError, match=r"of shape \(2, 2\), got \(3, 2\); split it by fully"):
        piece_of("w", tensor)


def test_a_fused_query_key_and_value_is_three_blocks() -> None:
    """torch's own `compute_local_shape_and_global_offset` is wrong here."""
    tensor: Any = Distributed((12,), [Strided(0, split_factor=3)], Mesh([2], (1,)))
    assert piece_of("qkv", tensor).where == (((2, 4), (6, 8), (10, 12)),)


def test_a_sum_that_is_still_to_be_made_is_refused() -> None:
    tensor: Any = Distributed((4,), [Partial()], Mesh([2], (0,)))
    with pytest.raises(UsageError, match=r"sharded or replicated, got P.*redistribute"):
        piece_of("w", tensor)


@pytest.mark.parametrize("mark", ["_fsdp_flattened", "_is_flat_param"])
def test_a_flattened_parameter_is_refused(mark: str) -> None:
    tensor = torch.ones(4)
    setattr(tensor, mark, True)
    with pytest.raises(UsageError, match="fully_shard instead"):
        piece_of("w", tensor)


def test_a_plain_tensor_is_whole() -> None:
    assert piece_of("w", torch.ones(2, 3)).where == (((0, 2),), ((0, 3),))
    assert piece_of("w", torch.ones(())).where == ()
    assert piece_of("w", torch.ones(0, 3)).where == ((), ((0, 3),))


def test_a_complex_tensor_counts_as_real() -> None:
    piece = piece_of("w", torch.ones(3, dtype=torch.complex64))
    assert (piece.shape, piece.where, piece.dtype) == (
        (3, 2),
        (((0, 3),), ((0, 2),)),
        "torch.complex64",
    )


def test_a_plain_tensor_is_its_own_part() -> None:
    tensor = torch.ones(2)
    assert own_part(tensor) is tensor


# ── plain tensors of which each rank has a part ───────────────────────────────────────────────────


@pytest.fixture
def second_of_two() -> Any:
    """This process is rank 1 of 2; rank 0 is not real."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_a_split_says_which_part_this_rank_has(second_of_two: Any) -> None:
    split = Split(dim=-1, group=second_of_two, blocks=3)
    piece = piece_of("qkv", torch.ones(2, 6), split)
    assert piece.shape == (2, 12)
    assert piece.where == (((0, 2),), ((2, 4), (6, 8), (10, 12)))


def test_megatron_says_it_itself(second_of_two: Any) -> None:
    tensor = torch.ones(4, 2)
    shards = megatron(second_of_two)
    assert split_of(shards, "w", tensor) is None
    told: Any = tensor
    told.tensor_model_parallel, told.partition_dim, told.partition_stride = True, 0, 2
    piece = piece_of("w", tensor, split_of(shards, "w", tensor))
    assert (piece.shape, piece.where[0]) == ((8, 2), ((2, 4), (6, 8)))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"dim": 2}, r"shards: w: dim must be a dimension of \[2, 6\], got 2"),
        ({"dim": 1, "blocks": 4}, "shards: w: blocks must be a divisor of the 6 indices"),
    ],
)
def test_a_split_that_does_not_fit_is_refused(
    second_of_two: Any, options: dict[str, int], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        piece_of("w", torch.ones(2, 6), Split(group=second_of_two, **options))


@pytest.mark.parametrize("options", [{"dim": "0"}, {"dim": 0, "blocks": 0}, {"dim": True}])
def test_a_wrong_split_is_refused(options: Any) -> None:
    with pytest.raises(UsageError, match=r"shards: (dim|blocks) must be an int"):
        Split(group=None, **options)


def test_what_says_no_split_is_refused() -> None:
    with pytest.raises(UsageError, match="shards: w must be a Split or None, got 0"):
        split_of({"w": 0}, "w", torch.ones(2))  # type: ignore[dict-item]
    tensor: Any = Distributed((4,), [Replicate()], Mesh([2], (0,)))
    with pytest.raises(UsageError, match="shards: w must be None for a DTensor"):
        piece_of("w", tensor, Split(dim=0, group=None))


# ── a world ───────────────────────────────────────────────────────────────────────────────────────


@needs_fully_shard
def test_the_pieces_of_64_ranks_are_whole_and_nobody_waits() -> None:
    """8-fold sharded, 4-fold tensor parallel and 2 stages, by torch's own means: what each rank has
    is what its piece says, all have every element once, and no collective is needed to tell."""
    from tests.unit.ranks import world_of_64  # an older torch cannot import it

    done = subprocess.run(
        [sys.executable, str(Path(world_of_64.__file__))],
        capture_output=True,
        text=True,
        timeout=200,
        env={"PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(rank["rank"] for rank in said) == list(range(64))
    assert {rank["wrong"] for rank in said} == {0}
    assert {rank["collectives"] for rank in said} == {0}
    said.sort(key=lambda rank: int(rank["rank"]))
    division = Division([decode_held(rank["pieces"].encode()).pieces for rank in said])
    assert len(division.tensors) == world_of_64.PARAMETERS
    copied = {len(division.holders[piece]) for piece in division.copied()}
    assert copied == {
        world_of_64.TENSOR
    }  # the bias of a matrix that tensor parallelism splits by rows
