"""The inner learning rates of an offer are those of its steps, whatever became of the offers
before."""

from __future__ import annotations

from dataclasses import replace

from mend_optim.engine.accounts import Totals
from mend_optim.engine.effects import Inspect, Merge
from mend_optim.engine.pending import Pending
from mend_optim.engine.progress import Progress
from mend_optim.engine.schedule import Schedule
from mend_optim.engine.standing import resumed, standing_of
from mend_optim.protocol.lineage import Entry, Lineage, PeerId
from tests.support.engines import ME as HERE
from tests.support.engines import PEER, DrivenEngine, offer_of

ME, OTHER, HEIR = PeerId("me", 1), PeerId("other", 1), PeerId("me", 10**18)
FREE = Schedule(sync_every=4)


class Counting:
    """A fragment whose learner takes steps at learning rates."""

    def __init__(self) -> None:
        self.progress = Progress(ME, 0, Lineage.fresh(b"genesis"), 0)
        self.totals = Totals()

    def train(self, *rates: float) -> Counting:
        for rate in rates:
            totals = self.totals
            self.totals = Totals(totals.step + 1, totals.tokens + 10, totals.rate + rate)
        return self

    def offer(self) -> Pending:
        pending = self.progress.snapshot(self.totals, True)
        self.progress.copied()
        self.progress.offered(b"genesis", {})
        assert pending.offer is not None
        assert pending.offer.rate == pending.rate
        return pending

    def sealed(self, pending: Pending | None, replaced: bool = False) -> None:
        """The anchor moves by a seal of this offer, or of somebody else's."""
        progress = self.progress
        entry = Entry(OTHER, 1, 7, 1)
        if pending:
            entry = Entry(pending.claim.author, pending.seq, pending.tokens, pending.steps)
        progress.move()
        progress.moved(
            progress.lineage.seal([entry], b"payload"),
            self.totals,
            FREE,
            merged_own_offer=pending is not None,
            replaced=replaced,
        )
        progress.correction_applied(replaced, self.totals)


def test_an_offer_has_the_rates_of_its_own_steps() -> None:
    counting = Counting().train(0.5, 0.25)
    first = counting.offer()
    counting.train(1.0)
    counting.sealed(first)
    counting.train(2.0)
    assert (first.rate, counting.offer().rate) == (0.75, 3.0)


def test_a_missed_round_takes_no_rate_along() -> None:
    counting = Counting().train(0.5)
    pending = counting.offer()
    counting.train(1.0)
    counting.sealed(None)
    assert counting.progress.pending is pending
    assert pending.rate == 0.5
    counting.sealed(pending)
    assert counting.offer().rate == 1.0


def test_a_withdrawn_offer_leaves_its_rates_to_the_next() -> None:
    counting = Counting().train(0.5)
    counting.progress.snapshot(counting.totals, True)
    counting.progress.released()
    assert counting.train(0.25).offer().rate == 0.75


def test_rates_of_dropped_work_are_dropped() -> None:
    counting = Counting().train(0.5, 0.25)
    counting.sealed(None, replaced=True)
    assert counting.train(2.0).offer().rate == 2.0


def test_rates_in_a_founded_anchor_are_settled() -> None:
    counting = Counting().train(0.5)
    lineage = counting.progress.found(10, b"model")
    counting.progress.founded(lineage, counting.totals.copy())
    assert counting.train(0.25).offer().rate == 0.25


def test_an_heir_offers_what_was_not_offered() -> None:
    counting = Counting().train(0.5)
    first = counting.offer()
    counting.sealed(first)
    counting.train(0.25)
    second = counting.offer()
    counting.train(1.0)
    heir = Counting()
    heir.totals = counting.totals.copy()
    heir.progress = resumed(HEIR, 0, standing_of(counting.progress), heir.totals)
    pending = heir.progress.reencode()
    assert pending is not None
    assert pending.rate == second.rate == 0.25
    heir.progress.copied()
    heir.progress.offered(b"genesis", {})
    heir.sealed(pending)
    assert heir.offer().rate == 1.0


def test_rounding_makes_no_rate_of_no_steps() -> None:
    """Sums of a tenth are rounded, and no difference of them may count."""
    counting = Counting()
    for _ in range(50):
        counting.train(0.1, 0.1, 0.1)
        counting.sealed(counting.offer())
        assert counting.progress.unmerged(counting.totals).rate == 0
    settled = counting.progress.settled
    ahead = Totals(settled.step + 1, settled.tokens + 1, settled.rate - 1e-12)
    assert counting.progress.unmerged(ahead).rate == 0


def test_the_sealer_merges_by_rates_and_period() -> None:
    engine = DrivenEngine(quorum=2, sync_every=3)
    engine.beat(PEER)
    for rate in (0.25, 0.5, 1.0):
        engine.engine.boundaries.stepped(10, 1.0, rate)
    engine.reserve()
    engine.copied()
    engine.tick(1.0)
    engine.receive(replace(offer_of(PEER), rate=4.0))
    (inspect,) = engine.jobs(Inspect)
    engine.done(inspect)
    (merge,) = engine.jobs(Merge)
    assert {offer.peer: offer.rate for offer in merge.offers} == {HERE: 1.75, PEER: 4.0}
    assert merge.period == 3
