"""Anchors that one learner claims alone, and branches that get on side by side, in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mend_optim.engine.effects import Send
from mend_optim.engine.state import TRIAL
from mend_optim.protocol.messages import Seal, State
from mend_optim.protocol.peer_limits import Limits
from tests.support.depth import many
from tests.virtual.cluster import Cluster
from tests.virtual.insider import FOISTED
from tests.virtual.insiders import Infiltrated, InsiderCluster
from tests.virtual.process import Learner
from tests.virtual.storms import TIMING, policies

#: Virtual seconds: for the trial of every learner, and beside the claims.
TRIAL_S, BESIDE_S, PARTED_S = 100.0, 80.0, 30.0


def beside_an_impostor(storm: Infiltrated, *, majority: bool = True) -> InsiderCluster:
    """A run in which an insider claims from some moment on to have trained more than anybody."""
    cluster = InsiderCluster(storm)
    cluster.policies = replace(cluster.policies, limits=Limits(majority=majority))
    cluster.start_all()
    cluster.run(TRIAL_S)
    for name in cluster.honest_names:
        state = cluster.learners[name].engine.state
        assert state.adopted_rounds >= TRIAL * storm.fragments
    cluster.foists_from = cluster.now
    cluster.run(BESIDE_S)
    assert cluster.seen["lie: anchor"] > 0
    return cluster


def fooled(cluster: InsiderCluster) -> set[str]:
    """The honest learners that have what the insider foisted on them."""
    return {
        name
        for name in cluster.honest_names
        for theta in cluster.learners[name].units.theta
        if (FOISTED, 0) in theta
    }


def impostors(lies: tuple[str, ...]) -> list[Infiltrated]:
    """Insiders that seal no fragment, among three to five learners."""
    drawn = [
        Infiltrated(n + insider, n, insider, lies, loss=0.05 * (insider % 2))
        for n in (3, 4, 5)
        for insider in range(n)
    ]
    return [storm for storm in drawn if not InsiderCluster(storm).sealed_by_insider(0)]


@pytest.mark.parametrize("lies", [(), ("model",)])
def test_no_single_learner_foists_an_anchor_on_others(lies: tuple[str, ...]) -> None:
    """M1 and M1b: with more tokens than all others, of this model or of another one."""
    for storm in impostors(lies)[:: many(4, 1)]:
        cluster = beside_an_impostor(storm)
        assert fooled(cluster) == set(), storm
        assert cluster.seen["foisted"] == 0
        for p in range(storm.fragments):
            assert cluster.rounds_in(p, TRIAL_S, cluster.now) >= 3, storm


@pytest.mark.parametrize("lies", [(), ("model",)])
def test_it_does_where_one_word_is_enough(lies: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError, match="work vanished unsaid"):
        beside_an_impostor(impostors(lies)[0], majority=False)


class Deafened(Cluster):
    """A run in which no seal and no anchor reaches another learner, for a while."""

    deaf = False

    def send(self, sender: Learner, effect: Send) -> None:
        lost = self.deaf and isinstance(effect.message, Seal | State)
        self.seen["seal lost"] += lost
        if not lost:
            super().send(sender, effect)

    def versions(self) -> list[int]:
        return sorted(x.engine.state.fragments[0].lineage.version for x in self.learners.values())


@pytest.mark.parametrize("seed", range(many(3, 10)))
def test_a_sealer_two_rounds_ahead_of_all_others_brings_them_on(seed: int) -> None:
    """Nobody believes its anchor, and nobody need be stuck for that: its seals are believed."""
    patient = replace(TIMING, evict_after_s=500)
    cluster = Deafened(3, seed, policies(quorum=1, timing=patient), loss=0.0, duplicates=0.0)
    cluster.start_all()
    cluster.run(TRIAL_S)
    cluster.deaf = True
    assert cluster.until(lambda: cluster.versions()[2] >= cluster.versions()[1] + 2, 100)
    cluster.deaf = False
    assert cluster.seen["seal lost"] >= 2
    ahead = cluster.versions()[2]
    assert cluster.until(lambda: cluster.versions()[0] >= ahead, 20)
    assert cluster.settle(50)


@pytest.mark.parametrize("seed", range(many(3, 10)))
def test_no_sealer_leaves_those_behind_that_rest(seed: int) -> None:
    """They count for its quorum with nothing, on its own anchor alone."""
    cluster = Deafened(3, seed, policies(adopt_after=0), loss=0.0, duplicates=0.0)
    cluster.start_all()
    cluster.run(TRIAL_S)
    sealer = cluster.learners["learner-0"].engine.state.roster.sealer(0)
    assert sealer
    for name in set(cluster.names) - {sealer.name}:
        cluster.pause(name, 60.0)
        cluster.rest(name)
    before = cluster.versions()[2]
    cluster.run(20.0)
    assert cluster.versions()[0] > before
    cluster.deaf = True
    cluster.run(20.0)
    assert cluster.seen["seal lost"] > 0
    least, _, most = cluster.versions()
    assert most - least <= 2
    cluster.deaf = False
    assert cluster.settle(50)


def branches(seed: int, fast: tuple[str, ...]) -> Cluster:
    """Five learners, of which a few that train much faster are cut off for a while, and merge among
    themselves."""
    cluster = Cluster(5, seed, policies(quorum=1), loss=0.0, duplicates=0.0)
    cluster.speed = {name: 1.0 if name in fast else 12.0 for name in cluster.names}
    cluster.start_all()
    cluster.run(TRIAL_S)
    cluster.partition(set(fast), PARTED_S)
    cluster.run(PARTED_S - 0.1)
    tokens = {
        name: learner.engine.state.fragments[0].lineage.tokens
        for name, learner in cluster.learners.items()
    }
    rest = set(tokens) - set(fast)
    assert min(tokens[name] for name in fast) > max(tokens[name] for name in rest)
    return cluster


def test_a_few_fast_learners_yield_to_the_others_branch() -> None:
    """Their branch is the greater one, but most learners train the other."""
    yielded = 0
    for seed in range(4):
        cluster = branches(seed, ("learner-0", "learner-1"))
        cluster.run(120.0)
        yielded += cluster.seen["yielded"]
        assert cluster.settle()
    assert yielded >= 2


@pytest.mark.parametrize("seed", range(3))
def test_most_learners_win_with_the_greater_branch_at_once(seed: int) -> None:
    cluster = branches(seed, ("learner-0", "learner-1", "learner-2"))
    cluster.run(30.0)
    assert cluster.seen["yielded"] == 0
    (digest,) = {x.engine.state.genesis for x in cluster.learners.values()}
    assert digest
    assert cluster.settle()
