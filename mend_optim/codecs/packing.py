"""Packets: how the tensors of a fragment are laid out on the wire.

A packet says itself how to read it. A "none" packet is the whole fragment as float32. A "packed"
packet has a form for every tensor of the fragment, in the fragment's order. All numbers are
little-endian:

    count: u32, coalesce: u32
    form: u32, param: u32, for each tensor
    the tensors' bytes, each padded with zeros to a multiple of 4

Neighbouring tensors whose sizes are multiples of `coalesce` count as one flat tensor. Where
`coalesce` is 0, every tensor counts by itself. A form is a way to write down a tensor. `param` is
what the size depends on besides the tensor's shape: a rank, or a number of indices. So all sizes
are known, and checked, before anything is allocated.

Decoding uses elementwise operations that are rounded once (no fused multiply-add), and sums that
are exact in any order. Learners on different hardware get the same bits from the same bytes."""

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

#: No decoded value is larger, so a convex combination of decoded values is finite.
MOST = 2.0**126
RAW, PACKED = "none", "packed"
#: The ways in which a codec may let a merged delta come back.
BACK = ("auto", "exact", "same")
#: Elements decoded at a time: few enough to stay in a cache, enough that the calls take less time
#: than the numbers.
PART = 1 << 19


class Form(Protocol):
    """One way to write down a tensor of a known shape."""

    @property
    def code(self) -> int:
        """The form's number in a packet; never reused."""

    def nbytes(self, shape: Shape, param: int) -> int:
        """The size of such a tensor, in bytes. Raises `PeerError` for an impossible `param`."""

    def check(self, data: memoryview, shape: Shape, param: int) -> None:
        """Raise `PeerError` unless every decoded value will be finite and at most `MOST`. Decodes
        nothing."""

    def decoded(
        self, data: memoryview, shape: Shape, param: int, scratch: Scratch
    ) -> Iterator[Tensor]:
        """The values (flat float32) in their order, at most `PART` at a time, in memory of
        `scratch` or of the data. Callers only read a part, and only until they ask for the
        next."""


class Later(NamedTuple):
    """Bytes that are produced in place, in the packet: `write` fills a tensor of them (uint8)."""

    nbytes: int
    write: Callable[[Tensor], object]


@dataclass(slots=True)
class Piece:
    """One encoded tensor. Its parts follow one another in the packet: contiguous host tensors,
    arrays, or bytes produced later."""

    form: Form
    param: int
    parts: tuple[Tensor | Array | Later, ...]
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.nbytes = sum(part.nbytes for part in self.parts)


def as_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous float32 host tensor, without a copy. They keep its storage
    alive."""
    return tensor.numpy().view(np.uint8).data


def view(data: memoryview, dtype: torch.dtype, offset: int = 0, count: int = -1) -> Tensor:
    """Received bytes as a tensor. Copies only read-only or unaligned memory.

    Args:
        data: the bytes.
        dtype: the type of the elements.
        offset: the first byte to use; even for 2-byte dtypes, and so on.
        count: the number of elements; −1 for all that follow.
    """
    nbytes = data.nbytes - offset if count < 0 else count * dtype.itemsize
    if nbytes == 0:
        return torch.empty(0, dtype=dtype)
    array = np.frombuffer(data, dtype=np.uint8, count=nbytes, offset=offset)
    # torch warns about read-only memory.
    if not array.flags.writeable or array.ctypes.data % dtype.itemsize:
        array = array.copy()
    return torch.from_numpy(array).view(dtype)


class Scratch:
    """Memory for the decoded values of a fragment.

    `take(n)` returns room for the next n values (flat float32). Without `place` it is the same
    memory for every part, which stays in a cache. With `place` it is the memory where the part
    belongs."""

    def __init__(self, numel: int, place: Callable[[int], Tensor] | None = None) -> None:
        size = min(PART, numel)
        self._place = place
        self._values = torch.empty(0 if place else size, dtype=torch.float32)
        self._aside = torch.empty(4 * size, dtype=torch.uint8)

    def take(self, n: int) -> Tensor:
        return self._place(n) if self._place else self._values[:n]

    def aside(self, n: int, dtype: torch.dtype) -> Tensor:
        """Other memory, for what the values are computed from: to allocate it for each tensor may
        cost as much as a pass."""
        nbytes = n * dtype.itemsize
        if nbytes > len(self._aside):
            return torch.empty(n, dtype=dtype)
        return self._aside[:nbytes].view(dtype)


def as_floats(values: Tensor, scratch: Scratch) -> Iterator[Tensor]:
    """The values as float32, part by part. float32 values are not copied."""
    for part in torch.split(values, PART):
        yield part if part.dtype == torch.float32 else scratch.take(len(part)).copy_(part)


def placed(parts: Iterable[Tensor]) -> Iterator[tuple[slice, Tensor]]:
    """Consecutive parts, each with the slice where it belongs."""
    at = 0
    for part in parts:
        yield slice(at, at + len(part)), part
        at += len(part)


def fill(out: Tensor, decoded: Callable[[Scratch], Iterable[Tensor]]) -> Tensor:
    """All decoded parts in one tensor. Forms that can decode in place write straight into it."""
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
    """Whether every value is a number of magnitude at most `MOST`."""
    if values.numel() == 0:
        return True
    low, high = torch.aminmax(values)
    return bool(low >= -MOST) and bool(high <= MOST)


def require_bounded(values: Tensor) -> None:
    """Raise `PeerError` unless every value is a number of magnitude at most `MOST`."""
    if not bounded(values):
        raise PeerError("Values are not finite, or too large to be merged")


# ── the two plain forms ───────────────────────────────────────────────────────────────────────────


class PlainForm:
    """Every element in one floating point type. `param` is 0."""

    def __init__(self, code: int, dtype: torch.dtype) -> None:
        self.code = code
        self.dtype = dtype

    def nbytes(self, shape: Shape, param: int) -> int:
        if param:
            raise PeerError(f"Form parameter is {param}; this form takes none")
        return self.dtype.itemsize * math.prod(shape)

    def check(self, data: memoryview, shape: Shape, param: int) -> None:
        require_bounded(view(data, self.dtype))

    def decoded(
        self, data: memoryview, shape: Shape, param: int, scratch: Scratch
    ) -> Iterator[Tensor]:
        return as_floats(view(data, self.dtype), scratch)


DENSE = PlainForm(0, torch.float32)
BF16 = PlainForm(1, torch.bfloat16)


def dense(values: Tensor) -> Piece:
    """The values as float32."""
    return Piece(DENSE, 0, (values,))


def bf16(values: Tensor) -> Piece:
    """The values as bfloat16, with a relative error of at most 2⁻⁸."""

    def write(out: Tensor) -> None:
        out.view(torch.bfloat16).copy_(values.reshape(-1))

    return Piece(BF16, 0, (Later(2 * values.numel(), write),))


# ── packing ───────────────────────────────────────────────────────────────────────────────────────

_HEAD = 8
_RECORD = 8


def padded(nbytes: int) -> int:
    """`nbytes` rounded up to a multiple of 4."""
    return -(-nbytes // 4) * 4


def raw(values: Tensor) -> Packet:
    """Flat float32 values as a packet, without a copy."""
    return Packet(RAW, values.numel(), as_bytes(values))


def packed_nbytes(sizes: Sequence[int]) -> int:
    """The size of a packed packet whose tensors have these sizes, in bytes."""
    return _HEAD + _RECORD * len(sizes) + sum(map(padded, sizes))


def fresh(nbytes: int) -> memoryview:
    """A new writable buffer with arbitrary content: zeroing it would take about as long as
    receiving it."""
    return np.empty(nbytes, dtype=np.uint8).data


def coalesced(shapes: Shapes, coalesce: int) -> Shapes:
    """The shapes, with neighbours whose sizes are multiples of `coalesce` joined to one flat shape.
    With `coalesce` 0, the shapes as they are."""
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
    """One packed packet.

    Args:
        pieces: one for every tensor of the fragment, `coalesced` by `coalesce`.
        numel: the fragment's number of elements.
        allocate: returns a writable buffer of so many bytes.
        coalesce: as the module docstring says; 0 joins nothing.
    """
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
            elif end > at:  # torch cannot wrap empty memory
                part.write(torch.from_numpy(data[at:end]))
            at = end
        if padded(size) > size:
            data[at : at + padded(size) - size] = 0
            at += padded(size) - size
    return Packet(PACKED, numel, data.data)


class Unpacked(NamedTuple):
    """One tensor of a received packet, its size checked. `start` and `stop` bound its elements in
    the flat fragment."""

    form: Form
    param: int
    shape: Shape
    data: memoryview
    start: int
    stop: int


def unpack(
    packet: Packet, shapes: Shapes, forms: Mapping[int, Form], coalesces: bool = True
) -> list[Unpacked]:
    """The tensors of a packed packet, after a check of the header, of every size, and of their sum.

    Args:
        packet: the packet as received.
        shapes: those of the fragment's tensors.
        forms: the allowed forms, by their codes.
        coalesces: whether the packet may join neighbours.

    Raises:
        PeerError: the packet does not fit the fragment.
    """
    data = packet.data.cast("B") if packet.nbytes else memoryview(b"")
    coalesce = int.from_bytes(data[4:_HEAD], "little") if coalesces else 0
    shapes = coalesced(shapes, coalesce)
    begin = _HEAD + _RECORD * len(shapes)
    if len(data) < begin:
        raise PeerError(
            f"Packet is {len(data)} bytes; at least {begin} are needed for {len(shapes)} tensors"
        )
    head = np.frombuffer(data[:begin], dtype="<u4").tolist()
    if head[:2] != [len(shapes), coalesce]:
        raise PeerError(f"Packet header is {head[:2]}; {[len(shapes), coalesce]} is needed")
    ends = list(accumulate((math.prod(shape) for shape in shapes), initial=0))
    found = []
    at = begin
    for i, shape in enumerate(shapes):
        code, param = head[2 + 2 * i : 4 + 2 * i]
        if code not in forms:
            raise PeerError(f"Tensor {i} has the unknown form {code}")
        size = forms[code].nbytes(shape, param)
        most = 4 * math.prod(shape)
        if size > most or at + size > len(data):
            raise PeerError(f"Tensor {i} is {size} bytes; the limit is {min(most, len(data) - at)}")
        found.append(
            Unpacked(forms[code], param, shape, data[at : at + size], ends[i], ends[i + 1])
        )
        at += padded(size)
    if at != len(data):
        raise PeerError(f"Packet is {len(data)} bytes; its tensors need {at}")
    return found
