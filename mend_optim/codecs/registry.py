"""The codecs by name, and the decoding of any packet.

A codec chooses, for each tensor of a fragment, the form in which it travels. The residual of a
lossy encoding stays with the learner that encoded (error feedback, `feedback.py`). A tensor that a
codec does not make smaller than float32 travels as float32."""

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
    BACK,
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
from mend_optim.errors import PeerError, UsageError, require
from mend_optim.protocol.messages import Packet


class Codec(Protocol):
    """How the tensors of a fragment are encoded."""

    @property
    def exact(self) -> bool:
        """Whether the codec loses nothing, and so needs no residual."""

    @property
    def residual_in_weights(self) -> bool:
        """Whether the residual stays in the weights, instead of beside them. At rest it travels
        too, encoded by `FLUSH_CODEC`."""

    @property
    def back(self) -> str:
        """How a merged delta comes back: "exact" loses nothing more, "same" encodes it once more,
        "auto" returns the members' packets where they are no larger than that."""

    @property
    def coalesce(self) -> int:
        """Neighbouring tensors whose sizes are multiples of this number are encoded as one. The
        result is the same, in fewer calls. 0 joins nothing."""

    def pieces(
        self, tensors: Sequence[Tensor], memory: Tensor | None
    ) -> tuple[list[Piece], Tensor | None]:
        """Encode the tensors (float32, on the host, not to be changed). Returns a piece for each of
        them, and the codec's memory until the next encoding. `memory` is the codec's memory after
        the last encoding whose result was merged."""


@dataclass(frozen=True)
class Dense:
    """float32 unchanged, 4 bytes an element."""

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
    """Rounded to bfloat16, 2 bytes an element, with a relative error of at most 2⁻⁸."""

    back: str = "auto"
    exact = False
    residual_in_weights = False
    coalesce = 1

    def __post_init__(self) -> None:
        require(self.back in BACK, "back", self.back, f"one of {BACK}")

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
#: The codecs that send every number as a float.
FLOATS = (Dense, BFloat16)
LOSSLESS: Codec = Sparse(density=1.0)
#: Encodes what stayed in the weights of a learner at rest.
FLUSH_CODEC: Codec = Int8()
_FORMS: tuple[Form, ...] = (DENSE, BF16, INT8, INT4, FLOAT4, SPARSE, *FACTORS.values())
FORMS = {form.code: form for form in _FORMS}


def find_codec(spec: str | Codec) -> Codec:
    """The codec of that name, or the codec itself. Raises `UsageError` for anything else."""
    if isinstance(spec, str) and spec in CODECS:
        return CODECS[spec]
    if isinstance(spec, str) or not isinstance(spec, tuple(map(type, CODECS.values()))):
        raise UsageError(
            f"codec must be one of {sorted(CODECS)} or a codec such as PowerSGD(rank=4), "
            f"got {spec!r}"
        )
    return spec


def codec_name(spec: Codec) -> str:
    """The text by which learners compare codecs: the name of exactly these settings, if they have
    one, or else their repr."""
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
    """Encode a flat fragment.

    Args:
        codec: how to encode.
        values: flat float32, finite.
        shapes: those of the fragment's tensors.
        memory: the codec's memory after its last merged encoding.
        allocate: returns a writable buffer of so many bytes.

    Returns:
        The packet, never larger than float32, and the codec's memory now.
    """
    tensors = split(values, coalesced(shapes, codec.coalesce))
    pieces, memory = codec.pieces(tensors, memory)
    smallest = [
        p if p.nbytes < 4 * t.numel() else dense(t) for p, t in zip(pieces, tensors, strict=True)
    ]
    if packed_nbytes([piece.nbytes for piece in smallest]) >= values.nbytes:
        return raw(values), memory
    return pack(smallest, values.numel(), allocate, codec.coalesce), memory


def check_packet(packet: Packet, shapes: Shapes, *, measured: bool = False) -> None:
    """Raise `PeerError` unless the packet decodes to a fragment of these shapes whose values are
    all finite and not too large. Decodes nothing.

    Args:
        packet: the packet as received.
        shapes: those of the fragment's tensors.
        measured: whether the caller will measure the decoded values itself. Then those that travel
            as they are, are not looked at.
    """
    if packet.codec not in (RAW, PACKED):
        raise PeerError(f"Codec {packet.codec!r} is unknown")
    numel = sum(map(prod, shapes))
    if packet.numel != numel or (packet.codec == RAW and packet.nbytes != 4 * numel):
        raise PeerError(
            f"Packet has {packet.numel} elements in {packet.nbytes} bytes; "
            f"{numel} elements in at most {4 * numel} bytes are needed"
        )
    if packet.codec == RAW:
        if not measured:
            require_bounded(view(packet.data, torch.float32))
        return
    for part in unpack(packet, shapes, FORMS):
        part.form.check(part.data, part.shape, part.param)


def decoded(packet: Packet, shapes: Shapes, scratch: Scratch | None = None) -> Iterator[Tensor]:
    """The values of a checked packet (flat float32), part by part, as `Form.decoded` returns
    them."""
    scratch = scratch or Scratch(packet.numel)
    if packet.codec == RAW:
        yield from as_floats(view(packet.data, torch.float32), scratch)
        return
    for part in unpack(packet, shapes, FORMS):
        yield from part.form.decoded(part.data, part.shape, part.param, scratch)


def decode_packet(packet: Packet, shapes: Shapes, out: Tensor | None = None) -> Tensor:
    """A checked packet as a flat float32 tensor: a view of its bytes if they are float32, or else
    `out`, or a new tensor."""
    if packet.codec == RAW:
        return view(packet.data, torch.float32)
    out = torch.empty(packet.numel, dtype=torch.float32) if out is None else out
    return fill(out, partial(decoded, packet, shapes))
