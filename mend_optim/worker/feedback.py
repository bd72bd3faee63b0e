"""Error feedback: what an encoding lost is part of what is encoded next (law 9).

    A = values + residual        packet = encode(A)        residual ← A − decode(packet), once the packet was merged

The residual is local to whoever encoded, and transactional: until `commit`, everything is as if the
packet had never been. So Σ merged decodes + residual = Σ values, whatever rounds are lost (with the
residual against the merged result instead, as some do, it grows without bound where weights differ
or rounds are lost).

Where the residual is depends on the codec. Beside the weights, it is added here. Or it stays in the
weights (`stayed`): then whoever owns them takes only what was merged for merged, and the values
have it in them. Training goes on from there, and does not do the same work again, which would make
the residual grow from round to round."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mend_optim.codecs.buffers import Buffers
from mend_optim.codecs.packing import RAW, Shapes, bounded, placed, raw
from mend_optim.codecs.registry import CLOSING, Codec, check, decoded, encode
from mend_optim.errors import PeerError
from mend_optim.protocol.messages import Packet

NAMES = ("residual", "stayed", "lost", "memory")


class Feedback:
    """One stream of encodings of one fragment. `stays`: whether what is lost stays in the weights.
    `memory` is the codec's (a warm start, for one); like the residual it moves on `commit`
    alone."""

    def __init__(self, codec: Codec, shapes: Shapes, buffers: Buffers, stays: bool = False) -> None:
        self.codec, self.shapes, self.buffers, self.stays = codec, shapes, buffers, stays
        self.residual: Tensor | None = None
        self.stayed: Tensor | None = None
        self.lost: Tensor | None = None
        self.memory: Tensor | None = None
        self._next: Tensor | None = None
        self._closing = False

    def encode(self, values: Tensor, closing: bool = False) -> Packet:
        """`values` (flat float32, left as they are) and the residual as a packet, which may share
        their memory. `closing`: by `CLOSING`; of that nothing stays in the weights. Raises
        `PeerError` for what is not finite, or not once it is encoded; nothing has changed then."""
        whole = self._whole(values)
        if not bounded(whole):
            raise PeerError("its parameters are not finite")
        codec = CLOSING if closing else self.codec
        packet, memory = encode(codec, whole, self.shapes, self.memory, self.buffers.take_bytes)
        lost = None
        if not codec.exact and packet.codec != RAW:
            check(packet, self.shapes)
            lost = self.buffers.take(values.numel())
            for here, part in placed(decoded(packet, self.shapes)):
                torch.sub(whole[here], part, out=lost[here])
        self.lost, self._next, self._closing = lost, self.memory if closing else memory, closing
        return packet

    def encode_again(self, values: Tensor, closing: bool = False) -> Packet:
        """What was encoded before a checkpoint, which holds `lost` of it: it may be merged by now,
        in the bytes of then. Where other bytes come out today (of another codec, or on other
        hardware), the values that those stood for travel as they are: whichever is merged, the same
        is lost."""
        lost = self.lost
        packet = self.encode(values, closing)
        if _alike(lost, self.lost):
            return packet
        self.lost, self._next = lost, self.memory
        whole = self._whole(values)
        return raw(
            whole if lost is None else torch.sub(whole, lost, out=self.buffers.take(values.numel()))
        )

    def _whole(self, values: Tensor) -> Tensor:
        # An exact codec, or one of which it stays, has a residual where a checkpoint of another
        # came with it.
        if self.residual is None:
            return values
        return torch.add(values, self.residual, out=self.buffers.take(values.numel()))

    def commit(self) -> None:
        """What was encoded last was merged."""
        lost, self.lost = self.lost, None
        stays = self.stays and not self._closing
        self.residual, self.stayed = (None, lost) if stays else (lost, None)
        self.memory, self._next = self._next, None

    def drop(self) -> None:
        """The work that the residual belongs to is given up."""
        self.residual = self.stayed = self.lost = self.memory = self._next = None

    def held(self) -> dict[str, Tensor]:
        """The tensors that there are, by name."""
        named = zip(NAMES, (self.residual, self.stayed, self.lost, self.memory), strict=True)
        return {name: tensor for name, tensor in named if tensor is not None}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse, with copies; `_next` comes back when the pending offer is encoded again."""
        found = (tensors[name].clone() if name in tensors else None for name in NAMES)
        self.residual, self.stayed, self.lost, self.memory = found
        self._next = self.memory


def _alike(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)
