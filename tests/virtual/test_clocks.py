"""A learner whose clock was set back between two starts, in a whole cluster in virtual time: it
trains with the others again, and its work is merged. The oracle checks the laws all along;
`test_storms.py` has such starts among all other faults."""

from __future__ import annotations

import pytest

from tests.support.depth import many
from tests.virtual.cluster import Cluster
from tests.virtual.process import Learner
from tests.virtual.storms import policies

NAME = "learner-0"


def running(seed: int, n: int = 3) -> Cluster:
    cluster = Cluster(n, seed, policies(fragments=1 + seed % 2), loss=0.0, duplicates=0.0)
    cluster.start_all()
    cluster.run(25.0)
    return cluster


def all_merged(cluster: Cluster, learner: Learner) -> bool:
    """Whether everything that this process has trained is in the model that all end on."""
    assert learner.engine.state.totals.step > 0
    assert cluster.settle()
    return not missing(cluster, learner)


def missing(cluster: Cluster, learner: Learner) -> int:
    """How many units of work of this process are in no model."""
    return sum(unit[0] == learner.id for _, unit in cluster.oracle.missing())


@pytest.mark.parametrize("ends", ["crash", "leave"])
@pytest.mark.parametrize("pause_s", [0.2, 6.0, 20.0])
def test_a_learner_whose_clock_was_set_back_merges_its_work_again(
    ends: str, pause_s: float
) -> None:
    """After a goodbye it is let in at once. After a crash it waits for the eviction before its
    first step, even if that takes longer than it waits for learners that may never come."""
    for seed in range(4):
        cluster = running(seed)
        former = cluster.learners[NAME]
        getattr(cluster, ends)(NAME)
        cluster.run(pause_s)
        learner = cluster.launch(NAME, early=True)
        cluster.run(40.0)
        assert learner.id < former.id < learner.me
        assert cluster.seen["renamed in training"] == 0
        # A peer that has not noticed the death yet takes the two for twins.
        assert cluster.seen["refused"] == 0 or pause_s < 1
        assert all_merged(cluster, learner)


@pytest.mark.parametrize("seed", range(many(3, 6)))
def test_a_learner_goes_beyond_the_processes_of_its_checkpoint_by_itself(seed: int) -> None:
    """No peer has to tell it: those may have gone as well."""
    cluster = running(seed)
    former = cluster.learners[NAME]
    cluster.until(lambda: bool(cluster.save(NAME) or cluster.saved), 5.0)
    cluster.leave(NAME)
    learner = cluster.launch(NAME, saved=cluster.saved[0], early=True)
    assert former.id < learner.me == learner.id
    cluster.run(20.0)
    assert cluster.seen["renewed"] == 0
    assert all_merged(cluster, learner)


@pytest.mark.parametrize("seed", range(many(4, 8)))
def test_a_learner_that_hears_of_it_after_it_has_trained_drops_nothing(seed: int) -> None:
    """Those that it met at first knew nothing of its earlier process. Two that cannot reach each
    other may both seal with the third: what one of them sealed is superseded, and counted."""
    cluster = running(seed)
    cluster.crash(NAME)
    cluster.run(12.0)
    cluster.crash("learner-1")
    cluster.run(0.5)
    cluster.start("learner-1")
    cluster.cut([(NAME, "learner-2"), ("learner-2", NAME)], 30.0)
    learner = cluster.launch(NAME, early=True)
    cluster.run(29.0)
    assert learner.me == learner.id
    assert learner.engine.state.totals.step > 0
    cluster.run(20.0)
    assert cluster.seen["renamed in training"] == 1
    assert learner.me != learner.id
    assert cluster.settle()
    fragments = learner.engine.state.fragments
    assert all(f.dropped_tokens == 0 for f in fragments)
    assert missing(cluster, learner) == sum(f.superseded_tokens for f in fragments)


@pytest.mark.parametrize("seed", range(many(4, 8)))
def test_an_heir_whose_clock_was_set_back_makes_offers_that_its_author_does_not_know(
    seed: int,
) -> None:
    """A learner is cut off, and merges on. Meanwhile another one goes on from its checkpoint, which
    tells nothing of that one's earlier process: peers do. What the cut-off one has merged since is
    in no model, and it cannot know which offer replaced it: see the guarantees."""
    cluster = Cluster(4, seed, policies(quorum=1), loss=0.0, duplicates=0.0)
    cluster.start_all()
    author = cluster.learners[NAME]

    def saved() -> bool:
        state = author.engine.state
        if state.joined and state.fragments[0].unmerged(state.totals).tokens:
            cluster.save(NAME)
        return bool(cluster.saved)

    assert cluster.until(saved, 20.0)
    assert not cluster.saved[0].resumed.standings[0].lineage.version
    cluster.partition([NAME], 40.0)
    cluster.leave("learner-1")
    cluster.run(5.0)
    heir = cluster.launch("learner-1", saved=cluster.saved[0], early=True)
    cluster.run(40.0)
    assert heir.me != heir.id
    assert cluster.settle()
    last = author.engine.state.fragments[0].lineage.last_merged(author.id)
    assert last >= heir.me.incarnation
    assert missing(cluster, author)


@pytest.mark.parametrize("seed", range(many(4, 8)))
def test_twins_whose_clocks_were_set_back_stay_two(seed: int) -> None:
    """Both are to go beyond the same process. One of them trains with the others, and both are
    told."""
    cluster = running(seed)
    cluster.leave(NAME)
    twins = [cluster.launch(NAME, early=True) for _ in range(2)]
    cluster.run(40.0)
    assert len({twin.me for twin in twins}) == 2
    met = [cluster.learners["learner-1"].engine.state.roster.find(twin.me) for twin in twins]
    assert sum(peer is not None for peer in met) == 1
    assert cluster.refused >= {twin.id for twin in twins}


@pytest.mark.parametrize("seed", range(many(4, 8)))
def test_a_process_that_lives_is_not_replaced_by_one_with_an_earlier_start(seed: int) -> None:
    """Both users hear of it. Once the living one is dead, the other gets in."""
    cluster = running(seed)
    older = cluster.learners[NAME]
    newer = cluster.launch(NAME, early=True)
    cluster.run(30.0)
    assert newer.me == newer.id
    assert cluster.learners["learner-1"].engine.state.roster.find(older.me)
    assert cluster.refused >= {older.id, newer.id}
    cluster.kill(older)
    cluster.run(30.0)
    assert cluster.learners["learner-1"].engine.state.roster.find(newer.me)
