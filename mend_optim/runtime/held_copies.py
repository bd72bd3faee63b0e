"""The lead's plans for a learner of several ranks, which are told one step before all ranks follow
them, and what follows from them for the engine.

Only the training thread calls this, except `submit`."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from typing import NamedTuple

from mend_optim.engine.progress import Progress
from mend_optim.engine.schedule import Schedule
from mend_optim.runtime.interrupts import Uninterrupted
from mend_optim.runtime.learner import Learner
from mend_optim.worker.anchors import Anchors
from mend_optim.worker.correction import Correction, stack

#: A plan is made at the end of one step, before that step is counted, and followed at the end of
#: the next.
AHEAD = 2


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


NOTHING = Plan()


def plan(learner: Learner, busy: Collection[int], hold_s: float, *, in_passing: bool) -> Plan:
    """Decide what the ranks do at the end of the next step, hold the anchor of the fragment that
    they will copy, and take the correction that they will get.

    Args:
        learner: the lead's.
        busy: the fragments for which a correction is on its way to the ranks. Another one waits,
            and is stacked with those that follow.
        hold_s: for how many seconds the anchor stands still at most.
        in_passing: whether copies may be planned; else the ranks meet for them.
    """
    boundaries, mailbox = learner.engine.boundaries, learner.worker.mailbox
    with learner.mutex:
        is_idle = not mailbox and not boundaries.founding and boundaries.wanted_in(AHEAD) is None
        if learner.closed or is_idle:
            return NOTHING
    with Uninterrupted(), learner.mutex:
        # Work that a replacement drops has to be trained by nobody: all stand still for it.
        if any(correction.replace or correction.resets for correction in mailbox.values()):
            return Plan(meets=True)
        if boundaries.founding and boundaries.fragments_to_copy():
            return Plan(meets=True)
        p = boundaries.wanted_in(AHEAD)
        if p is not None and not in_passing:
            return Plan(meets=True)
        moments: tuple[str, ...] = ()
        if p is not None:
            moments = boundaries.moments(p)
            boundaries.hold(p, time.monotonic() + hold_s)
        free = next((q for q in mailbox if q not in busy), None)
        return Plan(False, p, moments, None if free is None else mailbox.pop(free))


def falls_due(learner: Learner, steps: int) -> bool:
    """Under `adopt_after`: whether there may be something to do once so many more steps were taken.

    That is a copy, an anchor that is due then, whether it has come or not, or one that came late. A
    correction that waits for its step does not count before."""
    state, mailbox = learner.engine.state, learner.worker.mailbox
    with learner.mutex:
        at = state.totals.step + steps
        if any(at >= (state.fragments[p].adopt_at or 0) for p in mailbox):
            return True
        founding = learner.engine.boundaries.founding
        return founding or any(_is_due(f, at, state.schedule) for f in state.fragments)


def _is_due(fragment: Progress, at: int, schedule: Schedule) -> bool:
    """Whether a fragment is copied or corrected at this step, if all goes well."""
    pending = fragment.pending
    if pending is None:
        return schedule.due(at, fragment.cycle_start)
    return not pending.missed and at >= pending.step + (schedule.adopt_after or 0)


def counted(learner: Learner, p: int) -> bool:
    """All steps up to the copy of fragment `p` are counted. Returns whether the copy is to be
    offered."""
    with Uninterrupted(), learner.mutex:
        taken = not learner.closed and learner.engine.outcomes.take_held(time.monotonic(), p)
        learner.dispatch_effects()
        return taken


def let_go(learner: Learner, p: int) -> None:
    """The copy of fragment `p` is not made."""
    with Uninterrupted(), learner.mutex:
        learner.engine.outcomes.let_go(time.monotonic(), p)
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
            learner.engine.correction_applied(time.monotonic(), p, False)
            learner.dispatch_effects()
