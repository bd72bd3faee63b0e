"""Rounds stop waiting for a learner that becomes slow, and for no other: whole clusters in virtual
time (`stragglers.py`)."""

from __future__ import annotations

import pytest

from tests.support.depth import many
from tests.virtual.stragglers import AT_MOST, Paced, Straggler


@pytest.mark.parametrize("seed", range(many(4, 8)))
def test_a_straggler_is_left_out_within_5_rounds_and_taken_back_within_5(seed: int) -> None:
    """The straggler becomes 1.5, 2 or 5 times slower, among learners of unequal speed with jitter,
    pauses and spikes. No other learner is left out, and no seal is below quorum."""
    cluster, found, back = Straggler.drawn(seed).play()
    assert found <= AT_MOST
    assert back <= AT_MOST
    assert not cluster.accused.total()


def test_two_learners_know_which_of_them_is_slow() -> None:
    cluster, found, back = Straggler(3, n=2, quorum=1, speeds=(1.0, 1.0)).play()
    assert found <= AT_MOST
    assert back <= AT_MOST
    assert not cluster.accused.total()


def test_steady_slower_hardware_is_never_left_out() -> None:
    cluster = Paced(Straggler(1, n=4, speeds=(1.0, 1.0, 1.0, 3.0)))
    cluster.start_all()
    cluster.rounds(40)
    assert not cluster.accused.total()


def test_all_together_are_not_slow() -> None:
    """For example with longer sequences: all learners take twice as long from some step on."""
    cluster = Paced(Straggler(2, n=3, sync_every=16))
    cluster.start_all()
    cluster.rounds(12)
    cluster.factor = dict.fromkeys(cluster.names, 2.0)
    cluster.rounds(20)
    assert not cluster.accused.total()


def test_seals_come_as_often_as_without_the_straggler() -> None:
    """In lockstep every round would otherwise take as long as its slowest learner."""

    def lasted(straggler: Straggler, factor: float) -> float:
        cluster = Paced(straggler)
        cluster.start_all()
        cluster.rounds(12)
        cluster.factor[cluster.victim] = factor
        cluster.rounds(6, innocent=False)
        began = cluster.now
        cluster.rounds(10, innocent=False)
        return cluster.now - began

    straggler = Straggler(5, adopt_after=4)
    assert lasted(straggler, 2.0) < 1.15 * lasted(straggler, 1.0)


@pytest.mark.parametrize("adopt_after", [None, 4])
def test_what_the_straggler_does_is_merged_all_the_while(adopt_after: int | None) -> None:
    """Rounds no longer wait for it, but about every second round merges its work: no learner
    starves, in lockstep neither."""
    straggler = Straggler(7, adopt_after=adopt_after)
    cluster = Paced(straggler)
    cluster.start_all()
    cluster.rounds(12)
    cluster.factor[cluster.victim] = 2.5
    cluster.rounds(6, innocent=False)
    before = cluster.version
    cluster.rounds(12, innocent=False)
    assert cluster.left_out(cluster.victim)
    records = [
        r for r in cluster.learners[cluster.names[0]].engine.state.records if r.version > before
    ]
    taken = [r for r in records if any(m.name == cluster.victim and m.tokens for m in r.members)]
    assert len(taken) >= len(records) // 4
    state = cluster.learners[cluster.victim].engine.state
    assert state.fragments[0].unmerged(state.totals).tokens < 3 * straggler.sync_every
