"""The checks of seals: honest ones pass, and each rule refuses what breaks it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mend_optim.engine.policies import WEIGHTINGS, Policies, weights
from mend_optim.engine.residual_share import NO_SHARE, entries_by, shares_of
from mend_optim.engine.schedule import Schedule
from mend_optim.engine.seal_checks import (
    MOST_TOKENS,
    SPREAD,
    flaw_of,
    outlier,
    to_leave_out,
    told,
)
from mend_optim.protocol.lineage import MOST_AUTHORS, Entry, PeerId
from mend_optim.protocol.messages import Seal
from mend_optim.protocol.peer_limits import Limits
from tests import reference
from tests.support.engines import BASE, ME, grown, seal_of

COUNT = st.integers(0, 2**62)
TOKENS = st.one_of(st.integers(0, 5000), st.integers(0, MOST_TOKENS))
WORK = st.tuples(TOKENS, st.one_of(st.integers(0, 9), COUNT))
SHARES = st.one_of(st.just(NO_SHARE), st.tuples(st.integers(0, 500), st.integers(1, 9)))


def policies(scheme: str, residuals: bool = False, learners: int = 256) -> Policies:
    return Policies(
        schedule=Schedule(),
        weighting=scheme,
        residual_in_weights=residuals,
        limits=Limits(learners=learners),
    )


def members_of(*work: tuple[int, int]) -> tuple[Entry, ...]:
    return tuple(
        Entry(PeerId(f"learner-{i}", 1), int(steps > 0), tokens, steps)
        for i, (tokens, steps) in enumerate(work)
    )


def sealed(scheme: str, *members: Entry, shares: tuple[tuple[int, int], ...] = ()) -> Seal:
    """A seal as an honest sealer makes it."""
    entries = entries_by(members, shares)
    found = shares_of(members, entries)
    weighed = tuple(weights(scheme, entries))
    return replace(seal_of(BASE, *members), weights=weighed, shares=found)


# Honest seals pass


@given(
    scheme=st.sampled_from(WEIGHTINGS),
    work=st.lists(
        st.tuples(st.integers(1, SPREAD), st.integers(0, 99), SHARES), min_size=1, max_size=8
    ).filter(lambda work: any(steps for _, steps, _ in work)),
)
def test_no_seal_of_an_honest_sealer_is_refused(
    scheme: str, work: list[tuple[int, int, tuple[int, int]]]
) -> None:
    """Batches differ up to `SPREAD` times; some bring nothing, some weigh by a residual."""
    members = members_of(*((rate * steps, steps) for rate, steps, _ in work))
    shares = tuple(share for _, _, share in work)
    seal = sealed(scheme, *members, shares=shares)
    residuals = any(map(any, shares))
    apart = outlier(members, entries_by(members, seal.shares)) is not None
    assert bool(flaw_of(seal, BASE, policies(scheme, residuals), False)) is apart
    assert bool(flaw_of(seal, BASE, policies(scheme), True)) is apart  # buffers


@given(work=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), SHARES), max_size=6))
def test_a_seal_says_by_what_each_member_is_weighed(
    work: list[tuple[int, int, tuple[int, int]]],
) -> None:
    members = members_of(*((tokens, steps) for tokens, steps, _ in work))
    entries = entries_by(members, tuple(share for _, _, share in work))
    assert entries_by(members, shares_of(members, entries)) == entries


# Each rule

GOOD = sealed("tokens", *members_of((40, 4), (120, 4), (0, 0)))
FIRST, SECOND, IDLE = GOOD.members


@pytest.mark.parametrize(
    ("seal", "why"),
    [
        (replace(GOOD, weights=(0.5, 0.5, 0.0)), "weights do not follow"),
        (replace(GOOD, weights=(0.25, 1.0, 0.0)), "weights do not follow"),
        (replace(GOOD, shares=((400, 4), (0, 0), (0, 0))), "encodings leave none"),
        (sealed("tokens", FIRST, SECOND._replace(peer=FIRST.peer, seq=2)), "work twice"),
        (sealed("tokens", FIRST, IDLE, IDLE), "work twice"),
        (sealed("tokens", FIRST._replace(seq=0), SECOND), "work twice"),
        (sealed("tokens", *members_of((1, 1), (1, 1), (SPREAD + 1, 1))), "learner-2 has 1001 tok"),
        (sealed("uniform", *members_of((1, 1), (1, 1), (2**62, 1))), "learner-2 has"),
    ],
)
def test_a_seal_that_breaks_a_rule_is_refused(seal: Seal, why: str) -> None:
    scheme = "uniform" if seal.weights[0] == 1 / 3 else "tokens"
    found = flaw_of(seal, BASE, policies(scheme), is_buffers=False)
    assert why in found


def test_a_good_seal_is_good() -> None:
    assert flaw_of(GOOD, BASE, policies("tokens"), is_buffers=False) == ""
    both = sealed("tokens", FIRST, Entry(FIRST.peer, 0, 0, 0))  # its own process had lost its offer
    assert flaw_of(both, BASE, policies("tokens"), is_buffers=False) == ""


def test_a_seal_has_at_most_as_many_members_as_there_may_be_learners() -> None:
    seal = sealed("tokens", *members_of((1, 1), (1, 1), (1, 1)))
    assert flaw_of(seal, BASE, policies("tokens", learners=3), is_buffers=False) == ""
    found = flaw_of(seal, BASE, policies("tokens", learners=2), is_buffers=False)
    assert found == "it has 3 members, and limits.learners is 2"


def test_what_the_base_has_merged_is_not_merged_again() -> None:
    mine = Entry(ME, 3, 40, 4)
    base = grown(BASE, mine)
    seal = replace(seal_of(base, mine), weights=(1.0,))
    assert flaw_of(seal, base, policies("tokens"), is_buffers=False) == "it merges work twice"
    later = replace(seal_of(base, mine._replace(seq=4)), weights=(1.0,))
    assert flaw_of(later, base, policies("tokens"), is_buffers=False) == ""


def test_a_full_anchor_takes_no_new_member() -> None:
    known = {PeerId(str(i), 1): 1 for i in range(MOST_AUTHORS)}
    base = replace(BASE, merged=known)
    old, new = Entry(PeerId("7", 1), 2, 40, 4), Entry(ME, 1, 40, 4)
    idle = Entry(ME, 0, 0, 0)
    good = sealed("tokens", old, idle)
    assert flaw_of(good, base, policies("tokens"), is_buffers=False) == ""
    found = flaw_of(sealed("tokens", old, new), base, policies("tokens"), is_buffers=False)
    assert found == "it has new members, and the anchor has work of as many as a message can list"


@given(st.data())
def test_no_other_weights_than_those_of_the_policy_pass(data: st.DataObject) -> None:
    scheme = data.draw(st.sampled_from(WEIGHTINGS))
    forged = data.draw(st.lists(st.floats(0, 1), min_size=3, max_size=3))
    seal = sealed(scheme, *members_of((40, 4), (120, 4), (30, 3)))
    if tuple(forged) != seal.weights:
        forgery = replace(seal, weights=tuple(forged))
        assert "weights" in flaw_of(forgery, BASE, policies(scheme), is_buffers=False)


# Rates


@given(st.lists(WORK, max_size=7))
def test_an_outlier_has_the_greatest_rate_of_those_beyond_the_median(
    work: list[tuple[int, int]],
) -> None:
    """Beside exact fractions; a rate within a rounding of the bound may be on either side."""
    members = members_of(*work)
    found = outlier(members, members)
    for slack, holds in ((1.000001, found is None), (0.999999, found is not None)):
        expected = reference.beyond_spread(work, SPREAD * slack)  # type: ignore[arg-type]
        assert not (expected and holds and slack > 1)
        assert not (not expected and holds and slack < 1)
    if found is not None:
        rates = [e.tokens / e.steps if e.steps else 0.0 for e in members]
        assert rates[found] == max(rates)


@given(st.lists(WORK, min_size=2, max_size=2))
def test_of_two_members_none_is_an_outlier(work: list[tuple[int, int]]) -> None:
    """Nobody could say which of them is wrong."""
    assert outlier(members_of(*work), members_of(*work)) is None


@pytest.mark.parametrize("others", [0, 1, 2])
def test_nobody_uses_up_the_tokens_that_an_anchor_can_count(others: int) -> None:
    """However few there are to compare with."""
    most = (MOST_TOKENS, 1)
    members = members_of(*[most] * others, most)
    assert outlier(members, members) is None
    members = members_of(*[most] * others, (MOST_TOKENS + 1, 1))
    assert outlier(members, members) == others
    seal = sealed("tokens", *members)
    assert f"the limit is {MOST_TOKENS}" in flaw_of(seal, BASE, policies("tokens"), False)


def test_a_residual_may_not_outweigh_all_others_either() -> None:
    members = members_of((1, 1), (1, 1), (1, 1))
    entries = [*members[:2], members[2]._replace(tokens=SPREAD + 1)]
    assert outlier(members, entries) == 2
    assert told(entries[2]).startswith("1001 tokens in 1 steps")


def test_members_without_tokens_do_not_move_the_median() -> None:
    assert outlier(members := members_of((0, 4), (0, 4), (9, 1), (9, 1), (0, 0)), members) is None


@given(
    present=st.lists(st.integers(1, 4000), min_size=1, max_size=5),
    orphans=st.lists(st.sampled_from([1, 10**4, 10**9]), max_size=5),
)
def test_orphaned_offers_make_nobody_an_outlier(present: list[int], orphans: list[int]) -> None:
    """`present`, the tokens per 4 steps of those that offered themselves, are none by themselves;
    others pass on what they like."""
    members = members_of(*((tokens, 4) for tokens in (*present, *orphans)))
    passed_on = set(range(len(present), len(members)))
    assume(outlier(members[: len(present)], members[: len(present)]) is None)
    while (index := to_leave_out(members, members, passed_on)) is not None:
        assert index in passed_on
        members = tuple(entry for i, entry in enumerate(members) if i != index)
        passed_on = set(range(len(present), len(members)))
    assert members[: len(present)] == members_of(*((tokens, 4) for tokens in present))
    assert outlier(members, members) is None


def test_an_outlier_among_those_that_offered_themselves_is_left_out_beside_orphans() -> None:
    members = members_of((4, 4), (8, 4), (4 * 8 * SPREAD, 4), (1, 4))
    assert to_leave_out(members, members, {3}) == 2
    assert to_leave_out(members, members, {2}) == 2
    assert to_leave_out(members, members, set()) == outlier(members, members) == 2


def test_the_orphan_of_the_smallest_rate_is_left_out_first() -> None:
    members = members_of((4 * 3 * SPREAD, 4), (9, 4), (8, 40), (8, 4))
    assert to_leave_out(members, members, {1, 2, 3}) == 2


def test_the_work_of_the_sealer_itself_is_compared_and_never_left_out() -> None:
    members = members_of((4 * 9 * SPREAD, 4), (4, 4), (4, 4))
    assert to_leave_out(members, members, {1}) == 1
    own = members[2]
    assert to_leave_out(members[:2], members[:2], {1}, own) is None
    members = members_of((4 * 9 * SPREAD, 4), (4, 4), (8, 4))
    assert to_leave_out(members, members, {1}, own) == 0
    far = own._replace(tokens=own.tokens * 99 * SPREAD * SPREAD)
    assert to_leave_out(members, members, {1}, far) == 1
