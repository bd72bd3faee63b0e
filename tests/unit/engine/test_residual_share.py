"""The four rules of `residual_share`, beside a twin of the whole life of a residual."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mend_optim.engine.residual_share import (
    NO_SHARE,
    Residual,
    Share,
    is_all_residual,
    weighed,
    weighed_entries,
)
from mend_optim.protocol.lineage import Key, PeerId
from mend_optim.protocol.messages import Offer

BARE = Offer(
    peer=PeerId("a", 1),
    fragment=0,
    seq=7,
    tokens=0,
    steps=0,
    genesis=b"g",
    key=Key(0, 0, b""),
    due=False,
)
OWN = replace(BARE, tokens=30, steps=3)
FLUSH = replace(BARE, steps=3, again=(20, 3))
MIXED = replace(BARE, tokens=10, steps=1, again=(20, 3))
EMPTY = replace(BARE, again=(50, 5))

shares = st.tuples(st.integers(0, 100), st.integers(0, 9))


# Rules 1 and 2: the share of a learner


@pytest.mark.parametrize(
    ("claimed", "flush", "share", "unsent"),
    [
        (NO_SHARE, False, (10, 1), True),
        (NO_SHARE, True, (10, 1), False),
        ((40, 4), True, (40, 4), False),
        ((0, 4), True, (40, 4), False),
    ],
)
def test_after_a_round_with_the_learner_its_share_is_what_it_brought_unless_it_claimed_one(
    claimed: Share, flush: bool, share: Share, unsent: bool
) -> None:
    residual = Residual(share=(40, 4))
    residual.merged((10, 1), claimed, flush)
    assert residual == Residual(share, unsent)


@pytest.mark.parametrize(
    ("unsent", "pending", "share"),
    [
        (False, False, NO_SHARE),
        (True, False, (40, 4)),
        (False, True, (40, 4)),
        (True, True, (40, 4)),
    ],
)
def test_after_a_round_without_the_learner_it_has_a_share_only_if_it_holds_or_offers_something(
    unsent: bool, pending: bool, share: Share
) -> None:
    residual = Residual((40, 4), unsent)
    residual.missed_round(pending)
    assert residual == Residual(share, unsent)


# Rule 3: the claim of an offer


@pytest.mark.parametrize(
    ("unsent", "work", "flush", "claim", "left"),
    [
        (True, (0, 0), True, (40, 4), False),
        (True, (10, 1), True, (40, 4), False),
        (True, (40, 4), True, NO_SHARE, False),
        (True, (90, 9), True, NO_SHARE, False),
        (False, (10, 1), True, NO_SHARE, False),
        (True, (10, 1), False, NO_SHARE, True),
        (False, (10, 1), False, NO_SHARE, False),
    ],
)
def test_a_flush_claims_the_share_if_that_is_more_than_its_work(
    unsent: bool, work: Share, flush: bool, claim: Share, left: bool
) -> None:
    residual = Residual((40, 4), unsent)
    assert residual.claim(work, flush) == claim
    assert residual == Residual((40, 4), left)


@given(share=shares, unsent=st.booleans(), work=shares, flush=st.booleans())
def test_a_flush_that_did_not_come_about_leaves_its_residual_unsent(
    share: Share, unsent: bool, work: Share, flush: bool
) -> None:
    residual = Residual(share, unsent)
    residual.claim(work, flush)
    residual.withdrawn(flush)
    assert residual == Residual(share, unsent or flush)


@given(share=shares, unsent=st.booleans(), work=shares)
def test_a_claim_is_the_share_or_nothing_and_never_less_than_the_work(
    share: Share, unsent: bool, work: Share
) -> None:
    claim = Residual(share, unsent).claim(work, True)
    assert claim in (share, NO_SHARE)
    assert claim == NO_SHARE or claim > work


def test_a_residual_that_an_anchor_has_is_sent_no_more() -> None:
    residual = Residual((40, 4), True)
    residual.forget()
    assert residual == Residual((40, 4), False)


# Rule 4: by what a sealer weighs an offer


@pytest.mark.parametrize(
    ("offer", "among_work", "among_residuals"),
    [
        (BARE, (0, 0), (0, 0)),
        (OWN, (30, 3), (30, 3)),
        (FLUSH, (20, 3), (20, 3)),
        (MIXED, (20, 3), (20, 3)),
        (EMPTY, (0, 0), (50, 5)),
    ],
)
def test_an_offer_is_weighed_by_its_claim_if_it_has_steps_or_nobody_brings_tokens(
    offer: Offer, among_work: Share, among_residuals: Share
) -> None:
    for all_residual, expected in ((False, among_work), (True, among_residuals)):
        entry = weighed(offer, all_residual)
        assert (entry.tokens, entry.steps) == expected
        assert entry[:2] == offer.entry[:2]


@pytest.mark.parametrize(
    ("offers", "expected"),
    [
        ([FLUSH, EMPTY], True),
        ([FLUSH, EMPTY, OWN], False),
        ([FLUSH, MIXED], False),
        ([BARE], True),
        ([], True),
    ],
)
def test_a_round_is_all_residual_if_nobody_brings_tokens(
    offers: Sequence[Offer], expected: bool
) -> None:
    assert is_all_residual(offers) is expected


def test_an_empty_offer_has_no_claim_if_its_sender_missed_the_last_round() -> None:
    """It had no part in the mean whose residuals are merged now."""
    behind = replace(EMPTY, key=Key(99, 1, b""))
    current = replace(EMPTY, key=Key(100, 1, b""))
    ahead = replace(EMPTY, key=Key(110, 2, b""))
    entries = weighed_entries([FLUSH, behind, current, ahead], 100)
    assert [entry[2:] for entry in entries] == [(20, 3), (0, 0), (50, 5), (50, 5)]


def test_a_flush_keeps_its_claim_though_its_sender_missed_the_last_round() -> None:
    behind = replace(FLUSH, key=Key(99, 1, b""))
    assert [entry[2:] for entry in weighed_entries([behind], 100)] == [(20, 3)]


def test_no_empty_offer_has_a_claim_beside_work() -> None:
    entries = weighed_entries([OWN, EMPTY, FLUSH], 0)
    assert [entry[2:] for entry in entries] == [(30, 3), (0, 0), (20, 3)]


# The whole life


class Life(RuleBasedStateMachine):
    """Offers one after another, with and without a rest, merged, missed or withdrawn. The twin
    writes down which (tokens, steps) the residual in the weights was left by."""

    def __init__(self) -> None:
        super().__init__()
        self.residual = Residual()
        #: The work of the last merged offer that counts.
        self.left_by: Share = NO_SHARE
        #: Whether its residual is in the weights, and in no offer.
        self.in_weights = False
        #: (work, claim, flush) on its way.
        self.offer: tuple[Share, Share, bool] | None = None

    @precondition(lambda self: self.offer is None)
    @rule(work=shares.filter(lambda work: work[1] > 0), flush=st.booleans())
    def offers(self, work: Share, flush: bool) -> None:
        claim = self.residual.claim(work, flush)
        carried = flush and self.in_weights and self.left_by > work
        assert claim == (self.left_by if carried else NO_SHARE)
        self.offer = (work, claim, flush)
        self.in_weights = self.in_weights and not flush

    @precondition(lambda self: self.offer)
    @rule()
    def is_merged(self) -> None:
        assert self.offer is not None
        work, claim, flush = self.offer
        self.residual.merged(work, claim, flush)
        self.offer = None
        self.in_weights = not flush
        if claim == NO_SHARE:
            self.left_by = work

    @rule()
    def others_seal(self) -> None:
        self.residual.missed_round(self.offer is not None)
        if self.offer is None and not self.in_weights:
            self.left_by = NO_SHARE

    @precondition(lambda self: self.offer)
    @rule()
    def is_withdrawn(self) -> None:
        assert self.offer is not None
        flush = self.offer[2]
        self.residual.withdrawn(flush)
        self.offer = None
        self.in_weights = self.in_weights or flush

    @rule()
    def weights_become_the_anchor(self) -> None:
        self.residual.forget()
        self.in_weights = False

    @invariant()
    def the_twin_agrees(self) -> None:
        assert self.residual == Residual(self.left_by, self.in_weights)


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=100, stateful_step_count=20, deadline=None)
