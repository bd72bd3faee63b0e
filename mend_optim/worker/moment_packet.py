"""Moments on the wire: one packed packet for each moment of a fragment, whose `param` is the
tensor's update count.

A second moment travels as its root: v ≥ 0 whatever is lost, and since rounding keeps order, |m| ≤
√v stays so, too."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

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
    """Every element in some floating point type, from `least` to `most`; `param` is the number of
    updates, at least 1."""

    def __init__(
        self, code: int, dtype: torch.dtype, least: float = -MOST, most: float = MOST
    ) -> None:
        self.code, self.dtype, self.least, self.most = code, dtype, least, most

    def nbytes(self, shape: Shape, param: int) -> int:
        if param < 1:
            raise PeerError("a moment without updates")
        return self.dtype.itemsize * math.prod(shape)

    def check(self, data: memoryview, shape: Shape, param: int) -> None:
        require_between(view(data, self.dtype), self.least, self.most)

    def decoded(
        self, data: memoryview, shape: Shape, param: int, scratch: Scratch
    ) -> Iterator[Tensor]:
        return as_floats(view(data, self.dtype), scratch)

    def write(self, values: Tensor, data: Tensor) -> None:
        data.view(self.dtype).copy_(values)


class RootForm(CountedForm):
    """√v: of 8 bits, the relative error of v is at most 2⁻⁷."""

    def decoded(
        self, data: memoryview, shape: Shape, param: int, scratch: Scratch
    ) -> Iterator[Tensor]:
        # exact: 8 bits times 8 bits
        return (root.mul_(root) for root in super().decoded(data, shape, param, scratch))

    def write(self, values: Tensor, data: Tensor) -> None:
        roots = data.view(self.dtype)
        for block in blocks(values.numel()):
            roots[block] = values[block].sqrt()


class AbsentForm:
    """No such state: no bytes, no updates."""

    code = 35

    def nbytes(self, shape: Shape, param: int) -> int:
        if param:
            raise PeerError(f"a moment that is absent has {param} updates")
        return 0

    def check(self, data: memoryview, shape: Shape, param: int) -> None:
        """Whatever is decoded is 0."""

    def decoded(
        self, data: memoryview, shape: Shape, param: int, scratch: Scratch
    ) -> Iterator[Tensor]:
        return as_floats(torch.zeros(1, dtype=torch.float32).expand(math.prod(shape)), scratch)


def require_between(values: Tensor, least: float, most: float) -> None:
    """Raise `PeerError` for anything else, NaN too."""
    low, high = torch.aminmax(values) if values.numel() else (least, most)
    if not (bool(low >= least) and bool(high <= most)):
        raise PeerError("not finite, too great, or negative where it cannot be")


FLOATS, SQUARES = CountedForm(32, torch.float32), CountedForm(32, torch.float32, least=0)
HALVES, ROOTS = (
    CountedForm(33, torch.bfloat16),
    RootForm(34, torch.bfloat16, least=0, most=math.sqrt(MOST)),
)
ABSENT = AbsentForm()


def _forms(moment: Moment) -> tuple[CountedForm, CountedForm]:
    """The exact one, and the one of half the size."""
    return (SQUARES, ROOTS) if moment.nonnegative else (FLOATS, HALVES)


def dense_nbytes(shapes: Shapes) -> int:
    """The size of the greatest packet."""
    return packed_nbytes([4 * math.prod(shape) for shape in shapes])


def encode_moment(
    moment: Moment,
    values: Tensor,
    updates: Updates,
    shapes: Shapes,
    exact: bool,
    allocate: Callable[[int], memoryview] = fresh,
) -> Packet:
    """`values` (flat float32) in float32, or else in bfloat16, of a second moment the root. Raises
    `PeerError` for what is not finite, or negative and must not be."""
    precise, half = _forms(moment)
    form = precise if exact or moment.exact else half
    pieces = []
    for part, count in zip(split(values, shapes), updates, strict=True):
        if count:
            try:
                require_between(part, precise.least, precise.most)
            except PeerError as wrong:
                raise PeerError(f"its {moment.name} is {wrong}") from None
            write = partial(form.write, part.view(-1))
            pieces.append(
                Piece(
                    form,
                    min(count, MOST_UPDATES),
                    (Later(form.dtype.itemsize * part.numel(), write),),
                )
            )
        else:
            pieces.append(Piece(ABSENT, 0, ()))
    return pack(pieces, values.numel(), allocate)


def _unpack(moment: Moment, packet: Packet, shapes: Shapes) -> list[Unpacked]:
    forms: dict[int, Form] = {form.code: form for form in (*_forms(moment), ABSENT)}
    return unpack(packet, shapes, forms, coalesces=False)


def check_moment(moment: Moment, packet: Packet, shapes: Shapes) -> None:
    """Raise `PeerError` unless the packet decodes to this moment of a fragment of these shapes:
    sizes fit, every value is a number of reasonable size, and none negative where none may be.
    Decodes nothing."""
    numel = sum(map(math.prod, shapes))
    if packet.codec != PACKED or packet.numel != numel:
        raise PeerError(
            f"{moment.name}: a packet {packet.codec!r} of {packet.numel} elements, expected {PACKED!r} of {numel}"
        )
    try:
        for part in _unpack(moment, packet, shapes):
            part.form.check(part.data, part.shape, part.param)
    except PeerError as wrong:
        raise PeerError(f"{moment.name}: {wrong}") from None


def decode_moment(moment: Moment, packet: Packet, shapes: Shapes, out: Tensor) -> Updates:
    """A checked packet into `out` (flat float32); zeros where it is absent."""
    parts = _unpack(moment, packet, shapes)
    fill(out, lambda scratch: (values for part in parts for values in _decoded(part, scratch)))
    return tuple(part.param for part in parts)


def _decoded(part: Unpacked, scratch: Scratch) -> Iterator[Tensor]:
    return part.form.decoded(part.data, part.shape, part.param, scratch)


def average(moment: Moment, packets: Sequence[Packet], shapes: Shapes, out: Tensor) -> Updates:
    """Σ sᵢ / n, tensor by tensor, over the n checked packets that have it, in their order; n = 0:
    absent. Updates are the greatest of them.

    `out` is flat float32 of the fragment's size. Every quotient and every sum is rounded once, so
    that it is the same on all hardware; the quotients first, so that no sum is infinite."""
    scratch, quotients = Scratch(out.numel()), Scratch(out.numel())
    members = [_unpack(moment, packet, shapes) for packet in packets]
    updates = []
    for i, tensor in enumerate(split(out, shapes)):
        mean, have = tensor.view(-1).zero_(), [parts[i] for parts in members if parts[i].param]
        for part in have:
            for here, values in placed(_decoded(part, scratch)):
                mean[here].add_(torch.div(values, len(have), out=quotients.take(len(values))))
        updates.append(max((part.param for part in have), default=0))
    return tuple(updates)
