"""The settings that the engine works by, and the weights of a round's members."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, sqrt

from mend_optim.engine.late_adoption import Adoption
from mend_optim.engine.moment_schedule import Moment, MomentSchedule
from mend_optim.engine.period import AutoPeriod
from mend_optim.engine.quorum import Grace, Quorum
from mend_optim.engine.schedule import Schedule
from mend_optim.membership.failslow import FailSlow
from mend_optim.protocol.lineage import Entry
from mend_optim.protocol.peer_limits import Limits
from mend_optim.protocol.timing import Timing


@dataclass(frozen=True, kw_only=True)
class Policies:
    """The settings of one learner's rounds."""

    #: The first one; `EngineState.schedule` is the present one.
    schedule: Schedule
    #: The limits of a period that the run chooses for itself; None: the period is fixed.
    auto: AutoPeriod | None = None
    quorum: Quorum = Quorum()
    grace: Grace = Grace()
    adoption: Adoption = Adoption()
    weighting: str = "tokens_and_batch"
    #: Whether the merge weighs offers by the work that they bring.
    weighs_work: bool = True
    timing: Timing = Timing()
    limits: Limits = Limits()
    failslow: FailSlow | None = FailSlow()
    moments: tuple[Moment, ...] = ()
    periods: MomentSchedule | None = None
    #: Moments are averaged only while the period is at least so many inner steps.
    least_period: int = 1
    #: The name of the inner optimizer, if its moments are not known.
    unknown_optimizer: str = ""
    #: Whether encodings leave residuals in the weights (see `Codec`), to be merged at rest.
    residual_in_weights: bool = False
    #: The name of the merge, if it cannot merge them.
    unflushed_merge: str = ""
    #: Whether learners sign their offers. Then offers of nothing have bytes to check, too.
    signed: bool = False
    #: Whether the merge is linear and offers lose nothing, so that a relay may join them.
    joins: bool = False
    #: Whether this learner, as a sealer, scales outsized offers down. Learners may differ in that.
    clips: bool = False
    #: The learner's zone; empty if it is in none. Learners differ in this one.
    zone: str = ""

    def due(self, version: int) -> tuple[str, ...]:
        """The names of the moments that the round averages which makes this version."""
        return tuple(
            m.name for m in self.moments if self.periods and self.periods.due(version, m.order)
        )

    def owed(self, averaged: Mapping[str, int], version: int) -> tuple[str, ...]:
        """The names of the moments that have become due, up to this version, since a round averaged
        them last. A learner that misses a round sends its moments again until a later round takes
        them.

        Args:
            averaged: by order of moment, the version of the last round that averaged them. It may
                be of another branch, and so greater than `version`.
            version: the version that the next round makes.
        """
        if self.periods is None:
            return ()
        since = {
            order: min(averaged.get(order, 0), max(0, version - 1))
            for order, _ in self.periods.rounds
        }
        passed = {
            order: version // period > since[order] // period
            for order, period in self.periods.rounds
        }
        return tuple(moment.name for moment in self.moments if passed[moment.order])

    def averaged(self, names: Collection[str], version: int) -> dict[str, int]:
        """The entries for `Progress.averaged` when a version averages moments of these names."""
        return {moment.order: version for moment in self.moments if moment.name in names}


#: What a weighting multiplies a member's tokens by: of b, its batch over the largest one of the
#: round. One that is not listed weighs no work.
FACTORS: Mapping[str, Callable[[float], float]] = {
    "tokens_and_batch": sqrt,
    "tokens": lambda b: 1.0,
    "throughput": lambda b: b,
}
WEIGHTINGS = (*FACTORS, "uniform")


def weights(scheme: str, members: Sequence[Entry]) -> list[float]:
    """The weights of a round's members: wᵢ ≥ 0, Σ wᵢ = 1. With the batch bᵢ = tokensᵢ/stepsᵢ,

        "tokens_and_batch"    wᵢ ∝ tokensᵢ √bᵢ
        "tokens"              wᵢ ∝ tokensᵢ
        "throughput"          wᵢ ∝ tokensᵢ bᵢ (Decoupled DiLoCo, arXiv 2604.21428)
        "uniform"             wᵢ = 1/n over the members with steps

    Where batches are equal, the first three are the same to the bit. A member without steps brings
    no delta and weighs 0. If no member has tokens, all members with steps weigh the same. If no
    member has steps, all weigh 0.

    Every learner computes the weights of every seal, and compares them to the bit. So each
    operation is one that IEEE 754 rounds correctly, and the sums are exact: `sum` rounds in another
    way since Python 3.12."""
    stepped = [1.0 if m.steps else 0.0 for m in members]
    raw = _of_work(FACTORS[scheme], members) if scheme in FACTORS else stepped
    raw = raw if fsum(raw) > 0 else stepped
    total = fsum(raw) or 1.0
    return [w / total for w in raw]


def _of_work(factor: Callable[[float], float], members: Sequence[Entry]) -> list[float]:
    batches = [m.tokens / m.steps if m.steps else 0.0 for m in members]
    most = max(batches, default=0.0) or 1.0
    return [
        m.tokens * factor(b / most) if m.steps else 0.0
        for m, b in zip(members, batches, strict=True)
    ]
