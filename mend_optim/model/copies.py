"""Copies between a model's parameters and flat host buffers.

Only the training thread calls these functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mend_optim.model.layout import Fragment, Layout, is_distributed
from mend_optim.protocol.lineage import content_digest

Ready = Callable[[], None]
"""Waits until an asynchronous copy is complete."""


def own_part(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, in the same memory; another tensor is its own part."""
    distributed: Any = tensor
    part: Tensor = distributed.to_local() if is_distributed(tensor) else tensor
    return part


def _real(parameter: Tensor) -> Tensor:
    """This rank's part of the parameter, without autograd; a complex one as real, with a last
    dimension of 2."""
    plain = own_part(parameter.detach())
    return torch.view_as_real(plain) if plain.is_complex() else plain


#: Elements of a tensor, on average, below which calls take longer than one more copy.
SMALL = 4096


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
    sources = [_real(parameters[index]) for index in fragment.tensors]
    # One call for many tensors: so many calls, or launches, take longer than the copies.
    if out.is_cuda and rounding is None and _are_like(out, sources):
        torch.cat([source.reshape(-1) for source in sources], out=out)
        return
    if 0 < len(out) < SMALL * len(sources) and rounding is None and _are_like(out, sources):
        out.copy_(torch.cat([source.reshape(-1) for source in sources]))
        return
    for place, source in enumerate(sources):
        here = fragment.span(place)
        if rounding is not None and narrow(source):
            lost = rounding[here].view(source.shape)
            source = source.float().add_(lost.to(source.device))
        out[here].view(source.shape).copy_(source)


def _are_like(flat: Tensor, tensors: Sequence[Tensor]) -> bool:
    """Whether there are tensors, all of the dtype of a flat one and on the same device. A rank may
    have none of a fragment."""
    kinds = {(tensor.dtype, tensor.device) for tensor in tensors}
    return kinds == {(flat.dtype, flat.device)}


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
    targets = [_real(parameters[index]) for index in fragment.tensors]
    if values.is_cuda and _are_like(values, targets):
        sources = [values[fragment.span(i)].view(t.shape) for i, t in enumerate(targets)]
        # As in `gather`.
        (torch._foreach_copy_ if replace else torch._foreach_add_)(targets, sources)
        return
    for place, target in enumerate(targets):
        here = fragment.span(place)
        source = values[here].view(target.shape).to(target.device)
        if rounding is not None and narrow(target):
            lost = rounding[here].view(target.shape)
            exact = source
            if not replace:
                exact = target.float().add_(lost.to(target.device)).add_(source)
            target.copy_(exact)
            lost.copy_(exact - target.float())
        elif replace:
            target.copy_(source)
        else:
            # torch adds in the wider of both dtypes.
            target.add_(source)


#: A sketch covers at least this many elements of each tensor that has them.
SAMPLES = 64


@torch.no_grad()
def sketch(parameters: Sequence[Tensor], in_float32: bool = True) -> str:
    """A digest, in hex, of some elements of every parameter; in float32, so that the same weights
    in another dtype have the same one."""
    samples = []
    for parameter in parameters:
        values = _real(parameter).reshape(-1)
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
