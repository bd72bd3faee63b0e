"""Packets: what a tensor looks like on the wire, and the dense codecs.

A codec turns a flat float32 tensor into a self-describing packet and back. What a lossy codec loses stays with the
learner that lost it (error feedback, `anchor.py`): residual = A - decode(encode(A))."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from .errors import PeerError, UsageError


@dataclass(frozen=True, slots=True)
class Packet:
    """One encoded tensor: the codec's name, the number of elements, the bytes. `data` is any contiguous buffer."""

    codec: str
    numel: int
    data: memoryview

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


Sections = Mapping[str, Packet]
"""The tensors of one message by name: "delta" in an offer, "merged" in a seal, "anchor" and "velocity" in a state."""


class Codec(Protocol):
    """Encode and decode flat float32 tensors. `exact` codecs lose nothing and need no residual."""

    name: str
    exact: bool

    def nbytes(self, numel: int) -> int: ...
    def encode(self, tensor: Tensor) -> Packet: ...
    def decode(self, packet: Packet) -> Tensor: ...


def as_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous float32 host tensor, without a copy; they keep its storage alive."""
    return tensor.numpy().view(np.uint8).data


def _as_tensor(packet: Packet, dtype: torch.dtype) -> Tensor:
    if packet.numel == 0:
        return torch.empty(0, dtype=dtype)
    data = np.frombuffer(packet.data, dtype=np.uint8)
    return torch.from_numpy(data if data.flags.writeable else data.copy()).view(
        dtype
    )  # torch warns about read-only memory


class Dense:
    """float32 as it is, 4 bytes an element. Neither way copies (but for read-only bytes, which torch must not hold)."""

    name = "none"
    exact = True

    def nbytes(self, numel: int) -> int:
        return 4 * numel

    def encode(self, tensor: Tensor) -> Packet:
        return Packet(self.name, tensor.numel(), as_bytes(tensor))

    def decode(self, packet: Packet) -> Tensor:
        return _as_tensor(packet, torch.float32)


class BFloat16:
    """Rounded to bfloat16, 2 bytes an element, relative error at most 2⁻⁸."""

    name = "bf16"
    exact = False

    def nbytes(self, numel: int) -> int:
        return 2 * numel

    def encode(self, tensor: Tensor) -> Packet:
        return Packet(self.name, tensor.numel(), tensor.to(torch.bfloat16).view(torch.uint8).numpy().data)

    def decode(self, packet: Packet) -> Tensor:
        return _as_tensor(packet, torch.bfloat16).to(torch.float32)


_CODECS: dict[str, Codec] = {codec.name: codec for codec in (Dense(), BFloat16())}


def codec(name: str) -> Codec:
    """The codec of that name. Raises `UsageError` for an unknown one."""
    if name not in _CODECS:
        raise UsageError(f"codec must be one of {sorted(_CODECS)}, got {name!r}")
    return _CODECS[name]


def decode(packet: Packet, numel: int) -> Tensor:
    """A peer's packet as a flat float32 tensor of `numel` elements; sizes are checked before anything is read. Raises
    `PeerError`."""
    if packet.codec not in _CODECS:
        raise PeerError(f"unknown codec {packet.codec!r}")
    chosen = _CODECS[packet.codec]
    if packet.numel != numel or packet.nbytes != chosen.nbytes(numel):
        raise PeerError(
            f"packet of {packet.numel} elements in {packet.nbytes} bytes, expected {numel} in {chosen.nbytes(numel)}"
        )
    return chosen.decode(packet)
