"""Learners on long ways, each message several beats on its way: whole clusters in virtual time."""

from __future__ import annotations

import pytest

from mend_optim.engine.effects import Send
from mend_optim.engine.ledger import Event
from mend_optim.protocol.timing import Timing
from tests.support.depth import many
from tests.virtual.cluster import Cluster
from tests.virtual.process import Learner
from tests.virtual.storms import policies


class LongWay(Cluster):
    """Learners of equal speed. Every message takes `way_s` on its way, and up to `more_s` beyond
    that; those of one kind from one learner to another keep their order."""

    def __init__(self, n: int, seed: int, way_s: float, more_s: float = 0.0) -> None:
        plan = policies(grace_s=10.0, timing=Timing(), sync_every=10)
        super().__init__(n, seed, plan, loss=0.0, duplicates=0.0)
        self.speed = dict.fromkeys(self.names, 1.0)
        self.way_s, self.more_s = way_s, more_s
        self.dialling: set[tuple[str, str]] = set()
        self.last: dict[tuple[str, str, str], float] = {}
        #: The texts of the events "joined" and "waiting".
        self.joined: list[str] = []
        self.waits: list[str] = []
        self.start_all()

    def note(self, learner: Learner, event: Event) -> None:
        super().note(learner, event)
        if event.kind == "joined":
            self.joined.append(event.text)
        elif event.kind == "waiting":
            self.waits.append(event.text)

    def takes(self) -> float:
        return self.way_s + self.more_s * self.random.random()

    def hello(self, caller: Learner, callee: Learner) -> None:
        """A connection takes a way there and back. Then there is the hello, and its answer."""
        if (caller.name, callee.name) not in self.dialling:
            self.dialling.add((caller.name, callee.name))
            self.at(3 * self.takes(), self.ask, caller, callee)

    def ask(self, caller: Learner, callee: Learner) -> None:
        assert callee.engine.met(callee.now, caller.me, caller.address)
        callee.pump()
        self.at(self.takes(), self.answer, caller, callee)

    def answer(self, caller: Learner, callee: Learner) -> None:
        self.dialling.discard((caller.name, callee.name))
        assert caller.engine.met(caller.now, callee.me, callee.address, callee.address)
        if frozenset((caller.me, callee.me)) not in self.links:
            self.links.add(frozenset((caller.me, callee.me)))
            self.at(self.takes(), self.linked, callee.me, caller.me, True)
            caller.linked(callee.me, True)

    def send(self, sender: Learner, effect: Send) -> None:
        if frozenset((sender.me, effect.to)) not in self.links:
            self.fail(sender, effect)
            return
        way = (sender.name, effect.to.name, type(effect.message).__name__)
        self.last[way] = max(self.now + self.takes(), self.last.get(way, 0.0))
        self.at(self.last[way] - self.now, self.arrive, sender, effect)

    def versions(self) -> list[int]:
        states = [learner.engine.state for learner in self.learners.values()]
        return [fragment.lineage.version for s in states for fragment in s.fragments]

    def lost(self) -> list[tuple[int, int]]:
        """The superseded and the dropped tokens of each fragment at each learner."""
        states = [learner.engine.state for learner in self.learners.values()]
        return [(f.superseded_tokens, f.dropped_tokens) for s in states for f in s.fragments]


@pytest.mark.parametrize("n", [3, 4])
@pytest.mark.parametrize("more_s", [0.0, 1.0])
def test_no_work_is_lost_when_learners_on_long_ways_start_together(n: int, more_s: float) -> None:
    """When two have met, their first beats and the news of them take longer than six beats. A
    learner that took the others for deaf meanwhile would choose among the first weights of some
    alone, and train a model that nobody keeps."""
    for seed in range(many(3, 20)):
        cluster = LongWay(n, seed, 5.0, more_s)
        cluster.run(120)
        assert set(cluster.lost()) == {(0, 0)}
        assert min(cluster.versions()) > 3


def test_one_that_finds_some_of_its_peers_is_not_called_alone() -> None:
    cluster = LongWay(3, 0, 5.0)
    cluster.kill(cluster.learners["learner-2"])
    cluster.run(100)
    assert cluster.joined == ["joined at position 0, without learner-2 (no answer)"] * 2


def test_a_newcomer_whose_way_outlasts_its_patience_is_told_the_remedy() -> None:
    """It has met the others, but their first beats come too late. It trains with them afterwards,
    and gives up the work that it has done meanwhile."""
    cluster = LongWay(3, 0, 8.0)
    cluster.run(100)
    cluster.kill(cluster.learners["learner-2"])
    cluster.run(100)
    cluster.joined.clear()
    cluster.start("learner-2")
    cluster.run(150)
    (text,) = cluster.joined
    assert text == (
        "joined at position 0, alone: no weights have come from learner-0 (learner-0 was there, "
        "and is gone), learner-1 (learner-1 was there, and is gone); it trains with them once they "
        "come; if they begin later, or the network is slow, pass a greater timing.join_timeout_s"
    )
    assert cluster.seen["switched"] > 0
    assert len({learner.engine.state.genesis for learner in cluster.learners.values()}) == 1


def beside_one_that_pauses(for_s: float) -> LongWay:
    """A newcomer, and a lone learner that takes no step for so long. Its weights are the model, and
    it copies them at its next step."""
    cluster = LongWay(2, 0, 0.1)
    cluster.run(100)
    cluster.kill(cluster.learners["learner-1"])
    cluster.run(100)
    cluster.joined.clear()
    cluster.pause("learner-0", for_s)
    cluster.start("learner-1")
    return cluster


@pytest.mark.parametrize("for_s", [20.0, 100.0, 300.0, 550.0])
def test_a_newcomer_waits_for_a_lone_learner_that_evaluates(for_s: float) -> None:
    cluster = beside_one_that_pauses(for_s)
    cluster.run(for_s + 60)
    (text,) = cluster.joined
    assert "alone" not in text
    assert cluster.seen["switched"] == 0
    assert set(cluster.lost()) == {(0, 0)}
    waits = [text for text in cluster.waits if "which come with its next step" in text]
    assert len(waits) == (for_s > 60)
    learners = cluster.learners.values()
    assert len({learner.engine.state.genesis for learner in learners}) == 1


def test_a_newcomer_that_never_gets_the_weights_of_a_lone_learner_is_told_so() -> None:
    cluster = beside_one_that_pauses(700)
    cluster.run(650)
    (text,) = cluster.joined
    assert ", alone: the weights of learner-0 have not come in time: training may pause" in text
    cluster.run(150)
    assert cluster.seen["switched"] == 1
    assert len({learner.engine.state.genesis for learner in cluster.learners.values()}) == 1


def test_a_newcomer_does_not_wait_for_a_lone_learner_that_dies() -> None:
    cluster = beside_one_that_pauses(700)
    cluster.run(150)
    assert not cluster.joined
    cluster.kill(cluster.learners["learner-0"])
    cluster.run(40)
    assert len(cluster.joined) == 1


@pytest.mark.parametrize("more_s", [0.0, 12.0])
def test_each_learner_says_once_that_beats_come_too_late(more_s: float) -> None:
    """A way that is only long makes no peer silent. One whose length changes does, as do cores that
    too many learners share."""
    for seed in range(many(1, 5)):
        cluster = LongWay(8, seed, 0.1 if more_s else 5.0, more_s)
        cluster.run(300)
        assert cluster.seen["late_beats"] == (8 if more_s else 0)
        assert cluster.seen["returned"] > 500 or not more_s
