"""The copies between parameters and flat host buffers.

Only the training thread calls `gather` and `scatter`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mend_optim.model.layout import Fragment, Layout
from mend_optim.protocol.lineage import content_digest

Ready = Callable[[], None]
"""Waits for an asynchronous copy."""


def copied(device: torch.device | None) -> Ready:
    """A function that waits for the copies just enqueued on the device's stream; on the host there
    is none."""
    if device is None:
        return lambda: None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event.synchronize


def _real(parameter: Tensor) -> Tensor:
    plain = parameter.detach()
    return torch.view_as_real(plain) if plain.is_complex() else plain


def narrow(tensor: Tensor) -> bool:
    """Whether the tensor's dtype holds less than a float32 does, so that an anchor written to it is
    rounded."""
    return torch.finfo(tensor.dtype).bits < 32


@torch.no_grad()
def gather(
    fragment: Fragment, parameters: Sequence[Tensor], out: Tensor, rounding: Tensor | None = None
) -> None:
    """Copy the fragment's parameters into `out` (float32, host), and add what `scatter` had to
    round away. From a GPU into pinned memory the copies are asynchronous: wait for the device's
    current stream before reading `out`."""
    for i, start, stop in zip(
        fragment.tensors, fragment.offsets, fragment.offsets[1:], strict=False
    ):
        source = _real(parameters[i])
        if rounding is not None and narrow(source):
            source = source.float().add_(
                rounding[start:stop].view(source.shape).to(source.device, non_blocking=True)
            )
        elif source.is_cuda:
            # on the device: a cast during the copy would make it synchronous
            source = source.to(torch.float32)
        out[start:stop].view(source.shape).copy_(source, non_blocking=True)


def flat(fragment: Fragment, parameters: Sequence[Tensor]) -> Tensor:
    """A copy of the fragment's parameters, in a buffer of its own."""
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
    """Add `values` (float32, host) to the fragment's parameters in place, or copy them over when
    `replace`.

    The sum is rounded once, to the parameter's dtype. What a narrow dtype loses is kept in
    `rounding` (float32, host): parameters stand for themselves plus that. Else the next delta would
    take it back from the anchor, and no merge finer than the dtype would ever add up."""
    for i, start, stop in zip(
        fragment.tensors, fragment.offsets, fragment.offsets[1:], strict=False
    ):
        target = _real(parameters[i])
        source = values[start:stop].view(target.shape).to(target.device, non_blocking=True)
        if rounding is not None and narrow(target):
            lost = rounding[start:stop].view(target.shape)
            exact = (
                source
                if replace
                else target.float().add_(lost.to(target.device, non_blocking=True)).add_(source)
            )
            target.copy_(exact)
            lost.copy_(exact - target.float(), non_blocking=True)
        elif replace:
            target.copy_(source)
        else:
            target.add_(source)  # in the wider of both dtypes, whatever they are


SAMPLES = 64  # elements of each tensor


@torch.no_grad()
def sketch(parameters: Sequence[Tensor]) -> str:
    """A digest, in hex, of some elements of every parameter."""
    samples = []
    for parameter in parameters:
        flat = _real(parameter).reshape(-1)
        sample = flat[:: max(1, flat.numel() // SAMPLES)].contiguous().cpu()
        samples.append(sample.view(torch.uint8).numpy().data)
    return content_digest(*samples).hex()


def sketches(layout: Layout, parameters: Sequence[Tensor]) -> str:
    """Of the wrapped groups, and of each that was added: enough to tell whether these are the
    weights that a checkpoint belongs to, and no copy of a model."""
    wrapped = len(parameters) - sum(map(len, layout.added))
    parts = [parameters[:wrapped], *([parameters[i] for i in group] for group in layout.added)]
    return " ".join(map(sketch, parts))
