"""A learner that nobody dials hides its address, tries it again now and then, and shows it while
somebody calls."""

from __future__ import annotations

from mend_optim.protocol.timing import Timing
from mend_optim.transport.callers import (
    BEATS,
    LONGEST_BEATS,
    PAUSE_BEATS,
    TRIAL_BEATS,
    Callers,
)

TIMING = Timing(beat_s=1, evict_after_s=60)


def looks(callers: Callers, begin: int, end: int, reaches: bool = True) -> list[int]:
    """The beats in this time at which the address is hidden or shown."""
    return [now for now in range(begin, end) if callers.look(float(now), reaches)]


def test_an_address_that_nobody_dials_is_hidden() -> None:
    callers = Callers(TIMING)
    assert looks(callers, 0, 100) == [60]
    assert callers.has_hidden
    assert not callers.is_shown


def test_peers_have_beats_to_dial_however_short_the_patience_is() -> None:
    assert looks(Callers(Timing(beat_s=1, evict_after_s=4)), 0, 100) == [BEATS]


def test_a_hidden_address_is_tried_again_ever_more_rarely() -> None:
    callers = Callers(TIMING)
    pause, now, expected = PAUSE_BEATS, 60, [60]
    for _ in range(6):
        shown = now + pause
        now = shown + TRIAL_BEATS
        expected += [shown, now]
        pause = min(2 * pause, LONGEST_BEATS)
    assert expected[-1] - expected[-2] == TRIAL_BEATS
    assert expected[-2] - expected[-3] == LONGEST_BEATS
    assert looks(callers, 0, now + 1) == expected
    assert not callers.is_shown


def test_one_caller_is_enough_as_long_as_it_is_there() -> None:
    callers = Callers(TIMING)
    assert looks(callers, 0, 59) == []
    assert not callers.called()
    assert looks(callers, 59, 1000) == []
    callers.called()
    callers.hung_up()
    assert looks(callers, 1000, 2000) == []
    assert callers.is_shown


def test_an_address_that_nobody_dials_any_more_is_hidden_and_told_of_each_time() -> None:
    """The machine may have got another one, or the firewall another rule."""
    callers = Callers(TIMING)
    for begin in (0, 2000):
        callers.called()
        assert looks(callers, begin, begin + 1000) == []
        callers.hung_up()
        assert not callers.has_hidden
        assert looks(callers, begin + 1000, begin + 1100) == [begin + 1059]
        assert callers.has_hidden
        trial = begin + 1059 + PAUSE_BEATS
        assert looks(callers, begin + 1100, trial + 1) == [trial]
        assert callers.called(), "that is news again"
        callers.hung_up()


def test_a_caller_brings_the_address_back() -> None:
    callers = Callers(TIMING)
    assert looks(callers, 0, 70) == [60]
    assert callers.called()
    assert callers.is_shown
    assert not callers.called(), "that is no news"
    assert looks(callers, 70, 1000) == []


def test_a_caller_in_a_trial_is_news() -> None:
    callers = Callers(TIMING)
    assert looks(callers, 0, 60 + PAUSE_BEATS + 1) == [60, 60 + PAUSE_BEATS]
    assert callers.is_shown
    assert callers.called()
    assert looks(callers, 60 + PAUSE_BEATS + 1, 1000) == []


def test_while_this_learner_reaches_nobody_nobody_can_call() -> None:
    callers = Callers(TIMING)
    assert looks(callers, 0, 50) == looks(callers, 50, 100, reaches=False) == []
    assert looks(callers, 100, 180) == [159]


def test_the_time_that_a_learner_was_stopped_hides_nothing() -> None:
    callers = Callers(TIMING)
    assert looks(callers, 0, 10) == looks(callers, 1000, 1010) == []
    assert looks(callers, 1010, 1100) == [1049]
