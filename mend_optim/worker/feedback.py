"""Error feedback: the residual of an encoding is added to the next values (law 9).

    A = values + residual
    packet = encode(A)
    residual ← A − decode(packet), once the packet was merged

The residual is local to the learner that encoded, and transactional: until `commit`, everything is
as if the packet had never been. So Σ merged decodes + residual = Σ values, whatever rounds are
lost. (Some systems take the residual against the merged result. Then it grows without bound where
weights differ or rounds are lost.)

The codec decides where the residual is. Either it is kept beside the weights and added here. Or it
stays in the weights (`weights_residual`): a merge then takes from the weights only what was merged,
and the next values contain the rest by themselves. Training goes on from those weights. Otherwise
it would do the same work again, and the residual would grow from round to round."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mend_optim.codecs.buffers import Buffers
from mend_optim.codecs.packing import RAW, Shapes, bounded, placed, raw
from mend_optim.codecs.registry import FLUSH_CODEC, Codec, check_packet, decoded, encode_packet
from mend_optim.errors import PeerError
from mend_optim.protocol.messages import Packet

#: How a checkpoint names `residual`, `weights_residual`, `encoding_error` and `memory`.
NAMES = ("residual", "stayed", "lost", "memory")


class Feedback:
    """The encodings of one fragment, one after another.

    Args:
        codec: encodes all but flushes, which `FLUSH_CODEC` encodes.
        shapes: those of the fragment's tensors.
        buffers: the pool for packets and residuals.
        residual_in_weights: whether the residual stays in the weights.
    """

    def __init__(
        self, codec: Codec, shapes: Shapes, buffers: Buffers, residual_in_weights: bool = False
    ) -> None:
        self.codec = codec
        self.shapes = shapes
        self.buffers = buffers
        self.residual_in_weights = residual_in_weights
        #: Kept beside the weights; added to the next values.
        self.residual: Tensor | None = None
        #: In the weights, so that the next values contain it.
        self.weights_residual: Tensor | None = None
        #: The residual of the last encoding. Becomes one of the two above on `commit`.
        self.encoding_error: Tensor | None = None
        #: The codec's memory, such as a warm start. Moves on `commit` alone.
        self.memory: Tensor | None = None
        self._next_memory: Tensor | None = None
        self._flush = False

    def encode(self, values: Tensor, flush: bool = False) -> Packet:
        """Encode the values and the residual.

        Args:
            values: flat float32; not changed.
            flush: whether to use `FLUSH_CODEC`, of which nothing stays in the weights.

        Returns:
            A packet, which may share memory with `values` or with the residual.

        Raises:
            PeerError: the sum is not finite, or not finite once it is encoded. Nothing has changed
                then.
        """
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
        self.encoding_error = encoding_error
        self._next_memory = self.memory if flush else memory
        self._flush = flush
        return packet

    def encode_again(self, values: Tensor, flush: bool = False) -> Packet:
        """Encode an offer that came with a checkpoint, which holds its `encoding_error`. By now
        some anchor may have merged the offer in its former bytes.

        If other bytes come out now (another codec, or other hardware), the values that the former
        bytes stood for travel unencoded. Then the residual is the same, whichever packet is
        merged."""
        encoding_error = self.encoding_error
        packet = self.encode(values, flush)
        if _alike(encoding_error, self.encoding_error):
            return packet
        self.encoding_error = encoding_error
        self._next_memory = self.memory
        whole = self._whole(values)
        if encoding_error is None:
            return raw(whole)
        return raw(torch.sub(whole, encoding_error, out=self.buffers.take(values.numel())))

    def _whole(self, values: Tensor) -> Tensor:
        """The values and the residual beside the weights. Any codec may have one: it may come with
        a checkpoint of another codec."""
        if self.residual is None:
            return values
        return torch.add(values, self.residual, out=self.buffers.take(values.numel()))

    def commit(self) -> None:
        """The last packet was merged: its loss is the residual now."""
        self.residual = None
        self.weights_residual = None
        if self.residual_in_weights and not self._flush:
            self.weights_residual = self.encoding_error
        else:
            self.residual = self.encoding_error
        self.encoding_error = None
        self.memory = self._next_memory
        self._next_memory = None

    def merged_part(self, values: Tensor) -> Tensor:
        """The part of `values` that a merge takes: all but the residual in the weights. The packet
        of `values` was just committed. Changes `values`."""
        if self.weights_residual is not None:
            values.sub_(self.weights_residual)
        return values

    def weights_on(self, anchor: Tensor, out: Tensor) -> Tensor:
        """Weights that become the anchor, but keep the residual in them; in `out`."""
        if self.weights_residual is None:
            return out.copy_(anchor)
        return torch.sub(anchor, self.weights_residual, out=out)

    def forget(self) -> Tensor | None:
        """Give up the residual of former packets, but not the last packet, which no merge has taken
        yet. Returns the residual in the weights, for the caller to take it out of them."""
        weights_residual = self.weights_residual
        self.residual = None
        self.weights_residual = None
        return weights_residual

    def drop(self) -> None:
        """Give up everything: the work that the residual belongs to is dropped."""
        self.residual = None
        self.weights_residual = None
        self.encoding_error = None
        self.memory = None
        self._next_memory = None

    def held(self) -> dict[str, Tensor]:
        """The tensors for a checkpoint, by `NAMES`; only those that exist."""
        tensors = (self.residual, self.weights_residual, self.encoding_error, self.memory)
        named = zip(NAMES, tensors, strict=True)
        return {name: tensor for name, tensor in named if tensor is not None}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take copies of what `held` returned. `encode_again` restores the rest, if an offer is
        pending."""
        found = (tensors[name].clone() if name in tensors else None for name in NAMES)
        self.residual, self.weights_residual, self.encoding_error, self.memory = found
        self._next_memory = self.memory


def _alike(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)
