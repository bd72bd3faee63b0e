"""The sealer's side of a fragment: offers come in, at most one seal at a time goes out.

    phase     event            next       why
    ────────  ───────────────  ─────────  ─────────────────────────────────────────────────────────────────────────────
    WAITING   launch           CALLING    somebody is due, or about H median steps have passed: call everyone else
    CALLING   seal             MERGING    `decide` said so: the members are fixed, the worker merges
    MERGING   sealed, void     WAITING    published; or the anchor moved meanwhile and the merge is thrown away

An offer is valid on any anchor of its genesis that has merged just what went before it of the same
author, because progress does not change when its learner moves from one anchor to another
(`outer.py`). So the inbox outlives rounds, handovers and voided merges; only the merged vector
empties it. Receipt is idempotent: an offer is known by (peer, seq)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from enum import Enum

from mend_optim.engine.quorum import Decision, Delays, decide
from mend_optim.protocol.lineage import Lineage, PeerId
from mend_optim.protocol.messages import Offer


class Phase(Enum):
    WAITING = "waiting"
    CALLING = "calling"
    MERGING = "merging"


TRANSITIONS = {
    (Phase.WAITING, "launch"): Phase.CALLING,
    (Phase.CALLING, "seal"): Phase.MERGING,
    (Phase.MERGING, "sealed"): Phase.WAITING,
    (Phase.MERGING, "void"): Phase.WAITING,
    (Phase.CALLING, "void"): Phase.WAITING,
    (Phase.WAITING, "void"): Phase.WAITING,
}


class Round:
    """Offers held for one fragment, and the phase they are in."""

    def __init__(self, fragment: int) -> None:
        self.fragment = fragment
        self.phase = Phase.WAITING
        self.inbox: dict[PeerId, Offer] = {}
        self.members: tuple[Offer, ...] = ()
        self.absent: tuple[str, ...] = ()
        self.reason = ""
        self.quorum_at: float | None = None
        self.call_at = self.pass_on_at = 0.0
        self.sealed_at = float("-inf")
        self.launched_at = self.decided_at = 0.0
        self.delays = Delays()

    def on(self, event: str) -> None:
        """Take the table's transition; an event that the table does not list is a bug and raises
        KeyError."""
        self.phase = TRANSITIONS[self.phase, event]

    def fresh(self, offer: Offer, lineage: Lineage) -> bool:
        """Whether the offer is new here: not merged yet, not held yet. An offer of nothing is
        always fresh."""
        if offer.genesis != lineage.genesis:
            return False
        if not offer.steps:
            # tokens without a step are nobody's work
            return not offer.tokens and offer.peer not in self.inbox
        held = self.inbox.get(offer.peer)
        return _fits(offer, lineage) and (
            held is None or offer.order > held.order or not held.steps
        )

    def add(self, offer: Offer) -> None:
        self.inbox[offer.peer] = offer

    def purge(self, lineage: Lineage) -> None:
        """Drop what the anchor has merged by now, and offers of nothing, which count for one seal
        only."""
        self.inbox = {
            peer: offer
            for peer, offer in self.inbox.items()
            if offer.genesis == lineage.genesis and offer.steps and _fits(offer, lineage)
        }

    def held(self) -> tuple[tuple[PeerId, int], ...]:
        return tuple((peer, offer.seq) for peer, offer in self.inbox.items())

    def launch_due(self, now: float, expected: Collection[PeerId], interval_s: float) -> bool:
        """Whether to call the others: somebody reached its own boundary, all are in, or a launch
        interval has passed."""
        if self.phase is not Phase.WAITING or not any(offer.steps for offer in self.inbox.values()):
            return False
        due = any(offer.due for offer in self.inbox.values())
        return due or set(expected) <= set(self.inbox) or now >= self.sealed_at + interval_s

    def missing(self, expected: Collection[PeerId]) -> list[PeerId]:
        """Who of these is not in the inbox."""
        return [peer for peer in expected if peer not in self.inbox]

    def decide(
        self,
        now: float,
        expected: Collection[PeerId],
        needed: int,
        grace_s: float,
        interval_s: float,
    ) -> Decision:
        """Ask `quorum.decide` about the inbox, remembering since when quorum has been met."""
        if not any(offer.steps for offer in self.inbox.values()):
            return Decision(False, "nothing_offered")
        if len(self.inbox) < needed:
            self.quorum_at = None
        elif self.quorum_at is None:
            self.quorum_at = now
            self.delays.quorum_took(now - self.launched_at)
        return decide(
            now,
            present=self.inbox,
            expected=expected,
            needed=needed,
            grace_s=grace_s,
            quorum_at=self.quorum_at,
            not_before=self.sealed_at + interval_s,
        )

    def close(self, expected: Collection[PeerId], reason: str) -> tuple[Offer, ...]:
        """Fix the members, in peer-name order, and name the absent. Of two offers of one author's
        work (both from one checkpoint, say) the earlier counts, and the other is as good as
        nothing; its sender sees that by the new anchor."""
        self.on("seal")
        stepped = sorted(
            (o for o in self.inbox.values() if o.steps), key=lambda o: (o.seq, o.peer), reverse=True
        )
        first = {offer.claim.author: offer for offer in stepped}
        held = (offer for _, offer in sorted(self.inbox.items()))
        self.members = tuple(
            o if not o.steps or first[o.claim.author] is o else _nothing(o) for o in held
        )
        self.absent = tuple(sorted(peer.name for peer in self.missing(expected)))
        self.reason = reason if reason != "all_present" or not self.absent else "slow_left_out"
        return self.members

    def sealed(self, now: float) -> None:
        self.on("sealed")
        self.sealed_at, self.quorum_at, self.members = now, None, ()

    def void(self) -> None:
        """The anchor moved, or the role went to another sealer: the offers stay, the round is
        over."""
        self.on("void")
        self.quorum_at, self.members = None, ()


def _fits(offer: Offer, lineage: Lineage) -> bool:
    """Nothing merged twice, and no gap: an anchor that has an offer has what it follows, so that
    the merged vector says what is in it."""
    return lineage.last_merged(offer.claim.author) == offer.follows <= offer.claim.settled


def _nothing(offer: Offer) -> Offer:
    return replace(
        offer, seq=0, tokens=0, steps=0, sections={}, inherited=None, follows=0, again=(0, 0)
    )
