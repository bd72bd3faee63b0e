"""A learner whose offers take long on their way costs the others no rounds: whole clusters in
virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from mend_optim.engine.effects import Send
from mend_optim.engine.period import AutoPeriod
from mend_optim.protocol.messages import Offer
from tests.virtual.cluster import Cluster
from tests.virtual.process import Learner
from tests.virtual.storms import policies

WEAK = "learner-2"
SECONDS = 200.0


class WeakLink(Cluster):
    """Learners of equal speed, of which one sends an offer so much longer."""

    def __init__(self, n: int, offer_s: float, **options: Any) -> None:
        plan = policies(grace_s=8.0, **options)
        super().__init__(n, 1, plan, loss=0.0, duplicates=0.0, delay_s=0.05)
        self.speed = dict.fromkeys(self.names, 1.0)
        self.dialable[WEAK] = False  # so it seals for nobody
        self.offer_s = offer_s
        self.start_all()
        self.run(60)

    def send(self, sender: Learner, effect: Send) -> None:
        if sender.name == WEAK and isinstance(effect.message, Offer):
            self.at(self.offer_s, super().send, sender, effect)
        else:
            super().send(sender, effect)

    @property
    def version(self) -> int:
        return max(x.engine.state.fragments[0].lineage.version for x in self.learners.values())

    def rounds(self) -> int:
        before = self.version
        self.run(SECONDS)
        return self.version - before


@pytest.mark.parametrize("auto", [None, AutoPeriod()])
@pytest.mark.parametrize("offer_s", [6.0, 20.0])
def test_rounds_are_as_frequent_beside_a_weak_link(offer_s: float, auto: AutoPeriod | None) -> None:
    """Whether its offers come within the grace of a round or not, and whoever sets the period."""
    calm, weak = WeakLink(4, 0.0, auto=auto), WeakLink(4, offer_s, auto=auto)
    usual = calm.rounds()
    assert 0.8 * usual <= weak.rounds() <= 1.25 * usual
    state = weak.learners[WEAK].engine.state
    assert state.fragments[0].unmerged(state.totals).step < 3 * offer_s
    merged = [r for x in weak.learners.values() for r in x.engine.state.records]
    assert any(member.name == WEAK and member.tokens for r in merged for member in r.members)
    assert weak.settle()


def test_a_link_that_becomes_quick_is_waited_for_again() -> None:
    cluster = WeakLink(4, 6.0)
    cluster.offer_s = 0.0
    cluster.run(30)
    (first, *_) = cluster.learners.values()
    before = len(first.engine.state.records)
    cluster.rounds()
    reasons = {record.reason for record in list(first.engine.state.records)[before:]}
    assert reasons == {"all_present"}


def test_in_lockstep_all_wait() -> None:
    """A run that is to be the same again must not depend on how long offers take."""
    cluster = WeakLink(3, 3.0, adopt_after=5)
    cluster.rounds()
    for learner in cluster.learners.values():
        assert {len(record.members) for record in list(learner.engine.state.records)[3:]} == {3}
