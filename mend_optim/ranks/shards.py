"""This rank's part of each parameter, read from the parameter itself: from the placements of a
DTensor, or from what the user says of a plain tensor. Nothing here communicates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch.distributed as dist
from torch import Tensor

from mend_optim.errors import UsageError, require, take_plain_numbers
from mend_optim.model.copies import own_part
from mend_optim.model.layout import is_distributed
from mend_optim.ranks.pieces import Indices, Piece, Runs, count, dealt, runs_of

FLAT = (
    "parameter {name} must keep its shape on every rank, got one that FullyShardedDataParallel has "
    "flattened; shard the model with torch.distributed.fsdp.fully_shard instead"
)
PARTIAL = (
    "parameter {name} must be sharded or replicated, got {placement}: no rank has its values; "
    "redistribute() it before you give it to the optimizer"
)
MISPLACED = (
    "parameter {name} must have on this rank what its placements tell, of shape {told}, got {own}; "
    "split it by fully_shard, parallelize_module or distribute_tensor"
)


@dataclass(frozen=True, kw_only=True)
class Split:
    """How a plain tensor, of which each rank has its own part, is split over the ranks of a group.

    Args:
        dim: the dimension that is split; negative ones count from the end.
        group: the `ProcessGroup` whose ranks have one part each, in their order in it.
        blocks: how many blocks are split one by one, so that each rank has a part of each; at
            least 1. A fused query, key and value are 3.

    Raises:
        UsageError: `dim` or `blocks` is no such int.

    Example:
        >>> fused = Split(dim=0, group=None, blocks=3)  # group: the tensor parallel ranks
        >>> shards = {"attention.qkv.weight": fused, "mlp.down.weight": Split(dim=1, group=None)}
        >>> shards["attention.qkv.weight"].blocks
        3
    """

    dim: int
    group: Any = field(repr=False)
    blocks: int = 1

    def __post_init__(self) -> None:
        take_plain_numbers(self)
        require(type(self.dim) is int, "shards: dim", self.dim, "an int")
        valid = type(self.blocks) is int and self.blocks >= 1
        require(valid, "shards: blocks", self.blocks, "an int >= 1")


#: How plain tensors are split: by name, or by a function of name and tensor; None: not at all.
Shards = Mapping[str, Split] | Callable[[str, Tensor], Split | None] | None


def megatron(group: Any) -> Callable[[str, Tensor], Split | None]:
    """How Megatron's parameters are split, as they say themselves: by `tensor_model_parallel`,
    `partition_dim` and `partition_stride`.

    Args:
        group: the `ProcessGroup` of tensor parallel ranks.

    Returns:
        A function for the argument `shards` of `MendOptimizer`.

    Example:
        >>> import torch
        >>> shards = megatron(group=None)
        >>> shards("norm.weight", torch.ones(2)) is None
        True
    """

    def split(name: str, tensor: Tensor) -> Split | None:
        if not getattr(tensor, "tensor_model_parallel", False):
            return None
        dim: Any = getattr(tensor, "partition_dim", 0)
        return Split(dim=dim, group=group, blocks=getattr(tensor, "partition_stride", 1))

    return split


def check_shards(shards: object) -> None:
    """Raise `UsageError` unless `shards` is of the type `Shards`."""
    known = shards is None or callable(shards) or isinstance(shards, Mapping)
    bound = "None, a dict of Split by name, or a function of name and tensor"
    require(known, "shards", shards, bound)


def split_of(shards: Shards, name: str, tensor: Tensor) -> Split | None:
    """What `shards` says of this parameter.

    Raises:
        UsageError: it says something else than a `Split` or None.
    """
    said = shards(name, tensor) if callable(shards) else (shards or {}).get(name)
    require(said is None or isinstance(said, Split), f"shards: {name}", said, "a Split or None")
    return said


def piece_of(name: str, tensor: Tensor, split: Split | None = None) -> Piece:
    """This rank's part of a parameter.

    Args:
        name: the name that it has on all ranks.
        tensor: a DTensor, or a plain tensor.
        split: how a plain tensor is split; None: the rank has the whole of it.

    Raises:
        UsageError: the rank's part cannot be told: FullyShardedDataParallel has flattened it, its
            values are yet to be summed, or `split` does not fit.
    """
    if hasattr(tensor, "_fsdp_flattened") or hasattr(tensor, "_is_flat_param"):
        raise UsageError(FLAT.format(name=name))
    if is_distributed(tensor):
        require(split is None, f"shards: {name}", split, "None for a DTensor", "it says so itself")
        where = [_placed_indices(name, tensor, d) for d in range(tensor.ndim)]
        told, own = tuple(map(count, where)), tuple(own_part(tensor).shape)
        if own != told:
            raise UsageError(MISPLACED.format(name=name, told=told, own=own))
        return _piece(name, tensor, tuple(tensor.shape), where)
    shape = list(tensor.shape)
    where = [((0, size),) if size else () for size in shape]
    if split is not None:
        dim, whole, runs = _split_dimension(name, tensor, split)
        shape[dim], where[dim] = whole, runs
    return _piece(name, tensor, tuple(shape), where)


def _piece(name: str, tensor: Tensor, shape: tuple[int, ...], where: list[Runs]) -> Piece:
    if tensor.is_complex():
        return Piece(name, (*shape, 2), str(tensor.dtype), (*where, ((0, 2),)))
    return Piece(name, shape, str(tensor.dtype), tuple(where))


def _placed_indices(name: str, tensor: Any, d: int) -> Runs:
    """The indices of dimension `d` that this rank has of a DTensor. Dimensions of the mesh deal out
    what others have left."""
    mesh = tensor.device_mesh
    dealing: list[_Dealing] = []
    for mesh_dim, placement in enumerate(tensor.placements):
        if not (placement.is_replicate() or hasattr(placement, "dim")):
            raise UsageError(PARTIAL.format(name=name, placement=placement))
        if placement.is_replicate() or placement.dim % max(1, tensor.ndim) != d:
            continue
        blocks = int(getattr(placement, "split_factor", 1))
        dealing.append(_Dealing(mesh.size(mesh_dim), mesh.get_local_rank(mesh_dim), blocks))
    indices: Indices = np.arange(tensor.shape[d])
    for turn in _in_turns(dealing):
        indices = dealt(indices, *turn)
    return runs_of(indices)


class _Dealing(NamedTuple):
    """How one dimension of a mesh deals out a dimension of a tensor: see `dealt`."""

    ways: int
    rank: int
    blocks: int


def _in_turns(dealing: Sequence[_Dealing]) -> list[_Dealing]:
    """The dimensions of a mesh in the order in which they have dealt.

    `fully_shard` of a tensor that others have split deals out what each rank has by then, although
    its own dimension comes first in the mesh. Its placement says into how many parts they had split
    it. By blocks it would deal the same only where all parts are equally long. A placement that
    says something else deals blocks, as a fused q, k, v."""
    if not dealing:
        return []
    first, *others = dealing
    later = _in_turns(others)
    if others and first.blocks == prod(each.ways for each in others):
        return [*later, first._replace(blocks=1)]
    return [first, *later]


def _split_dimension(name: str, tensor: Tensor, split: Split) -> tuple[int, int, Runs]:
    """The dimension that is split, its size in the global tensor, and this rank's indices."""
    exists = -tensor.ndim <= split.dim < tensor.ndim
    require(exists, f"shards: {name}: dim", split.dim, f"a dimension of {list(tensor.shape)}")
    dim = split.dim % tensor.ndim
    size, blocks = tensor.shape[dim], split.blocks
    bound = f"a divisor of the {size} indices that this rank has"
    require(size % blocks == 0, f"shards: {name}: blocks", blocks, bound)
    ways, rank = dist.get_world_size(split.group), dist.get_rank(split.group)
    require(rank >= 0, f"shards: {name}: group", split.group, "a group that this rank is in")
    return dim, size * ways, runs_of(dealt(np.arange(size * ways), ways, rank, blocks))
