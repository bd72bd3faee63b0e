from __future__ import annotations

import pytest

from mend_optim.engine.pending import Pending
from mend_optim.engine.round_latencies import ROUNDS_KEPT, RoundLatencies
from mend_optim.protocol.lineage import Claim, PeerId

A, B = PeerId("a", 1), PeerId("b", 1)


def known(*steps: int) -> RoundLatencies:
    """A learner whose rounds, sealed by a, took so many steps and ended at step 100."""
    latencies = RoundLatencies()
    assert latencies.of(0, A, None, 0) == 0
    for each in steps:
        latencies.add(0, A, 100 - each, 100)
    return latencies


def offer(step: int) -> Pending:
    return Pending(claim=Claim(A, 0), seq=1, step=step, tokens=10, steps=1, due=True)


def test_it_is_the_median_of_the_last_rounds() -> None:
    assert known(50).of(0, A, None, 100) == 50
    assert known(50, 10, 10).of(0, A, None, 100) == 10
    assert known(*[50] * ROUNDS_KEPT, 10, 10).of(0, A, None, 100) == 10


def test_it_is_that_of_one_fragment() -> None:
    assert known(50).of(1, A, None, 100) == 0


@pytest.mark.parametrize("other", [B, None])
def test_rounds_of_a_former_sealer_do_not_count(other: PeerId | None) -> None:
    latencies = known(50)
    assert latencies.of(0, other, offer(70), 100) == 0
    latencies.add(0, B, 70, 105)
    assert latencies.of(0, B, None, 105) == (5 if other else 0)
    assert latencies.of(0, A, None, 105) == 0


def test_a_seal_of_a_former_sealer_changes_nothing() -> None:
    latencies = known(50)
    for _ in range(2):
        latencies.add(0, B, 90, 100)
    assert latencies.of(0, A, None, 100) == 50


def test_a_round_within_one_step_takes_a_step() -> None:
    """0 would say that nothing is known."""
    assert known(0).of(0, A, None, 100) == 1


def test_a_round_that_takes_longer_than_those_before_is_told_before_it_ends() -> None:
    assert known(50).of(0, A, offer(100), 130) == 50
    assert known(50).of(0, A, offer(100), 160) == 60
    assert known().of(0, A, offer(100), 160) == 0  # it may be of a group that no quorum has


def test_the_usual_time_leaves_out_an_offer_on_its_way() -> None:
    latencies = known(50, 10, 12)
    assert latencies.of(0, A, offer(60), 100) == 40
    assert latencies.usual(0, A) == 12
    assert latencies.usual(1, A) == latencies.usual(0, B) == 0
    # One that is not the sealer has called.
    assert latencies.usual(0, A) == 12
