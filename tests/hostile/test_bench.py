"""The bench of the longest gaps of a learner that is attacked."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import cast

import pytest

from bench.cluster.hostile import Pair, Span, make, measure, rows
from tests.hostile.ground import PACE_S, STEPS, Ground
from tests.hostile.test_attacks import ATTACKS
from tests.support.gaps import Longest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_a_learner_that_is_held_up_has_a_gap(ground: Ground) -> None:
    a, b = ground.a, ground.b
    a.ask("gaps", "gaps")
    a.await_steps(2)
    a.signal(signal.SIGSTOP)
    b.await_steps(40)
    a.signal(signal.SIGCONT)
    a.await_steps(2)
    found = a.ask("gaps", "gaps")
    # Some of b's steps may have ended before, and were read later.
    assert found["gap_s"] > 20 * PACE_S
    assert found["steps"] >= 4


def test_each_span_in_peace_is_as_long_as_the_attack_before_it(ground: Ground) -> None:
    name = "l3 hellos make no quorum"
    measured = measure(ground, {name: ATTACKS[name]}, 2)
    first, second = measured.pop(name)
    assert not measured
    assert second.peace.a.steps >= first.attack.a.steps >= STEPS
    assert all(span.b.steps and span.rounds for pair in (first, second) for span in pair)


def fails_without_words(ground: object) -> None:
    raise AssertionError


def fails_with_words(ground: object) -> None:
    raise AssertionError("220 MB more")


def raises_nothing(ground: object) -> None:
    with pytest.raises(ValueError, match="anything"):
        pass


@pytest.mark.parametrize(
    ("attack", "said"),
    [
        (fails_without_words, "raise AssertionError"),
        (fails_with_words, "220 MB more"),
        (raises_nothing, "DID NOT RAISE"),
    ],
)
def test_an_attack_that_is_not_held_is_named_with_the_reason(
    attack: Callable[[object], None], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make(cast("Ground", object()), "an attack", attack)
    line = capsys.readouterr().err
    assert line.startswith("an attack: ")
    assert said in line


def span(
    a_ms: float, a_with_core_ms: float, b_with_core_ms: float, steps: int = 9, rounds: int = 3
) -> Span:
    a = Longest(steps, a_ms / 1e3, a_with_core_ms / 1e3)
    return Span(a, Longest(steps, 1.0, b_with_core_ms / 1e3), rounds)


def test_gaps_are_shown_beside_those_in_peace() -> None:
    pairs = [
        Pair(peace=span(20, 10, 5), attack=span(80, 40, 10)),
        Pair(peace=span(20, 10, 5), attack=span(100, 60, 10)),
    ]
    found = [row for row in rows({"x": pairs}) if row.what.startswith("x:")]
    assert [(row.value, row.ratio and round(row.ratio, 9)) for row in found] == [
        (pytest.approx(50), None),
        (pytest.approx(0), None),
        (pytest.approx(50), 5),
        (pytest.approx(90), 4.5),
        (pytest.approx(10), 2),
    ]
    assert [row.met for row in found] == [True, True, None, None, None]


def test_rounds_are_lost_that_as_many_steps_in_peace_would_have_had() -> None:
    """In peace there are 40 rounds in 400 steps, more in some spans than in others."""
    some, more = (span(20, 10, 5, steps=100, rounds=rounds) for rounds in (9, 11))
    pairs = [
        Pair(some, attack=span(20, 10, 5, steps=200, rounds=17)),
        Pair(more, attack=span(20, 10, 5, steps=50, rounds=3)),
        Pair(some, attack=span(20, 10, 5, steps=50, rounds=6)),
    ]
    others = [Pair(more, attack=span(20, 10, 5, steps=50, rounds=5))]
    (row,) = [row for row in rows({"x": pairs, "y": others}) if row.what == "x: rounds lost"]
    assert (row.value, row.min, row.max, row.met) == (2, -1, 3, False)
