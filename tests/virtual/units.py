"""A twin of `worker.anchors.Anchors` in set algebra: units of work stand for tensors.

A vector is a dict from unit to integer coefficient. Weights are the anchor's units plus the
learner's own. A merge is a plain sum. Since adoption is linear, the engine must keep every
coefficient of every anchor and of all weights at exactly 1: a unit merged twice shows as 2, a lost
correction as 0 or -1."""

from __future__ import annotations

from typing import Any, NamedTuple

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
from mend_optim.protocol.lineage import content_digest

Vector = dict[Any, int]


class Section(dict[Any, int]):
    """A vector in a message. It has a size, as packets do."""

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


def add(a: Vector, b: Vector, scale: int = 1) -> Vector:
    """a + scale·b, without zeros."""
    total = dict(a)
    for unit, count in b.items():
        total[unit] = total.get(unit, 0) + scale * count
    return {unit: count for unit, count in total.items() if count}


def digest(*vectors: Vector) -> bytes:
    return content_digest(*(repr(sorted(v.items(), key=repr)).encode() for v in vectors))


class Units:
    """Performs the engine's jobs on vectors of units."""

    def __init__(self, weights: list[Vector]) -> None:
        self.theta = [dict(w) for w in weights]
        self.progress: list[Vector] = [{} for _ in weights]

    def genesis(self) -> bytes:
        return digest(*self.theta)

    def perform(self, job: Job) -> tuple[Done, tuple[Correction, ...]]:
        if isinstance(job, Advance):
            p = job.seal.fragment
            new = add(self.theta[p], job.seal.sections["merged"])  # type: ignore[arg-type]
            return Done(), (self._to(p, new, job.merged_own_offer, job.replace),)
        if isinstance(job, Install):
            states = [(s.fragment, s.sections["anchor"]) for s in job.states]
            return Done(), tuple(
                self._to(p, anchor, job.merged_own_offer, job.replace) for p, anchor in states
            )  # type: ignore[arg-type]
        return self._make(job), ()

    def _make(self, job: Job) -> Done:
        if isinstance(job, Prepare):
            p = job.fragment
            self.progress[p] = add(job.tensor, self.theta[p], -1)
            return Done(sections={"delta": Section(self.progress[p])})  # type: ignore[dict-item]
        if isinstance(job, Extend):
            self.theta.append(dict(job.tensor))
            self.progress.append({})
            return Done(digest=digest(self.theta[-1]))
        if isinstance(job, Reoffer):
            return Done(sections={"delta": Section(self.progress[job.fragment])})  # type: ignore[dict-item]
        if isinstance(job, Inspect):
            return Done()
        if isinstance(job, Merge):
            merged: Vector = {}
            for offer in job.offers:
                merged = add(merged, offer.sections.get("delta", {}))  # type: ignore[arg-type]
            return Done(sections={"merged": Section(merged)}, digest=digest(merged))  # type: ignore[dict-item]
        if isinstance(job, Found):
            self.theta[: len(job.tensors)] = [dict(t) for t in job.tensors]
            return Done(digest=digest(*self.theta))
        assert isinstance(job, Export)
        return Done(sections={"anchor": Section(self.theta[job.fragment])}, digest=b"")  # type: ignore[dict-item]

    def _to(self, p: int, new: Vector, mine: bool, replace: bool) -> Correction:
        values = dict(new) if replace else add(new, self.theta[p], -1)
        if mine and not replace:
            values = add(values, self.progress[p], -1)
        if mine or replace:  # the progress was merged, or is dropped
            self.progress[p] = {}
        self.theta[p] = dict(new)
        return Correction(p, values, replace)


def stack(older: Correction | None, newer: Correction) -> Correction:
    if older is None or newer.replace:
        return newer
    return Correction(newer.fragment, add(older.values, newer.values), older.replace)
