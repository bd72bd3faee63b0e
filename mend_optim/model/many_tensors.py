"""Few calls of torch for many tensors.

In each call other Python threads may run, and the training thread then waits for its turn: up to 5
ms where one of them computes. A model has hundreds of tensors. Few calls are few launches on a GPU,
too. Nothing is detached: without gradients, that is one call more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

#: Elements of tensors that are worked on together where that takes memory: few enough to stay in a
#: cache.
BATCH = 1 << 20
#: The classes of tensors that have no calls of their own.
PLAIN = {Tensor, nn.Parameter}

_unflatten: Callable[[Tensor, Sequence[Tensor]], Sequence[Tensor]] = (
    torch._utils._unflatten_dense_tensors
)


def are_plain(tensors: Sequence[Tensor]) -> bool:
    """Whether no tensor is of a class with calls of its own."""
    return {*map(type, tensors)} <= PLAIN


def shaped(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Views of a flat buffer, each in the shape of one of these tensors, which fill it."""
    # Some versions of torch make an empty tensor flat.
    if are_plain(like) and all(tensor.numel() for tensor in like):
        return list(_unflatten(flat, like))
    parts = torch.split(flat, [tensor.numel() for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]


def brought(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor, or a copy of it on that device."""
    return tensor if tensor.device == device else tensor.to(device)


def copy_each(to: list[Tensor], of: list[Tensor]) -> None:
    """Copy each tensor into its partner. One call does so where all are on one device."""
    both = [*to, *of]
    if len({tensor.device for tensor in both}) == 1 and are_plain(both):
        torch._foreach_copy_(to, of)
    else:
        for target, source in zip(to, of, strict=True):
            target.copy_(source)


def batches(tensors: Sequence[Tensor]) -> Iterator[slice]:
    """Slices of neighbours on one device, in order: of `BATCH` elements at most, or one tensor."""
    start = numel = 0
    for i, tensor in enumerate(tensors):
        numel += tensor.numel()
        if i > start and (numel > BATCH or tensor.device != tensors[start].device):
            yield slice(start, i)
            start, numel = i, tensor.numel()
    if tensors:
        yield slice(start, len(tensors))
