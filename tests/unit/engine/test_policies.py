"""How rounds are weighted, and which moments go with an offer."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mend_optim.engine.moment_schedule import Moment, MomentSchedule
from mend_optim.engine.policies import WEIGHTINGS, Policies, weights
from mend_optim.engine.schedule import Schedule
from mend_optim.protocol.lineage import Entry, PeerId
from tests import reference
from tests.support.strategies import entries


def work(*done: tuple[int, int]) -> list[Entry]:
    """Members that did (tokens, steps)."""
    return [
        Entry(PeerId(f"peer-{i}", 1), 1, tokens, steps) for i, (tokens, steps) in enumerate(done)
    ]


# Weights


@pytest.mark.parametrize("scheme", WEIGHTINGS)
@given(done=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 100)), min_size=1, max_size=8))
def test_weights_are_the_textbooks(scheme: str, done: list[tuple[int, int]]) -> None:
    assume(any(tokens and steps for tokens, steps in done))
    w = weights(scheme, work(*done))
    assert w == pytest.approx([float(x) for x in reference.weights(scheme, done)], rel=1e-12)
    assert math.fsum(w) == pytest.approx(1)
    assert min(w) >= 0


@pytest.mark.parametrize("scheme", WEIGHTINGS)
@given(members=entries(), scale=st.integers(1, 1000))
def test_weights_do_not_depend_on_the_unit_of_tokens(
    scheme: str, members: list[Entry], scale: int
) -> None:
    scaled = [member._replace(tokens=scale * member.tokens) for member in members]
    assert weights(scheme, scaled) == pytest.approx(weights(scheme, members))


@pytest.mark.parametrize("scheme", WEIGHTINGS)
def test_who_took_no_step_weighs_nothing(scheme: str) -> None:
    assert weights(scheme, work((5, 1), (0, 0), (5, 1), (7, 0))) == [0.5, 0, 0.5, 0]


@pytest.mark.parametrize("scheme", WEIGHTINGS)
def test_steps_without_tokens_weigh_alike_if_nobody_has_any(scheme: str) -> None:
    assert weights(scheme, work((0, 1), (0, 3), (0, 0))) == [0.5, 0.5, 0]


@pytest.mark.parametrize("scheme", WEIGHTINGS)
def test_nobody_stepped_nobody_weighs(scheme: str) -> None:
    assert weights(scheme, work((0, 0), (0, 0))) == [0, 0]


@pytest.mark.parametrize("scheme", ["tokens_and_batch", "throughput"])
@given(
    steps=st.lists(st.integers(1, 100), min_size=1, max_size=6),
    tokens=st.integers(1, 1000),
    every=st.integers(1, 7),
)
def test_weights_are_those_of_tokens_to_the_bit_where_batches_are_equal(
    scheme: str, steps: list[int], tokens: int, every: int
) -> None:
    members = work(*((tokens * n, every * n) for n in steps))
    assert weights(scheme, members) == weights("tokens", members)


def test_weights_are_shares_of_an_exact_sum() -> None:
    """Sums that round step by step differ between versions of Python, and so would the weights."""
    raw = [1 * (1 / 3), 2 * (2 / 3), 3 * (3 / 3)]
    total = math.fsum(raw)
    assert raw[0] + raw[1] + raw[2] < total
    assert weights("throughput", work((1, 1), (2, 1), (3, 1))) == [w / total for w in raw]


@pytest.mark.parametrize(
    ("scheme", "large"),
    [("tokens", 1 / 2), ("tokens_and_batch", 2 / 3), ("throughput", 4 / 5), ("uniform", 1 / 2)],
)
def test_a_batch_that_is_four_times_as_large_weighs_more_for_as_many_tokens(
    scheme: str, large: float
) -> None:
    w = weights(scheme, work((100, 20), (100, 5)))
    assert w == pytest.approx([1 - large, large])


# Moments

M, V, SUM = (
    Moment(name="m", order="first", decay=0.9),
    Moment(name="v", order="second", decay=0.99),
    Moment(name="sum", order="first", decay=0.9),
)
FIRST, SECOND = 3, 4


def policies(first: int = FIRST, second: int = SECOND) -> Policies:
    return Policies(
        schedule=Schedule(),
        moments=(M, V, SUM),
        periods=MomentSchedule(first=first, second=second),
    )


@pytest.mark.parametrize(
    ("version", "names"),
    [
        (1, ()),
        (2, ()),
        (3, ("m", "sum")),
        (4, ("v",)),
        (6, ("m", "sum")),
        (8, ("v",)),
        (12, ("m", "v", "sum")),
    ],
)
def test_a_round_averages_the_moments_whose_period_ends_with_it(
    version: int, names: tuple[str, ...]
) -> None:
    assert policies().due(version) == names


@pytest.mark.parametrize(
    ("averaged", "version", "names"),
    [
        ({}, 2, ()),
        ({}, 3, ("m", "sum")),
        ({}, 4, ("m", "v", "sum")),
        ({"first": 3}, 4, ("v",)),
        ({"first": 3}, 5, ("v",)),
        ({"first": 3, "second": 4}, 5, ()),
        ({"first": 3, "second": 4}, 6, ("m", "sum")),
        ({"first": 3, "second": 4}, 7, ("m", "sum")),
        ({"first": 6, "second": 4}, 8, ("v",)),
        # The versions are of another branch, which had more rounds than this one.
        ({"first": 9, "second": 9}, 3, ("m", "sum")),
        ({"first": 9, "second": 9}, 5, ()),
        ({"first": 9, "second": 9}, 8, ("v",)),
    ],
)
def test_moments_are_owed_from_their_round_on_until_one_takes_them(
    averaged: dict[str, int], version: int, names: tuple[str, ...]
) -> None:
    assert policies().owed(averaged, version) == names


def test_without_periods_no_moment_is_due_or_owed() -> None:
    bare = Policies(schedule=Schedule(), moments=(M, V))
    assert (bare.due(12), bare.owed({}, 12)) == ((), ())


def test_what_was_averaged_is_remembered_by_order() -> None:
    assert policies().averaged({"m"}, 6) == {"first": 6}
    assert policies().averaged(["v", "m", "unknown"], 12) == {"first": 12, "second": 12}
    assert policies().averaged((), 12) == {}


@given(
    first=st.integers(1, 6),
    second=st.integers(1, 6),
    taken=st.lists(st.booleans(), min_size=1, max_size=40),
)
def test_a_learner_owes_what_a_twin_that_keeps_a_debt_for_each_order_owes(
    first: int, second: int, taken: list[bool]
) -> None:
    """Version after version; a round takes along what its learner owes, or misses the learner. A
    round averages only what is due in it, so a learner that missed that round goes on owing."""
    plan, averaged = policies(first, second), dict[str, int]()
    debts: set[str] = set()
    for version, takes in enumerate(taken, 1):
        due = {m.name for m in (M, V, SUM) if version % (first, second)[m.order == "second"] == 0}
        debts |= due
        owed = plan.owed(averaged, version)
        assert set(owed) == debts
        assert set(plan.due(version)) == due
        if takes:
            averaged |= plan.averaged(set(owed) & due, version)
            debts -= due
