"""The tensor side of a learner: anchors, velocities and progress, and the jobs the engine asks for.

The engine (`syncer.py`) decides, in plain data; whoever owns an `Anchors` performs the jobs one at a time, in order,
and reports the results. Nothing here touches a parameter: what training must add to its weights comes out as a
`Correction`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mend_optim.codecs.buffers import Buffers
from mend_optim.codecs.packing import Sections, Shapes, as_bytes, raw, section
from mend_optim.codecs.registry import Codec, check, decode
from mend_optim.errors import PeerError
from mend_optim.model.layout import Fragment, Layout
from mend_optim.model.moment_state import Moment
from mend_optim.protocol.lineage import Lineage, content_digest
from mend_optim.protocol.messages import Offer, Seal, State
from mend_optim.worker import merge
from mend_optim.worker.feedback import Feedback
from mend_optim.worker.moment_means import Averaging, MomentCorrection, Reading
from mend_optim.worker.outer import Nesterov, correction_between, delta, outer_step
from mend_optim.worker.seal_payload import WayBack, digest

# What the way back's own feedback has in a checkpoint: all but what an open seal lost, which a checkpoint lacks.
RETURNED = {"residual": "returned", "memory": "returned_memory"}


# Jobs: from the engine to whoever performs them.


@dataclass(frozen=True, slots=True)
class Prepare:
    """Turn the snapshot of `fragment` into Δ and encode it as offer `seq`, with the moments that were read beside it.
    `tensor` is handed over by the training thread. `closing`: see `Pending`."""

    fragment: int
    seq: int
    tensor: Tensor = field(compare=False, repr=False)
    moments: Mapping[str, Reading] = field(default_factory=dict, compare=False, repr=False)
    closing: bool = False


@dataclass(frozen=True, slots=True)
class Reoffer:
    """Encode the Δ that came with a checkpoint again: the same offer, `seq`, with the same bytes if that can be."""

    fragment: int
    seq: int
    closing: bool = False


@dataclass(frozen=True, slots=True)
class Extend:
    """A group was added: its parameters, as they are, become the anchor of one more fragment. `at`: (step, tokens)."""

    layout: Layout = field(compare=False, repr=False)
    tensor: Tensor = field(compare=False, repr=False)
    at: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Inspect:
    """Check a received offer's bytes: size, codec, finite values."""

    offer: Offer


@dataclass(frozen=True, slots=True)
class Merge:
    """Merge `offers` (in peer-name order, weights alike) on `base`: one merged delta, the mean of the `moments` that
    are due, and the digest of it all. `closing`: nobody brings more than what encodings have lost, or the sealer is at
    rest: nothing is to be lost on the way back."""

    fragment: int
    base: Lineage
    offers: tuple[Offer, ...]
    weights: tuple[float, ...]
    moments: tuple[str, ...] = ()
    closing: bool = False


@dataclass(frozen=True, slots=True)
class Advance:
    """Take the outer step of `seal`; `mine` says whether this learner's pending offer is in it; `replace`, that the
    weights become the anchor, but for what stays in them: nothing was trained since and training waits, or what was has
    to be dropped; `ours`, that we made the merged bytes ourselves; `forget`: see `Install`; `former`: a former process
    of ours made them, with what its seals before had lost."""

    seal: Seal
    lineage: Lineage
    mine: bool
    replace: bool = False
    ours: bool = False
    forget: bool = False
    former: bool = False


@dataclass(frozen=True, slots=True)
class Install:
    """Take whole anchors. `replace`: the weights become the anchor and all local progress is dropped. `forget`: what
    our encodings have lost is in there, or given up, too: it came with a checkpoint whose process went on. `due`: the
    moments whose mean, in there, is of the round that merged our pending offer."""

    states: tuple[State, ...]
    mine: bool
    replace: bool
    forget: bool = False
    due: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """Alone, take this learner's own weights (snapshots of all fragments, in order) as the anchors, and its moments for
    newcomers."""

    tensors: tuple[Tensor, ...] = field(compare=False, repr=False)
    moments: tuple[Mapping[str, Reading], ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Export:
    """Copy out the anchor of `fragment` for a peer that lacks it. `lineage` is the engine's, for the answer."""

    fragment: int
    lineage: Lineage


Job = Prepare | Reoffer | Extend | Inspect | Merge | Advance | Install | Found | Export


# Results: back to the engine.


@dataclass(frozen=True, slots=True)
class Correction:
    """What the training thread must do to the fragment's parameters: add `values`, or become them when `replace`; and
    to its moments."""

    fragment: int
    values: Tensor = field(compare=False, repr=False)
    replace: bool
    moments: tuple[MomentCorrection, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Done:
    """A job's outcome: what it made, or why it was refused. `digest` is of the bytes that were made or taken; `warning`
    says what is missing in it."""

    sections: Sections = field(default_factory=dict, compare=False, repr=False)
    digest: bytes = b""
    corrections: tuple[Correction, ...] = field(default=(), compare=False, repr=False)
    fault: str = ""
    warning: str = ""


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
        self.codec, self.outer, self.scheme, self.buffers, self.moments = codec, outer, scheme, buffers, moments
        self.layout = layout
        self.theta = list(weights)
        self.velocity = [torch.zeros_like(w) if outer.momentum else None for w in weights]
        self.progress: list[Tensor | None] = [None] * len(weights)
        self.feedback: list[Feedback] = []
        self.way_back: list[WayBack] = []
        self.averaging: list[Averaging] = []
        for fragment in layout.fragments:
            self._follow(fragment)

    def _follow(self, fragment: Fragment) -> None:
        self.feedback.append(Feedback(self.codec, fragment.shapes, self.buffers, self.codec.stays))
        self.way_back.append(WayBack(self.codec, self.scheme, fragment, self.buffers))
        self.averaging.append(Averaging(self.moments, self.codec.exact, fragment, self.buffers))

    def genesis(self) -> bytes:
        """The digest of all anchors' bytes."""
        return content_digest(*(as_bytes(theta) for theta in self.theta))

    def perform(self, job: Job) -> Done:
        """Do one job. A peer's garbage becomes a `fault`, never an exception."""
        try:
            do: Callable[[Job], Done] = getattr(self, "_" + type(job).__name__.lower())
            return do(job)
        except PeerError as error:
            return Done(fault=str(error))

    def _prepare(self, job: Prepare) -> Done:
        progress = delta(self.theta[job.fragment], job.tensor)
        packet = self.feedback[job.fragment].encode(progress, job.closing)
        self.progress[job.fragment] = progress
        moments, wrong = self.averaging[job.fragment].offer(job.moments)
        return Done(sections={"delta": packet, **moments}, warning=wrong)

    def _reoffer(self, job: Reoffer) -> Done:
        progress = self.progress[job.fragment]
        assert progress is not None
        packet = self.feedback[job.fragment].encode_again(progress, job.closing)
        return Done(sections={"delta": packet, **self.averaging[job.fragment].again()})

    def _extend(self, job: Extend) -> Done:
        self.layout = job.layout
        self.theta.append(job.tensor)
        self.velocity.append(torch.zeros_like(job.tensor) if self.outer.momentum else None)
        self.progress.append(None)
        self._follow(job.layout.fragments[-1])
        return Done(digest=content_digest(as_bytes(job.tensor)))

    def _settle(self, fragment: int, mine: bool) -> Tensor | None:
        """What of the pending Δ was merged, if it was: all but what its encoding lost, where that stays in the weights.
        What was lost is committed, and Δ is pending no more."""
        if not mine:
            return None
        feedback = self.feedback[fragment]
        feedback.commit()
        progress, self.progress[fragment] = self.progress[fragment], None
        if progress is not None and feedback.stayed is not None:
            progress.sub_(feedback.stayed)
        return progress

    def _drop(self, fragment: int) -> None:
        self.progress[fragment] = None
        self.feedback[fragment].drop()
        self.averaging[fragment].drop()

    def _forget(self, fragment: int) -> Tensor | None:
        """What is still pending keeps what its own encoding lost: that is in nobody's offer. What has to leave the
        weights, too; not while a Δ is pending that has it in it."""
        feedback = self.feedback[fragment]
        stayed, feedback.residual, feedback.stayed = feedback.stayed, None, None
        self.way_back[fragment].drop()
        return stayed if self.progress[fragment] is None else None

    def _shapes(self, fragment: int) -> Shapes:
        return self.layout.fragments[fragment].shapes

    def _inspect(self, job: Inspect) -> Done:
        check(section(job.offer.sections, "delta"), self._shapes(job.offer.fragment))
        self.averaging[job.offer.fragment].check(job.offer.sections)
        return Done()

    def _merge(self, job: Merge) -> Done:
        room = self.buffers.take(self.theta[job.fragment].numel())
        delta = self.way_back[job.fragment].sections(job.offers, job.weights, room, job.closing)
        sections = {**delta, **self.averaging[job.fragment].average(job.offers, job.moments)}
        return Done(sections=sections, digest=digest(sections, job.weights))

    def _advance(self, job: Advance) -> Done:
        seal, p = job.seal, job.seal.fragment
        way_back, numel = self.way_back[p], self.theta[p].numel()
        if not job.ours:
            self.averaging[p].check(seal.sections)
        merged = way_back.merged(seal, job.ours, self.buffers.take(numel))
        if job.ours and way_back.feedback:
            way_back.feedback.commit()
        if job.former:
            way_back.drop()
        gone = self._forget(p) if job.forget else None
        mine, moments = self._settle(p, job.mine), self.averaging[p].merged(seal.sections, job.mine)
        values = self.buffers.take(numel)
        outer_step(self.outer, self.theta[p], self.velocity[p], merged, gone if mine is None else mine, values)
        if job.replace:
            if not job.mine:
                self._drop(p)
            self._replace(p, values)
        return Done(corrections=(Correction(p, values, job.replace, moments),))

    def _replace(self, p: int, values: Tensor) -> None:
        """What the weights become: the anchor, but for what stays in them."""
        stayed = self.feedback[p].stayed
        values.copy_(self.theta[p]) if stayed is None else torch.sub(self.theta[p], stayed, out=values)

    def _install(self, job: Install) -> Done:
        for state in job.states:
            self._verify(state)
        return Done(corrections=tuple(self._take(state, job) for state in job.states))

    def _verify(self, state: State) -> None:
        sections = [state.sections[name].data for name in sorted(state.sections)]
        if content_digest(*sections) != state.content:
            raise PeerError("the anchor's bytes do not have the digest that came with them")
        for name in ("anchor", "velocity") if self.outer.momentum else ("anchor",):
            check(section(state.sections, name), self._shapes(state.fragment))
        self.averaging[state.fragment].check(state.sections)

    def _take(self, state: State, job: Install) -> Correction:
        p = state.fragment
        gone = self._forget(p) if job.forget else None
        self.way_back[p].drop()  # whatever was sealed meanwhile, we were not there
        anchor = decode(state.sections["anchor"], self._shapes(p))
        values = self.buffers.take(anchor.numel())
        if job.replace:
            self._drop(p)
            values.copy_(anchor)
        else:
            mine = self._settle(p, job.mine)
            correction_between(self.theta[p], anchor, gone if mine is None else mine, values)
        self.theta[p].copy_(anchor)
        velocity = self.velocity[p]
        if velocity is not None:
            velocity.copy_(decode(state.sections["velocity"], self._shapes(p)))
        moments = self.averaging[p].taken(state.sections, job.replace, job.mine, job.due)
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
        return Done(sections=sections, digest=content_digest(*(sections[name].data for name in sorted(sections))))

    def save(self, p: int) -> dict[str, Tensor]:
        """Copies of all that there is of fragment `p`, by name."""
        own = {"anchor": self.theta[p], "velocity": self.velocity[p], "delta": self.progress[p]}
        back = self.way_back[p].feedback
        returned = {RETURNED[name]: kept for name, kept in (back.held() if back else {}).items() if name in RETURNED}
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
            back.restore({name: tensors[saved] for name, saved in RETURNED.items() if saved in tensors})

    def copies(self) -> list[Tensor]:
        """Copies of all anchors."""
        return [self._copy(theta) for theta in self.theta]

    def _copy(self, tensor: Tensor) -> Tensor:
        return self.buffers.take(tensor.numel()).copy_(tensor)


def stack(older: Correction | None, newer: Correction) -> Correction:
    """One correction that does what `older`, not yet applied, and then `newer` would have done."""
    if older is None:
        return newer
    moments = (*older.moments, *newer.moments)
    if newer.replace:
        return replace(newer, moments=moments)
    newer.values.add_(older.values)
    return Correction(newer.fragment, newer.values, older.replace, moments)
