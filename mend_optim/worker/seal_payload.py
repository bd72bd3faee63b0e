"""How what was merged comes back to the learners: whatever is smallest and loses nothing more; or,
where the codec says so, encoded once more.

    "merged"          the merged delta, as one packet
    "0", "1", …       the packets of the members with these numbers, as they came (the mean only): everybody merges
                      them, and gets those of the others

Relayed packets are decoded by the sealer no sooner than it advances itself. What is encoded once
more has an error feedback of its own: what this seal lost, the sealer adds to what it merges
next."""

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

RELAYED = 128  # packets in one message, at most


def payload_digest(sections: Sections, weights: Sequence[float]) -> bytes:
    """Of all that the merged delta depends on: its bytes, or the members' packets and weights; and
    of the moments."""
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
    """Of one fragment: sections out of offers (the sealer's side), and the merged delta out of
    sections (everybody's)."""

    def __init__(self, codec: Codec, scheme: str, fragment: Fragment, buffers: Buffers) -> None:
        self.scheme, self.fragment, self.buffers = scheme, fragment, buffers
        self.relays = scheme == "mean" and codec.back == "exact"
        self.feedback = Feedback(codec, fragment.shapes, buffers) if codec.back == "same" else None

    def sections(
        self,
        offers: Sequence[Offer],
        weights: Sequence[float],
        scratch: Tensor,
        flush: bool = False,
    ) -> Sections:
        """What to send for these offers; `scratch` (flat float32) is for the merged delta; `flush`:
        see `Merge`. Raises `PeerError` if it is not finite."""
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
        return {
            MERGED: encode_packet(
                LOSSLESS, merged, self.fragment.shapes, allocate=self.buffers.take_bytes
            )[0]
        }

    def merged(self, seal: Seal, trusted: bool, scratch: Tensor) -> Tensor:
        """The merged delta of a seal, in `scratch` or in the seal's own bytes. `trusted`: we made
        it. Raises `PeerError` for sections that are missing, damaged, or not finite."""
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
                raise PeerError("the merged bytes do not have the digest that was sealed")
            for packet in packets.values():
                check_packet(packet, self.fragment.shapes)
        if MERGED in packets:
            return decode_packet(packets[MERGED], self.fragment.shapes, scratch)
        return self._merge(packets, seal.weights, scratch)

    def drop(self) -> None:
        """What our seals lost is no more of our business."""
        if self.feedback:
            self.feedback.drop()

    def _merge(
        self, packets: Mapping[str, Packet], weights: Sequence[float], scratch: Tensor
    ) -> Tensor:
        if not packets:
            raise PeerError("a seal of nothing")
        shapes, w = self.fragment.shapes, [weights[int(i)] for i in packets]
        if self.scheme == "mean" and any(packet.codec != RAW for packet in packets.values()):
            merge.weighted_mean_by_parts(
                (decoded(packet, shapes) for packet in packets.values()), w, scratch
            )
        else:
            deltas = [self._whole(packet) for packet in packets.values()]
            merge.merge(self.scheme, deltas, w, scratch, self.fragment.offsets)
        if not merge.finite(scratch):
            raise PeerError("the merged delta is not finite")
        return scratch

    def _whole(self, packet: Packet) -> Tensor:
        scratch = None if packet.codec == RAW else self.buffers.take(self.fragment.numel)
        return decode_packet(packet, self.fragment.shapes, scratch)
