"""A learner that nobody dials gives its address up, and takes it back once somebody does."""

from __future__ import annotations

from mend_optim.protocol.timing import Timing
from mend_optim.transport.callers import BEATS, Callers

TIMING = Timing(beat_s=1, evict_after_s=30)


def looks(callers: Callers, begin: int, end: int, reaches: bool = True) -> list[int]:
    """The beats in this time at which the address is given up."""
    return [now for now in range(begin, end) if callers.look(float(now), reaches)]


def test_an_address_that_nobody_dials_is_given_up_once() -> None:
    callers = Callers(TIMING)
    assert looks(callers, 0, 100) == [30]
    assert callers.gave_up


def test_peers_have_beats_to_dial_however_short_the_patience_is() -> None:
    assert looks(Callers(Timing(beat_s=1, evict_after_s=4)), 0, 100) == [BEATS]


def test_one_caller_is_enough_for_good() -> None:
    callers = Callers(TIMING)
    assert looks(callers, 0, 29) == []
    assert not callers.called()
    assert looks(callers, 29, 100) == []


def test_a_caller_brings_the_address_back() -> None:
    callers = Callers(TIMING)
    assert looks(callers, 0, 40) == [30]
    assert callers.called()
    assert not callers.gave_up
    assert not callers.called()
    assert looks(callers, 40, 100) == []


def test_while_this_learner_reaches_nobody_nobody_can_call() -> None:
    callers = Callers(TIMING)
    assert looks(callers, 0, 20) == looks(callers, 20, 60, reaches=False) == []
    assert looks(callers, 60, 100) == [89]


def test_the_time_that_a_learner_was_stopped_gives_nothing_up() -> None:
    callers = Callers(TIMING)
    assert looks(callers, 0, 10) == looks(callers, 1000, 1010) == []
    assert looks(callers, 1010, 1100) == [1019]
