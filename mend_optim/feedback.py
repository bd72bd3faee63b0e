"""Error feedback: what an encoding lost is added to what is encoded next (law 9).

    A = values + residual        packet = encode(A)        residual ← A − decode(packet), once the packet was merged

The residual is local to whoever encoded, and transactional: until `commit`, everything is as if the packet had never
been. So Σ merged decodes + residual = Σ values, whatever rounds are lost (with the residual against the merged result
instead, as some do, it grows without bound where weights differ or rounds are lost)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .buffers import Buffers
from .codec import Codec, decode, encode
from .errors import PeerError
from .packet import RAW, Packet, Shapes, bounded

NAMES = ("residual", "lost", "memory")


class Feedback:
    """One stream of encodings of one fragment. `memory` is the codec's (a warm start, for one); like the residual it
    moves on `commit` alone."""

    def __init__(self, codec: Codec, shapes: Shapes, buffers: Buffers) -> None:
        self.codec, self.shapes, self.buffers = codec, shapes, buffers
        self.residual: Tensor | None = None
        self.lost: Tensor | None = None
        self.memory: Tensor | None = None
        self._next: Tensor | None = None

    def encode(self, values: Tensor) -> Packet:
        """`values` (flat float32, left as they are) and the residual as a packet, which may share their memory. Raises
        `PeerError` for what is not finite; nothing has changed then."""
        # An exact codec has a residual where a checkpoint of another came with it.
        whole = values
        if self.residual is not None:
            whole = torch.add(values, self.residual, out=self.buffers.take(values.numel()))
        if not bounded(whole):
            raise PeerError("its parameters are not finite")
        packet, self._next = encode(self.codec, whole, self.shapes, self.memory, self.buffers.take_bytes)
        self.lost = None
        if not self.codec.exact and packet.codec != RAW:
            decoded = decode(packet, self.shapes, self.buffers.take(values.numel()))
            self.lost = torch.sub(whole, decoded, out=decoded)
        return packet

    def commit(self) -> None:
        """What was encoded last was merged."""
        self.residual, self.lost = self.lost, None
        self.memory, self._next = self._next, None

    def drop(self) -> None:
        """The work that the residual belongs to is given up."""
        self.residual = self.lost = self.memory = self._next = None

    def held(self) -> dict[str, Tensor]:
        """The tensors that there are, by name."""
        named = zip(NAMES, (self.residual, self.lost, self.memory), strict=True)
        return {name: tensor for name, tensor in named if tensor is not None}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse, with copies; `_next` comes back when the pending offer is encoded again."""
        self.residual, self.lost, self.memory = (
            tensors[name].clone() if name in tensors else None for name in NAMES
        )
        self._next = self.memory
