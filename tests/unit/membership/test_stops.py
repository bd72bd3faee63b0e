from __future__ import annotations

import pytest

from mend_optim.membership.stops import Stops
from mend_optim.protocol.timing import Timing

NEVER = float("-inf")
TIMING = Timing(beat_s=1.0, evict_after_s=30.0)


def looked(*times: float) -> Stops:
    stops = Stops(TIMING)
    for now in times:
        stops.look(now)
    return stops


def test_a_learner_that_looks_at_the_clock_late_was_stopped() -> None:
    stops = looked()
    assert [stops.look(now) for now in (100.0, 101.0, 104.0, 107.5)] == [0.0, 0.0, 0.0, 3.5]
    assert stops.last(107.5) == stops.last(110.5) == 107.5


def test_there_is_no_stop_before_the_first_look() -> None:
    assert looked().last(100.0) == looked(100.0).last(103.0) == NEVER


def test_a_stop_shows_before_the_network_loop_looks() -> None:
    stops = looked(0.0)
    assert stops.last(10.0) == 10.0
    assert stops.look(11.0) == 11.0
    assert stops.last(12.0) == 11.0


def test_after_a_stop_an_answer_says_what_the_others_did() -> None:
    stops = looked(0.0, 10.0)
    assert stops.known_at(10.0, answered=True) == 10.0
    assert stops.known_at(10.0, answered=False) == stops.known_at(12.0, answered=False) == 40.0


def test_an_answer_from_before_a_stop_says_nothing() -> None:
    stops = looked(0.0, 10.0)
    assert stops.known_at(10.0, answered=True) == 10.0
    assert stops.known_at(20.0, answered=True) == 50.0


def test_stops_that_follow_one_another_lengthen_no_wait() -> None:
    """A learner whose loop is blocked again and again hears each answer too late."""
    stops = looked(0.0, 10.0, 20.0, 30.0)
    assert stops.known_at(31.0, answered=False) == stops.known_at(36.0, answered=True) == 40.0
    assert stops.known_at(31.0, answered=True) == 30.0
    stops.look(42.0)
    assert stops.known_at(42.0, answered=False) == 72.0


def looked_each_second(stops: Stops, since: int, until: int) -> None:
    for now in range(since + 1, until + 1):
        stops.look(float(now))


@pytest.mark.parametrize("looks", [True, False])
def test_a_stop_after_a_wait_without_an_answer_begins_another_one(looks: bool) -> None:
    stops = looked(0.0, 10.0)
    looked_each_second(stops, 10, 60)
    assert stops.known_at(60.0, answered=False) == 40.0
    if looks:
        stops.look(70.0)
    assert stops.known_at(70.0, answered=False) == 100.0


def test_a_stop_in_a_wait_does_not_lengthen_it() -> None:
    stops = looked(0.0, 10.0)
    looked_each_second(stops, 10, 35)
    stops.look(45.0)
    assert stops.known_at(45.0, answered=False) == 40.0


def test_a_learner_that_is_stopped_again_and_again_waits_once() -> None:
    """It has no time between two stops in which an answer could come."""
    stops = looked(0.0, 10.0)
    for stop in range(1, 10):
        looked_each_second(stops, 10 * stop, 10 * stop + 3)
        stops.look(10.0 * stop + 10)
    assert stops.known_at(100.0, answered=False) == 40.0


@pytest.mark.parametrize("looks", [True, False])
def test_a_learner_that_the_others_have_evicted_meanwhile_waits_anew(looks: bool) -> None:
    stops = looked(0.0, 10.0)
    if looks:
        stops.look(40.0)
    assert stops.known_at(40.0, answered=False) == 70.0


def test_a_learner_that_was_never_stopped_knows_the_others() -> None:
    assert looked(0.0).known_at(1.0, answered=False) == NEVER
