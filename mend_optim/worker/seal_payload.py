"""How a merged delta comes back to the learners: in the smallest form that loses nothing more, or
encoded once more if the codec says so. The sections of a seal are either

    "merged"        the merged delta, as one packet, or
    "0", "1", …     the packets of the members with these numbers, as they came (the mean only)

In the second form every learner merges the packets itself. The sealer decodes them no sooner than
it advances. An encoding of the merged delta has error feedback of its own: the sealer adds the
residual of one seal to its next merge."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from torch import Tensor

from mend_optim.codecs.buffers import Buffers
from mend_optim.codecs.packing import RAW
from mend_optim.codecs.registry import (
    LOSSLESS,
    Codec,
    check_packet,
    decode_packet,
    decoded,
    encode_packet,
)
from mend_optim.errors import PeerError
from mend_optim.model.layout import Fragment
from mend_optim.protocol.lineage import content_digest
from mend_optim.protocol.messages import (
    MERGED,
    MOMENT_PREFIX,
    Offer,
    Packet,
    Seal,
    Sections,
    section,
)
from mend_optim.worker import merge
from mend_optim.worker.feedback import Feedback

#: The largest number of packets in one seal.
RELAYED = 128


def payload_digest(sections: Sections, weights: Sequence[float]) -> bytes:
    """The digest of all that the merged delta depends on: its bytes, or the members' packets and
    weights. It covers the moments too."""
    moments = sorted(name for name in sections if name.startswith(MOMENT_PREFIX))
    if MERGED in sections:
        found = content_digest(sections[MERGED].data)
    else:
        relayed = sorted(set(sections) - set(moments), key=lambda name: (len(name), name))
        packets = [sections[name].data for name in relayed]
        found = content_digest(*packets, struct.pack(f"<{len(weights)}d", *weights))
    named = (part for name in moments for part in (name.encode(), sections[name].data))
    return content_digest(found, *named) if moments else found


class SealPayload:
    """One fragment's seals: the sealer turns offers into sections, and every learner turns sections
    into the merged delta."""

    def __init__(self, codec: Codec, scheme: str, fragment: Fragment, buffers: Buffers) -> None:
        self.scheme = scheme
        self.fragment = fragment
        self.buffers = buffers
        #: Whether members' packets may come back instead of the merged delta.
        self.relays = scheme == "mean" and codec.back == "exact"
        #: Encodes merged deltas and keeps their residual; None if the codec does not encode them.
        self.feedback = Feedback(codec, fragment.shapes, buffers) if codec.back == "same" else None

    def sections(
        self,
        offers: Sequence[Offer],
        weights: Sequence[float],
        scratch: Tensor,
        flush: bool = False,
    ) -> Sections:
        """The sections of a seal.

        Args:
            offers: the members, in peer-name order.
            weights: one for each member.
            scratch: memory for the merged delta, flat float32.
            flush: as in `Merge`.

        Raises:
            PeerError: the merged delta is not finite.
        """
        packets = {
            str(i): section(offer.sections, "delta")
            for i, offer in enumerate(offers)
            if offer.steps
        }
        sizes = sorted(packet.nbytes for packet in packets.values())
        if self.relays and len(packets) <= RELAYED and sum(sizes[1:]) < 4 * self.fragment.numel:
            return packets
        merged = self._merge(packets, weights, scratch)
        if self.feedback:
            return {MERGED: self.feedback.encode(merged, flush)}
        packet, _ = encode_packet(
            LOSSLESS, merged, self.fragment.shapes, allocate=self.buffers.take_bytes
        )
        return {MERGED: packet}

    def merged(self, seal: Seal, trusted: bool, scratch: Tensor) -> Tensor:
        """The merged delta of a seal, in `scratch` or in the seal's own bytes.

        Args:
            seal: the seal as received.
            trusted: whether this learner made the seal, so that its bytes need no check.
            scratch: memory for the merged delta, flat float32.

        Raises:
            PeerError: a section is missing, damaged, or not finite.
        """
        if MERGED in seal.sections:
            packets = {MERGED: seal.sections[MERGED]}
        else:
            packets = {
                str(i): section(seal.sections, str(i))
                for i, entry in enumerate(seal.members)
                if entry.steps
            }
        if not trusted:
            moments = {
                name: packet
                for name, packet in seal.sections.items()
                if name.startswith(MOMENT_PREFIX)
            }
            if payload_digest({**packets, **moments}, seal.weights) != seal.payload:
                raise PeerError("Merged bytes do not match the digest in the seal")
            for packet in packets.values():
                check_packet(packet, self.fragment.shapes)
        if MERGED in packets:
            return decode_packet(packets[MERGED], self.fragment.shapes, scratch)
        return self._merge(packets, seal.weights, scratch)

    def drop(self) -> None:
        """Give up the residual of this learner's seals: other learners went on without it."""
        if self.feedback:
            self.feedback.drop()

    def _merge(
        self, packets: Mapping[str, Packet], weights: Sequence[float], scratch: Tensor
    ) -> Tensor:
        if not packets:
            raise PeerError("Seal has no packet to merge")
        shapes = self.fragment.shapes
        w = [weights[int(i)] for i in packets]
        if self.scheme == "mean" and any(packet.codec != RAW for packet in packets.values()):
            merge.weighted_mean_by_parts(
                (decoded(packet, shapes) for packet in packets.values()), w, scratch
            )
        else:
            deltas = [self._whole(packet) for packet in packets.values()]
            merge.merge(self.scheme, deltas, w, scratch, self.fragment.offsets)
        if not merge.finite(scratch):
            raise PeerError("Merged delta is not finite")
        return scratch

    def _whole(self, packet: Packet) -> Tensor:
        """The packet's values as one tensor."""
        scratch = None if packet.codec == RAW else self.buffers.take(self.fragment.numel)
        return decode_packet(packet, self.fragment.shapes, scratch)
