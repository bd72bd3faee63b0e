"""The anchor of the fragment of buffers, beside which a learner keeps only what it has offered.

An offer holds the values of the buffers, not a delta, and the new anchor is their weighted mean: no
outer optimizer, no factor, no codec and no disagreement. All of these are for work, which adds up;
buffers are observations of one thing. Values travel in their own dtypes, bit by bit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

import torch
from torch import Tensor

from mend_optim.codecs.buffers import Buffers
from mend_optim.codecs.packing import RAW, as_bytes, view
from mend_optim.engine.effects import Advance, Done, Install, Merge, Prepare, Reoffer
from mend_optim.errors import PeerError
from mend_optim.model.layout import BufferFragment
from mend_optim.protocol.messages import MERGED, Offer, Packet, State, section
from mend_optim.protocol.tree_digest import short_digest
from mend_optim.worker.correction import BufferCorrection, Reading
from mend_optim.worker.merge import FINE, blocks
from mend_optim.worker.seal_payload import payload_digest

#: Running statistics of learners that train one model lie closer together by far.
STRAY = 64.0


class BufferAnchor:
    """The anchor of buffers, and the pending offer; the methods are those of `FragmentAnchor`.

    Args:
        fragment: the fragment of the buffers.
        values: the first anchor: flat bytes, owned by this object from now on.
        buffers: the pool for all other tensors.
    """

    def __init__(self, fragment: BufferFragment, values: Tensor, buffers: Buffers) -> None:
        self.fragment = fragment
        self.buffers = buffers
        self.theta = values
        #: The values in the pending offer, until an anchor has merged them.
        self.offered: Tensor | None = None

    # ── offers and seals ──────────────────────────────────────────────────────────────────────────

    def prepare(self, job: Prepare) -> Done:
        self.refuse_strange(job.tensor)
        self.offered = job.tensor
        return Done(sections={"delta": self._packet(job.tensor)})

    def reoffer(self, job: Reoffer) -> Done:
        assert self.offered is not None
        return Done(sections={"delta": self._packet(self.offered)})

    def inspect(self, offer: Offer) -> Done:
        self._read(section(offer.sections, "delta"))
        return Done()

    def merge(self, job: Merge) -> Done:
        out = self.copy()
        # An empty offer is of a learner at rest, whose buffers are the anchor's.
        values = [
            _values(section(offer.sections, "delta")) if offer.steps else self.theta
            for offer in job.offers
        ]
        tokens = [offer.tokens if offer.steps else -1 for offer in job.offers]
        trained = [i for i, offer in enumerate(job.offers) if offer.steps]
        values = without_strays(self.fragment, values, trained, self.theta)
        mean_buffers(self.fragment, values, job.weights, tokens, out)
        self.refuse_strange(out)
        sections = {MERGED: self._packet(out)}
        return Done(sections=sections, digest=payload_digest(sections, job.weights))

    # ── moving to another anchor ──────────────────────────────────────────────────────────────────

    def advance(self, job: Advance) -> BufferCorrection:
        """Take the anchor of a seal. A seal that is refused changes nothing."""
        seal = job.seal
        packet = section(seal.sections, MERGED)
        if not job.sealed_here and payload_digest({MERGED: packet}, seal.weights) != seal.payload:
            raise PeerError("Merged bytes do not match the digest in the seal")
        return self._move(self._read(packet), job.merged_own_offer, job.replace)

    def verify(self, state: State) -> None:
        """Raise `PeerError` unless this is a whole anchor of this fragment."""
        sections = [state.sections[name].data for name in sorted(state.sections)]
        if short_digest(*sections) != state.content:
            raise PeerError("Anchor's bytes do not match the digest that came with them")
        self._read(section(state.sections, "anchor"))

    def attested(self) -> dict[str, Tensor]:
        """What is in the anchor, by section."""
        return {"anchor": self.theta}

    def install(self, state: State, job: Install) -> BufferCorrection:
        """Take a verified anchor as a whole."""
        anchor = _values(state.sections["anchor"])
        return self._move(anchor, job.merged_own_offer, job.replace)

    def _move(self, anchor: Tensor, merged_own_offer: bool, replace: bool) -> BufferCorrection:
        """The anchor has these values now."""
        offered = self.offered if merged_own_offer else None
        base = None if replace else self.copy() if offered is None else offered
        if merged_own_offer or replace:
            self.offered = None
        self.theta.copy_(anchor)
        return BufferCorrection(
            self.fragment.index, self.copy(), replace, base=base, is_offer=offered is not None
        )

    def agree(self) -> BufferCorrection:
        """Let the buffers become the anchor."""
        return BufferCorrection(self.fragment.index, self.copy(), replace=False)

    def found(self, weights: Tensor, moments: Mapping[str, Reading] | None) -> None:
        """Take this learner's own buffers as the anchor. They have no moments."""
        del moments
        self.theta.copy_(weights)
        self.drop()

    def begin_anew(self, weights: Tensor, keeps_offer: bool) -> None:
        """The user has put these values in the place of this learner's. The next offer has whatever
        the buffers hold then, so only an offer that nobody has is given up."""
        del weights
        if not keeps_offer:
            self.offered = None

    def retake(self) -> BufferCorrection:
        """Give up the pending offer: the buffers become the anchor."""
        self.drop()
        return BufferCorrection(self.fragment.index, self.copy(), replace=True)

    def drop(self) -> None:
        """Give up the pending offer."""
        self.offered = None

    # ── what may be an anchor ─────────────────────────────────────────────────────────────────────

    def refuse_strange(self, values: Tensor) -> None:
        """Raise `PeerError` if an element is NaN or infinite, unless the anchor has the same there:
        a mask of -inf is a constant of the model."""
        for place, name in enumerate(self.fragment.names):
            found = self.fragment.view(place, values)
            if not found.is_floating_point():
                continue
            known = self.fragment.view(place, self.theta)
            for block in blocks(found.numel(), FINE):
                if not _sound(found.view(-1)[block].double(), known.view(-1)[block].double()):
                    raise PeerError(f"Buffer {name} is not finite")

    def _read(self, packet: Packet) -> Tensor:
        """The values of a received packet. Raises `PeerError`."""
        fragment = self.fragment
        if (packet.codec, packet.numel, packet.nbytes) != (RAW, fragment.numel, fragment.nbytes):
            raise PeerError(
                f"Buffers have {packet.nbytes} bytes in codec {packet.codec!r}; "
                f"{fragment.nbytes} bytes in {RAW!r} are needed"
            )
        values = _values(packet)
        self.refuse_strange(values)
        return values

    def _packet(self, values: Tensor) -> Packet:
        return Packet(RAW, self.fragment.numel, as_bytes(values))

    # ── copies ────────────────────────────────────────────────────────────────────────────────────

    def export(self) -> Done:
        """The whole anchor, for a peer."""
        packet = self._packet(self.copy())
        return Done(sections={"anchor": packet}, digest=short_digest(packet.data))

    def save(self) -> dict[str, Tensor]:
        """Copies of all tensors, by the names they have in a checkpoint."""
        offered = {} if self.offered is None else {"delta": self.offered.clone()}
        return {"anchor": self.theta.clone(), **offered}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take copies of what `save` returned."""
        self.theta.copy_(tensors["anchor"])
        self.offered = tensors["delta"].clone() if "delta" in tensors else None

    def copy(self) -> Tensor:
        """A copy of the anchor."""
        return self.buffers.take(self.fragment.numel).view(torch.uint8).copy_(self.theta)


def _values(packet: Packet) -> Tensor:
    """The bytes of a packet, at an address where any dtype may lie."""
    return view(packet.data, torch.int64).view(torch.uint8)


def _sound(values: Tensor, known: Tensor) -> bool:
    """Whether every value is finite, or the one that is known there."""
    alike = (values == known) | (values.isnan() & known.isnan())
    return bool((values.isfinite() | alike).all())


def without_strays(
    fragment: BufferFragment, values: Sequence[Tensor], trained: Sequence[int], anchor: Tensor
) -> list[Tensor]:
    """The values of all members, with the anchor's in the place of each buffer that strays: its RMS
    is more than `STRAY` times the anchor's, and as many times the median of the others'.

    Once its weights have exploded, a learner's running statistics are as large. Rounds refuse its
    work for its size, and its buffers would else be in everybody's.

    Args:
        values: Flat bytes, by member.
        trained: The members that did not rest. The others have the anchor's values.
        anchor: Flat bytes.
    """
    kept = list(values)
    for place in range(len(fragment.names)):
        known = fragment.view(place, anchor)
        if len(trained) < 2 or not known.is_floating_point():
            continue
        sizes = [_rms(fragment.view(place, values[i])) for i in trained]
        for k, i in enumerate(trained):
            bound = STRAY * max(_rms(known), median(sizes[:k] + sizes[k + 1 :]))
            if 0 < bound < sizes[k]:
                if kept[i] is values[i]:
                    kept[i] = values[i].clone()
                fragment.view(place, kept[i]).copy_(known)
    return kept


def _rms(values: Tensor) -> float:
    """The root mean square of the finite elements."""
    found = 0.0
    for block in blocks(values.numel(), FINE):
        wide = values.reshape(-1)[block].double().nan_to_num(0.0, 0.0, 0.0)
        found = math.hypot(found, float(torch.linalg.vector_norm(wide)))
    return found / math.sqrt(max(1, values.numel()))


def mean_buffers(
    fragment: BufferFragment,
    values: Sequence[Tensor],
    w: Sequence[float],
    tokens: Sequence[int],
    out: Tensor,
) -> None:
    """The weighted mean of buffers, in `out`: flat bytes, as all `values` are.

    Floating-point elements are summed in float64, a block at a time, and rounded once, to their
    dtype. Where all members agree, that is their value to the bit, and else it lies between the
    least and the greatest. Integers and bools are those of the member with the most tokens, the
    first of equal ones. Members that weigh nothing count for neither."""
    members = [i for i, weight in enumerate(w) if weight]
    most = max(members, key=lambda i: tokens[i])
    for place in range(len(fragment.names)):
        target = fragment.view(place, out)
        if not target.is_floating_point():
            target.copy_(fragment.view(place, values[most]))
            continue
        found = [fragment.view(place, values[i]).view(-1) for i in members]
        for block in blocks(target.numel(), FINE):
            wide = [value[block].double() for value in found]
            least, greatest, mean = wide[0].clone(), wide[0].clone(), torch.zeros_like(wide[0])
            for i, value in zip(members, wide, strict=True):
                torch.minimum(least, value, out=least)
                torch.maximum(greatest, value, out=greatest)
                mean.add_(value * w[i])
            target.view(-1)[block].copy_(mean.clamp_(least, greatest))
