"""How far a round moves the anchor, where its members differ in speed."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mend_optim.engine.headway import MOST_HEADWAY, headway
from mend_optim.engine.policies import WEIGHTINGS, weights
from mend_optim.protocol.lineage import Entry, PeerId
from mend_optim.worker.scale import bound
from tests import reference

BATCH = 8


def entries(*steps: int, batch: int = BATCH) -> list[Entry]:
    return [Entry(PeerId(f"peer{i}", 1), 1, batch * count, count) for i, count in enumerate(steps)]


def by_tokens(members: list[Entry], *present: int) -> float:
    here = {members[i].peer for i in present}
    return headway(members, weights("tokens", members), here)


# Members of speeds that are not far apart, and any.
near = st.tuples(st.integers(50, 200), st.integers(5, 20), st.booleans())
any_work = st.tuples(st.integers(0, 10**9), st.integers(0, 10**9), st.booleans())
works = st.lists(near, min_size=2, max_size=6) | st.lists(any_work, min_size=1, max_size=6)


@given(works, st.sampled_from(WEIGHTINGS))
def test_the_headway_is_its_twins(work: list[tuple[int, int, bool]], scheme: str) -> None:
    members = [Entry(PeerId(f"p{i}", 1), 1, t, n) for i, (t, n, _) in enumerate(work)]
    w = weights(scheme, members)
    assume(any(w))
    here = [present for _, _, present in work]
    present = {member.peer for member, is_here in zip(members, here, strict=True) if is_here}
    found = headway(members, w, present)
    steps = [n for _, n, _ in work]
    assert found == pytest.approx(reference.headway(list(zip(w, steps, strict=True)), here))
    assert 1 <= found <= min(MOST_HEADWAY, bound(w) * (1 + 1e-12))


@given(st.integers(1, 10**6), st.integers(1, 9))
def test_members_of_equal_speed_have_none(steps: int, count: int) -> None:
    assert by_tokens(entries(*[steps] * count)) == 1


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=8))
def test_with_equal_batches_the_bound_of_the_scale_never_acts(steps: list[int]) -> None:
    """Σ wᵢnᵢ = Σnᵢ²/Σnᵢ, so max n / Σ wᵢnᵢ ≤ Σnᵢ/√Σnᵢ² = 1/√Σ wᵢ²."""
    members = entries(*steps)
    w = weights("tokens", members)
    mean = math.fsum(weight * n for weight, n in zip(w, steps, strict=True))
    assert max(steps) / mean <= bound(w) * (1 + 1e-9)


def test_the_anchor_goes_as_far_as_the_fastest_member() -> None:
    assert by_tokens(entries(20, 5)) == pytest.approx(20 / 17)
    assert by_tokens(entries(20, 5, 5, 5)) == pytest.approx(20 / (475 / 35))


def test_work_of_several_rounds_makes_no_member_fast() -> None:
    """The second one has missed rounds, and brings their steps."""
    members = entries(20, 60)
    assert by_tokens(members, 0) == 1
    assert by_tokens(members, 0, 1) == by_tokens(members) == pytest.approx(60 / 50)


def test_steps_that_a_member_makes_up_go_no_further_than_a_bound() -> None:
    claimed = [*entries(20, 20, 20), Entry(PeerId("liar", 1), 1, BATCH, 10**12)]
    w = weights("tokens", claimed)
    assert headway(claimed, w, ()) == pytest.approx(min(MOST_HEADWAY, bound(w)))


@pytest.mark.parametrize("members", [[], entries(0, 0)])
def test_a_round_of_nothing_has_none(members: list[Entry]) -> None:
    assert by_tokens(members) == 1
