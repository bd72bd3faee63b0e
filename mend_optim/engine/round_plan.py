"""The next actions of a sealer in the round of one fragment: a pure function of its view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mend_optim.engine.pending import NEVER
from mend_optim.engine.policies import Policies
from mend_optim.engine.quorum import decide
from mend_optim.engine.round import Phase, Round
from mend_optim.protocol.lineage import PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The view that the sealer of a fragment has at one moment; times in seconds."""

    now: float
    #: The round, to be read only.
    round: Round
    #: Learners that take part, this one included.
    expected: Sequence[PeerId]
    #: Those of them that the round waits for: see `Stragglers`.
    awaited: Sequence[PeerId]
    #: The fewest offers of a seal.
    needed: int
    #: The period of the run, in inner steps.
    period: int
    #: The learners' median of an inner step.
    step_s: float
    #: When all learners know one another: before, one of them may seal for some of the others.
    known_at: float
    #: Whether all learners are at rest: nobody takes a step between two rounds.
    all_rest: bool
    #: Until when a peer with a greater anchor is waited for; in the past if there is none.
    behind_until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The actions to take now, in the order of the fields."""

    #: Begin a round.
    launch: bool = False
    #: Ask these for their offers; None: it is not time to call.
    call: tuple[PeerId, ...] | None = None
    #: Whether there is something to decide about, so that the time of quorum counts.
    collects: bool = False
    #: Fix the members and merge, for this reason; empty: not yet.
    seal: str = ""
    #: When to look again if nothing arrives.
    wake_at: float = NEVER


def plan(view: View, policies: Policies) -> Plan:
    """Launch, call, decide.

    A seal that leaves out an awaited learner comes no sooner than about H median steps after the
    last one: rounds that come too often over-drive the outer momentum. In lockstep there is no such
    interval, because learners offer at their own boundaries alone. Nor is there one while all
    learners rest: then each of them waits for the last round."""
    now, round, schedule = view.now, view.round, policies.schedule
    if now < view.known_at:
        return Plan(wake_at=view.known_at)
    period_s = view.period * view.step_s
    interval_s = 0.0 if schedule.lockstep or view.all_rest else period_s
    launch = round.launch_due(now, view.awaited, interval_s)
    if round.phase is Phase.WAITING and not launch:
        launch_at = round.sealed_at + interval_s
        return Plan(wake_at=launch_at if launch_at > now else NEVER)
    call = tuple(round.missing(view.expected)) if launch or now >= round.call_at else None
    if now < view.behind_until:
        return Plan(launch=launch, call=call, wake_at=view.behind_until)
    if not round.has_work:
        return Plan(launch=launch, call=call)
    # Without `adopt_after` nobody waits for a round, and a whole period hides it.
    overlap_s = period_s if schedule.adopt_after is None else schedule.adopt_after * view.step_s
    decision = decide(
        now,
        present=round.inbox,
        expected=view.awaited,
        needed=view.needed,
        grace_s=policies.grace.seconds(overlap_s, round.delays),
        quorum_at=round.quorum_since(now, view.needed),
        not_before=round.sealed_at + interval_s,
    )
    return Plan(
        launch=launch,
        call=call,
        collects=True,
        seal=decision.reason if decision.seal else "",
        wake_at=NEVER if decision.wake_at is None else decision.wake_at,
    )
