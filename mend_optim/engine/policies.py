"""What the engine goes by: the settings of one learner's rounds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from mend_optim.engine.moment_schedule import Moment, MomentSchedule
from mend_optim.engine.quorum import Grace, Quorum
from mend_optim.engine.schedule import Schedule
from mend_optim.membership.failslow import FailSlow
from mend_optim.protocol.lineage import Entry
from mend_optim.protocol.timing import Timing


@dataclass(frozen=True, kw_only=True)
class Policies:
    """What the engine goes by."""

    schedule: Schedule
    quorum: Quorum = Quorum()
    grace: Grace = Grace()
    weighting: str = "tokens"
    timing: Timing = Timing()
    failslow: FailSlow | None = FailSlow()
    moments: tuple[Moment, ...] = ()
    periods: MomentSchedule | None = None
    unknown_optimizer: str = ""  # an optimizer whose moments nobody knows
    # whether something stays in the weights (see `Codec`) that is to be merged at rest
    residual_in_weights: bool = False
    unflushed_merge: str = ""  # the merge that cannot

    def due(self, version: int) -> tuple[str, ...]:
        """The moments that a round averages whose seal makes this version."""
        return tuple(
            m.name for m in self.moments if self.periods and self.periods.due(version, m.order)
        )

    def owed(self, averaged: Mapping[str, int], version: int) -> tuple[str, ...]:
        """Those that became due, by that version, since a round averaged them last: `averaged` has
        its version by order, which may be greater: of another branch. Who missed the round sends
        them until one takes them."""
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
        """What to remember of a version that averaged the moments of these names."""
        return {moment.order: version for moment in self.moments if moment.name in names}


WEIGHTINGS = ("tokens", "throughput", "uniform")


def weights(scheme: str, members: Sequence[Entry]) -> list[float]:
    """wᵢ ≥ 0 with Σ wᵢ = 1. "tokens": wᵢ ∝ tokensᵢ; "throughput": wᵢ ∝ tokensᵢ²/stepsᵢ (Decoupled
    DiLoCo, arXiv 2604.21428); "uniform": wᵢ = 1/n. A member without steps brings no delta and
    weighs 0; if no step had tokens, all that stepped weigh the same."""
    stepped = [1.0 if m.steps else 0.0 for m in members]
    if scheme == "tokens":
        raw = [m.tokens * s for m, s in zip(members, stepped, strict=True)]
    elif scheme == "throughput":
        raw = [m.tokens * m.tokens / m.steps if m.steps else 0.0 for m in members]
    else:
        raw = stepped
    raw = raw if sum(raw) > 0 else stepped
    total = sum(raw) or 1.0
    return [w / total for w in raw]
