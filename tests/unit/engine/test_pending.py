from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.engine.pending import NEVER, Pending
from mend_optim.protocol.lineage import Claim, PeerId
from mend_optim.protocol.messages import Offer
from tests.support.engines import BASE, GENESIS, ME, OTHER, PEER

EARLIER = PeerId("me", 0)
OWN = Claim(ME, 2)


def pending_of(claim: Claim = OWN, offered: bool = True, follows: int = 2) -> Pending:
    pending = Pending(claim=claim, seq=3, step=8, tokens=40, steps=4, due=True, follows=follows)
    if offered:
        pending.encoded(
            Offer(
                peer=ME,
                fragment=0,
                seq=3,
                tokens=40,
                steps=4,
                genesis=GENESIS,
                key=BASE.key,
                due=True,
                follows=follows,
                inherited=None if claim.author == ME else claim,
            )
        )
    return pending


def test_an_offer_that_is_sent_is_not_delivered_and_is_not_sent_again_by_itself() -> None:
    pending = pending_of()
    pending.lost(resend_at=3.0)
    pending.sent(5.0, PEER, delivered=False)
    assert (pending.sent_to, pending.sent_at, pending.delivered) == (PEER, 5.0, False)
    assert pending.resend_at == NEVER


def test_an_offer_that_arrived_is_sent_again_unless_the_sealer_is_heard() -> None:
    pending = pending_of()
    pending.sent(5.0, PEER, delivered=False)
    pending.arrived(resend_at=9.0)
    assert (pending.delivered, pending.resend_at) == (True, 9.0)
    pending.still_coming(resend_at=12.0)
    assert pending.resend_at == 12.0
    pending.still_coming(resend_at=11.0)
    assert pending.resend_at == 12.0


def test_a_lost_offer_keeps_its_receiver() -> None:
    pending = pending_of()
    pending.sent(5.0, PEER, delivered=True)
    pending.lost(resend_at=6.0)
    assert (pending.sent_to, pending.delivered, pending.resend_at) == (PEER, False, 6.0)
    pending.lost()
    assert pending.resend_at == NEVER


def test_an_offer_that_its_receiver_forgot_is_sent_again_at_once() -> None:
    pending = pending_of()
    pending.sent(5.0, PEER, delivered=True)
    pending.forgotten(7.0)
    assert pending.resend_at == 7.0


@pytest.mark.parametrize("claim", [OWN, Claim(EARLIER, 2)])
def test_under_another_number_an_offer_claims_the_same_work(claim: Claim) -> None:
    """The number alone would claim all that its author did before it."""
    pending = pending_of(claim)
    pending.sent(5.0, PEER, delivered=True)
    pending.renumbered(6, 0)
    assert pending.offer is not None
    assert (pending.offer.seq, pending.offer.follows, pending.offer.claim) == (6, 0, claim)
    assert (pending.seq, pending.follows, pending.claim) == (6, 0, claim)
    assert (pending.sent_to, pending.delivered) == (None, False)


@given(st.lists(st.tuples(st.integers(4, 99), st.integers(0, 9)), max_size=5))
def test_an_offer_remembers_all_its_numbers_and_what_each_follows(
    renumbered: list[tuple[int, int]],
) -> None:
    pending = pending_of(offered=False)
    expected = {3: 2}
    for seq, follows in renumbered:
        pending.renumbered(seq, follows)
        expected[seq] = follows
    assert pending.numbers == expected
    assert pending.offer is None


def test_an_offer_of_another_model_is_sent_anew() -> None:
    pending = pending_of()
    pending.sent(5.0, PEER, delivered=True)
    pending.transplanted(OTHER)
    assert pending.offer is not None
    assert pending.offer.genesis == OTHER
    assert (pending.seq, pending.sent_to, pending.delivered) == (3, None, False)


def test_a_copy_that_is_no_offer_yet_has_no_genesis_to_change() -> None:
    pending = pending_of(offered=False)
    pending.transplanted(OTHER)
    assert pending.offer is None
