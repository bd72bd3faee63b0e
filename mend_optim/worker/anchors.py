"""The tensor side of a learner: anchors, velocities and progress, and the jobs the engine asks for.

The engine (`syncer.py`) decides, in plain data; whoever owns an `Anchors` performs the jobs one at
a time, in order, and reports the results. Nothing here touches a parameter: what training must add
to its weights comes out as a `Correction`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mend_optim.codecs.buffers import Buffers
from mend_optim.codecs.packing import Shapes, as_bytes, raw
from mend_optim.codecs.registry import Codec, check_packet, decode_packet
from mend_optim.engine.effects import (
    Advance,
    Done,
    Export,
    Extend,
    Found,
    Inspect,
    Install,
    Job,
    Merge,
    Prepare,
    Reoffer,
)
from mend_optim.engine.moment_schedule import Moment
from mend_optim.errors import PeerError, unreachable
from mend_optim.model.layout import Fragment, Layout
from mend_optim.protocol.lineage import content_digest
from mend_optim.protocol.messages import State, section
from mend_optim.worker import merge
from mend_optim.worker.correction import Correction
from mend_optim.worker.feedback import Feedback
from mend_optim.worker.moment_means import MomentMeans
from mend_optim.worker.outer import Nesterov, correction_between, delta, outer_step
from mend_optim.worker.seal_payload import SealPayload, payload_digest

# What the way back's own feedback has in a checkpoint: all but what an open seal lost, which a
# checkpoint lacks.
RETURNED = {"residual": "returned", "memory": "returned_memory"}


# Jobs: from the engine to whoever performs them.


# Results: back to the engine.


class Anchors:
    """Θ, b, Δ, residuals and averaged moments of every fragment. One thread at a time."""

    def __init__(
        self,
        layout: Layout,
        weights: Sequence[Tensor],
        codec: Codec,
        outer: Nesterov,
        scheme: str,
        buffers: Buffers,
        moments: Sequence[Moment] = (),
    ) -> None:
        self.codec, self.outer, self.scheme, self.buffers, self.moments = (
            codec,
            outer,
            scheme,
            buffers,
            moments,
        )
        self.layout = layout
        self.theta = list(weights)
        self.velocity = [torch.zeros_like(w) if outer.momentum else None for w in weights]
        self.progress: list[Tensor | None] = [None] * len(weights)
        self.feedback: list[Feedback] = []
        self.way_back: list[SealPayload] = []
        self.averaging: list[MomentMeans] = []
        for fragment in layout.fragments:
            self._follow(fragment)

    def _follow(self, fragment: Fragment) -> None:
        self.feedback.append(
            Feedback(self.codec, fragment.shapes, self.buffers, self.codec.residual_in_weights)
        )
        self.way_back.append(SealPayload(self.codec, self.scheme, fragment, self.buffers))
        self.averaging.append(MomentMeans(self.moments, self.codec.exact, fragment, self.buffers))

    def genesis(self) -> bytes:
        """The digest of all anchors' bytes."""
        return content_digest(*(as_bytes(theta) for theta in self.theta))

    def perform(self, job: Job) -> tuple[Done, tuple[Correction, ...]]:
        """Do one job: what the engine is told of it, and what the training thread is to apply. A
        peer's garbage becomes a `fault`, never an exception."""
        try:
            match job:
                case Advance():
                    return Done(), self._advance(job)
                case Install():
                    return Done(), self._install(job)
                case _:
                    return self._make(job), ()
        except PeerError as error:
            return Done(fault=str(error)), ()

    def _make(self, job: Prepare | Reoffer | Extend | Inspect | Merge | Found | Export) -> Done:
        """The jobs that change nothing for the training thread."""
        match job:
            case Prepare():
                return self._prepare(job)
            case Reoffer():
                return self._reoffer(job)
            case Extend():
                return self._extend(job)
            case Inspect():
                return self._inspect(job)
            case Merge():
                return self._merge(job)
            case Found():
                return self._found(job)
            case Export():
                return self._export(job)
            case _:
                unreachable(job)

    def _prepare(self, job: Prepare) -> Done:
        progress = delta(self.theta[job.fragment], job.tensor)
        packet = self.feedback[job.fragment].encode(progress, job.flush)
        self.progress[job.fragment] = progress
        moments, wrong = self.averaging[job.fragment].offer(job.moments)
        return Done(sections={"delta": packet, **moments}, warning=wrong)

    def _reoffer(self, job: Reoffer) -> Done:
        progress = self.progress[job.fragment]
        assert progress is not None
        packet = self.feedback[job.fragment].encode_again(progress, job.flush)
        return Done(sections={"delta": packet, **self.averaging[job.fragment].again()})

    def _extend(self, job: Extend) -> Done:
        self.layout = job.layout
        self.theta.append(job.tensor)
        self.velocity.append(torch.zeros_like(job.tensor) if self.outer.momentum else None)
        self.progress.append(None)
        self._follow(job.layout.fragments[-1])
        return Done(digest=content_digest(as_bytes(job.tensor)))

    def _settle(self, fragment: int, merged_own_offer: bool) -> Tensor | None:
        """What of the pending Δ was merged, if it was: all but what its encoding lost, where that
        stays in the weights. What was lost is committed, and Δ is pending no more."""
        if not merged_own_offer:
            return None
        feedback = self.feedback[fragment]
        feedback.commit()
        progress, self.progress[fragment] = self.progress[fragment], None
        if progress is not None and feedback.weights_residual is not None:
            progress.sub_(feedback.weights_residual)
        return progress

    def _drop(self, fragment: int) -> None:
        self.progress[fragment] = None
        self.feedback[fragment].drop()
        self.averaging[fragment].drop()

    def _forget(self, fragment: int) -> Tensor | None:
        """What is still pending keeps what its own encoding lost: that is in nobody's offer. What
        has to leave the weights, too; not while a Δ is pending that has it in it."""
        feedback = self.feedback[fragment]
        weights_residual, feedback.residual, feedback.weights_residual = (
            feedback.weights_residual,
            None,
            None,
        )
        self.way_back[fragment].drop()
        return weights_residual if self.progress[fragment] is None else None

    def _shapes(self, fragment: int) -> Shapes:
        return self.layout.fragments[fragment].shapes

    def _inspect(self, job: Inspect) -> Done:
        check_packet(section(job.offer.sections, "delta"), self._shapes(job.offer.fragment))
        self.averaging[job.offer.fragment].check(job.offer.sections)
        return Done()

    def _merge(self, job: Merge) -> Done:
        scratch = self.buffers.take(self.theta[job.fragment].numel())
        delta = self.way_back[job.fragment].sections(job.offers, job.weights, scratch, job.flush)
        sections = {**delta, **self.averaging[job.fragment].average(job.offers, job.moments)}
        return Done(sections=sections, digest=payload_digest(sections, job.weights))

    def _advance(self, job: Advance) -> tuple[Correction, ...]:
        seal, p = job.seal, job.seal.fragment
        way_back, numel = self.way_back[p], self.theta[p].numel()
        if not job.sealed_here:
            self.averaging[p].check(seal.sections)
        merged = way_back.merged(seal, job.sealed_here, self.buffers.take(numel))
        if job.sealed_here and way_back.feedback:
            way_back.feedback.commit()
        if job.sealed_by_predecessor:
            way_back.drop()
        gone = self._forget(p) if job.forget else None
        own, moments = (
            self._settle(p, job.merged_own_offer),
            self.averaging[p].merged(seal.sections, job.merged_own_offer),
        )
        values = self.buffers.take(numel)
        outer_step(
            self.outer,
            self.theta[p],
            self.velocity[p],
            merged,
            gone if own is None else own,
            values,
        )
        if job.replace:
            if not job.merged_own_offer:
                self._drop(p)
            self._replace(p, values)
        return (Correction(p, values, job.replace, moments),)

    def _replace(self, p: int, values: Tensor) -> None:
        """What the weights become: the anchor, but for what stays in them."""
        weights_residual = self.feedback[p].weights_residual
        values.copy_(self.theta[p]) if weights_residual is None else torch.sub(
            self.theta[p], weights_residual, out=values
        )

    def _install(self, job: Install) -> tuple[Correction, ...]:
        for state in job.states:
            self._verify(state)
        return tuple(self._take(state, job) for state in job.states)

    def _verify(self, state: State) -> None:
        sections = [state.sections[name].data for name in sorted(state.sections)]
        if content_digest(*sections) != state.content:
            raise PeerError("the anchor's bytes do not have the digest that came with them")
        for name in ("anchor", "velocity") if self.outer.momentum else ("anchor",):
            check_packet(section(state.sections, name), self._shapes(state.fragment))
        self.averaging[state.fragment].check(state.sections)

    def _take(self, state: State, job: Install) -> Correction:
        p = state.fragment
        gone = self._forget(p) if job.forget else None
        self.way_back[p].drop()  # whatever was sealed meanwhile, we were not there
        anchor = decode_packet(state.sections["anchor"], self._shapes(p))
        values = self.buffers.take(anchor.numel())
        if job.replace:
            self._drop(p)
            values.copy_(anchor)
        else:
            own = self._settle(p, job.merged_own_offer)
            correction_between(self.theta[p], anchor, gone if own is None else own, values)
        self.theta[p].copy_(anchor)
        velocity = self.velocity[p]
        if velocity is not None:
            velocity.copy_(decode_packet(state.sections["velocity"], self._shapes(p)))
        moments = self.averaging[p].anchor_installed(
            state.sections, job.replace, job.merged_own_offer, job.due
        )
        return Correction(p, values, job.replace, moments)

    def _found(self, job: Found) -> Done:
        if not all(merge.finite(tensor) for tensor in job.tensors):
            return Done(fault="its parameters are not finite")
        for p, tensor in enumerate(job.tensors):
            self.theta[p].copy_(tensor)
            self._drop(p)
            self.way_back[p].drop()
            velocity = self.velocity[p]
            if velocity is not None:
                velocity.zero_()  # it belongs to the rounds before we were alone
            if job.moments:
                self.averaging[p].founded(job.moments[p])
        return Done(digest=self.genesis())

    def _export(self, job: Export) -> Done:
        p = job.fragment
        sections = {"anchor": raw(self._copy(self.theta[p])), **self.averaging[p].export()}
        velocity = self.velocity[p]
        if velocity is not None:
            sections["velocity"] = raw(self._copy(velocity))
        return Done(
            sections=sections,
            digest=content_digest(*(sections[name].data for name in sorted(sections))),
        )

    def save(self, p: int) -> dict[str, Tensor]:
        """Copies of all that there is of fragment `p`, by name."""
        own = {"anchor": self.theta[p], "velocity": self.velocity[p], "delta": self.progress[p]}
        back = self.way_back[p].feedback
        returned = {
            RETURNED[name]: kept
            for name, kept in (back.held() if back else {}).items()
            if name in RETURNED
        }
        held = {**own, **self.feedback[p].held(), **returned}
        copies = {name: tensor.clone() for name, tensor in held.items() if tensor is not None}
        return copies | self.averaging[p].save()

    def load(self, p: int, tensors: Mapping[str, Tensor]) -> None:
        """The inverse, into buffers of our own."""
        self.theta[p].copy_(tensors["anchor"])
        velocity, back = self.velocity[p], self.way_back[p].feedback
        if velocity is not None and "velocity" in tensors:
            velocity.copy_(tensors["velocity"])
        self.progress[p] = self._copy(tensors["delta"]) if "delta" in tensors else None
        self.feedback[p].restore(tensors)
        self.averaging[p].load(tensors)
        if back:
            back.restore(
                {name: tensors[saved] for name, saved in RETURNED.items() if saved in tensors}
            )

    def copies(self) -> list[Tensor]:
        """Copies of all anchors."""
        return [self._copy(theta) for theta in self.theta]

    def _copy(self, tensor: Tensor) -> Tensor:
        return self.buffers.take(tensor.numel()).copy_(tensor)
