"""The tokens per second of a run: pauses are left out, with the work of their rounds."""

from __future__ import annotations

from itertools import accumulate

import pytest

from mend_optim.cli.ledger.pace import Pace, pace_of
from mend_optim.cli.ledger.page import page_of
from mend_optim.cli.ledger.story import story_of
from mend_optim.cli.ledger.text import headline
from mend_optim.cli.ledger.verdict import verdict_of
from tests.support.ledgers import Ledgers

NIGHT = 8 * 3600.0


def paced(*spans: float, others: tuple[float, ...] = ()) -> Pace:
    """A round at 0, and one after each of these spans, with 100 tokens each. `others`: the times of
    other lines."""
    times = list(accumulate(spans, initial=0.0))
    return pace_of([(time, 100) for time in times], sorted([*times, *others]))


def test_tokens_and_seconds_are_of_the_intervals_between_rounds() -> None:
    assert paced(10, 10, 20) == Pace(tokens=300, seconds=40.0)
    assert paced(10, 10, 20).per_s == 7.5
    assert paced() == Pace()
    assert paced().per_s == 0.0


def test_a_pause_is_left_out_with_the_tokens_of_its_round() -> None:
    assert paced(10, NIGHT, 10) == Pace(tokens=200, seconds=20.0, pauses=(NIGHT,))
    assert paced(10, NIGHT, 10, NIGHT, NIGHT, 10, 10).pauses == (NIGHT,) * 3
    assert paced(NIGHT, 10).per_s == paced(10, NIGHT).per_s == 10.0


@pytest.mark.parametrize(
    "spans",
    [
        (2000.0, 2500.0, 9000.0, 1800.0),
        (1.0, 1.0, 55.0, 1.0),
        (*[2.0] * 20, *[70.0] * 20),
        (NIGHT,),
    ],
    ids=["rounds take long", "less than a minute", "the period grows", "there is no other"],
)
def test_an_interval_as_long_as_those_around_it_is_no_pause(spans: tuple[float, ...]) -> None:
    assert paced(*spans) == Pace(tokens=100 * len(spans), seconds=sum(spans))


def test_an_interval_in_which_other_lines_were_written_is_no_pause() -> None:
    others = tuple(range(0, 900, 30))
    assert paced(10, 900, 10, others=others).pauses == ()
    assert paced(10, 900, 10, others=others[:5]).pauses == (900,)


def resumed() -> Ledgers:
    """A run that stopped overnight. Both learners started again, and b took the anchor whole."""
    ledgers = Ledgers("ab")
    for _ in range(4):
        ledgers.round({"a": 300, "b": 200})
    ledgers.now += NIGHT
    ledgers.restart("a")
    ledgers.restart("b")
    ledgers.whole("b", of="a")
    for _ in range(4):
        ledgers.round({"a": 300, "b": 200})
    return ledgers


def test_a_run_that_stopped_overnight_is_as_fast_as_before() -> None:
    story = story_of(resumed().text)
    assert story.pace.per_s == 50.0
    assert story.pace.seconds == 60.0
    assert "4,000 tokens, 50 tokens/s without 1 pause of 8 h 0 min" in headline(story)
    page = page_of(story, verdict_of(story))
    assert "<b>50</b><span>tokens per second</span>" in page
    assert "<b>8 h 0 min</b><span>of that in pauses</span>" in page


def test_fragments_do_not_add_up() -> None:
    first, second = Ledgers("ab"), Ledgers("ab", fragment=1)
    for ledgers in (first, second):
        for _ in range(4):
            ledgers.round({"a": 300, "b": 200})
    story = story_of([(f"{i}.jsonl", text) for i, (_, text) in enumerate(first.text + second.text)])
    assert story.pace == Pace(tokens=1500, seconds=30.0)
    assert "in pauses" not in page_of(story, verdict_of(story))
