"""Copies between a model's parameters and flat host buffers.

Only the training thread calls these functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mend_optim.model.layout import Fragment, Layout, is_distributed
from mend_optim.model.many_tensors import are_plain, batches, brought, copy_each, shaped
from mend_optim.protocol.lineage import content_digest

Ready = Callable[[], None]
"""Waits until an asynchronous copy is complete."""


def own_part(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, in the same memory; another tensor is its own part."""
    distributed: Any = tensor
    part: Tensor = distributed.to_local() if is_distributed(tensor) else tensor
    return part


def real(parameter: Tensor) -> Tensor:
    """This rank's part of the parameter; a complex one as real, with a last dimension of 2."""
    part = own_part(parameter)
    return torch.view_as_real(part) if part.dtype.is_complex else part


def narrow(tensor: Tensor) -> bool:
    """Whether the tensor's dtype holds less than float32 does, so that an anchor written to it is
    rounded."""
    return torch.finfo(tensor.dtype).bits < 32


@torch.no_grad()
def gather(
    fragment: Fragment, parameters: Sequence[Tensor], out: Tensor, rounding: Tensor | None = None
) -> None:
    """Copy the fragment's parameters into a flat buffer.

    Args:
        fragment: which of the parameters to copy.
        parameters: all parameters of the model.
        out: receives the copy; float32, `fragment.numel` elements, on the host or on a GPU.
        rounding: what `scatter` had to round away; it is added to narrow parameters.
    """
    sources = [real(parameters[index]) for index in fragment.tensors]
    together = _are_together(out, sources)
    if together and out.is_cuda and rounding is None:
        torch.cat([source.reshape(-1) for source in sources], out=out)
        return
    parts = shaped(out, sources)
    if together:
        torch._foreach_copy_(parts, sources)
    else:
        for part, source in zip(parts, sources, strict=True):
            part.copy_(source)
    if rounding is not None:
        pairs = zip(parts, shaped(rounding, sources), strict=True)
        losses = list(compress(pairs, map(narrow, sources)))
        if losses:
            torch._foreach_add_([part for part, _ in losses], [lost for _, lost in losses])


def _are_together(flat: Tensor, tensors: Sequence[Tensor]) -> bool:
    """Whether one call can copy between a flat tensor and these: all are where the flat one is, on
    a GPU all are of its dtype, and none is of a class with calls of its own. A rank may have no
    tensor of a fragment."""
    devices = {tensor.device for tensor in tensors}
    dtypes = {tensor.dtype for tensor in tensors}
    is_alike = flat.is_cpu or dtypes == {flat.dtype}
    return devices == {flat.device} and is_alike and are_plain(tensors)


def flat(fragment: Fragment, parameters: Sequence[Tensor]) -> Tensor:
    """A copy of the fragment's parameters in a new flat buffer."""
    out = torch.empty(fragment.numel, dtype=torch.float32)
    gather(fragment, parameters, out)
    return out


@torch.no_grad()
def scatter(
    fragment: Fragment,
    values: Tensor,
    parameters: Sequence[Tensor],
    replace: bool,
    rounding: Tensor | None = None,
) -> None:
    """Add flat values to the fragment's parameters in place, or overwrite them.

    The sum is rounded once, to the parameter's dtype. `rounding` keeps what a narrow dtype loses: a
    narrow parameter stands for its own value plus that. Otherwise the next delta would take the
    lost part back from the anchor, and no merge finer than the dtype would ever add up.

    Args:
        fragment: which of the parameters to write.
        values: float32, `fragment.numel` elements, on the host or on the parameters' device.
        parameters: all parameters of the model.
        replace: whether the parameters become `values`, instead of growing by them.
        rounding: updated with what narrow parameters lose; float32, where `values` may be.
    """
    targets = [real(parameters[index]) for index in fragment.tensors]
    sources = shaped(values, targets)
    if rounding is None:
        _move(values, targets, sources, replace)
        return
    narrowed = list(map(narrow, targets))
    found = zip(targets, sources, shaped(rounding, targets), strict=True)
    moves = [_Rounded(*move) for move in compress(found, narrowed)]
    for batch in batches([move.target for move in moves]):
        _move_rounded(moves[batch], replace)
    wide = [not is_narrow for is_narrow in narrowed]
    _move(values, list(compress(targets, wide)), list(compress(sources, wide)), replace)


@torch.no_grad()
def give_back(fragment: Fragment, lost: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Add what a narrow dtype rounded away to those of the fragment's parameters that are wide now.
    Returns the rest, which belongs to narrow ones."""
    rest = lost.clone()
    targets = [real(parameters[index]) for index in fragment.tensors]
    for target, part in zip(targets, shaped(rest, targets), strict=True):
        if not narrow(target):
            target.add_(brought(part, target.device))
            part.zero_()
    return rest


def _move(values: Tensor, targets: list[Tensor], sources: list[Tensor], replace: bool) -> None:
    """Overwrite each target with its source, or add the source in the wider dtype of both. The
    sources are parts of the values."""
    if _are_together(values, targets):
        (torch._foreach_copy_ if replace else torch._foreach_add_)(targets, sources)
        return
    for target, source in zip(targets, sources, strict=True):
        if replace:
            target.copy_(source)
        else:
            target.add_(brought(source, target.device))


class _Rounded(NamedTuple):
    """A narrow target, its source, and what the target's dtype has rounded away."""

    target: Tensor
    source: Tensor
    lost: Tensor


def _move_rounded(batch: Sequence[_Rounded], replace: bool) -> None:
    """Move targets by what is exact, or to it, and keep what their dtypes round away."""
    device = batch[0].target.device
    targets = [move.target for move in batch]
    sources = [brought(move.source, device) for move in batch]
    lost = [brought(move.lost, device) for move in batch]
    numel = sum(target.numel() for target in targets)
    exact = shaped(torch.empty(numel, dtype=torch.float32, device=device), targets)
    if replace:
        torch._foreach_copy_(exact, sources)
    else:
        copy_each(exact, targets)
        torch._foreach_add_(exact, lost)
        torch._foreach_add_(exact, sources)
    copy_each(targets, exact)
    copy_each(lost, targets)
    torch._foreach_sub_(exact, lost)
    torch._foreach_copy_(lost, exact)
    for move, there in zip(batch, lost, strict=True):
        if there is not move.lost:
            move.lost.copy_(there)


#: A sketch covers at least this many elements of each tensor that has them.
SAMPLES = 64


@torch.no_grad()
def sketch(parameters: Sequence[Tensor], in_float32: bool = True) -> str:
    """A digest, in hex, of some elements of every parameter; in float32, so that the same weights
    in another dtype have the same one."""
    samples = []
    for parameter in parameters:
        values = real(parameter).reshape(-1)
        sample = values[:: max(1, values.numel() // SAMPLES)].contiguous().cpu()
        if in_float32:
            sample = sample.float()
        samples.append(sample.view(torch.uint8).numpy().data)
    return content_digest(*samples).hex()


def sketches(layout: Layout, parameters: Sequence[Tensor], in_float32: bool = True) -> str:
    """The sketch of the wrapped groups, then that of each added group.

    That is enough to tell whether these are the weights that a checkpoint belongs to, without a
    copy of the model."""
    wrapped = len(parameters) - sum(map(len, layout.added))
    parts = [parameters[:wrapped], *([parameters[i] for i in group] for group in layout.added)]
    return " ".join(sketch(part, in_float32) for part in parts)


def belong_to(told: str, layout: Layout, parameters: Sequence[Tensor]) -> bool:
    """Whether these are the weights that a checkpoint tells the sketches of. Older checkpoints tell
    those of the dtype that the weights had."""
    return any(told == sketches(layout, parameters, in_float32) for in_float32 in (True, False))
