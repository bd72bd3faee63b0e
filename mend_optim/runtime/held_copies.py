"""The lead's plans for a learner of several ranks, which are told one step before all ranks follow
them, and what follows from them for the engine.

Only the training thread calls this, except `submit`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mend_optim.engine.progress import Progress
from mend_optim.engine.schedule import Schedule
from mend_optim.engine.state import EngineState
from mend_optim.runtime import clock
from mend_optim.runtime.interrupts import Uninterrupted
from mend_optim.runtime.learner import Learner
from mend_optim.worker.anchors import Anchors
from mend_optim.worker.correction import Correction, stack

#: A plan is made at the end of one step, before that step is counted, and followed at the end of
#: the next.
AHEAD = 2
#: Under `adopt_after`, a copy in passing is offered one step later than one for which the ranks
#: meet. All learners would wait for it, if its anchor were due within fewer steps than these.
ROOM = 4


class Plan(NamedTuple):
    """The deeds of all ranks at the end of the next step."""

    #: The ranks meet: there is something to do that cannot be done in passing.
    meets: bool = False
    #: The fragment to copy; None if there is none.
    copy: int | None = None
    #: The moments to copy with it.
    moments: tuple[str, ...] = ()
    #: A correction to bring to all ranks.
    correction: Correction | None = None
    #: The first step at whose end they may add it.
    due: int = 0


NOTHING = Plan()


class _Found(NamedTuple):
    """What there is to do."""

    meets: bool = False
    copy: int | None = None
    #: The fragment whose correction is to be brought to the ranks.
    bring: int | None = None


_IDLE = _Found()
_MEETING = _Found(meets=True)


def plan(learner: Learner, sent: Mapping[int, bool], hold_s: float, *, in_passing: bool) -> Plan:
    """Decide what the ranks do at the end of the next step, hold the anchor of the fragment that
    they will copy, and take the correction that they will get.

    Args:
        learner: the lead's.
        sent: the fragments for which a correction is on its way to the ranks, and whether all have
            it. Another one waits, and is stacked with those that follow.
        hold_s: for how many seconds the anchor stands still at most.
        in_passing: whether copies may be planned; else the ranks meet for them.
    """
    boundaries, mailbox = learner.engine.boundaries, learner.worker.mailbox
    with learner.mutex:
        if (found := _find(learner, sent, in_passing)) == _IDLE:
            return NOTHING
    with Uninterrupted(), learner.mutex:
        found = _find(learner, sent, in_passing)
        p, q = found.copy, found.bring
        moments: tuple[str, ...] = ()
        if p is not None:
            moments = boundaries.moments(p)
            boundaries.hold(p, clock.now() + hold_s)
        if q is None:
            return Plan(found.meets, p, moments)
        due = learner.engine.state.fragments[q].adopt_at or 0
        return Plan(found.meets, p, moments, mailbox.pop(q), due)


def _find(learner: Learner, sent: Mapping[int, bool], in_passing: bool) -> _Found:
    state, boundaries = learner.engine.state, learner.engine.boundaries
    mailbox, overlap = learner.worker.mailbox, state.schedule.adopt_after
    if learner.closed:
        return _IDLE
    p = boundaries.wanted_in(AHEAD)
    if overlap is not None:
        at = state.totals.step + AHEAD
        awaited = [*mailbox, *(q for q, is_with_all in sent.items() if not is_with_all)]
        due = _due_fragments(state, at)
        if _any_due(state, at, awaited) or (due and (overlap < ROOM or due != [p])):
            return _MEETING
        p = p if due else None  # before its boundary, the ranks copy only where they wait
    # Work that a replacement drops has to be trained by nobody: all stand still for it.
    if any(correction.replace or correction.resets for correction in mailbox.values()):
        return _MEETING
    if boundaries.founding and (overlap is not None or boundaries.fragments_to_copy()):
        return _MEETING
    if p is not None and not in_passing:
        return _MEETING
    return _Found(copy=p, bring=next((q for q in mailbox if q not in sent), None))


def falls_due(learner: Learner, steps: int) -> bool:
    """Under `adopt_after`: whether there may be something to do once so many more steps were taken.

    That is a copy, an anchor that is due then, whether it has come or not, or one that came late. A
    correction that waits for its step does not count before."""
    state = learner.engine.state
    with learner.mutex:
        at = state.totals.step + steps
        return (
            learner.engine.boundaries.founding
            or _any_due(state, at, learner.worker.mailbox)
            or bool(_due_fragments(state, at))
        )


def _any_due(state: EngineState, at: int, corrected: Iterable[int]) -> bool:
    """Whether a correction of one of these fragments is due at this step."""
    return any(at >= (state.fragments[p].adopt_at or 0) for p in corrected)


def _due_fragments(state: EngineState, at: int) -> list[int]:
    """The fragments that are copied or corrected at this step, if all goes well."""
    return [f.fragment for f in state.fragments if _is_due(f, at, state.schedule)]


def _is_due(fragment: Progress, at: int, schedule: Schedule) -> bool:
    pending = fragment.pending
    if fragment.is_held:  # copied at the end of the last step, which is not counted yet
        return False
    if pending is None:
        return schedule.due(at, fragment.cycle_start)
    return not pending.missed and at >= pending.step + (schedule.adopt_after or 0)


def counted(learner: Learner, p: int) -> bool:
    """All steps up to the copy of fragment `p` are counted. Returns whether the copy is to be
    offered."""
    with Uninterrupted(), learner.mutex:
        taken = not learner.closed and learner.engine.outcomes.take_held(clock.now(), p)
        learner.dispatch_effects()
        return taken


def let_go(learner: Learner, p: int) -> None:
    """The copy of fragment `p` is not made."""
    with Uninterrupted(), learner.mutex:
        learner.engine.outcomes.let_go(clock.now(), p)
        learner.dispatch_effects()


def give_back(learner: Learner, corrections: Iterable[Correction]) -> None:
    """Put corrections that no rank has added back into the mailbox. Waits for the worker's present
    job: it may have later ones in its hands."""
    mailbox = learner.worker.mailbox

    def put(anchors: Anchors) -> None:
        for correction in corrections:
            p = correction.fragment
            with learner.mutex:
                newer = mailbox.pop(p, None)
            stacked = stack(correction, newer) if newer else correction
            with learner.mutex:
                mailbox[p] = stacked

    learner.worker.between_jobs(put)


def adopted(learner: Learner, p: int) -> None:
    """All ranks have added a correction of fragment `p`. If another one waits in the mailbox, the
    weights do not rest on the present anchor yet."""
    with Uninterrupted(), learner.mutex:
        if p not in learner.worker.mailbox:
            learner.engine.correction_applied(clock.now(), p, False)
            learner.dispatch_effects()
