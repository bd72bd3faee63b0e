"""One key, two contents, in virtual time: an insider that hands over something else under the keys
of its anchors, and honest learners that nothing may be held against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mend_optim.engine.attestations import ANY, Attestations
from mend_optim.engine.effects import Send
from mend_optim.engine.ledger import Event
from mend_optim.membership.sealers import sealer_of
from mend_optim.protocol.messages import Seal, State
from mend_optim.protocol.refusals import Refused
from tests.support.depth import many
from tests.virtual.cluster import Cluster
from tests.virtual.insider import FOISTED
from tests.virtual.insiders import HonestOracle, Infiltrated, InsiderCluster, draw
from tests.virtual.process import Learner
from tests.virtual.storms import TIMING, policies
from tests.virtual.test_majority import fooled, impostors
from tests.virtual.units import Vector

#: Virtual seconds: for the trial of every learner, and beside the lies.
TRIAL_S, BESIDE_S = 100.0, 60.0


class Swapping(InsiderCluster):
    """A run in which one honest learner gets no seal for a while, and no anchor but those of the
    insider, which has something else under their keys."""

    laggard = ""
    #: How many honest learners must have attested an anchor to the laggard before the insider hands
    #: over its own.
    witnesses = 0

    def __init__(self, storm: Infiltrated) -> None:
        super().__init__(storm)
        self.policies = replace(self.policies, timing=replace(TIMING, evict_after_s=500.0))
        self.oracle = Blind(self)
        self.events: list[tuple[str, Event]] = []

    def send(self, sender: Learner, effect: Send) -> None:
        message = effect.message
        kept = effect.to.name != self.laggard or not isinstance(message, Seal | State)
        if isinstance(message, State) and self.is_insider(sender):
            kept = kept or self.attested(message) >= self.witnesses
        if kept:
            super().send(sender, effect)

    def attested(self, anchor: State) -> int:
        """How many honest learners have attested an anchor to the laggard."""
        p, key = anchor.fragment, anchor.lineage.key
        told = self.learners[self.laggard].engine.adoption.attestations._told
        return sum(
            id.name in self.honest_names and key in told[id].digests.get(p, {}) for id in told
        )

    def note(self, learner: Learner, event: Event) -> None:
        self.events.append((learner.name, event))
        super().note(learner, event)

    def check_fault(self, learner: Learner, event: Event) -> None:
        if event.kind != "forked":  # a learner may be deceived here, and differ from the others
            super().check_fault(learner, event)

    def begin_lying(self) -> None:
        self.start_all()
        self.run(TRIAL_S)
        self.swaps_from = self.now
        sealer = sealer_of(0, self.names)
        self.laggard = next(name for name in self.honest_names if name != sealer)

    def let_catch_up(self) -> None:
        """The laggard gets all messages again, and goes on."""
        fragment = self.learners[self.laggard].engine.state.fragments[0]
        behind, self.laggard = fragment.lineage.version, ""
        assert self.until(lambda: fragment.lineage.version > behind + 2, 2 * BESIDE_S)

    def refusals(self) -> list[Refused]:
        """The refusals of the honest learners."""
        return [
            refused
            for name in self.honest_names
            for refused in self.learners[name].engine.state.refusals.counted()
        ]

    def forks(self) -> list[tuple[str, str]]:
        """The honest whose users were told, and of whom."""
        told = [(by, event.facts["peer"]) for by, event in self.events if event.kind == "forked"]
        return [(by, of) for by, of in told if by in self.honest_names]


class Blind(HonestOracle):
    """Does not look: learners are to be fooled."""

    def check(self, learner: Learner) -> None:
        """Nothing."""

    def moved(self, learner: Learner, p: int, before: Vector, after: Vector, dropped: int) -> None:  # type: ignore[override]
        """Nothing."""


def swappers(least: int) -> list[Infiltrated]:
    """Insiders among at least so many learners, none of whose messages get lost."""
    return [replace(storm, loss=0.0) for storm in impostors(()) if storm.n >= least]


def beside_a_swapper(storm: Infiltrated) -> Swapping:
    """The insider is not quicker than the beats of two honest learners."""
    cluster = Swapping(storm)
    cluster.witnesses = 2
    cluster.begin_lying()
    cluster.run(2 * BESIDE_S)
    return cluster


def test_an_anchor_is_refused_in_which_honest_learners_have_something_else() -> None:
    """M1g: and the learner goes on with the others, once it gets their messages again."""
    refused = 0
    for storm in swappers(4)[:: many(2, 1)]:
        cluster = beside_a_swapper(storm)
        told = cluster.refusals()
        refused += sum("something else under its key" in r.reason for r in told)
        assert {r.peer for r in told} <= {cluster.insider}
        cluster.let_catch_up()
        assert fooled(cluster) == set(), storm
    assert refused > 0


def test_it_is_taken_where_nothing_is_held_against_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Attestations, "expected", lambda *_: ANY)
    assert any(fooled(beside_a_swapper(storm)) for storm in swappers(4)[::2])


@pytest.mark.parametrize("storm", swappers(3)[::3], ids=str)
def test_a_learner_that_was_deceived_before_the_first_beats(storm: Infiltrated) -> None:
    """It takes what more than half of all learners have, or keeps its own if they are fewer. All
    are told. Nobody is refused or doubted for that, and the others have the true anchor: one of
    three and a learner that it has deceived do not deceive the third."""
    cluster = Swapping(storm)
    cluster.begin_lying()
    laggard = cluster.learners[cluster.laggard]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Attestations, "expected", lambda *_: ANY)
        assert cluster.until(lambda: (FOISTED, 0) in laggard.units.theta[0], 3 * BESIDE_S)
    deceived = cluster.laggard
    cluster.let_catch_up()
    cluster.run(BESIDE_S)
    true = set(cluster.honest_names) - {deceived}
    are_most = 2 * len(true) > storm.n
    assert fooled(cluster) == (set() if are_most else {deceived})
    assert cluster.seen["outvoted"] == are_most
    between = {(deceived, other) for other in true} | {(other, deceived) for other in true}
    beside = [pair for pair in cluster.forks() if cluster.insider not in pair]
    assert sorted(beside) == sorted(between)
    assert cluster.refusals() == []


@pytest.mark.parametrize("seed", range(many(8, 100)))
def test_an_insider_gains_nothing_by_what_it_attests_alone(seed: int) -> None:
    """All laws hold beside it, and rounds go on."""
    storm = draw(seed)
    replace(storm, lies=(*storm.lies, "digest")).play()


@pytest.mark.parametrize("seed", range(many(3, 12)))
def test_nobody_does_otherwise_for_what_an_insider_attests(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    storm = replace(draw(seed), lies=("digest",))
    cluster = storm.play()
    assert cluster.seen["forked"] > 0
    unheeding(monkeypatch)
    assert rows(storm.play()) == rows(cluster)


def unheeding(patch: pytest.MonkeyPatch) -> None:
    """Nobody heeds what others attest."""
    patch.setattr(Attestations, "expected", lambda *_: ANY)
    patch.setattr(Attestations, "heard", lambda *_: None)


def rows(cluster: Cluster) -> list[Any]:
    """All that was adopted: by whom, when and with whose work."""
    return [
        (id, at, record.digest, record.reason, record.members) for id, at, record in cluster.ledger
    ]


def parted(seed: int, count: int) -> Cluster:
    """Four learners, of which the first `count` and the others merge among themselves for a
    while."""
    cluster = Cluster(4, seed, policies(quorum=1), loss=0.05)
    cluster.start_all()
    cluster.run(TRIAL_S)
    cluster.partition(cluster.names[:count], 40.0)
    cluster.run(40.0 + BESIDE_S)
    assert cluster.settle()
    return cluster


def halves(seed: int) -> Cluster:
    return parted(seed, 2)


def one_and_three(seed: int) -> Cluster:
    return parted(seed, 1)


def with_slow_beats(seed: int) -> Cluster:
    """There are several rounds in a beat, so that beats tell of few of the anchors."""
    timing = replace(TIMING, beat_s=16.0, evict_after_s=128.0)
    chosen = policies(grace_s=0.5, timing=timing, sync_every=1)
    cluster = Cluster(4, seed, chosen, loss=0.05)
    cluster.start_all()
    cluster.run(2 * TRIAL_S)
    cluster.leave(cluster.names[0])
    cluster.run(40.0)
    cluster.start(cluster.names[0])
    cluster.run(2 * TRIAL_S)
    versions = [x.engine.state.fragments[0].lineage.version for x in cluster.learners.values()]
    assert min(versions) > 2 * cluster.now / timing.beat_s, "rounds are faster than beats"
    return cluster


@pytest.mark.parametrize("play", [halves, one_and_three, with_slow_beats])
@pytest.mark.parametrize("seed", range(many(2, 8)))
def test_where_all_are_honest_nothing_changes(
    play: Callable[[int], Cluster], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each learner adopts the same anchors at the same times as if nobody attested anything; so all
    have the same shares of the work. Nobody is doubted for what others attest."""
    cluster = play(seed)
    assert cluster.seen["forked"] == 0
    attested = [
        len(f.held.told() or ())
        for x in cluster.learners.values()
        for f in x.engine.state.fragments
    ]
    assert all(attested)
    with monkeypatch.context() as patch:
        unheeding(patch)
        assert rows(play(seed)) == rows(cluster)
