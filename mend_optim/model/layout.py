"""Which parameters: an exact, balanced partition into fragments, and the copies between parameters
and flat host buffers.

A fragment is a set of whole tensors. Flat buffers are float32 on the host, one element per
parameter element, tensors laid end to end in parameter order. Only the training thread calls
`gather` and `scatter`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod

import torch
from torch import Tensor

from mend_optim.errors import UsageError, require
from mend_optim.protocol.handshake import ADDED
from mend_optim.protocol.lineage import content_digest


def partition(sizes: Sequence[int], fragments: int) -> tuple[tuple[int, ...], ...]:
    """Indices of `sizes` in `fragments` bins: largest first, each into the lightest bin (at most
    4/3 of the optimum).

    Exact: every index is in one bin. Deterministic: ties go to the lower index and the lower bin.
    Bins list their indices in order."""
    bins: list[list[int]] = [[] for _ in range(fragments)]
    weight = [0] * fragments
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        lightest = min(range(fragments), key=lambda b: (weight[b], len(bins[b]), b))
        bins[lightest].append(index)
        weight[lightest] += sizes[index]
    return tuple(tuple(sorted(members)) for members in bins)


Ready = Callable[[], None]
"""Waits for an asynchronous copy."""


@dataclass(frozen=True)
class Fragment:
    """Fragment p: which tensors, where each lies in the flat buffer (`offsets[i]` to `offsets[i +
    1]`, in elements), and its shape there: a complex one has a last dimension of 2 more."""

    index: int
    tensors: tuple[int, ...]
    offsets: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def numel(self) -> int:
        return self.offsets[-1]


class Layout:
    """The parameters of a model as P fragments, and one more for each group that was added later:
    `added` is the number of tensors in each of those, which come last. Raises `UsageError` for what
    cannot be merged."""

    def __init__(
        self,
        names: Sequence[str],
        tensors: Sequence[Tensor],
        fragments: int,
        added: Sequence[int] = (),
    ) -> None:
        wrapped = len(tensors) - sum(added)
        require(
            wrapped > 0,
            "inner",
            "an optimizer without parameters",
            "an optimizer with at least one parameter",
        )
        require(
            fragments <= wrapped,
            "fragments",
            fragments,
            f"at most the number of parameter tensors ({wrapped})",
            "a fragment holds whole tensors",
        )
        for name, tensor in zip(names, tensors, strict=True):
            if not (tensor.is_floating_point() or tensor.is_complex()):
                raise UsageError(
                    f"parameter {name} must be floating point or complex to be merged, got {tensor.dtype}"
                )
        _refuse_aliases(names, tensors)
        self.names = tuple(names)
        self.shapes = tuple(tuple(t.shape) for t in tensors)
        self.dtypes = tuple(str(t.dtype) for t in tensors)
        shapes = [(*t.shape, 2) if t.is_complex() else tuple(t.shape) for t in tensors]
        sizes = [prod(shape) for shape in shapes]
        ends = list(accumulate(added, initial=wrapped))
        self.added = tuple(tuple(range(*ends_of)) for ends_of in pairwise(ends))
        self.fragments = tuple(
            Fragment(
                p,
                members,
                (0, *accumulate(sizes[i] for i in members)),
                tuple(shapes[i] for i in members),
            )
            for p, members in enumerate((*partition(sizes[:wrapped], fragments), *self.added))
        )

    @property
    def numel(self) -> int:
        return sum(f.numel for f in self.fragments)

    def fingerprint(self) -> tuple[tuple[str, str], ...]:
        """(field, value) pairs that two learners must have in common, in an order that names the
        first difference well. Added groups have fields named `ADDED …`: they must agree where both
        have them."""
        kinds = [
            f"{list(shape)} {dtype}" for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        ]
        wrapped = len(kinds) - sum(map(len, self.added))
        listed = zip(self.names[:wrapped], kinds, strict=False)
        added = (", ".join(f"{self.names[i]} {kinds[i]}" for i in group) for group in self.added)
        return (
            ("number of parameters", str(wrapped)),
            *((f"parameter {name}", kind) for name, kind in listed),
            *((f"{ADDED} {number}", group) for number, group in enumerate(added, 1)),
        )

    def groups(self) -> tuple[bytes, ...]:
        """For each fragment of an added group, a digest of its names, shapes and dtypes; empty for
        the others."""
        added = [
            content_digest(kind.encode())
            for name, kind in self.fingerprint()
            if name.startswith(ADDED)
        ]
        return (*(b"" for _ in self.fragments[len(added) :]), *added)

    def check(self, tensors: Sequence[Tensor], before: Sequence[Tensor] = ()) -> None:
        """Raise `UsageError` if the parameters are no longer those of the layout; `before`: these
        very ones."""
        if len(tensors) != len(self.shapes):
            raise UsageError(
                f"the optimizer must keep its {len(self.shapes)} parameters while it trains with peers, "
                f"got {len(tensors)}; "
                "add parameters with add_param_group() of the MendOptimizer, or close() it and make a new one"
            )
        for name, shape, dtype, tensor in zip(
            self.names, self.shapes, self.dtypes, tensors, strict=True
        ):
            if (tuple(tensor.shape), str(tensor.dtype)) != (shape, dtype):
                raise UsageError(
                    f"parameter {name} must keep its shape {list(shape)} and {dtype} while it trains with peers, "
                    f"got {list(tensor.shape)} {tensor.dtype}; close() this optimizer and make a new one for the "
                    "changed model"
                )
        for name, now, then in zip(self.names, tensors, before, strict=False):
            if now is not then:
                raise UsageError(
                    f"parameter {name} must keep its tensor while it trains with peers, got another one in "
                    "param_groups; write to the parameter in place, or make a new MendOptimizer"
                )


def _refuse_aliases(names: Sequence[str], tensors: Sequence[Tensor]) -> None:
    owners: dict[tuple[torch.device, int], int] = {}
    for i, tensor in enumerate(tensors):
        owner = (
            owners.setdefault((tensor.device, tensor.data_ptr()), i)
            if tensor.numel() and tensor.data_ptr()
            else i
        )
        if owner != i:
            raise UsageError(
                f"parameter {names[i]} must have memory of its own, got that of parameter {names[owner]}; "
                "what others learned would be added to it twice: give tied parameters to the inner optimizer once"
            )


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
