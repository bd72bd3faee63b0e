"""Which parameters belong to which fragment: an exact, balanced partition of the model.

A fragment is a set of whole tensors. Its flat buffer is float32 on the host and holds the tensors
end to end, in parameter order. `copies.py` copies between parameters and flat buffers.

The buffers of modules, such as batch-norm statistics, are one more fragment (`BufferFragment`),
whose flat buffer holds their own bytes. `module_buffers.py` copies those."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from mend_optim.errors import UsageError, require
from mend_optim.protocol.handshake import ADDED, BUFFER, BY_NAME, PARAMETER, plain_name
from mend_optim.protocol.lineage import content_digest

#: The remedy for a parameter that still has no values at the first step.
LATE = "; make the optimizer after to_empty(), and run a lazy module once before the first step"


def partition(sizes: Sequence[int], fragments: int) -> tuple[tuple[int, ...], ...]:
    """Distribute the indices of `sizes` over bins, the largest size first, each into the lightest
    bin. The heaviest bin is at most 4/3 of the optimum.

    Every index is in exactly one bin, and each bin lists its indices in order. The result is
    deterministic: ties go to the lower index and to the lower bin."""
    bins: list[list[int]] = [[] for _ in range(fragments)]
    weight = [0] * fragments
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        lightest = min(range(fragments), key=lambda b: (weight[b], len(bins[b]), b))
        bins[lightest].append(index)
        weight[lightest] += sizes[index]
    return tuple(tuple(sorted(members)) for members in bins)


@dataclass(frozen=True)
class Fragment:
    """Fragment p of a layout.

    `tensors` are indices into the model's parameters. Tensor i of the fragment lies in the flat
    buffer from element `offsets[i]` to `offsets[i + 1]`, with shape `shapes[i]`. A complex tensor
    has one more dimension there, of size 2."""

    index: int
    tensors: tuple[int, ...]
    offsets: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def numel(self) -> int:
        return self.offsets[-1]

    def span(self, place: int) -> slice:
        """Where tensor `place` of the fragment lies in the flat buffer."""
        return slice(self.offsets[place], self.offsets[place + 1])


@dataclass(frozen=True)
class BufferFragment(Fragment):
    """The fragment of the buffers of modules: `tensors` are indices into those buffers.

    Its flat buffer has the tensors in their own dtypes, bit by bit, so that integers stay exact. It
    counts in words of 4 bytes: `offsets` do, and `numel` does. Every tensor begins at a multiple of
    8 bytes. What pads it is zero."""

    #: One name for each tensor, for messages.
    names: tuple[str, ...]
    #: The dtypes of the elements; of a complex tensor, that of its real and imaginary parts.
    dtypes: tuple[torch.dtype, ...]

    @property
    def nbytes(self) -> int:
        """The size of the flat buffer, in bytes."""
        return 4 * self.numel

    def view(self, place: int, flat: Tensor) -> Tensor:
        """Tensor `place` of the fragment in a flat buffer (uint8), as a view of it."""
        dtype, shape = self.dtypes[place], self.shapes[place]
        start = 4 * self.offsets[place]
        return flat[start : start + prod(shape) * dtype.itemsize].view(dtype).view(shape)


class Layout:
    """The parameters of a model as P fragments, then the buffers of modules as one fragment, if
    there are any, then one fragment for each group that was added after wrapping.

    Args:
        names: one name for each parameter, for messages and for the fingerprint.
        tensors: the parameters. Those of added groups come last.
        fragments: P, at most the number of tensors that were wrapped.
        added: the number of tensors in each group that was added after wrapping.
        buffers: the buffers, with their names.
        as_listed: whether the parameters are in the order in which the optimizer lists them.

    Raises:
        UsageError: a parameter or a buffer cannot be merged.
    """

    def __init__(
        self,
        names: Sequence[str],
        tensors: Sequence[Tensor],
        fragments: int,
        added: Sequence[int] = (),
        *,
        buffers: Sequence[tuple[str, Tensor]] = (),
        as_listed: bool = True,
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
            if fault := _fault(tensor):
                raise UsageError(
                    f"parameter {name} must be a dense tensor of floating point or complex numbers "
                    f"to be merged, got {fault}{LATE if is_shapeless(tensor) else ''}"
                )
        _refuse_aliases(names, tensors)
        for name, tensor in buffers:
            if fault := _buffer_fault(tensor):
                raise UsageError(
                    f"buffers: {name} must be a dense tensor with memory of its own to be merged, "
                    f"got {fault}; give `buffers` the modules without it, or register it with "
                    "persistent=False"
                )
        #: Without the part that `torch.compile` adds.
        self.names = tuple(map(plain_name, names))
        self.as_listed = as_listed
        self.shapes = tuple(tuple(t.shape) for t in tensors)
        self.dtypes = tuple(str(t.dtype) for t in tensors)
        #: Parameter indices of each added group.
        self.added = tuple(
            tuple(range(start, stop))
            for start, stop in pairwise(accumulate(added, initial=wrapped))
        )
        shapes = [(*t.shape, 2) if t.is_complex() else tuple(t.shape) for t in tensors]
        sizes = [prod(shape) for shape in shapes]
        self.buffers = tuple((name, *_kind(tensor)) for name, tensor in buffers)
        #: P, the fragments of the parameters that were wrapped.
        self.parts = fragments
        made = [_buffer_fragment(fragments, buffers)] if buffers else []
        first_added = fragments + len(made)

        def fragment(p: int, members: tuple[int, ...]) -> Fragment:
            offsets = (0, *accumulate(sizes[i] for i in members))
            return Fragment(p, members, offsets, tuple(shapes[i] for i in members))

        self.fragments: tuple[Fragment, ...] = (
            *map(fragment, range(fragments), partition(sizes[:wrapped], fragments)),
            *made,
            *map(fragment, range(first_added, first_added + len(added)), self.added),
        )

    @property
    def numel(self) -> int:
        return sum(f.numel for f in self.fragments)

    def fingerprint(self) -> tuple[tuple[str, str], ...]:
        """(field, value) pairs that two learners must have in common, ordered so that the first
        difference is a good one to report. Fields named `ADDED …` describe added groups; those must
        agree only where both learners have them."""
        kinds = [
            f"{list(shape)} {dtype}" for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        ]
        wrapped = len(kinds) - sum(map(len, self.added))
        listed = zip(self.names[:wrapped], kinds, strict=False)
        added = (", ".join(f"{self.names[i]} {kinds[i]}" for i in group) for group in self.added)
        return (
            ("number of parameters", str(wrapped)),
            *((f"{PARAMETER}{name}", kind) for name, kind in listed),
            *(() if self.as_listed else (BY_NAME,)),
            *((f"{BUFFER}{name}", f"{shape} {dtype}") for name, shape, dtype in self.buffers),
            *((f"{ADDED} {number}", group) for number, group in enumerate(added, 1)),
        )

    def divided(self, fragments: Sequence[Fragment]) -> Layout:
        """The same layout, with the fragments of one rank's parts."""
        own = copy(self)
        own.fragments = tuple(fragments)
        return own

    def policy(self) -> tuple[tuple[str, str], ...]:
        """(field, value) pairs about the buffers that two learners must have in common; none
        without buffers."""
        return (("buffers", f"{len(self.buffers)} tensors"),) if self.buffers else ()

    def groups(self) -> tuple[bytes, ...]:
        """One digest per fragment. For an added group it covers the names, shapes and dtypes of the
        group; for other fragments it is empty."""
        added = [
            content_digest(kind.encode())
            for name, kind in self.fingerprint()
            if name.startswith(ADDED)
        ]
        return (*(b"" for _ in self.fragments[len(added) :]), *added)

    def check(self, tensors: Sequence[Tensor], before: Sequence[Tensor] = ()) -> None:
        """Raise `UsageError` if `tensors` no longer match the layout, or if any of them is not the
        same object as the one in `before`."""
        if len(tensors) != len(self.shapes):
            raise UsageError(
                f"the optimizer must keep its {len(self.shapes)} parameters while it trains with "
                f"peers, got {len(tensors)}; add parameters with add_param_group() of the "
                "MendOptimizer, or close() it and make a new one"
            )
        for name, shape, dtype, tensor in zip(
            self.names, self.shapes, self.dtypes, tensors, strict=True
        ):
            if (tuple(tensor.shape), str(tensor.dtype)) != (shape, dtype):
                raise UsageError(
                    f"parameter {name} must keep its shape {list(shape)} and {dtype} while it "
                    f"trains with peers, got {list(tensor.shape)} {tensor.dtype}; close() this "
                    "optimizer and make a new one for the changed model"
                )
        for name, now, then in zip(self.names, tensors, before, strict=False):
            if now is not then:
                raise UsageError(
                    f"parameter {name} must keep its tensor while it trains with peers, got "
                    "another one in param_groups; write to the parameter in place, or make a new "
                    "MendOptimizer"
                )

    def check_buffers(self, tensors: Sequence[Tensor]) -> None:
        """Raise `UsageError` if the buffers no longer match the layout."""
        for (name, *kind), tensor in zip(self.buffers, tensors, strict=True):
            (shape, dtype), (shape_now, dtype_now) = kind, _kind(tensor)
            if (shape, dtype) != (shape_now, dtype_now):
                raise UsageError(
                    f"buffers: {name} must keep its shape {shape} and {dtype} while it trains with "
                    f"peers, got {shape_now} {dtype_now}; close() this optimizer and make a new "
                    "one for the changed model"
                )


def is_mergeable(tensor: Tensor) -> bool:
    """Whether a tensor of an optimizer takes part in merges. Integers don't: they are frozen, such
    as the quantized weights below an adapter."""
    return tensor.is_floating_point() or tensor.is_complex()


def is_distributed(tensor: Tensor) -> bool:
    """Whether it is a DTensor. To import that class takes a while, and most models have none."""
    return hasattr(tensor, "device_mesh")


def is_shapeless(tensor: Tensor) -> bool:
    """Whether a tensor has no values yet: that of a lazy module, or one on the meta device."""
    return is_lazy(tensor) or tensor.is_meta


def _fault(tensor: Tensor) -> str:
    """Why a tensor cannot be merged; empty if it can."""
    if is_shapeless(tensor):
        return "one without values yet"
    if not is_mergeable(tensor):
        return str(tensor.dtype)
    if is_distributed(tensor):
        return "a DTensor"
    if tensor.is_inference():
        return "one that was made in torch.inference_mode(), which cannot be trained"
    return _lazy_view(tensor) if tensor.layout == torch.strided else str(tensor.layout)


def _lazy_view(tensor: Tensor) -> str:
    """Why the values of a dense tensor are not those in its memory; empty if they are."""
    if tensor.is_conj():
        return "a conjugate view; give the resolve_conj() of it"
    return "a negative view; give the resolve_neg() of it" if tensor.is_neg() else ""


def overlaps_itself(tensor: Tensor) -> bool:
    """Whether some elements of a tensor share memory, as those of an expanded view and the windows
    of `unfold` do, so that they cannot be written one by one."""
    if tensor.layout != torch.strided or not tensor.numel():
        return False
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return any(n > 1 and step == 0 for n, step in steps) or tensor.numel() > _span(tensor)


def _span(tensor: Tensor) -> int:
    """The number of elements in memory from the first to the last of a tensor that has some."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((n - 1) * step for n, step in steps)


def _kind(tensor: Tensor) -> tuple[list[int], str]:
    """The shape and the dtype of a tensor."""
    return list(tensor.shape), str(tensor.dtype)


def _buffer_fault(tensor: Tensor) -> str:
    """Why a buffer cannot be merged; empty if it can."""
    if is_shapeless(tensor):
        return "one without values yet"
    if is_distributed(tensor):
        return "a DTensor"
    if tensor.layout != torch.strided or tensor.is_quantized:
        return str(tensor.dtype if tensor.is_quantized else tensor.layout)
    if overlaps_itself(tensor):
        return "one that shares memory among its elements"
    return _lazy_view(tensor)


def _buffer_fragment(p: int, buffers: Sequence[tuple[str, Tensor]]) -> BufferFragment:
    """The fragment of these buffers."""
    tensors = [torch.view_as_real(t) if t.is_complex() else t for _, t in buffers]
    words = (2 * -(-t.numel() * t.dtype.itemsize // 8) for t in tensors)
    return BufferFragment(
        index=p,
        tensors=tuple(range(len(tensors))),
        offsets=(0, *accumulate(words)),
        shapes=tuple(tuple(t.shape) for t in tensors),
        names=tuple(name for name, _ in buffers),
        dtypes=tuple(t.dtype for t in tensors),
    )


def _refuse_aliases(names: Sequence[str], tensors: Sequence[Tensor]) -> None:
    """Raise `UsageError` if two parameters start at the same memory, or one of them within the
    other. Of a tensor with gaps, only the first element counts: columns of one matrix may
    interleave and share nothing."""
    owners: dict[tuple[torch.device, int], int] = {}
    #: By the memory that they are views of, what is filled by which.
    held: dict[tuple[torch.device, int], list[tuple[int, int, int]]] = defaultdict(list)
    for i, tensor in enumerate(tensors):
        if not tensor.numel() or not tensor.data_ptr():
            continue
        owner = owners.setdefault((tensor.device, tensor.data_ptr()), i)
        if owner != i:
            raise UsageError(
                f"parameter {names[i]} must have memory of its own, got that of parameter "
                f"{names[owner]}; what others learned would be added to it twice: give tied "
                "parameters to the inner optimizer once"
            )
        storage = tensor.untyped_storage().data_ptr()
        held[tensor.device, storage].append((*_memory(tensor), i))
    for each in held.values():
        for (_, stop, one), (start, _, other) in pairwise(sorted(each)):
            if start < stop:
                owner, i = sorted((one, other))
                raise UsageError(
                    f"parameter {names[i]} must have memory of its own, got part of that of "
                    f"parameter {names[owner]}; what others learned would be added to it twice: "
                    "give the inner optimizer a copy of one of them"
                )


def _memory(tensor: Tensor) -> tuple[int, int]:
    """From where to where a tensor fills memory: all that it has, if its elements lie side by side,
    and else its first one."""
    filled = tensor.numel() if tensor.numel() == _span(tensor) else 1
    return tensor.data_ptr(), tensor.data_ptr() + filled * tensor.dtype.itemsize
