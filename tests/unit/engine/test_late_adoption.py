from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim import Adoption, UsageError
from mend_optim.engine.absence import PRESENT, Absence
from tests import reference


@pytest.mark.parametrize(
    ("late", "gain"),
    [(0, 1.0), (1, 1.0), (2, 0.5), (3, 0.5), (4, 0.3), (128, 0.3), (10**9, 0.3)],
)
def test_the_gain_falls_with_the_steps_that_an_anchor_is_late(late: int, gain: float) -> None:
    assert Adoption().gain_at(late) == gain


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_later_anchor_never_gets_a_greater_gain(one: int, other: int) -> None:
    early, late = sorted((one, other))
    assert 0 < Adoption().gain_at(late) <= Adoption().gain_at(early) <= 1


@given(st.floats(0, 1, exclude_min=True), st.integers(0, 1000))
def test_a_gain_that_you_choose_holds_however_late_the_anchor_is(gain: float, late: int) -> None:
    assert Adoption(gain=gain).gain_at(late) == gain


def test_the_gain_of_an_int_is_a_float() -> None:
    found = Adoption(gain=1).gain_at(9)
    assert (found, type(found)) == (1.0, float)


@pytest.mark.parametrize(("name", "bound"), [("gain", "(0, 1]"), ("share", "[1e-06, 1]")])
@pytest.mark.parametrize("wrong", [0, -0.1, 1.01, float("nan"), float("inf"), "0.5", True, [0.5]])
def test_a_wrong_gain_or_share_is_named_with_its_bound(name: str, bound: str, wrong: Any) -> None:
    with pytest.raises(UsageError) as caught:
        Adoption(**{name: wrong})
    expected = f"adoption.{name} must be None or a number in {bound}, got {wrong!r}"
    assert str(caught.value).startswith(expected)


def test_a_share_may_be_small_but_not_nothing() -> None:
    assert Adoption(share=1e-6).share == 1e-6
    with pytest.raises(UsageError, match="share"):
        Adoption(share=9e-7)


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=9), st.integers(1, 10**6))
def test_the_share_is_that_of_the_rounds_missed(brought: list[int], own: int) -> None:
    share = Adoption().share_of(Absence(len(brought), sum(brought)), own)
    usual = sum(brought) / len(brought)
    assert share * own / (own + usual) == pytest.approx(reference.weight_due(own, brought))


def test_a_share_that_you_choose_holds_after_any_missed_round_and_for_no_other_offer() -> None:
    chosen = Adoption(share=1)
    found = chosen.share_of(Absence(9, 18), 12)
    assert (found, type(found)) == (1.0, float)
    assert Adoption(share=0.5).share_of(Absence(1, 0), 1) == 0.5
    assert Adoption(share=0.5).share_of(PRESENT, 1) == 1.0
