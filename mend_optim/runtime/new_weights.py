"""Weights in the place of a learner's own: others' before its first step, its user's in mid-run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from mend_optim.engine.ledger import Event
from mend_optim.engine.progress import Motion
from mend_optim.runtime import clock
from mend_optim.runtime.interrupts import Uninterrupted
from mend_optim.runtime.learner import Learner
from mend_optim.worker.anchors import Anchors
from mend_optim.worker.correction import Correction

TEXT = (
    "the present weights are the start of the next offer: {tokens:,} tokens that were not offered "
    "yet are dropped"
)


def renew_state(learner: Learner) -> None:
    """Before the first step, let the state of an inner optimizer that has trained nothing begin
    with the weights that replace its own: it may hold copies of these."""
    with Uninterrupted(), learner.mutex:
        mailbox = learner.worker.mailbox
        for p, correction in mailbox.items():
            mailbox[p] = replace(correction, resets=correction.resets or correction.replace)


def await_copies(learner: Learner, fragments: int) -> bool:
    """Wait until the worker has all copies of the former weights, in so many fragments. Waits for
    nothing on the network. False if there is nothing to begin anew: the learner is alone, so that
    its weights are the anchor, or it was closed."""

    def idle() -> bool:
        found = learner.engine.state.fragments
        return len(found) == fragments and all(f.motion is not Motion.SNAPSHOT for f in found)

    with learner.mutex:
        learner.guard.changed.wait_for(lambda: learner.closed or idle())
        return not learner.closed and not learner.engine.state.alone


def begin_anew(learner: Learner, weights: Sequence[Tensor]) -> list[Correction]:
    """Take these copies of the present weights, one for each fragment, as the start of the next
    offer. Returns the corrections that were on their way to the former weights: only their moments
    still count."""

    def take(anchors: Anchors) -> list[Correction]:
        with learner.mutex:
            state, mailbox = learner.engine.state, learner.worker.mailbox
            if learner.closed or state.alone:
                return []
            corrections = list(mailbox.values())
            mailbox.clear()
            before = max(fragment.dropped_tokens for fragment in state.fragments)
            kept = learner.engine.begin_anew(clock.now())
            dropped = max(fragment.dropped_tokens for fragment in state.fragments) - before
            facts = {"dropped_tokens": dropped}
            learner.tell(Event("reset", TEXT.format(tokens=dropped), facts))
        for fragment, copy, keeps_offer in zip(anchors.fragments, weights, kept, strict=True):
            fragment.begin_anew(copy, keeps_offer)
        return corrections

    return learner.worker.between_jobs(take)
