"""The end of runs: whole clusters in virtual time, whose learners finish at any step, die, start
late and come back meanwhile."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from mend_optim.membership.broadcasts import FANOUT
from mend_optim.protocol.lineage import PeerId
from tests.support.depth import DEEP, many
from tests.virtual.cluster import Cluster
from tests.virtual.process import Learner
from tests.virtual.storms import policies
from tests.virtual.units import Vector

LIMIT_S = 2000.0


@dataclass(frozen=True)
class End:
    """One learner's end: who ended with it, on what, and what that is."""

    members: frozenset[PeerId]
    ready: bytes
    anchors: list[Vector]
    left_over: int
    tokens: dict[str, int]


class Finishing(Learner):
    """A learner that finishes at some time, and ends when all have agreed."""

    finishes = False

    @property
    def trains(self) -> bool:
        return not self.finishes and super().trains

    def finish(self) -> None:
        state = self.engine.state
        if not state.joined or not state.fragments:
            self.cluster.after(0.5, self, self.finish)
            return
        self.finishes = True
        self.engine.rest(self.now, finishing=True)
        self.pump()

    def pump(self) -> None:
        super().pump()
        if self.finishes and not self.dead and self.engine.ending.end():
            self.cluster.ended(self)  # type: ignore[attr-defined]


class Ends(Cluster):
    """A cluster whose learners finish."""

    learner_type = Finishing

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ends: dict[PeerId, End] = {}
        self.died: set[str] = set()
        #: The fragments that all learners have.
        self.shared = range(self.policies.schedule.fragments)

    def finish(self, name: str) -> None:
        learner = self.learners.get(name)
        if isinstance(learner, Finishing) and not learner.finishes:
            self.after(0.0, learner, learner.finish)

    def ended(self, learner: Finishing) -> None:
        state = learner.engine.state
        peers = frozenset(peer.id for peer in state.roster.peers.values())
        # A group that was added here alone is merged with nobody.
        shared = [f for f in state.fragments if f.fragment < len(self.shared)]
        left_over = max(f.unmerged(state.totals).tokens for f in shared)
        anchors = [dict(theta) for theta in learner.units.theta[: len(shared)]]
        end = learner.engine.ending.end()
        assert end
        self.ends[learner.me] = End(
            peers | {learner.me}, state.ready, anchors, left_over, end.tokens
        )
        assert not learner.mailbox
        if learner.engine.ending.can_merge():
            assert left_over == 0
            assert learner.weights[: len(shared)] == anchors
        learner.engine.leave(learner.now)
        Learner.pump(learner)
        self.kill(learner)

    def synchronize(self, name: str) -> None:
        """A learner rests, and steps no more; nor does it end."""
        learner = self.learners[name]
        assert isinstance(learner, Finishing)
        learner.finishes = True
        learner.engine.rest(learner.now)
        learner.pump()

    def all_merged(self) -> bool:
        """Whether there is one model, with all work in it: of those that are here, or ended."""
        left = [
            fragment.unmerged(learner.engine.state.totals).step
            for learner in self.learners.values()
            for fragment in learner.engine.state.fragments
        ]
        return not any((*left, *(end.left_over for end in self.ends.values())))

    def all_ended(self, names: set[str]) -> bool:
        return not any(name in self.learners for name in names)


def play(seed: int, *, faults: bool, least: int = 2, most: int = 6) -> Ends:
    """Learners start, finish and die at times drawn from the seed, and so is their number."""
    r = random.Random(seed)
    n = r.randrange(least, most + 1)
    options = {"fragments": r.choice([1, 1, 2]), "adopt_after": r.choice([None, None, 0, 2])}
    chosen = policies(r.choice([None, None, 1, n]), stays=r.random() < 0.3, **options)
    hidden = r.choice([0, 1, n - 1]) if n > 2 else 0
    cluster = Ends(n, seed, chosen, loss=0.05 if faults else 0.0, hidden=hidden)
    for name in cluster.names:
        cluster.at(r.uniform(0, 30) if faults else 0.0, cluster.start, name)
        cluster.at(r.uniform(40, 160), cluster.finish, name)
    if faults:
        for name in r.sample(cluster.names, r.randrange(n)):
            cluster.died.add(name)
            died = r.uniform(10, 200)
            cluster.at(died, cluster.crash, name)
            if r.random() < 0.7:
                back = died + r.uniform(1, 100)
                cluster.at(back, cluster.start, name)
                cluster.at(back + r.uniform(5, 100), cluster.finish, name)
        for name in r.sample(cluster.names, r.randrange(n)):
            cluster.at(r.uniform(30, 170), cluster.freeze, name, r.uniform(1, 40), r.random() < 0.5)
    cluster.run(300.0)
    assert cluster.until(lambda: cluster.all_ended(set(cluster.names)), LIMIT_S), [
        (x.name, x.engine.state.mode, x.engine.state.ready) for x in cluster.learners.values()
    ]
    return cluster


@pytest.mark.parametrize(("seed", "finishing"), [(15, True), (32, True), (15, False), (32, False)])
def test_the_last_round_waits_for_no_interval(seed: int, finishing: bool) -> None:
    """Before, the work that a learner did just after a round waited until the others' next one was
    due, a hundred steps later; but nobody steps any more."""
    cluster = Ends(3, seed, policies(sync_every=100), loss=0.0)
    cluster.start_all()
    r = random.Random(seed)
    for name in cluster.names:
        act = cluster.finish if finishing else cluster.synchronize
        cluster.at(500 + r.uniform(0, 20), act, name)
    cluster.run(520.0)
    assert cluster.until(cluster.all_merged, 30.0)


@pytest.mark.parametrize("seed", range(many(4, 8)))
def test_all_that_finish_hold_one_model_and_every_step_is_in_it(seed: int) -> None:
    cluster = play(seed, faults=False)
    ends = list(cluster.ends.values())
    assert len(ends) == len(cluster.names)
    assert all(end.anchors == ends[0].anchors for end in ends)
    assert sum(end.left_over for end in ends) == 0


@pytest.mark.parametrize("seed", range(many(7, 16)))
def test_whoever_ends_together_holds_one_model_whatever_happens(seed: int) -> None:
    """Learners that were cut off, came too late or came back end with whom they can."""
    ends_are_of_one_model(play(seed, faults=True))


@pytest.mark.parametrize("seed", range(16) if DEEP else (2,))
def test_so_they_do_in_a_roster_that_no_beat_goes_through(seed: int) -> None:
    """News takes several beats there. So some are ready to end before they hear of a newcomer."""
    ends_are_of_one_model(play(seed, faults=True, least=FANOUT + 1, most=FANOUT + 8))


def ends_are_of_one_model(cluster: Ends) -> None:
    for end in cluster.ends.values():
        for member in end.members & cluster.ends.keys():
            assert cluster.ends[member].anchors == end.anchors
        for member, other in cluster.ends.items():
            if member.name in end.tokens.keys() - cluster.died:
                assert other.anchors == end.anchors


def test_in_a_roster_that_no_beat_goes_through_all_end_with_the_whole_account() -> None:
    """A beat goes to 16 of them. Each that ends tells all others, whatever beat they had."""
    n = FANOUT + 4
    cluster = Ends(n, 1, policies(None, stays=False), loss=0.0, duplicates=0.0)
    cluster.start_all()
    for i, name in enumerate(cluster.names):
        cluster.at(8.0 + i / 4, cluster.finish, name)
    cluster.run(8.0)
    assert cluster.until(lambda: cluster.all_ended(set(cluster.names)), 60.0)
    ends = list(cluster.ends.values())
    assert len(ends) == n
    for end in ends:
        assert end.anchors == ends[0].anchors
        assert end.tokens == ends[0].tokens
        assert len(end.tokens) == n


@pytest.mark.parametrize("parted_at", [0.0, 30.0])
def test_two_rooms_end_on_one_model(parted_at: float) -> None:
    """Learners of one never reach those of the other, but one machine between them reaches all."""
    rooms = ("learner-1", "learner-2"), ("learner-3", "learner-4")
    apart = [pair for a in rooms[0] for b in rooms[1] for pair in ((a, b), (b, a))]
    cluster = Ends(5, 1, policies(None, stays=False), loss=0.0, duplicates=0.0)
    cluster.at(parted_at, cluster.cut, apart, 10_000.0)
    cluster.run(0.01)
    cluster.start_all()
    for i, name in enumerate(cluster.names):
        cluster.at(parted_at + 90.0 + i, cluster.finish, name)
    cluster.run(90.0)
    assert cluster.until(lambda: cluster.all_ended(set(cluster.names)), LIMIT_S)
    ends = list(cluster.ends.values())
    assert all(end.anchors == ends[0].anchors for end in ends)
    assert sum(end.left_over for end in ends) == 0


@pytest.mark.parametrize("seed", [5, 7, 8])
def test_a_link_that_breaks_at_the_end_costs_no_work(seed: int) -> None:
    """One that nobody can dial finishes last. While it suspects the only learner that can seal, it
    waits for that one, or for its eviction."""
    cluster = Ends(2, seed, policies(None, stays=False), loss=0.0, duplicates=0.0, hidden=1)
    cluster.start_all()
    cluster.at(30.0, cluster.finish, "learner-0")
    cluster.at(40.0, cluster.finish, "learner-1")
    cluster.at(40.2, cluster.unlink, lambda link: True)
    cluster.run(40.0)
    assert cluster.until(lambda: cluster.all_ended(set(cluster.names)), LIMIT_S)
    assert [end.left_over for end in cluster.ends.values()] == [0, 0]
    ends_are_of_one_model(cluster)


@pytest.mark.parametrize("seed", range(4))
def test_two_that_nobody_can_dial_lose_no_work_where_rounds_need_all(seed: int) -> None:
    """Neither of them hears the other itself, so to each they look too few."""
    cluster = Ends(3, seed, policies(3, stays=False), loss=0.0, duplicates=0.0, hidden=2)
    cluster.start_all()
    for i, name in enumerate(cluster.names):
        cluster.at(40.0 + 3.3 * i, cluster.finish, name)
    cluster.run(40.0)
    assert cluster.until(lambda: cluster.all_ended(set(cluster.names)), LIMIT_S)
    assert [end.left_over for end in cluster.ends.values()] == [0, 0, 0]
    ends_are_of_one_model(cluster)


@pytest.mark.parametrize("seed", range(4))
def test_a_group_that_nobody_can_seal_costs_no_other_work(seed: int) -> None:
    """One that nobody can dial has added a group alone."""
    cluster = Ends(2, seed, policies(None, stays=False), loss=0.0, duplicates=0.0, hidden=1)
    cluster.start_all()
    cluster.at(30.0, cluster.extend, "learner-1")
    cluster.at(31.0, cluster.finish, "learner-0")
    cluster.at(41.0, cluster.finish, "learner-1")
    cluster.run(41.0)
    assert cluster.seen["extended"]
    assert cluster.until(lambda: cluster.all_ended(set(cluster.names)), LIMIT_S)
    assert [end.left_over for end in cluster.ends.values()] == [0, 0]
    ends_are_of_one_model(cluster)


@pytest.mark.parametrize(("n", "having", "quorum"), [(4, 2, None), (4, 3, 4), (5, 3, None)])
def test_a_group_of_some_learners_holds_up_no_end(n: int, having: int, quorum: int | None) -> None:
    """Only in the last case are those that have added it a quorum."""
    cluster = Ends(n, 1, policies(quorum, stays=False), loss=0.0, duplicates=0.0)
    cluster.start_all()
    for i, name in enumerate(cluster.names):
        if i < having:
            cluster.at(20.0 + i, cluster.extend, name)
        cluster.at(40.0 + i, cluster.finish, name)
    cluster.run(40.0)
    assert cluster.seen["extended"] == having
    if (n, having) == (5, 3):
        cluster.shared = range(2)
    assert cluster.until(lambda: cluster.all_ended(set(cluster.names)), 60.0)
    assert len(cluster.ends) == n
    assert not any(end.left_over for end in cluster.ends.values())
    assert len({repr(end.anchors[0]) for end in cluster.ends.values()}) == 1
