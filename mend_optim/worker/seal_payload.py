"""How a merged delta comes back to the learners: in the smallest form that loses nothing more, or
encoded once more if the codec says so. The sections of a seal are either

    "merged"        the merged delta, as one packet, or
    "0", "1", …     the packets of the members with these numbers, as they came (linear merges only)
    "scale"         beside either of them, the factor of each tensor of the mean, and the headway
                    (`scale.py`); without it, all are 1
    "rate"          beside either of them, the inner learning rates of the round (`round_rate.py`),
                    if the outer optimizer needs them
    "sizes"         beside either of them, the sizes of the offers (`offer_sizes.py`)

In the second form every learner merges the packets itself. The sealer measures them as it merges
them, and keeps the mean until it advances. An encoding of the merged delta has error feedback of
its own: the sealer adds the residual of one seal to its next merge."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from mend_optim.codecs.buffers import Buffers
from mend_optim.codecs.packing import RAW, raw
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
from mend_optim.protocol.messages import (
    MERGED,
    MOMENT_PREFIX,
    RATE,
    SCALE,
    SIZES,
    Offer,
    Packet,
    Seal,
    Sections,
    section,
)
from mend_optim.protocol.tree_digest import Spread, short_digest
from mend_optim.worker import merge, scale
from mend_optim.worker.feedback import Feedback
from mend_optim.worker.hashing import Hashing
from mend_optim.worker.joint import Held, read_norms
from mend_optim.worker.measures import Measures
from mend_optim.worker.outer import largest
from mend_optim.worker.scale import PLAIN, Scale, rms_of

#: The largest number of packets in one seal.
RELAYED = 128


def payload_digest(sections: Sections, weights: Sequence[float], spread: Spread = map) -> bytes:
    """The digest of all that the merged delta depends on: its bytes, or the members' packets and
    weights. It covers the moments, the scale and the rate too. `spread` hashes the leaves."""
    beside = sorted(filter(_is_beside, sections))
    if MERGED in sections:
        found = short_digest(sections[MERGED].data, spread=spread)
    else:
        relayed = sorted(set(sections) - set(beside), key=lambda name: (len(name), name))
        packets = [sections[name].data for name in relayed]
        weighed = struct.pack(f"<{len(weights)}d", *weights)
        found = short_digest(*packets, weighed, spread=spread)
    named = (part for name in beside for part in (name.encode(), sections[name].data))
    return short_digest(found, *named, spread=spread) if beside else found


def _is_beside(name: str) -> bool:
    """Whether a section comes beside the merged delta."""
    return name in (SIZES, SCALE, RATE) or name.startswith(MOMENT_PREFIX)


class Merged(NamedTuple):
    """The offers of a round as one delta."""

    #: The sections of a seal.
    sections: Sections
    #: The delta, not scaled yet.
    delta: Tensor
    #: By the offer's index, the RMS of each offer's delta.
    rms: dict[int, float]
    #: The greatest magnitude in the delta.
    most: float


class _Sealed(NamedTuple):
    """The result of a learner's own seal of members' packets."""

    payload: bytes
    delta: Tensor
    most: float


class SealPayload:
    """One fragment's seals: the sealer turns offers into sections, and every learner turns sections
    into the merged delta."""

    def __init__(
        self,
        codec: Codec,
        scheme: str,
        fragment: Fragment,
        buffers: Buffers,
        hashing: Hashing | None = None,
    ) -> None:
        self.codec = codec
        self.scheme = scheme
        self.fragment = fragment
        self.buffers = buffers
        self.hashing = hashing or Hashing()
        #: Whether members' packets may come back instead of the merged delta.
        self.relays = scheme in merge.LINEAR and codec.back != "same"
        #: Whether they do so only where that takes no more than to encode the merged delta.
        self.thrifty = codec.back == "auto"
        #: Encodes merged deltas and keeps their residual; None if the codec does not encode them.
        self.feedback = Feedback(codec, fragment.shapes, buffers) if codec.back != "exact" else None
        #: The length ‖·‖₂ of its residual, and the sum of those of the residuals given up.
        self.held = self.dropped = 0.0
        #: Whether the last merge was encoded by it.
        self._encoded = False
        #: The mean of the packets that come back as they are, and its greatest magnitude.
        self._measured: tuple[Tensor, float] | None = None
        #: That mean, and the digest of this learner's seal of it, until it advances.
        self._sealed: _Sealed | None = None

    def merge(
        self,
        offers: Sequence[Offer],
        weights: Sequence[float],
        scratch: Tensor,
        flush: bool = False,
        *,
        headway: float = 1.0,
        relay: bool = True,
    ) -> Merged:
        """Merge offers, and measure them.

        Args:
            offers: the members, in peer-name order.
            weights: one for each member.
            scratch: memory for the merged delta, flat float32.
            flush: as in `Merge`.
            headway: as in `Merge`.
            relay: whether the members' packets may come back.

        Raises:
            PeerError: the merged delta is not finite.
        """
        held = Held(offers)
        packets = {str(i): section(offers[i].sections, "delta") for i in held.packets}
        relays = self.relays and relay and not held.joint and self._are_small(packets)
        members = sum(map(len, held.packets.values()))
        scales = self.scheme == "norm_preserving" and members > 1 and not flush
        self._measured = self._sealed = None
        self._encoded = False
        found = Measures(len(packets), self.fragment.offsets)
        # If all offers were refused, the round merges nothing, and tells their authors so.
        shares = held.shares(weights)
        merged = self._merge(packets, shares, scratch, found) if packets else scratch.zero_()
        if not math.isfinite(found.most):
            raise PeerError("Merged delta is not finite")
        lengths = self._lengths(offers, held, found)
        rms = {i: rms_of(norms, self.fragment.numel) for i, norms in lengths.items()}
        beside = self._scale(lengths, weights, found, headway) if scales else {}
        if relays:
            self._measured = merged, found.most
            return Merged({**packets, **beside}, merged, rms, found.most)
        if self.feedback and not self._returns_all(flush):
            packet = self.feedback.encode(merged, flush)
            self._encoded = True
            return Merged({MERGED: packet, **beside}, merged, rms, found.most)
        packet, _ = encode_packet(
            LOSSLESS, merged, self.fragment.shapes, allocate=self.buffers.take_bytes
        )
        return Merged({MERGED: packet, **beside}, merged, rms, found.most)

    def _are_small(self, packets: Sections) -> bool:
        """Whether these packets come back instead of the merged delta. A residual of earlier seals
        goes with the merged delta alone."""
        sizes = sorted(packet.nbytes for packet in packets.values())
        back = sum(sizes[1:])
        if not 0 < len(sizes) <= RELAYED or back >= 4 * self.fragment.numel:
            return False
        return not self.thrifty or (back <= sizes[-1] and not self._holds_residual())

    def _returns_all(self, flush: bool) -> bool:
        """Whether the merged delta comes back without a further loss, although the codec encodes
        merged deltas: no later round may take that loss along."""
        return self.thrifty and flush and not self._holds_residual()

    def _holds_residual(self) -> bool:
        return self.feedback is not None and self.feedback.residual is not None

    def commit(self) -> None:
        """This learner's own seal was taken: the loss of its encoding is the residual now."""
        if self.feedback and self._encoded:
            self.feedback.commit()
            self.held = self._length(self.feedback.residual)
        self._encoded = False

    def digest(self, sections: Sections, weights: Sequence[float]) -> bytes:
        """The `payload_digest` of a seal."""
        return payload_digest(sections, weights, self.hashing.spread)

    def clipped(self, offers: Sequence[Offer], factors: Sequence[float]) -> tuple[Offer, ...]:
        """The offers with their deltas scaled by these factors. One that is scaled is not encoded,
        and has no moments: they are as far off as the delta was."""
        return tuple(
            offer if factor == 1 else replace(offer, sections={"delta": self._clip(offer, factor)})
            for offer, factor in zip(offers, factors, strict=True)
        )

    def _clip(self, offer: Offer, factor: float) -> Packet:
        values = decode_packet(offer.sections["delta"], self.fragment.shapes)
        out = self.buffers.take(self.fragment.numel)
        return raw(torch.mul(values, factor, out=out))

    def sealed(self, digest: bytes) -> None:
        """The last `merge` is in a seal of this learner with this payload digest."""
        if self._measured is not None:
            self._sealed = _Sealed(digest, *self._measured)
            self._measured = None

    def _lengths(
        self, offers: Sequence[Offer], held: Held, measured: Measures
    ) -> dict[int, list[float]]:
        """By the offer's index, the norms of each member's delta: measured, or told by a joint
        offer."""
        lengths: dict[int, list[float]] = {}
        for (i, members), length in zip(held.packets.items(), measured.members, strict=True):
            told = [length.norms()]
            if len(members) > 1:
                told = read_norms(offers[i], len(self.fragment.shapes))
            lengths.update(zip(members, told, strict=True))
        return dict(sorted(lengths.items()))

    def _scale(
        self,
        lengths: Mapping[int, Sequence[float]],
        weights: Sequence[float],
        measured: Measures,
        headway: float,
    ) -> Sections:
        """The section that scales the mean of deltas of these norms; none if nothing is scaled."""
        w = [weights[i] for i in lengths]
        found = scale.factors(list(lengths.values()), measured.mean.norms(), w, headway)
        if headway == 1 and all(f == 1 for f in found):
            return {}
        return {SCALE: scale.scale_packet(Scale(tuple(found), headway))}

    def merged(self, seal: Seal, trusted: bool, scratch: Tensor) -> tuple[Tensor, float]:
        """The merged delta of a seal, not scaled yet, in `scratch`, in memory of its own, or in the
        seal's own bytes; and its greatest magnitude.

        Args:
            seal: the seal as received.
            trusted: whether this learner made the seal, so that its bytes need no check.
            scratch: memory for the merged delta, flat float32.

        Raises:
            PeerError: a section is missing, damaged, or not finite.
        """
        sealed, self._sealed = self._sealed, None
        if trusted and sealed and sealed.payload == seal.payload:
            return sealed.delta, sealed.most
        if MERGED in seal.sections:
            packets = {MERGED: seal.sections[MERGED]}
        else:
            packets = {
                str(i): section(seal.sections, str(i))
                for i, entry in enumerate(seal.members)
                if entry.steps
            }
        if not trusted:
            beside = {name: packet for name, packet in seal.sections.items() if _is_beside(name)}
            if self.digest({**packets, **beside}, seal.weights) != seal.payload:
                raise PeerError("Merged bytes do not match the digest in the seal")
            for packet in packets.values():
                check_packet(packet, self.fragment.shapes, measured=True)
        if MERGED in packets:
            delta = decode_packet(packets[MERGED], self.fragment.shapes, scratch)
        else:
            delta = self._merge(packets, seal.weights, scratch)
        most = largest(delta)
        # A NaN is no less than anything.
        if not most < math.inf:
            raise PeerError("Merged delta is not finite")
        return delta, most

    def scale(self, seal: Seal) -> Scale:
        """By what each tensor of the merged delta is multiplied.

        Raises:
            PeerError: the scale is damaged, or out of its bounds.
        """
        if SCALE not in seal.sections:
            return PLAIN
        w = [
            weight for weight, entry in zip(seal.weights, seal.members, strict=True) if entry.steps
        ]
        return scale.read_scale(seal.sections[SCALE], len(self.fragment.shapes), scale.bound(w))

    def drop(self) -> None:
        """Give up the residual of this learner's seals: other learners went on without it."""
        if self.feedback:
            self.feedback.drop()
        self.dropped += self.held
        self.held = 0.0

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what a checkpoint has of the feedback. A residual that this codec cannot keep is
        given up."""
        self.held = self._length(tensors.get("residual"))
        if self.feedback:
            self.feedback.restore(tensors)
        else:
            self.drop()

    def give_up(self, residual: Tensor) -> None:
        """The residual in a checkpoint does not come along."""
        self.dropped += self._length(residual)

    def _length(self, residual: Tensor | None) -> float:
        if residual is None:
            return 0.0
        lengths = scale.Lengths([0, residual.numel()])
        lengths.add(slice(0, residual.numel()), residual)
        return lengths.norms()[0]

    def _merge(
        self,
        packets: Mapping[str, Packet],
        weights: Sequence[float],
        scratch: Tensor,
        measures: Measures | None = None,
    ) -> Tensor:
        """Merge packets into `scratch`, and measure them if there are `measures`."""
        if not packets:
            raise PeerError("Seal has no packet to merge")
        shapes = self.fragment.shapes
        w = [weights[int(i)] for i in packets]

        def measure(i: int, here: slice, part: Tensor) -> None:
            if measures:
                measures.add(i, here, part)

        encoded = any(packet.codec != RAW for packet in packets.values())
        if self.scheme in merge.LINEAR and (measures or encoded):
            merge.weighted_mean_by_parts(
                (decoded(packet, shapes) for packet in packets.values()),
                w,
                scratch,
                measure,
            )
        else:
            deltas = [self._whole(packet) for packet in packets.values()]
            merge.merge(self.scheme, deltas, w, scratch, self.fragment.offsets)
            for i, values in enumerate((*deltas, scratch)):
                measure(i, slice(0, values.numel()), values)
        return scratch

    def _whole(self, packet: Packet) -> Tensor:
        """The packet's values as one tensor."""
        scratch = None if packet.codec == RAW else self.buffers.take(self.fragment.numel)
        return decode_packet(packet, self.fragment.shapes, scratch)
