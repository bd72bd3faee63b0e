"""Learners that count their tokens in two ways."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.engine.ledger import Event
from mend_optim.engine.token_rates import FEWEST_STEPS
from mend_optim.protocol.lineage import PeerId
from tests.support.engines import DrivenEngine

PEERS = tuple(PeerId(name, 1) for name in ("b", "c", "d"))


def trained(tokens: int, weighting: str = "tokens", weighs_work: bool = True) -> DrivenEngine:
    """A learner that has counted so many tokens in each of `FEWEST_STEPS` steps."""
    engine = DrivenEngine(weighting=weighting, weighs_work=weighs_work)
    engine.step(FEWEST_STEPS, tokens=tokens)
    return engine


def told(
    engine: DrivenEngine, counts: Mapping[PeerId, int], steps: int = FEWEST_STEPS
) -> list[Event]:
    """What the user is told once peers have counted so many tokens in a step."""
    for peer, tokens in counts.items():
        engine.beat(peer, step=steps, tokens=steps * tokens)
    engine.tick(1.0)
    return engine.events("uneven")


@pytest.mark.parametrize(("own", "theirs"), [(1, 1001), (1001, 1)])
def test_a_peer_that_counts_in_another_way_is_named_once(own: int, theirs: int) -> None:
    engine = trained(own)
    (event,) = told(engine, {PEERS[0]: theirs})
    assert event.facts == {"peer": "b", "incarnation": 1, "theirs": theirs, "own": own}
    assert told(engine, {PEERS[0]: theirs}) == []
    assert told(engine, {PEERS[0]: theirs, PEERS[1]: theirs}) == []


def test_of_several_the_one_that_differs_most_is_named() -> None:
    (event,) = told(trained(1), {PEERS[0]: 2000, PEERS[1]: 4000, PEERS[2]: 3000})
    assert event.facts["peer"] == "c"


def test_it_is_news_again_once_all_have_counted_alike() -> None:
    engine = trained(1)
    assert told(engine, {PEERS[0]: 2000})
    assert told(engine, {PEERS[0]: 1}) == []
    assert told(engine, {PEERS[0]: 2000})


@pytest.mark.parametrize("theirs", [1000, 1, 0])
def test_other_batches_and_no_tokens_at_all_are_no_news(theirs: int) -> None:
    assert told(trained(1), {PEERS[0]: theirs}) == []


def test_a_few_steps_tell_nothing() -> None:
    assert told(trained(1), {PEERS[0]: 2000}, steps=FEWEST_STEPS - 1) == []
    assert told(DrivenEngine(), {PEERS[0]: 2000}) == []


def test_where_tokens_do_not_weigh_it_does_not_matter() -> None:
    assert told(trained(1, "uniform"), {PEERS[0]: 2000}) == []
    assert told(trained(1, weighs_work=False), {PEERS[0]: 2000}) == []
    assert told(trained(1, "throughput"), {PEERS[0]: 2000})


@pytest.mark.parametrize(
    ("weighting", "most"), [("tokens", 1000), ("tokens_and_batch", 100), ("throughput", 31)]
)
def test_what_a_step_weighs_is_news(weighting: str, most: int) -> None:
    assert told(trained(1, weighting), {PEERS[0]: most}) == []
    assert told(trained(1, weighting), {PEERS[0]: most + 1})
    assert told(trained(most, weighting), {PEERS[0]: 1}) == []
    assert told(trained(most + 1, weighting), {PEERS[0]: 1})


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_both_tell_or_none_does(one: int, other: int) -> None:
    pair = told(trained(one), {PEERS[0]: other}), told(trained(other), {PEERS[0]: one})
    assert len(set(map(len, pair))) == 1
    assert bool(pair[0]) == (max(one, other) > 1000 * min(one, other))
