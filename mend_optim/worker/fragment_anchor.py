"""One fragment's anchor, and all that a learner keeps beside it to take part in rounds.

Nothing here touches a parameter. The values that training must add to its weights come out as a
`Correction`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from mend_optim.codecs.buffers import Buffers
from mend_optim.codecs.packing import raw
from mend_optim.codecs.registry import Codec, check_packet, decode_packet
from mend_optim.engine.effects import Advance, Done, Install, Join, Merge, Prepare, Reoffer
from mend_optim.engine.moment_schedule import Moment
from mend_optim.errors import PeerError
from mend_optim.model.layout import Fragment
from mend_optim.protocol.messages import SCALE, SIZES, Offer, Sections, State, section
from mend_optim.worker.blame import blamed_on_peer
from mend_optim.worker.correction import Correction, Reading
from mend_optim.worker.feedback import Feedback
from mend_optim.worker.hashing import Hashing
from mend_optim.worker.joint import check_joint, combined
from mend_optim.worker.merge import FINE, block_norm, blocks, finite
from mend_optim.worker.moment_means import MomentMeans
from mend_optim.worker.offer_sizes import (
    Guard,
    SizeHistory,
    check_history,
    read_sizes,
    refused_in,
    sizes_of,
    sizes_packet,
)
from mend_optim.worker.outer import (
    Outer,
    correction_between,
    delta,
    disagreement,
    offered,
    with_rest,
)
from mend_optim.worker.scale import (
    PLAIN,
    Scaled,
    bound,
    kept_scale,
    read_scale,
    rms_of,
    scale_in,
    scale_packet,
    scale_tensors,
    unscaled,
)
from mend_optim.worker.seal_payload import SealPayload
from mend_optim.worker.velocity import Velocity

#: How a checkpoint names the sealer's own feedback. It has no name for the residual of an open
#: seal, because a checkpoint holds no open seal.
RETURNED = {"residual": "returned", "memory": "returned_memory"}


class FragmentAnchor:
    """Θ, b, Δ, residuals and averaged moments of one fragment.

    Args:
        fragment: which parameters.
        weights: becomes Θ: flat float32, owned by this object from now on.
        codec: encodes offers and, if it says so, merged deltas.
        outer: the outer optimizer.
        scheme: how offers are merged, one of `MERGES`.
        buffers: the pool for all other tensors.
        moments: the inner optimizer's moments.
        guard: when an offer is too large to be merged; None: as long as the anchor stays finite,
            none is.
        hashing: hashes seals and anchors.
    """

    def __init__(
        self,
        fragment: Fragment,
        weights: Tensor,
        *,
        codec: Codec,
        outer: Outer,
        scheme: str,
        buffers: Buffers,
        moments: Sequence[Moment],
        guard: Guard | None = None,
        hashing: Hashing | None = None,
    ) -> None:
        self.fragment = fragment
        self.guard = guard
        self.buffers = buffers
        self.theta = weights
        self.velocity = Velocity(outer, weights)
        #: The part of Δ that the pending offer has, until an anchor has merged it.
        self.progress: Tensor | None = None
        #: The share of Δ that this is. The rest is in the weights, and becomes a disagreement.
        self.share = 1.0
        #: The residual in Δ, all of which is in this part.
        self.residual_in_offer: Tensor | None = None
        #: The disagreement R with former means, in the weights and in no offer; None is 0.
        self.disagreement: Tensor | None = None
        #: By what the mean of the last round was multiplied, as far as is known.
        self.scale = PLAIN
        #: The sizes of the offers that led to the anchor.
        self.sizes = SizeHistory()
        #: Keeps the residual of this learner's own offers.
        self.feedback = Feedback(codec, fragment.shapes, buffers, codec.residual_in_weights)
        #: The merged delta on its way back, and the residual of this learner's seals.
        self.hashing = hashing or Hashing()
        self.payload = SealPayload(codec, scheme, fragment, buffers, self.hashing)
        self.means = MomentMeans(moments, codec.exact, fragment, buffers)

    # ── offers and seals ──────────────────────────────────────────────────────────────────────────

    def prepare(self, job: Prepare) -> Done:
        held, residual = self.disagreement, self.feedback.weights_residual
        progress = offered(delta(self.theta, job.tensor), held, residual, job.share)
        packet = self.feedback.encode(progress, job.flush)
        self.progress, self.share, self.residual_in_offer = progress, job.share, residual
        moments, wrong = self.means.offer(job.moments)
        return Done(sections={"delta": packet, **moments}, warning=wrong)

    def reoffer(self, job: Reoffer) -> Done:
        assert self.progress is not None
        self.share, self.residual_in_offer = job.share, self.feedback.weights_residual
        packet = self.feedback.encode_again(self.progress, job.flush)
        return Done(sections={"delta": packet, **self.means.again()})

    def inspect(self, offer: Offer) -> Done:
        with blamed_on_peer():
            check_packet(section(offer.sections, "delta"), self.fragment.shapes)
            self.means.check(offer.sections)
            if offer.others:
                check_joint(offer, self.fragment)
                self.means.check_joint(offer)
        return Done()

    def join(self, job: Join) -> Done:
        with blamed_on_peer():
            found = combined(job.offers, job.weights, self.fragment, self.buffers)
            return Done(sections={**found, **self.means.joined(job.offers)})

    def merge(self, job: Merge) -> Done:
        scratch = self.buffers.take(self.theta.numel())
        offers, weights = job.offers, job.weights
        with blamed_on_peer():
            merged = self.payload.merge(offers, weights, scratch, job.flush, headway=job.headway)
            sizes = sizes_of(offers, merged.rms)
            sizes = self.sizes.without_rounding(sizes, lambda: _rms(self.theta))
            judged = self.sizes.judge(self.guard, sizes)
            if refused := refused_in(judged):
                return Done(outsized=refused)
            if any(found.factor < 1 for found in judged):
                offers = self.payload.clipped(offers, [found.factor for found in judged])
                merged = self.payload.merge(
                    offers, weights, scratch, job.flush, headway=job.headway, relay=False
                )
            rates = self.velocity.rates(offers, weights, job.period)
            self._require_finite({**merged.sections, **rates}, merged.most, weights)
            means = self.means.average(offers, job.moments)
        sections = {**merged.sections, **rates, **means}
        sections[SIZES] = sizes_packet(judged, job.outsized)
        digest = self.payload.digest(sections, job.weights)
        self.payload.sealed(digest)
        return Done(sections=sections, digest=digest)

    def _require_finite(self, sections: Sections, most: float, weights: Sequence[float]) -> None:
        """Raise `PeerError` unless a seal of a merged delta leads to a finite anchor. `most` is the
        greatest magnitude in the delta."""
        factor = 1.0
        if SCALE in sections:
            factor = read_scale(sections[SCALE], len(self.fragment.shapes), bound(weights)).most
        rate = self.velocity.round_rate(sections)
        self.velocity.reach(rate, self.theta, factor * most)

    # ── moving to another anchor ──────────────────────────────────────────────────────────────────

    def advance(self, job: Advance) -> Correction:
        """Take a seal's outer step. A seal that is refused changes nothing."""
        seal = job.seal
        scratch = self.buffers.take(self.theta.numel())
        with blamed_on_peer():
            if not job.sealed_here:
                self.means.check(seal.sections)
            merged, most = self.payload.merged(seal, job.sealed_here, scratch)
            scale = self.payload.scale(seal)
            rate = self.velocity.round_rate(seal.sections)
            reach = self.velocity.reach(rate, self.theta, scale.most * most)
            read_sizes(seal)
        self.sizes.merged(seal)
        if job.sealed_here:
            self.payload.commit()
        if job.sealed_by_predecessor:
            self.payload.drop()
        self.scale = scale
        step = merged if scale == PLAIN else Scaled(merged, scale, self.fragment.offsets)
        leaving = self._leaving(job.forget, job.merged_own_offer)
        moments = self.means.merged(seal.sections, job.merged_own_offer)
        values = self.buffers.take(self.theta.numel())
        late = job.merged_own_offer and self._is_late(job.gain) and not job.replace
        own = None if late else leaving
        self.velocity.move(rate, self.theta, step, own=own, correction=values, reach=reach)
        if late and leaving is not None:
            self._adopt_late(job.gain, leaving, values)
        if job.replace:
            if not job.merged_own_offer:
                self.drop()
            self.disagreement = None
            self.feedback.weights_on(self.theta, values)
        return Correction(self.fragment.index, values, job.replace, moments)

    def verify(self, state: State) -> None:
        """Raise `PeerError` unless this is a whole anchor of this fragment."""
        with blamed_on_peer():
            sections = [state.sections[name].data for name in sorted(state.sections)]
            if self.hashing.short(*sections) != state.content:
                raise PeerError("Anchor's bytes do not match the digest that came with them")
            check_packet(section(state.sections, "anchor"), self.fragment.shapes)
            self.velocity.check(state.sections, self.fragment.shapes)
            scale_in(state.sections, len(self.fragment.shapes))
            check_history(state.sections)
            self.means.check(state.sections)

    def attested(self) -> dict[str, Tensor]:
        """What is in the anchor, by section: all that the next ones follow from."""
        return {"anchor": self.theta, **self.velocity.held()}

    def install(self, state: State, job: Install) -> Correction:
        """Take a verified anchor as a whole."""
        # This learner was not there for whatever was sealed meanwhile.
        self.payload.drop()
        self.scale = scale_in(state.sections, len(self.fragment.shapes))
        anchor = decode_packet(state.sections["anchor"], self.fragment.shapes)
        values = self.buffers.take(anchor.numel())
        if job.replace:
            self.drop()
            values.copy_(anchor)
        else:
            leaving = self._leaving(job.forget, job.merged_own_offer)
            late = job.merged_own_offer and self._is_late(job.gain)
            correction_between(self.theta, anchor, None if late else leaving, values)
            if late and leaving is not None:
                self._adopt_late(job.gain, leaving, values)
        self.theta.copy_(anchor)
        self.velocity.install(state.sections, self.fragment.shapes)
        self.sizes.install(state.sections)
        moments = self.means.anchor_installed(
            state.sections, job.replace, job.merged_own_offer, job.due
        )
        return Correction(self.fragment.index, values, job.replace, moments, job.resets)

    def found(self, weights: Tensor, moments: Mapping[str, Reading] | None) -> None:
        """Take this learner's own weights as the anchor, but for the disagreement in them."""
        self.theta.copy_(weights)
        if self.disagreement is not None:
            self.theta.add_(self.disagreement)
        self.scale = PLAIN
        self._drop_offer()
        self.payload.drop()
        # Both belong to rounds from before this learner was alone.
        self.velocity.reset()
        self.sizes.reset()
        if moments is not None:
            self.means.founded(moments)

    def refuse_strange(self, weights: Tensor) -> None:
        """Raise `PeerError` if these weights cannot be an anchor."""
        if not finite(weights):
            raise PeerError("its parameters are not finite")

    def _leaving(self, forget: bool, merged_own_offer: bool) -> Tensor | None:
        """The values that have to leave the weights beside the step of the anchor, because the new
        anchor has them: the merged part of Δ, or a residual that is forgotten.

        Args:
            forget: whether to give up the residual. It came with a checkpoint whose process went
                on, so it is merged by now, or dropped.
            merged_own_offer: whether the anchor has merged the pending offer. Then its loss is
                committed, and Δ is not pending any more.
        """
        forgotten = None
        if forget:
            forgotten = self.feedback.forget()
            self.payload.drop()
        if merged_own_offer:
            progress, residual = self.progress, self.residual_in_offer
            self.progress = self.residual_in_offer = None
            self.disagreement = with_rest(self.disagreement, progress, residual, self.share)
            self.feedback.commit()
            return forgotten if progress is None else self.feedback.merged_part(progress)
        # A pending Δ has the forgotten residual in it, and will take it out of the weights itself.
        return forgotten if self.progress is None else None

    def _is_late(self, gain: float) -> bool:
        """Whether an anchor with the learner's offer leaves or finds a disagreement."""
        return gain < 1 or self.disagreement is not None

    def _adopt_late(self, gain: float, own: Tensor, values: Tensor) -> None:
        """Turn the step of the anchor, in `values`, into the correction of a member of its round:
        give up this share of the disagreement, and keep the rest.

        The mean is taken from the step, not from the seal. So it is the same to the bit for a
        learner that takes the whole anchor. `own` stays as it is: the offer's packet may share its
        memory, and may still be on its way."""
        held, self.disagreement = self.disagreement, None
        total = self._copy(own) if held is None else held.add_(own)
        if gain < 1:
            out = self.buffers.take(values.numel())
            mean_step = unscaled(values, self.scale.factors, self.fragment.offsets, out)
            self.disagreement = disagreement(total, mean_step, gain)
            total.sub_(self.disagreement)
        values.add_(total)

    def begin_anew(self, weights: Tensor, keeps_offer: bool) -> None:
        """The user has put these weights in the place of this learner's, which owns the copy no
        more. They are where the next Δ begins: all that they differ by is a disagreement.

        `keeps_offer` says whether the pending offer stays. Its Δ counts as in the weights, because
        an anchor that merges it will take that much out of them."""
        rest = delta(self.theta, weights)
        if not keeps_offer:
            self.progress = None
        elif self.progress is not None:
            rest.sub_(self.progress)
        self.disagreement, self.share = rest, 1.0
        self.feedback.weights_residual = self.residual_in_offer = None

    def agree(self) -> Correction:
        """Give up what is left of the disagreement."""
        values, self.disagreement = self.disagreement, None
        if values is None:
            values = self.buffers.take(self.theta.numel()).zero_()
        return Correction(self.fragment.index, values, replace=False)

    def retake(self) -> Correction:
        """Give up everything but the anchor, which the weights become. Raises `PeerError` if the
        anchor is not finite either."""
        self.refuse_strange(self.theta)
        self.drop()
        return Correction(self.fragment.index, self.copy(), replace=True, resets=True)

    def drop(self) -> None:
        """Give up the pending offer, the residual and the disagreement."""
        self.disagreement = None
        self._drop_offer()

    def _drop_offer(self) -> None:
        self.progress = self.residual_in_offer = None
        self.feedback.drop()
        self.means.drop()

    # ── copies ────────────────────────────────────────────────────────────────────────────────────

    def export(self) -> Done:
        """The whole anchor, for a peer."""
        velocity = {name: raw(self._copy(held)) for name, held in self.velocity.held().items()}
        sections = {"anchor": raw(self.copy()), **velocity, **self.means.export()}
        sections |= self.sizes.export()
        if self.scale != PLAIN:
            sections[SCALE] = scale_packet(self.scale)
        parts = (sections[name].data for name in sorted(sections))
        return Done(sections=sections, digest=self.hashing.short(*parts))

    def save(self) -> dict[str, Tensor]:
        """Copies of all tensors, by the names they have in a checkpoint."""
        own = {
            "anchor": self.theta,
            **self.velocity.held(),
            "delta": self.progress,
            "disagreement": self.disagreement,
            **scale_tensors(self.scale),
            SIZES: self.sizes.save(),
        }
        returned = self.payload.feedback.held() if self.payload.feedback else {}
        held = {
            **own,
            **self.feedback.held(),
            **{saved: returned[name] for name, saved in RETURNED.items() if name in returned},
        }
        copies = {name: tensor.clone() for name, tensor in held.items() if tensor is not None}
        return copies | self.means.save()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take copies of what `save` returned."""
        self.theta.copy_(tensors["anchor"])
        self.velocity.load(tensors)
        self.progress = self._copy(tensors["delta"]) if "delta" in tensors else None
        held = tensors.get("disagreement")
        self.disagreement = None if held is None else self._copy(held)
        self.scale = kept_scale(tensors)
        self.sizes.load(tensors.get(SIZES))
        self.feedback.restore(tensors)
        self.means.load(tensors)
        returned = {name: tensors[key] for name, key in RETURNED.items() if key in tensors}
        self.payload.restore(returned)

    def copy(self) -> Tensor:
        """A copy of the anchor."""
        return self._copy(self.theta)

    def _copy(self, tensor: Tensor) -> Tensor:
        return self.buffers.take(tensor.numel()).copy_(tensor)


def _rms(values: Tensor) -> float:
    """The root mean square of a flat vector's elements."""
    numel = values.numel()
    return rms_of([block_norm(values[block]) for block in blocks(numel, FINE)], numel)
