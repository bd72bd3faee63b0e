"""A learner whose offers take long on their way costs the others no rounds: whole clusters in
virtual time."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from mend_optim.engine import declining
from mend_optim.engine.declining import Declining
from mend_optim.engine.effects import Send
from mend_optim.engine.period import AutoPeriod
from mend_optim.protocol.messages import Offer, Seal, State
from mend_optim.status import peer_statuses
from tests.support.depth import many
from tests.virtual.cluster import Cluster
from tests.virtual.process import Learner
from tests.virtual.storms import policies

WEAK = "learner-2"
SECONDS = 200.0


class WeakLink(Cluster):
    """Learners of equal speed, of which one takes so long to send a bulky message, and to receive
    one. Unless it `seals`, nobody can dial it. The one that is `late` is not started yet."""

    def __init__(
        self,
        n: int,
        offer_s: float,
        seals: bool = False,
        seal_s: float = 0.0,
        seed: int = 1,
        late: str = "",
        **options: Any,
    ) -> None:
        plan = policies(grace_s=8.0, **options)
        work_s = 0.5 if seal_s else 0.2
        super().__init__(n, seed, plan, loss=0.0, duplicates=0.0, delay_s=0.05, work_s=work_s)
        self.speed = dict.fromkeys(self.names, 1.0)
        self.dialable[WEAK] = seals
        self.offer_s = offer_s
        #: How long a seal takes on a link that is not weak.
        self.seal_s = seal_s
        for name in self.names:
            if name != late:
                self.start(name)
        self.run(60)

    def send(self, sender: Learner, effect: Send) -> None:
        is_weak = WEAK in (sender.name, effect.to.name)
        if is_weak and isinstance(effect.message, Offer | Seal | State):
            self.at(self.offer_s, super().send, sender, effect)
        elif self.seal_s and isinstance(effect.message, Seal):
            self.at(self.seal_s, super().send, sender, effect)
        else:
            super().send(sender, effect)

    @property
    def version(self) -> int:
        """The anchors of all fragments that any learner has."""
        states = [learner.engine.state.fragments for learner in self.learners.values()]
        begun = [fragments for fragments in states if fragments]
        return sum(max(f.lineage.version for f in same) for same in zip(*begun, strict=True))

    def rounds(self, seconds: float = SECONDS) -> int:
        before = self.version
        self.run(seconds)
        return self.version - before


@cache
def usual_rounds(auto: AutoPeriod | None) -> int:
    """Where no link is weak."""
    return WeakLink(4, 0.0, auto=auto).rounds()


@pytest.mark.parametrize("auto", [None, AutoPeriod()])
@pytest.mark.parametrize("offer_s", [6.0, 20.0])
def test_rounds_are_as_frequent_beside_a_weak_link(offer_s: float, auto: AutoPeriod | None) -> None:
    """Whether its offers come within the grace of a round or not, and whoever sets the period."""
    weak, usual = WeakLink(4, offer_s, auto=auto), usual_rounds(auto)
    assert 0.8 * usual <= weak.rounds() <= 1.25 * usual
    state = weak.learners[WEAK].engine.state
    assert state.fragments[0].unmerged(state.totals).step < 6 * offer_s
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


@pytest.mark.parametrize("auto", [None, AutoPeriod()])
def test_a_weak_link_seals_for_nobody(auto: AutoPeriod | None) -> None:
    """Its own rounds would take long for all."""
    options = {"seals": True, "fragments": 4, "auto": auto}
    calm, weak = WeakLink(4, 0.0, **options), WeakLink(4, 6.0, **options)
    for cluster in (calm, weak):
        cluster.oracle.counts = False
        cluster.run(150)
    roster = weak.learners[WEAK].engine.state.roster
    assert roster.declines_to_seal(roster.me)
    honest = [x for c in (calm, weak) for x in c.learners.values() if (c, x.name) != (weak, WEAK)]
    assert not any(x.engine.state.roster.place.is_weak for x in honest)
    assert weak.rounds(100) >= 0.8 * calm.rounds(100)
    records = [r for x in weak.learners.values() for r in list(x.engine.state.records)[-20:]]
    assert not any(record.sealer == WEAK for record in records)
    assert weak.settle()


@pytest.mark.parametrize("seed", [2, 9])
def test_no_work_is_lost_when_a_learner_declines_or_seals_again(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seals of the learner that has just sealed are still on their way, or it merges."""
    monkeypatch.setattr(declining, "FIRST_S", 40.0)
    monkeypatch.setattr(Declining, "_is_behind", lambda self, now: False)
    cluster = WeakLink(4, 6.0, seals=True, seal_s=1.0, seed=seed, fragments=4)
    cluster.oracle.counts = False
    cluster.run(240)
    assert cluster.seen["declines"] > 1
    assert cluster.seen["seals_again"] > 1
    assert not [record for _, _, record in cluster.ledger if record.superseded]


@pytest.mark.parametrize(("state_s", "joins"), [(12.0, True), (60.0, False)])
def test_a_newcomer_that_takes_long_to_join_seals_for_nobody(state_s: float, joins: bool) -> None:
    """The anchors of a large model may be on their way for minutes. Before, the fragments that it
    was to seal stood still for as long. If none comes, it trains alone, and goes on trying."""
    cluster = WeakLink(4, state_s, seals=True, fragments=4, late=WEAK)
    states = [learner.engine.state for learner in cluster.learners.values()]
    cluster.start(WEAK)
    cluster.run(4)
    newcomer = cluster.learners[WEAK].engine.state
    assert all(state.roster.find(newcomer.me) for state in states)
    before = [f.lineage.version for f in states[0].fragments]
    cluster.run(18 if joins else 90)
    assert newcomer.genesis != states[0].genesis
    assert newcomer.joined is not joins
    for state in states:
        assert newcomer.me not in {state.roster.sealer(p) for p in range(4)}
    rounds = [f.lineage.version - v for f, v in zip(states[0].fragments, before, strict=True)]
    assert min(rounds) > 0.6 * max(rounds) > 0
    if joins:
        assert not any(peer.declines for peer in peer_statuses(states[0], {}))
        cluster.run(40)
        assert newcomer.joined
        assert newcomer.roster.place.is_behind
        cluster.offer_s = 0.0
        cluster.run(20)
        lists = [[state.roster.sealer(p) for p in range(4)] for state in (newcomer, *states)]
        assert newcomer.me in lists[0]
        assert all(each == lists[0] for each in lists)
        assert cluster.settle()


@pytest.mark.parametrize("offer_s", [6.0, 20.0])
def test_no_round_waits_long_for_a_newcomer_with_a_weak_link(offer_s: float) -> None:
    """Before, all fragments stood still for the whole grace, twice."""
    cluster = WeakLink(4, offer_s, fragments=4, auto=AutoPeriod(), late=WEAK)
    cluster.oracle.counts = False
    usual = cluster.rounds(100) / 5
    cluster.start(WEAK)
    # At first all fragments wait at one time.
    least = min(cluster.rounds(20) for _ in range(5))
    assert cluster.learners[WEAK].engine.state.joined
    assert least >= 0.6 * usual
    assert cluster.settle()


@pytest.mark.parametrize("seed", range(1, many(2, 7)))
def test_a_newcomer_that_seals_waits_for_no_weak_link(seed: int) -> None:
    """Before, it waited for a learner whose offers no former sealer awaited. All found its own
    rounds so long that it soon declined to seal."""
    newcomer = "learner-4"
    cluster = WeakLink(6, 6.0, seed=seed, fragments=6, auto=AutoPeriod(), late=newcomer)
    cluster.oracle.counts = False
    usual = cluster.rounds(100) / 5
    cluster.start(newcomer)
    assert min(cluster.rounds(20) for _ in range(3)) >= 0.75 * usual
    roster = cluster.learners[newcomer].engine.state.roster
    assert roster.me in {roster.sealer(p) for p in range(6)}
    assert cluster.settle()
