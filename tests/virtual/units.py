"""A twin of `worker.anchors.Anchors` in set algebra: units of work stand for tensors.

A vector is a dict from unit to integer coefficient. Weights are the anchor's units plus the
learner's own. A merge is a plain sum. Since adoption is linear, the engine must keep every
coefficient of every anchor and of all weights at exactly 1: a unit merged twice shows as 2, a lost
correction as 0 or -1.

A learner that adopts late keeps a disagreement in its weights. Real ones are a share of the
learner's progress less the mean. Here it is that whole difference, less what was kept before: any
vector would do, as long as weights and disagreement make the sum."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from mend_optim.engine.effects import (
    Advance,
    Agree,
    Attest,
    Done,
    Export,
    Extend,
    Found,
    Inspect,
    Install,
    Job,
    Join,
    Merge,
    Outsize,
    Prepare,
    Reoffer,
    Retake,
)
from mend_optim.protocol.lineage import content_digest
from mend_optim.protocol.messages import MOMENT_PREFIX, Offer, State
from tests.virtual.moments import Moments

Vector = dict[Any, int]
_name = cache(repr)  # the same units are in all anchors

OUTSIZED = Outsize(rms=100.0, times=100.0)


class Section(dict[Any, int]):
    """A vector in a message. It has a size, as packets do. `outsized`: whether it is of ruined
    weights; or in a seal, the members whose offers were."""

    outsized: Any = False
    #: Whether it is of a joint offer in which an insider lied: see `joint_lies.py`.
    lied: bool = False

    @property
    def nbytes(self) -> int:
        return len(self)

    @property
    def numel(self) -> int:
        return len(self) // 4


class Correction(NamedTuple):
    """The values to add to the weights, or to replace them with."""

    fragment: int
    values: Vector
    replace: bool
    #: The disagreement that the weights hold afterwards.
    disagreement: Vector

    @property
    def resets(self) -> bool:
        """Units have no moments."""
        return False


def add(a: Vector, b: Vector, scale: int = 1) -> Vector:
    """a + scale·b, without zeros."""
    total = dict(a)
    if not b:
        return total
    for unit, count in b.items():
        total[unit] = total.get(unit, 0) + scale * count
    if 0 not in total.values():  # mostly; the search is much faster than the copy
        return total
    return {unit: count for unit, count in total.items() if count}


def digest(*vectors: Vector) -> bytes:
    named = (sorted(map(_name, vector.items())) for vector in vectors)
    return content_digest(*(f"[{', '.join(names)}]".encode() for names in named))


class Units:
    """Performs the engine's jobs on vectors of units.

    Those of the fragment `buffers`, if there is one, stand for the observations that are in its
    values. A real merge is a mean of values. Here it is the sum of what was observed, so that no
    observation may count twice or be lost. As a real one does, such a fragment keeps a disagreement
    whatever the gain, which ends at rest."""

    def __init__(self, weights: list[Vector], buffers: int | None = None) -> None:
        self.buffers = buffers
        self.theta = [dict(w) for w in weights]
        self.progress: list[Vector] = [{} for _ in weights]
        self.disagreement: list[Vector] = [{} for _ in weights]
        #: By fragment.
        self.moments = defaultdict[int, Moments](lambda: Moments(Section))
        #: By fragment, what is wrong with the weights: they are "outsized", or "not finite".
        self.ruined: dict[int, str] = {}

    def genesis(self) -> bytes:
        return digest(*self.theta)

    def perform(self, job: Job) -> tuple[Done, tuple[Correction, ...]]:
        if isinstance(job, Advance):
            p = job.seal.fragment
            merged: Vector = job.seal.sections.get("merged", Section())  # type: ignore[assignment]
            if digest(merged) != job.seal.payload:
                return Done(fault="the merged bytes are not those of the seal"), ()
            self.moments[p].take(job.seal.sections, job.merged_own_offer)
            sizes = job.seal.sections.get("sizes")
            outsized = sizes.outsized if sizes is not None else {}  # type: ignore[attr-defined]
            return Done(outsized=outsized), (self._to(p, add(self.theta[p], merged), job),)
        if isinstance(job, Install):
            states = [(s.fragment, s.sections["anchor"]) for s in job.states]
            for i, content in enumerate(job.contents):
                if content and digest(states[i][1]) != content:  # type: ignore[arg-type]
                    fault = "other learners have something else under its key"
                    return Done(fault=fault, refused=i), ()
            for s in job.states:
                self._install_moments(s, job)
            return Done(), tuple(self._to(p, anchor, job) for p, anchor in states)  # type: ignore[arg-type]
        if isinstance(job, Agree):
            p = job.fragment
            given_up, self.disagreement[p] = self.disagreement[p], {}
            return Done(), (Correction(p, add({}, given_up, -1), False, {}),)
        if isinstance(job, Retake):
            p = job.fragment
            self.ruined.pop(p, None)
            self.progress[p] = {}
            self.disagreement[p] = {}
            self.moments[p].drop()
            return Done(), (Correction(p, dict(self.theta[p]), True, {}),)
        if isinstance(job, Attest):
            return Done(digest=digest(self.theta[job.fragment])), ()
        return self._make(job), ()

    def begin_anew(self, p: int, weights: Vector, keeps_offer: bool) -> Vector:
        """The user has put these weights in the place of the learner's. Returns the disagreement
        that they hold: all that neither the anchor nor an offer that stays accounts for."""
        if not keeps_offer:
            self.progress[p] = {}
        accounted = add(self.theta[p], self.progress[p])
        self.disagreement[p] = add(weights, accounted, -1)
        return dict(self.disagreement[p])

    def _make(self, job: Job) -> Done:
        if isinstance(job, Prepare):
            p = job.fragment
            rests_on = add(self.theta[p], self.disagreement[p])
            self.progress[p] = add(job.tensor, rests_on, -1)
            if self.ruined.get(p) == "not finite":
                return Done(fault="its parameters are not finite")
            delta = Section(self.progress[p])
            delta.outsized = p in self.ruined
            moments = self.moments[p].offer(job.moments)
            return Done(sections={"delta": delta, **moments})  # type: ignore[dict-item]
        if isinstance(job, Extend):
            self.theta.append(dict(job.tensor))
            self.progress.append({})
            self.disagreement.append({})
            return Done(digest=digest(self.theta[-1]))
        if isinstance(job, Reoffer):
            return Done(sections={"delta": Section(self.progress[job.fragment])})  # type: ignore[dict-item]
        if isinstance(job, Inspect):
            return Done()
        if isinstance(job, Join):
            moments = self.moments[job.fragment].mean(job.offers)
            delta = _joint([offer.sections["delta"] for offer in job.offers])  # type: ignore[misc]
            return Done(sections={"delta": delta, **moments})  # type: ignore[dict-item]
        if isinstance(job, Merge):
            merged: Vector = {}
            deltas = [offer.sections.get("delta", Section()) for offer in job.offers]
            outsized = dict.fromkeys(sorted(_outsized(job.offers)), OUTSIZED)
            if outsized:
                return Done(outsized=outsized)
            for delta in deltas:
                merged = add(merged, delta)  # type: ignore[arg-type]
            sizes = Section()
            sizes.outsized = dict(job.outsized)
            moments = self.moments[job.fragment].mean(job.offers, job.moments or [""])
            sections = {"merged": Section(merged), "sizes": sizes, **moments}
            return Done(sections=sections, digest=digest(merged))  # type: ignore[arg-type]
        if isinstance(job, Found):
            for p, tensor in enumerate(job.tensors):
                self.theta[p] = add(tensor, self.disagreement[p], -1)
            return Done(digest=digest(*self.theta))
        assert isinstance(job, Export)
        sections = {"anchor": Section(self.theta[job.fragment])}
        sections |= self.moments[job.fragment].latest
        return Done(sections=sections, digest=b"")  # type: ignore[arg-type]

    def _install_moments(self, state: State, job: Install) -> None:
        moments = self.moments[state.fragment]
        due = {MOMENT_PREFIX + name for name in job.due}
        corrects = {key: mean for key, mean in state.sections.items() if key in due}
        if job.merged_own_offer and not job.replace:
            moments.take(corrects, True)
        if job.merged_own_offer or job.replace:
            moments.drop()
        moments.latest = {
            key: mean  # type: ignore[misc]
            for key, mean in state.sections.items()
            if key.startswith(MOMENT_PREFIX)
        }

    def _to(self, p: int, new: Vector, job: Advance | Install) -> Correction:
        """Move to the anchor `new`, and keep what the job's gain leaves of the disagreement."""
        step, mine = add(new, self.theta[p], -1), job.merged_own_offer
        values, kept = step, self.disagreement[p]
        if job.replace:
            values, kept = dict(new), {}
        elif mine:
            keeps = job.gain < 1 or p == self.buffers
            kept = add(self.progress[p], step, -1) if keeps else {}
            values = add(add(step, self.progress[p], -1), add(kept, self.disagreement[p], -1))
        if mine or job.replace:  # the progress was merged, or is dropped
            self.progress[p] = {}
        self.disagreement[p] = kept
        self.theta[p] = dict(new)
        return Correction(p, values, job.replace, dict(kept))


def _joint(deltas: list[Section]) -> Section:
    """Those of a zone as one. As norms do, it tells which of them are of ruined weights."""
    joint: Vector = {}
    for delta in deltas:
        joint = add(joint, delta)
    made = Section(joint)
    made.outsized = [bool(delta.outsized) for delta in deltas]
    return made


def _outsized(offers: Sequence[Offer]) -> set[int]:
    """The indices of the offers of ruined weights."""
    index, found = {offer.peer: i for i, offer in enumerate(offers)}, set()
    for i, offer in enumerate(offers):
        told = getattr(offer.sections.get("delta"), "outsized", False)
        members = [i, *(index[other.peer] for other in offer.others)]
        flags = told if isinstance(told, list) else [told]
        found |= {member for member, flag in zip(members, flags, strict=True) if flag}
    return found


def stack(older: Correction | None, newer: Correction) -> Correction:
    if older is None or newer.replace:
        return newer
    values = add(older.values, newer.values)
    return Correction(newer.fragment, values, older.replace, newer.disagreement)
