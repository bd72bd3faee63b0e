"""Packets: what the tensors of a fragment look like on the wire.

A packet says itself how to read it. "none" is the whole fragment as float32. "packed" has a form
for every tensor of the fragment, in its order; all numbers are little-endian:

    count: u32, coalesce: u32 | form: u32, param: u32, for each tensor | the tensors' bytes, each padded with zeros to 4

Tensors that follow one another and whose sizes are multiples of `coalesce` count as one, and flat;
where it is 0, each is for itself. A form is a way to write a tensor down, and `param` is what its
size depends on besides the tensor's shape: a rank, a number of indices. So all sizes are known, and
checked, before anything is allocated.

Decoding uses elementwise operations that are rounded once (no fused multiply-add), and sums that
are exact in whatever order: learners on different hardware get the same bits from the same
bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from mend_optim.errors import PeerError
from mend_optim.protocol.messages import Packet

Shape = tuple[int, ...]
Shapes = Sequence[Shape]
Array = np.ndarray[Any, Any]

MOST = 2.0**126  # no decoded value is greater: a convex combination of such values is finite
RAW, PACKED = "none", "packed"
# elements: as many decoded values stay in a cache, and the calls take less long than the numbers
PART = 1 << 19


class Form(Protocol):
    """One way to write a tensor of a known shape down."""

    @property
    def code(self) -> int:
        """Its number in a packet; never reused."""

    def nbytes(self, shape: Shape, param: int) -> int:
        """The size of such a tensor. Raises `PeerError` for a `param` that cannot be."""

    def check(self, data: memoryview, shape: Shape, param: int) -> None:
        """Raise `PeerError` unless every decoded value will be finite, and at most `MOST`. No
        decoding."""

    def decoded(
        self, data: memoryview, shape: Shape, param: int, scratch: Scratch
    ) -> Iterator[Tensor]:
        """The values (flat float32) in their order, `PART` at a time at most, in memory of
        `scratch` or that of the data. They are to be read only, and only until the next are asked
        for."""


class Later(NamedTuple):
    """Bytes that are made where they are to be, in the packet: `write` fills a tensor of them
    (uint8)."""

    nbytes: int
    write: Callable[[Tensor], object]


@dataclass(slots=True)
class Piece:
    """One encoded tensor: contiguous host tensors or arrays, or bytes to come, one after the
    other."""

    form: Form
    param: int
    parts: tuple[Tensor | Array | Later, ...]
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.nbytes = sum([part.nbytes for part in self.parts])


def as_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous float32 host tensor, without a copy; they keep its storage
    alive."""
    return tensor.numpy().view(np.uint8).data


def view(data: memoryview, dtype: torch.dtype, offset: int = 0, count: int = -1) -> Tensor:
    """`count` elements of `dtype` from byte `offset` of received bytes; without a copy, but for
    read-only or unaligned memory. The offset must be even for 2-byte dtypes, and so on."""
    nbytes = data.nbytes - offset if count < 0 else count * dtype.itemsize
    if nbytes == 0:
        return torch.empty(0, dtype=dtype)
    array = np.frombuffer(data, dtype=np.uint8, count=nbytes, offset=offset)
    # torch warns about read-only memory
    if not array.flags.writeable or array.ctypes.data % dtype.itemsize:
        array = array.copy()
    return torch.from_numpy(array).view(dtype)


class Scratch:
    """Memory for the decoded values of a fragment. `take(n)` is for the next n (flat float32): the
    same for one part after another, which stays in a cache; or where each belongs, by `place`."""

    def __init__(self, numel: int, place: Callable[[int], Tensor] | None = None) -> None:
        size = min(PART, numel)
        self._place = place
        self._values = torch.empty(0 if place else size, dtype=torch.float32)
        self._aside = torch.empty(4 * size, dtype=torch.uint8)

    def take(self, n: int) -> Tensor:
        return self._place(n) if self._place else self._values[:n]

    def aside(self, n: int, dtype: torch.dtype) -> Tensor:
        """Other memory, for what the values are made of: to allocate it for each tensor may cost as
        much as a pass."""
        nbytes = n * dtype.itemsize
        return (
            self._aside[:nbytes].view(dtype)
            if nbytes <= len(self._aside)
            else torch.empty(n, dtype=dtype)
        )


def as_floats(values: Tensor, scratch: Scratch) -> Iterator[Tensor]:
    """As float32, some at a time; without a copy where that is what they are."""
    for part in torch.split(values, PART):
        yield part if part.dtype == torch.float32 else scratch.take(len(part)).copy_(part)


def placed(parts: Iterable[Tensor]) -> Iterator[tuple[slice, Tensor]]:
    """Consecutive parts, and where each belongs."""
    at = 0
    for part in parts:
        yield slice(at, at + len(part)), part
        at += len(part)


def fill(out: Tensor, decoded: Callable[[Scratch], Iterable[Tensor]]) -> Tensor:
    """What is decoded as one: made where it is to be, if it can."""
    at = 0

    def place(n: int) -> Tensor:
        return out[at : at + n]

    for part in decoded(Scratch(len(out), place)):
        here = out[at : at + len(part)]
        if part.data_ptr() != here.data_ptr():
            here.copy_(part)
        at += len(part)
    return out


def bounded(values: Tensor) -> bool:
    """Whether every value is a number of magnitude `MOST` at most."""
    if values.numel() == 0:
        return True
    low, high = torch.aminmax(values)
    return bool(low >= -MOST) and bool(high <= MOST)


def require_bounded(values: Tensor) -> None:
    if not bounded(values):
        raise PeerError("not finite, or too great to be merged")


# ── the two plain forms ───────────────────────────────────────────────────────────────────────────


class PlainForm:
    """Every element in some floating point type. There is no `param`."""

    def __init__(self, code: int, dtype: torch.dtype) -> None:
        self.code, self.dtype = code, dtype

    def nbytes(self, shape: Shape, param: int) -> int:
        if param:
            raise PeerError(f"a form that takes no parameter has {param}")
        return self.dtype.itemsize * math.prod(shape)

    def check(self, data: memoryview, shape: Shape, param: int) -> None:
        require_bounded(view(data, self.dtype))

    def decoded(
        self, data: memoryview, shape: Shape, param: int, scratch: Scratch
    ) -> Iterator[Tensor]:
        return as_floats(view(data, self.dtype), scratch)


DENSE, BF16 = PlainForm(0, torch.float32), PlainForm(1, torch.bfloat16)


def dense(values: Tensor) -> Piece:
    return Piece(DENSE, 0, (values,))


def bf16(values: Tensor) -> Piece:
    """Relative error at most 2⁻⁸."""

    def write(out: Tensor) -> None:
        out.view(torch.bfloat16).copy_(values.reshape(-1))

    return Piece(BF16, 0, (Later(2 * values.numel(), write),))


# ── packing ───────────────────────────────────────────────────────────────────────────────────────

_HEAD = 8
_RECORD = 8


def padded(nbytes: int) -> int:
    return -(-nbytes // 4) * 4


def raw(values: Tensor) -> Packet:
    """Flat float32, as it is and without a copy."""
    return Packet(RAW, values.numel(), as_bytes(values))


def packed_nbytes(sizes: Sequence[int]) -> int:
    """The size of a packed packet whose tensors have so many bytes."""
    return _HEAD + _RECORD * len(sizes) + sum(map(padded, sizes))


def fresh(nbytes: int) -> memoryview:
    """A writable buffer of its own, with arbitrary content: zeroing it would take about as long as
    receiving it."""
    return np.empty(nbytes, dtype=np.uint8).data


def coalesced(shapes: Shapes, coalesce: int) -> Shapes:
    """Neighbours whose numbers of elements are multiples of `coalesce` as one flat shape; 0: each
    as it is."""
    if not coalesce:
        return shapes
    found: list[Shape] = []
    runs = groupby(shapes, lambda shape: math.prod(shape) % coalesce == 0)
    for whole, run in runs:
        found.extend([(sum(map(math.prod, run)),)] if whole else run)
    return found


def pack(
    pieces: Sequence[Piece],
    numel: int,
    allocate: Callable[[int], memoryview] = fresh,
    coalesce: int = 0,
) -> Packet:
    """One packet of the pieces, one for every tensor of a fragment of `numel` elements, `coalesced`
    by `coalesce`."""
    sizes = [piece.nbytes for piece in pieces]
    data = np.frombuffer(allocate(packed_nbytes(sizes)), dtype=np.uint8)
    head = data[: _HEAD + _RECORD * len(pieces)].view("<u4")
    head[:2] = len(pieces), coalesce
    head[2::2] = [piece.form.code for piece in pieces]
    head[3::2] = [piece.param for piece in pieces]
    at = head.nbytes
    for piece, size in zip(pieces, sizes, strict=True):
        for part in piece.parts:
            end = at + part.nbytes
            if not isinstance(part, Later):
                array = part.numpy() if isinstance(part, Tensor) else part
                data[at:end] = array.reshape(-1).view(np.uint8)
            elif end > at:  # torch takes no empty memory
                part.write(torch.from_numpy(data[at:end]))
            at = end
        if padded(size) > size:
            data[at : at + padded(size) - size] = 0
            at += padded(size) - size
    return Packet(PACKED, numel, data.data)


class Unpacked(NamedTuple):
    """One tensor of a received packet, its size checked."""

    form: Form
    param: int
    shape: Shape
    data: memoryview
    start: int
    stop: int


def unpack(
    packet: Packet, shapes: Shapes, forms: Mapping[int, Form], coalesces: bool = True
) -> list[Unpacked]:
    """The tensors of a packed packet, `coalesced` as it says (where it `coalesces` any), where the
    header, every size and their sum are as they must be. Raises `PeerError`."""
    data = packet.data.cast("B") if packet.nbytes else memoryview(b"")
    coalesce = int.from_bytes(data[4:_HEAD], "little") if coalesces else 0
    shapes = coalesced(shapes, coalesce)
    begin = _HEAD + _RECORD * len(shapes)
    if len(data) < begin:
        raise PeerError(
            f"a packet of {len(data)} bytes, expected at least {begin} for {len(shapes)} tensors"
        )
    head = np.frombuffer(data[:begin], dtype="<u4").tolist()
    if head[:2] != [len(shapes), coalesce]:
        raise PeerError(f"a packet with the head {head[:2]}, expected {[len(shapes), coalesce]}")
    ends = list(accumulate((math.prod(shape) for shape in shapes), initial=0))
    found, at = [], begin
    for i, shape in enumerate(shapes):
        code, param = head[2 + 2 * i : 4 + 2 * i]
        if code not in forms:
            raise PeerError(f"tensor {i} has the unknown form {code}")
        size, most = forms[code].nbytes(shape, param), 4 * math.prod(shape)
        if size > most or at + size > len(data):
            raise PeerError(
                f"tensor {i} of {size} bytes, expected at most {min(most, len(data) - at)}"
            )
        found.append(
            Unpacked(forms[code], param, shape, data[at : at + size], ends[i], ends[i + 1])
        )
        at += padded(size)
    if at != len(data):
        raise PeerError(f"a packet of {len(data)} bytes, expected {at}")
    return found
