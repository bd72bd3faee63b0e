"""Rollbacks in virtual time: a user goes back to an earlier anchor while learners die, are cut off,
and do the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mend_optim.engine.accounts import Totals
from mend_optim.engine.progress import Progress
from mend_optim.protocol.lineage import rollbacks
from tests.support.depth import many
from tests.virtual.cluster import Cluster
from tests.virtual.process import Learner, Saved
from tests.virtual.storms import policies

ALL = ("learner-0", "learner-1", "learner-2")


def trained(seed: int, seconds: float = 20, **schedule: int | None) -> Cluster:
    """Three learners that have merged, and one of which has saved a checkpoint."""
    cluster = Cluster(3, seed, policies(**schedule), loss=0.0, duplicates=0.1)
    cluster.start_all()
    assert cluster.until(lambda: min(map(version, cluster.learners.values())) > 0, 120)

    def saved() -> bool:
        cluster.save("learner-0")  # not while it copies
        return bool(cluster.saved)

    assert cluster.until(saved, 20)
    cluster.run(seconds)
    return cluster


def version(learner: Learner) -> int:
    """That of the anchor that has been merged the least."""
    return min((f.lineage.version for f in learner.engine.state.fragments), default=0)


def count(learner: Learner) -> int:
    return rollbacks(learner.engine.state.genesis)


def counts(cluster: Cluster) -> set[int]:
    return {count(learner) for learner in cluster.learners.values()}


def begun(cluster: Cluster, name: str) -> bool:
    """Whether a rollback of this learner has begun. It cannot while the weights are copied."""
    cluster.roll_back(name)
    return bool(cluster.seen["began a rollback"])


def groups(cluster: Cluster) -> list[int]:
    """The number of fragments of each learner."""
    return [len(cluster.learners[name].engine.state.fragments) for name in ALL]


def kept(cluster: Cluster) -> bool:
    """Whether the model has all that was in the checkpoint's anchors."""
    saved = cluster.saved[0].theta
    thetas = [learner.units.theta for learner in cluster.learners.values()]
    return all(set(old) <= set(theta[p]) for theta in thetas for p, old in enumerate(saved))


@pytest.mark.parametrize("fragments", [1, 3])
@pytest.mark.parametrize("adopt_after", [None, 0, 2])
@pytest.mark.parametrize("seed", range(many(2, 3)))
def test_all_follow_and_every_unit_of_work_is_accounted_for(
    seed: int, adopt_after: int | None, fragments: int
) -> None:
    cluster = trained(seed, adopt_after=adopt_after, fragments=fragments, sync_every=6)
    before = {unit for unit in cluster.learners["learner-1"].weights[0] if unit[0] != "init"}
    assert cluster.until(lambda: begun(cluster, "learner-2"), 20)
    assert cluster.until(lambda: counts(cluster) == {1}, 30)
    cluster.run(20)
    assert cluster.settle()
    assert kept(cluster)
    theta, old = cluster.learners["learner-1"].units.theta[0], cluster.saved[0].theta[0]
    assert before - set(old), "nothing was to be given up"
    assert not (before - set(old)) & set(theta)
    assert len(theta) > len(old), "nothing was merged since"


@pytest.mark.parametrize("seed", range(many(3, 5)))
def test_a_side_that_was_cut_off_gives_up_more_work_than_there_is_in_the_model(seed: int) -> None:
    """Two of three learners train on without the one whose user goes back. Their model has more
    tokens in it when they meet, and is the lesser one."""
    cluster = trained(seed, quorum=1)
    cluster.partition(["learner-2"], 30)
    cluster.run(2)
    cluster.roll_back("learner-2")
    cluster.run(25)
    assert counts(cluster) == {0, 1}
    tokens = {x.name: x.engine.state.cluster_tokens() for x in cluster.learners.values()}
    assert tokens["learner-2"] < tokens["learner-0"]
    assert cluster.until(lambda: counts(cluster) == {1}, 60)
    assert cluster.settle()
    assert kept(cluster)


@pytest.mark.parametrize("seed", range(many(3, 5)))
def test_a_learner_that_was_away_comes_back_from_a_later_checkpoint(seed: int) -> None:
    cluster = trained(seed)
    later: list[Saved | None] = [None]

    def saved() -> bool:
        later[0] = cluster.learners["learner-1"].save()  # not while it copies
        return later[0] is not None

    assert cluster.until(saved, 20)
    cluster.crash("learner-1")
    cluster.roll_back("learner-2")
    assert cluster.until(lambda: counts(cluster) == {1}, 30)
    cluster.start("learner-1", saved=later[0])
    assert cluster.until(lambda: len(counts(cluster)) == 1 and len(cluster.learners) == 3, 60)
    assert cluster.settle()
    assert counts(cluster) == {1}
    assert kept(cluster)


@pytest.mark.parametrize("seed", range(many(3, 5)))
def test_two_rollbacks_at_a_time_end_on_one_model(seed: int) -> None:
    cluster = trained(seed, fragments=2)
    for name in ALL[1:]:
        cluster.roll_back(name)
    assert cluster.seen["began a rollback"] == 2
    cluster.run(10)
    assert cluster.settle()
    assert counts(cluster) == {1}
    assert kept(cluster)


@pytest.mark.parametrize("seed", range(many(4, 8)))
def test_if_its_learner_dies_all_have_gone_back_or_nobody(seed: int) -> None:
    """Nobody ends with one fragment of each model."""
    cluster = trained(seed, fragments=3, sync_every=6)
    cluster.roll_back("learner-2")
    cluster.run(0.2 * (1 + seed))
    cluster.crash("learner-2")
    cluster.run(30)
    assert cluster.settle()
    (number,) = counts(cluster)
    for learner in cluster.learners.values():
        found = {rollbacks(f.lineage.genesis) for f in learner.engine.state.fragments}
        assert found == {number}


@pytest.mark.parametrize("seed", range(many(3, 4)))
def test_one_rollback_after_the_other_goes_on_from_the_last(seed: int) -> None:
    cluster = trained(seed)
    for number in (1, 2, 3):
        cluster.roll_back(ALL[number - 1])
        assert cluster.until(lambda number=number: counts(cluster) == {number}, 30)
        cluster.run(8)
    assert cluster.settle()
    assert kept(cluster)


@pytest.mark.parametrize("seed", range(many(5, 20)))
def test_work_of_a_group_that_was_taken_back_does_not_come_back_beside_a_peer_without_it(
    seed: int,
) -> None:
    """A learner restarts from a checkpoint with an added group, whose anchor has work that is given
    up by then. It hears of the rollback first from a peer that has not added the group."""
    cluster, later = with_a_group(seed, merged=True)
    cluster.slow("learner-0", "learner-1", 8.0, 3.0)
    cluster.start("learner-1", saved=later)
    cluster.run(20)
    assert cluster.settle()
    assert groups(cluster) == [2, 2, 2]


@pytest.mark.parametrize("seed", range(many(5, 20)))
def test_unmerged_work_of_a_group_that_was_taken_back_does_not_come_back_if_nobody_else_has_it(
    seed: int,
) -> None:
    """The learner that has rolled the run back dies, so that only one without the group tells of
    that."""
    cluster, later = with_a_group(seed, merged=False)
    cluster.crash("learner-0")
    cluster.start("learner-1", saved=later)
    cluster.run(20)
    assert cluster.settle()
    assert counts(cluster) == {1}


@pytest.mark.parametrize("seed", range(many(3, 10)))
def test_the_anchor_of_a_group_goes_on_if_no_learner_that_took_it_back_is_left(seed: int) -> None:
    """The guarantees except what was merged into it."""
    cluster, later = with_a_group(seed, merged=True)
    cluster.crash("learner-0")
    cluster.start("learner-1", saved=later)
    cluster.run(20)
    assert cluster.settle()
    assert counts(cluster) == {1}
    merged = set(later.theta[1])
    assert all(merged <= set(x.units.theta[1]) for x in cluster.learners.values())


def with_a_group(seed: int, *, merged: bool) -> tuple[Cluster, Saved]:
    """Two of three learners have added a group. One of them has rolled the run back, and the other
    is gone. Returns a checkpoint with work of the group that was given up: `merged`, or not."""
    cluster = trained(seed, seconds=0)
    for name in ALL[:2]:
        cluster.extend(name)
    assert cluster.until(lambda: groups(cluster) == [2, 2, 1], 20)
    before = checkpoint(cluster, "learner-0", lambda group, totals: True)
    later = checkpoint(cluster, "learner-0", is_merged if merged else is_unmerged)
    cluster.crash("learner-1")
    cluster.saved = [before]
    assert cluster.until(lambda: begun(cluster, "learner-0"), 20)
    assert cluster.until(lambda: counts(cluster) == {1}, 30)
    cluster.pause("learner-0", 20.0)
    return cluster, later


def is_merged(group: Progress, totals: Totals) -> bool:
    return group.lineage.tokens > 0


def is_unmerged(group: Progress, totals: Totals) -> bool:
    return not group.lineage.tokens and group.unmerged(totals).tokens > 0


def checkpoint(cluster: Cluster, name: str, is_ready: Callable[[Progress, Totals], bool]) -> Saved:
    """A checkpoint of this learner, once its last fragment is ready."""
    learner, found = cluster.learners[name], list[Saved]()

    def saved() -> bool:
        state = learner.engine.state
        copy = learner.save() if is_ready(state.fragments[-1], state.totals) else None
        found.extend([copy] if copy else [])
        return bool(found)

    assert cluster.until(saved, 60)
    return found[0]
