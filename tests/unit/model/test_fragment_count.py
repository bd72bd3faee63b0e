"""How many fragments a model is divided into, beside a search through all numbers."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.errors import UsageError
from mend_optim.model.fragment_count import MOST, ROUND_NBYTES, FragmentCount, read_fragments
from tests import reference

MIB = ROUND_NBYTES // 4  # elements


@given(
    sizes=st.lists(st.integers(0, 1 << 26), min_size=1, max_size=60),
    period=st.none() | st.integers(1, 2 * MOST),
)
def test_the_number_is_the_best_one_that_tensors_and_period_allow(
    sizes: list[int], period: int | None
) -> None:
    rounds = Fraction(4 * sum(sizes), ROUND_NBYTES)
    chosen = FragmentCount().within(period).of(sizes)
    assert chosen == reference.fewest_waits(rounds, min(period or MOST, MOST, len(sizes)))


@pytest.mark.parametrize(
    ("mebibytes", "fragments"), [(0, 1), (2, 1), (3, 2), (6, 2), (7, 3), (95, 10), (5000, MOST)]
)
def test_the_number_grows_as_the_square_root(mebibytes: int, fragments: int) -> None:
    assert FragmentCount().of([mebibytes * MIB // 100] * 100) == fragments


@pytest.mark.parametrize("told", [1, 40])
def test_a_number_that_was_told_is_kept(told: int) -> None:
    assert read_fragments(told).within(2).of([MIB] * 100) == told
    assert read_fragments("auto").within(2).of([MIB] * 100) == 2


@pytest.mark.parametrize("wrong", [0, -1, 1.0, True, None, "many", "1"])
def test_another_argument_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="fragments must be an int >= 1 or 'auto'"):
        read_fragments(wrong)
