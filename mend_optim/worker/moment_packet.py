"""Moments on the wire: one packed packet for each moment of a fragment, in which `param` is the
tensor's update count.

A second moment travels as its root. So v ≥ 0 whatever is lost, and |m| ≤ √v still holds, because
rounding keeps order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from mend_optim.codecs.packing import (
    MOST,
    PACKED,
    Form,
    Later,
    Piece,
    Scratch,
    Shape,
    Shapes,
    Unpacked,
    as_floats,
    fill,
    fresh,
    pack,
    packed_nbytes,
    placed,
    unpack,
    view,
)
from mend_optim.codecs.registry import split
from mend_optim.engine.moment_schedule import Moment, Updates
from mend_optim.errors import PeerError
from mend_optim.protocol.messages import Packet
from mend_optim.worker.merge import blocks

MOST_UPDATES = 2**32 - 1


class CountedForm:
    """Every element in one floating point type, from `least` to `most`. `param` is the number of
    updates, at least 1."""

    def __init__(
        self, code: int, dtype: torch.dtype, least: float = -MOST, most: float = MOST
    ) -> None:
        self.code = code
        self.dtype = dtype
        self.least = least
        self.most = most

    def nbytes(self, shape: Shape, param: int) -> int:
        if param < 1:
            raise PeerError("Moment has values but 0 updates; at least 1 is needed")
        return self.dtype.itemsize * math.prod(shape)

    def check(self, data: memoryview, shape: Shape, param: int) -> None:
        if not is_between(view(data, self.dtype), self.least, self.most):
            raise PeerError("Moment is not finite, too large, or negative where it cannot be")

    def decoded(
        self, data: memoryview, shape: Shape, param: int, scratch: Scratch
    ) -> Iterator[Tensor]:
        return as_floats(view(data, self.dtype), scratch)

    def write(self, values: Tensor, data: Tensor) -> None:
        data.view(self.dtype).copy_(values)


class RootForm(CountedForm):
    """√v. With 8 bits of it, the relative error of v is at most 2⁻⁷."""

    def decoded(
        self, data: memoryview, shape: Shape, param: int, scratch: Scratch
    ) -> Iterator[Tensor]:
        # 8 bits times 8 bits: the product is exact.
        return (root.mul_(root) for root in super().decoded(data, shape, param, scratch))

    def write(self, values: Tensor, data: Tensor) -> None:
        roots = data.view(self.dtype)
        for block in blocks(values.numel()):
            roots[block] = values[block].sqrt()


class AbsentForm:
    """A tensor without this moment: no bytes, no updates."""

    code = 35

    def nbytes(self, shape: Shape, param: int) -> int:
        if param:
            raise PeerError(f"Moment is absent but has {param} updates; 0 are needed")
        return 0

    def check(self, data: memoryview, shape: Shape, param: int) -> None:
        """Nothing to check: every decoded value is 0."""

    def decoded(
        self, data: memoryview, shape: Shape, param: int, scratch: Scratch
    ) -> Iterator[Tensor]:
        return as_floats(torch.zeros(1, dtype=torch.float32).expand(math.prod(shape)), scratch)


def is_between(values: Tensor, least: float, most: float) -> bool:
    """Whether every value is a number from `least` to `most`."""
    if values.numel() == 0:
        return True
    low, high = torch.aminmax(values)
    return bool(low >= least) and bool(high <= most)


FLOATS = CountedForm(32, torch.float32)
SQUARES = CountedForm(32, torch.float32, least=0)
HALVES = CountedForm(33, torch.bfloat16)
ROOTS = RootForm(34, torch.bfloat16, least=0, most=math.sqrt(MOST))
ABSENT = AbsentForm()


def _forms(moment: Moment) -> tuple[CountedForm, CountedForm]:
    """The moment's exact form, and the form of half the size."""
    return (SQUARES, ROOTS) if moment.nonnegative else (FLOATS, HALVES)


def dense_nbytes(shapes: Shapes) -> int:
    """The size of the largest packet of one moment, in bytes."""
    return packed_nbytes([4 * math.prod(shape) for shape in shapes])


def encode_moment(
    moment: Moment,
    values: Tensor,
    updates: Updates,
    shapes: Shapes,
    *,
    exact: bool,
    allocate: Callable[[int], memoryview] = fresh,
) -> Packet:
    """Encode a moment of a fragment.

    Args:
        moment: which moment this is.
        values: flat float32.
        updates: one count for each tensor; 0 where the moment is absent.
        shapes: those of the fragment's tensors.
        exact: whether to send float32. Otherwise bfloat16 travels, of a second moment its root.
        allocate: returns a writable buffer of so many bytes.

    Raises:
        PeerError: a value is not finite, or negative where it must not be.
    """
    precise, half = _forms(moment)
    form = precise if exact or moment.exact else half
    pieces = []
    for part, count in zip(split(values, shapes), updates, strict=True):
        if not count:
            pieces.append(Piece(ABSENT, 0, ()))
            continue
        if not is_between(part, precise.least, precise.most):
            raise PeerError(
                f"its {moment.name} is not finite, too large, or negative where it cannot be"
            )
        write = partial(form.write, part.view(-1))
        data = Later(form.dtype.itemsize * part.numel(), write)
        pieces.append(Piece(form, min(count, MOST_UPDATES), (data,)))
    return pack(pieces, values.numel(), allocate)


def _unpack(moment: Moment, packet: Packet, shapes: Shapes) -> list[Unpacked]:
    forms: dict[int, Form] = {form.code: form for form in (*_forms(moment), ABSENT)}
    return unpack(packet, shapes, forms, coalesces=False)


def check_moment(moment: Moment, packet: Packet, shapes: Shapes) -> None:
    """Raise `PeerError` unless the packet decodes to this moment of a fragment of these shapes. All
    sizes must fit, every value must be finite and not too large, and none may be negative that must
    not be. Decodes nothing."""
    numel = sum(map(math.prod, shapes))
    if packet.codec != PACKED or packet.numel != numel:
        raise PeerError(
            f"{moment.name}: Packet is {packet.codec!r} with {packet.numel} elements; "
            f"{PACKED!r} with {numel} is needed"
        )
    try:
        for part in _unpack(moment, packet, shapes):
            part.form.check(part.data, part.shape, part.param)
    except PeerError as wrong:
        raise PeerError(f"{moment.name}: {wrong}") from None


def decode_moment(moment: Moment, packet: Packet, shapes: Shapes, out: Tensor) -> Updates:
    """Decode a checked packet into `out` (flat float32), zeros where the moment is absent. Returns
    the update counts."""
    parts = _unpack(moment, packet, shapes)
    fill(out, lambda scratch: (values for part in parts for values in _decoded(part, scratch)))
    return tuple(part.param for part in parts)


def _decoded(part: Unpacked, scratch: Scratch) -> Iterator[Tensor]:
    return part.form.decoded(part.data, part.shape, part.param, scratch)


class Average(NamedTuple):
    """By tensor, the largest update count of any member, and how many have the tensor; 0 and 0 if
    none has."""

    updates: Updates
    members: tuple[int, ...]


def average(
    moment: Moment,
    packets: Sequence[Packet],
    shapes: Shapes,
    out: Tensor,
    held: Sequence[Sequence[int]] = (),
) -> Average:
    """Average a moment over its members: Σ nᵢsᵢ / n, n = Σ nᵢ, tensor by tensor, over the packets
    that have the tensor, in their order. A packet may be a mean of nᵢ members itself.

    Every quotient and every sum is rounded once, so the result is the same on all hardware. The
    quotients come first, so that no sum is infinite.

    Args:
        moment: which moment this is.
        packets: checked packets.
        shapes: those of the fragment's tensors.
        out: receives the mean; flat float32, zeros where n = 0.
        held: for each packet, by tensor, of how many members it is the mean. Empty: of one each.
    """
    scratch = Scratch(out.numel())
    quotients = Scratch(out.numel())
    members = [_unpack(moment, packet, shapes) for packet in packets]
    held = held or [(1,) * len(shapes)] * len(packets)
    updates, counts = [], []
    for i, tensor in enumerate(split(out, shapes)):
        mean = tensor.view(-1).zero_()
        pairs = zip(members, held, strict=True)
        have = [(parts[i], count[i]) for parts, count in pairs if parts[i].param]
        total = sum(count for _, count in have)
        for part, count in have:
            for here, values in placed(_decoded(part, scratch)):
                mean[here].add_(torch.div(values, total / count, out=quotients.take(len(values))))
        updates.append(max((part.param for part, _ in have), default=0))
        counts.append(total)
    return Average(tuple(updates), tuple(counts))


def tensors_held(moment: Moment, packet: Packet, shapes: Shapes) -> list[bool]:
    """For each tensor, whether a checked packet has its moment."""
    return [part.param > 0 for part in _unpack(moment, packet, shapes)]
