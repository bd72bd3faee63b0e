"""The protocol under faults, in virtual time: DESIGN's laws 3 to 6 hold after every event, and all
learners end on one lineage."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.support.depth import many
from tests.virtual.cluster import Cluster
from tests.virtual.storms import TIMING, policies
from tests.virtual.units import Vector


@pytest.mark.parametrize("seed", range(many(6, 20)))
def test_without_crash_and_partition_no_token_is_lost(seed: int) -> None:
    """Law 5: tokens in the lineage + tokens not merged yet = tokens trained, although messages are
    lost, doubled and reordered."""
    patient = replace(TIMING, join_timeout_s=60)
    cluster = Cluster(
        3, seed, policies(timing=patient, fragments=1 + seed % 2), loss=0.1, duplicates=0.1
    )
    cluster.start_all()
    cluster.run(80)
    assert cluster.settle()
    trained = sum(x.engine.state.totals.tokens for x in cluster.learners.values())
    tokens = {f.lineage.tokens for x in cluster.learners.values() for f in x.engine.state.fragments}
    assert tokens == {trained}
    assert cluster.seen["merge"] > 5


@pytest.mark.parametrize("seed", range(many(5, 10)))
def test_fresh_process_adopts_trained_weights(seed: int) -> None:
    """A learner restarts from nothing while another lives on: the survivor's units are in the
    newcomer's weights, never the reverse."""
    cluster = Cluster(2, seed, policies())
    cluster.start_all()
    cluster.run(40)
    before = set(cluster.learners["learner-0"].agreed(0))
    cluster.crash("learner-1")
    cluster.run(30)
    cluster.start("learner-1")
    joined = cluster.until(lambda: cluster.learners["learner-1"].engine.state.joined, 60)
    assert joined
    assert cluster.settle()
    init = {u for u in before if u[0] == "init"}
    for learner in cluster.learners.values():
        assert init <= set(learner.agreed(0))
        own = {u for u in before if u[0] == cluster.learners["learner-0"].id}
        assert own <= set(learner.agreed(0))


@pytest.mark.parametrize("seed", range(many(8, 20)))
def test_of_learners_that_start_together_all_adopt_weights_that_were_trained(seed: int) -> None:
    cluster = Cluster(5, seed, policies(timing=replace(TIMING, join_timeout_s=60)))
    cluster.pretrained = {cluster.names[seed % 5]}
    cluster.start_all()
    learners = list(cluster.learners.values())
    (trained,) = (learner for learner in learners if learner.name in cluster.pretrained)
    first = set(trained.weights[0])
    assert cluster.until(lambda: all(x.engine.state.joined for x in learners), 120)
    assert {x.engine.state.genesis for x in learners} == {trained.engine.state.genesis}
    assert cluster.settle()
    assert all(first <= set(learner.agreed(0)) for learner in learners)


@pytest.mark.parametrize("seed", range(many(8, 20)))
def test_newcomers_adopt_the_first_weights_of_a_learner_that_has_joined(seed: int) -> None:
    """Even before its first step: it may step before it hears of them, and drops no step."""
    cluster = Cluster(3, seed, policies())
    first, *newcomers = cluster.names
    cluster.start(first)
    alone = cluster.learners[first]
    cluster.pause(first, 100)
    assert cluster.until(lambda: alone.engine.state.joined, 60)
    assert not alone.engine.state.totals.step
    genesis = alone.engine.state.genesis
    for name in newcomers:
        cluster.start(name)
    learners = [cluster.learners[name] for name in newcomers]
    assert cluster.until(lambda: all(x.engine.state.joined for x in learners), 60)
    assert {x.engine.state.genesis for x in cluster.learners.values()} == {genesis}
    cluster.run(150)
    assert cluster.settle()
    assert alone.engine.state.totals.step
    assert {f.dropped_tokens for f in alone.engine.state.fragments} == {0}
    assert {x.engine.state.genesis for x in cluster.learners.values()} == {genesis}


def with_a_slow_learner(seed: int, grace_s: float) -> tuple[Cluster, float]:
    """Three learners, one of them three times slower; and the share of the rounds that merged
    tokens of the slow one."""
    cluster = Cluster(3, seed, policies(grace_s=grace_s, sync_every=10), loss=0.0, duplicates=0.0)
    cluster.speed = {"learner-0": 1.0, "learner-1": 1.0, "learner-2": 3.0}
    cluster.start_all()
    cluster.run(300)
    rounds = [r for r in cluster.learners["learner-0"].engine.state.records if r.members]
    assert len(rounds) > 15
    return cluster, sum(
        any(m.name == "learner-2" and m.tokens for m in r.members) for r in rounds
    ) / len(rounds)


@pytest.mark.parametrize("seed", range(many(3, 10)))
def test_slow_learner_takes_part_in_every_round(seed: int) -> None:
    """DESIGN §3: rounds are called, so a learner three times slower is in every round as long as
    its step fits into the grace window."""
    _, share = with_a_slow_learner(seed, grace_s=5)
    assert share == 1.0


@pytest.mark.parametrize("seed", range(many(2, 5)))
def test_learner_slower_than_grace_does_not_starve(seed: int) -> None:
    """Its late offer is the first of the next round, and no token of it is lost."""
    cluster, share = with_a_slow_learner(seed, grace_s=0.2)
    assert share >= 0.4
    assert cluster.settle()
    assert all(
        f.dropped_tokens <= 3 for x in cluster.learners.values() for f in x.engine.state.fragments
    )


@pytest.mark.parametrize("seed", range(many(8, 20)))
def test_twins_of_one_checkpoint_merge_its_work_once(seed: int) -> None:
    """This holds even if every learner, the sealer included, has to drop its copy of the work."""
    cluster = Cluster(2, seed, policies(adopt_after=2), loss=0.0, duplicates=0.0)
    cluster.start_all()
    alone = cluster.learners["learner-0"]
    cluster.partition({"learner-0"}, 100)
    assert cluster.until(lambda: alone.engine.state.totals.step > 7, 60)
    cluster.save("learner-0")
    for name in cluster.names:
        cluster.crash(name)
    cluster.cuts.clear()
    for name in cluster.names:
        cluster.restore(name)
    cluster.run(3.0)
    assert cluster.settle()


def is_loaded(weights: Vector) -> bool:
    """Whether weights that a user loaded in mid-run are in these."""
    return any(unit[0] == "loaded" for unit in weights)


@pytest.mark.parametrize("other_weights", [False, True])
@pytest.mark.parametrize("seed", range(many(2, 5)))
def test_loaded_weights_that_a_checkpoint_has_are_no_work_of_its_heir(
    seed: int, other_weights: bool
) -> None:
    """The oracle sees to that after every event. With other weights than the saved ones, the heir
    has nothing of them once the anchor has replaced its weights."""
    cluster = Cluster(2, seed, policies(adopt_after=2), loss=0.0, duplicates=0.0)
    cluster.start_all()
    author = cluster.learners["learner-0"]
    assert cluster.until(lambda: author.engine.state.adopted_rounds > 0, 60)

    def saved() -> bool:
        cluster.reset_progress(author.name)  # neither this nor a checkpoint while it copies
        cluster.save(author.name)
        return bool(cluster.saved) and any(map(is_loaded, cluster.saved[-1].weights))

    assert cluster.until(saved, 20)
    cluster.crash(author.name)
    checkpoint = cluster.saved[-1]
    if other_weights:
        checkpoint = checkpoint.beside_other_weights()
    cluster.start(author.name, saved=checkpoint)
    heir = cluster.learners[author.name]
    assert cluster.until(
        lambda: heir.engine.state.totals.step > author.engine.state.totals.step, 60
    )
    assert other_weights != any(map(is_loaded, heir.weights))
    assert cluster.settle()
    assert not any(map(is_loaded, heir.weights))


class Storm(RuleBasedStateMachine):
    """Hypothesis chooses the faults; the cluster asserts the laws after every event, and
    convergence at the end."""

    @initialize(
        n=st.integers(2, 5),
        seed=st.integers(0, 2**32),
        quorum=st.sampled_from([None, 1, 2]),
        fragments=st.integers(1, 3),
        overlap=st.sampled_from([None, None, 0, 3]),
        hidden=st.booleans(),
    )
    def begin(
        self,
        n: int,
        seed: int,
        quorum: int | None,
        fragments: int,
        overlap: int | None,
        hidden: bool,
    ) -> None:
        chosen = policies(quorum, sync_every=5, fragments=fragments, adopt_after=overlap)
        self.cluster = Cluster(n, seed, chosen, hidden=int(hidden and n > 2))
        self.cluster.start_all()

    @rule(seconds=st.floats(0.1, 15))
    def time_passes(self, seconds: float) -> None:
        self.cluster.run(seconds)

    @rule(who=st.integers(0, 4))
    def crash(self, who: int) -> None:
        self.cluster.crash(self.cluster.names[who % len(self.cluster.names)])

    @rule(who=st.integers(0, 4))
    def leave(self, who: int) -> None:
        self.cluster.leave(self.cluster.names[who % len(self.cluster.names)])

    @precondition(lambda self: len(self.cluster.learners) < len(self.cluster.names))
    @rule()
    def start_the_missing(self) -> None:
        for name in self.cluster.names:
            self.cluster.start(name)

    @rule(mask=st.integers(1, 30), seconds=st.floats(1, 20))
    def partition(self, mask: int, seconds: float) -> None:
        side = {name for i, name in enumerate(self.cluster.names) if mask >> i & 1}
        self.cluster.partition(side, seconds)

    @rule(a=st.integers(0, 4), b=st.integers(0, 4), seconds=st.floats(1, 20))
    def cut_one_way(self, a: int, b: int, seconds: float) -> None:
        names = self.cluster.names
        self.cluster.cut([(names[a % len(names)], names[b % len(names)])], seconds)

    @rule(who=st.integers(0, 4))
    def save(self, who: int) -> None:
        self.cluster.save(self.cluster.names[who % len(self.cluster.names)])

    @precondition(lambda self: self.cluster.saved)
    @rule(who=st.integers(0, 4))
    def roll_back(self, who: int) -> None:
        self.cluster.roll_back(self.cluster.names[who % len(self.cluster.names)])

    @rule(loss=st.sampled_from([0.0, 0.05, 0.3]))
    def lose_messages(self, loss: float) -> None:
        self.cluster.loss = loss

    def teardown(self) -> None:
        if hasattr(self, "cluster"):
            assert self.cluster.settle(), "no common lineage after the faults stopped"


TestStorm = Storm.TestCase
TestStorm.settings = settings(
    max_examples=many(50, 150),
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
