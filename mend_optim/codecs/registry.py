"""The codecs by name, and the way back from any packet.

A codec says, for each tensor of a fragment, in which form it travels. What a lossy codec loses
stays with the learner that lost it (error feedback, `feedback.py`). Whatever is not smaller than
float32 travels as float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from mend_optim.codecs.blockwise import FLOAT4, INT4, INT8, Float4, Int4, Int8
from mend_optim.codecs.packing import (
    BF16,
    DENSE,
    PACKED,
    RAW,
    Form,
    Piece,
    Scratch,
    Shapes,
    as_floats,
    bf16,
    coalesced,
    dense,
    fill,
    fresh,
    pack,
    packed_nbytes,
    raw,
    require_bounded,
    unpack,
    view,
)
from mend_optim.codecs.powersgd import FACTORS, PowerSGD
from mend_optim.codecs.sparse import SPARSE, Sparse
from mend_optim.errors import PeerError, UsageError
from mend_optim.protocol.messages import Packet


class Codec(Protocol):
    """How the tensors of a fragment are encoded. `exact` codecs lose nothing and need no residual,
    which `residual_in_weights` in the weights or is kept beside them; `back` says whether what was
    merged comes back without further loss ("exact") or encoded once more ("same"). At rest what
    stays in the weights travels, too, by `FLUSH_CODEC`. Tensors that follow one another and whose
    sizes are multiples of `coalesce` are encoded as one: it is the same, and takes fewer calls."""

    @property
    def exact(self) -> bool: ...
    @property
    def residual_in_weights(self) -> bool: ...
    @property
    def back(self) -> str: ...
    @property
    def coalesce(self) -> int: ...
    def pieces(
        self, tensors: Sequence[Tensor], memory: Tensor | None
    ) -> tuple[list[Piece], Tensor | None]:
        """A piece for each tensor (float32, on the host, not to be changed), and what to remember
        of them until the next encoding: `memory` is what was remembered after the last one whose
        result was merged."""


@dataclass(frozen=True)
class Dense:
    """float32 as it is, 4 bytes an element."""

    exact = True
    residual_in_weights = False
    back = "exact"
    coalesce = 1

    def pieces(
        self, tensors: Sequence[Tensor], memory: Tensor | None
    ) -> tuple[list[Piece], Tensor | None]:
        return [dense(tensor) for tensor in tensors], None


@dataclass(frozen=True)
class BFloat16:
    """Rounded to bfloat16, 2 bytes an element, relative error at most 2⁻⁸."""

    exact = False
    residual_in_weights = False
    back = "exact"
    coalesce = 1

    def pieces(
        self, tensors: Sequence[Tensor], memory: Tensor | None
    ) -> tuple[list[Piece], Tensor | None]:
        return [bf16(tensor) for tensor in tensors], None


CODECS: dict[str, Codec] = {
    "none": Dense(),
    "bf16": BFloat16(),
    "int8": Int8(),
    "int4": Int4(),
    "float4": Float4(),
    "sparse": Sparse(),
    "powersgd": PowerSGD(),
}
FLOATS = (Dense, BFloat16)  # the codecs that send every number as a float
LOSSLESS: Codec = Sparse(density=1.0)
FLUSH_CODEC: Codec = Int8()  # how a learner at rest sends what stayed in its weights
_FORMS: tuple[Form, ...] = (DENSE, BF16, INT8, INT4, FLOAT4, SPARSE, *FACTORS.values())
FORMS = {form.code: form for form in _FORMS}


def find_codec(spec: str | Codec) -> Codec:
    """The codec of that name, or the codec itself. Raises `UsageError` for anything else."""
    if isinstance(spec, str) and spec in CODECS:
        return CODECS[spec]
    if isinstance(spec, str) or not isinstance(spec, tuple(map(type, CODECS.values()))):
        raise UsageError(
            f"codec must be one of {sorted(CODECS)} or a codec such as PowerSGD(rank=4), got {spec!r}"
        )
    return spec


def codec_name(spec: Codec) -> str:
    """What learners compare: the name, where there is one for just these settings."""
    return next((name for name, known in CODECS.items() if known == spec), repr(spec))


def split(values: Tensor, shapes: Shapes) -> list[Tensor]:
    """The tensors of a flat fragment, as views."""
    parts = values.split_with_sizes(list(map(prod, shapes)))
    return [
        part if len(shape) == 1 else part.view(shape)
        for part, shape in zip(parts, shapes, strict=True)
    ]


def encode_packet(
    codec: Codec,
    values: Tensor,
    shapes: Shapes,
    memory: Tensor | None = None,
    allocate: Callable[[int], memoryview] = fresh,
) -> tuple[Packet, Tensor | None]:
    """`values` (flat float32, finite) as a packet, never larger than float32, and the codec's
    memory after it."""
    tensors = split(values, coalesced(shapes, codec.coalesce))
    pieces, memory = codec.pieces(tensors, memory)
    least = [
        p if p.nbytes < 4 * t.numel() else dense(t) for p, t in zip(pieces, tensors, strict=True)
    ]
    if packed_nbytes([piece.nbytes for piece in least]) >= values.nbytes:
        return raw(values), memory
    return pack(least, values.numel(), allocate, codec.coalesce), memory


def check_packet(packet: Packet, shapes: Shapes) -> None:
    """Raise `PeerError` unless the packet decodes to a fragment of these shapes in which every
    value is a number of reasonable size. Decodes nothing."""
    if packet.codec not in (RAW, PACKED):
        raise PeerError(f"unknown codec {packet.codec!r}")
    numel = sum(map(prod, shapes))
    if packet.numel != numel or (packet.codec == RAW and packet.nbytes != 4 * numel):
        raise PeerError(
            f"packet of {packet.numel} elements in {packet.nbytes} bytes, expected {numel} in {4 * numel} at most"
        )
    if packet.codec == RAW:
        require_bounded(view(packet.data, torch.float32))
        return
    for part in unpack(packet, shapes, FORMS):
        part.form.check(part.data, part.shape, part.param)


def decoded(packet: Packet, shapes: Shapes, scratch: Scratch | None = None) -> Iterator[Tensor]:
    """The values of a checked packet (flat float32), some at a time: see `Form`."""
    scratch = scratch or Scratch(packet.numel)
    if packet.codec == RAW:
        yield from as_floats(view(packet.data, torch.float32), scratch)
        return
    for part in unpack(packet, shapes, FORMS):
        yield from part.form.decoded(part.data, part.shape, part.param, scratch)


def decode_packet(packet: Packet, shapes: Shapes, out: Tensor | None = None) -> Tensor:
    """A checked packet as a flat float32 tensor: a view of its bytes where they are float32, else
    `out`, or a new one."""
    if packet.codec == RAW:
        return view(packet.data, torch.float32)
    out = torch.empty(packet.numel, dtype=torch.float32) if out is None else out
    return fill(out, partial(decoded, packet, shapes))
