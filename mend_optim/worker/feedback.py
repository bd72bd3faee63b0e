"""Error feedback: what an encoding lost is part of what is encoded next (law 9).

    A = values + residual        packet = encode(A)        residual ← A − decode(packet), once the packet was merged

The residual is local to whoever encoded, and transactional: until `commit`, everything is as if the
packet had never been. So Σ merged decodes + residual = Σ values, whatever rounds are lost (with the
residual against the merged result instead, as some do, it grows without bound where weights differ
or rounds are lost).

Where the residual is depends on the codec. Beside the weights, it is added here. Or it stays in the
weights (`weights_residual`): then whoever owns them takes only what was merged for merged, and the
values have it in them. Training goes on from there, and does not do the same work again, which
would make the residual grow from round to round."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mend_optim.codecs.buffers import Buffers
from mend_optim.codecs.packing import RAW, Shapes, bounded, placed, raw
from mend_optim.codecs.registry import FLUSH_CODEC, Codec, check_packet, decoded, encode_packet
from mend_optim.errors import PeerError
from mend_optim.protocol.messages import Packet

NAMES = ("residual", "stayed", "lost", "memory")


class Feedback:
    """One stream of encodings of one fragment. `residual_in_weights`: whether what is lost stays in
    the weights. `memory` is the codec's (a warm start, for one); like the residual it moves on
    `commit` alone."""

    def __init__(
        self, codec: Codec, shapes: Shapes, buffers: Buffers, residual_in_weights: bool = False
    ) -> None:
        self.codec, self.shapes, self.buffers, self.residual_in_weights = (
            codec,
            shapes,
            buffers,
            residual_in_weights,
        )
        self.residual: Tensor | None = None
        self.weights_residual: Tensor | None = None
        self.encoding_error: Tensor | None = None
        self.memory: Tensor | None = None
        self._next: Tensor | None = None
        self._flush = False

    def encode(self, values: Tensor, flush: bool = False) -> Packet:
        """`values` (flat float32, left as they are) and the residual as a packet, which may share
        their memory. `flush`: by `FLUSH_CODEC`; of that nothing stays in the weights. Raises
        `PeerError` for what is not finite, or not once it is encoded; nothing has changed then."""
        whole = self._whole(values)
        if not bounded(whole):
            raise PeerError("its parameters are not finite")
        codec = FLUSH_CODEC if flush else self.codec
        packet, memory = encode_packet(
            codec, whole, self.shapes, self.memory, self.buffers.take_bytes
        )
        encoding_error = None
        if not codec.exact and packet.codec != RAW:
            check_packet(packet, self.shapes)
            encoding_error = self.buffers.take(values.numel())
            for here, part in placed(decoded(packet, self.shapes)):
                torch.sub(whole[here], part, out=encoding_error[here])
        self.encoding_error, self._next, self._flush = (
            encoding_error,
            self.memory if flush else memory,
            flush,
        )
        return packet

    def encode_again(self, values: Tensor, flush: bool = False) -> Packet:
        """What was encoded before a checkpoint, which holds `encoding_error` of it: it may be
        merged by now, in the bytes of then. Where other bytes come out today (of another codec, or
        on other hardware), the values that those stood for travel as they are: whichever is merged,
        the same is lost."""
        encoding_error = self.encoding_error
        packet = self.encode(values, flush)
        if _alike(encoding_error, self.encoding_error):
            return packet
        self.encoding_error, self._next = encoding_error, self.memory
        whole = self._whole(values)
        return raw(
            whole
            if encoding_error is None
            else torch.sub(whole, encoding_error, out=self.buffers.take(values.numel()))
        )

    def _whole(self, values: Tensor) -> Tensor:
        # An exact codec, or one of which it stays, has a residual where a checkpoint of another
        # came with it.
        if self.residual is None:
            return values
        return torch.add(values, self.residual, out=self.buffers.take(values.numel()))

    def commit(self) -> None:
        """What was encoded last was merged."""
        encoding_error, self.encoding_error = self.encoding_error, None
        residual_in_weights = self.residual_in_weights and not self._flush
        self.residual, self.weights_residual = (
            (None, encoding_error) if residual_in_weights else (encoding_error, None)
        )
        self.memory, self._next = self._next, None

    def drop(self) -> None:
        """The work that the residual belongs to is given up."""
        self.residual = self.weights_residual = self.encoding_error = self.memory = self._next = (
            None
        )

    def held(self) -> dict[str, Tensor]:
        """The tensors that there are, by name."""
        named = zip(
            NAMES,
            (self.residual, self.weights_residual, self.encoding_error, self.memory),
            strict=True,
        )
        return {name: tensor for name, tensor in named if tensor is not None}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse, with copies; `_next` comes back when the pending offer is encoded again."""
        found = (tensors[name].clone() if name in tensors else None for name in NAMES)
        self.residual, self.weights_residual, self.encoding_error, self.memory = found
        self._next = self.memory


def _alike(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)
