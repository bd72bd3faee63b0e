"""A learner hears of a greater anchor: when it waits for the seal, and when it asks for more."""

from __future__ import annotations

import pytest

from mend_optim.engine.effects import Advance
from mend_optim.protocol.lineage import Entry, Lineage, PeerId
from mend_optim.protocol.messages import Offer, Want
from mend_optim.protocol.transfer_fault import BROKEN
from tests.support.engines import (
    BASE,
    FOURTH,
    ME,
    PEER,
    THIRD,
    DrivenEngine,
    among_peers,
    grown,
    offer_of,
    seal_of,
)
from tests.unit.engine.test_majority import experienced

NEXT = grown(BASE)
SEALER, MEMBER = THIRD, PEER  # by their names


def offered() -> DrivenEngine:
    """A learner whose offer is with the sealer, beside a member of the same round."""
    engine = among_peers()
    engine.beat(SEALER, BASE)
    engine.offer()
    ((to, offer),) = engine.sent(Offer)
    assert to == SEALER
    engine.engine.delivered(engine.now, SEALER, offer)
    engine.beat(SEALER, BASE, held=((ME, offer.seq),))
    engine.sent(Want)
    return engine


def asked(engine: DrivenEngine) -> list[PeerId]:
    return [to for to, _ in engine.sent(Want)]


@pytest.mark.parametrize("sealer_has_it", [False, True])
def test_the_seal_that_is_on_its_way_is_not_fetched_whole_from_a_faster_member(
    sealer_has_it: bool,
) -> None:
    engine = offered()
    if sealer_has_it:
        engine.beat(SEALER, NEXT)
    engine.beat(MEMBER, NEXT)
    assert asked(engine) == []


def test_a_seal_that_does_not_come_is_waited_for_only_so_long() -> None:
    engine = offered()
    for _ in range(4):
        engine.beat(SEALER, NEXT)
        engine.beat(MEMBER, NEXT)
        assert asked(engine) == []
        engine.tick(0.9)
    engine.beat(MEMBER, NEXT)
    assert asked(engine) == [MEMBER]


@pytest.mark.parametrize("heard_of", [SEALER, MEMBER])
def test_an_offer_that_the_sealer_still_holds_was_left_out_so_no_seal_comes(
    heard_of: PeerId,
) -> None:
    engine = offered()
    seq = engine.fragment.pending.seq
    engine.beat(SEALER, NEXT, held=((ME, seq),))
    if heard_of == SEALER:
        assert asked(engine) == [SEALER]
        return
    engine.engine.state.wants.clear()
    asked(engine)
    engine.beat(MEMBER, NEXT)
    assert asked(engine) == [MEMBER]


def test_an_older_offer_that_the_sealer_holds_says_nothing() -> None:
    engine = offered()
    engine.beat(SEALER, NEXT, held=((ME, engine.fragment.pending.seq + 1), (MEMBER, 1)))
    assert asked(engine) == []


@pytest.mark.parametrize("how", ["suspected", "gone", "two rounds", "not delivered"])
def test_where_no_seal_is_to_be_expected_a_member_is_asked_at_once(how: str) -> None:
    engine, shown = offered(), NEXT
    if how == "suspected":
        engine.engine.linked(engine.now, SEALER, True)
        engine.engine.linked(engine.now, SEALER, False)
    elif how == "gone":
        engine.engine.state.roster.leave(SEALER)
    elif how == "two rounds":
        shown = grown(NEXT)
    else:
        engine.engine.undelivered(engine.now, SEALER, offer_of(ME), BROKEN)
        pending = engine.fragment.pending
        pending.sent(engine.now, SEALER, delivered=False)
    engine.beat(MEMBER, shown)
    assert asked(engine) == [MEMBER]


def test_a_late_failure_of_another_peer_ends_no_want() -> None:
    engine = offered()
    engine.engine.linked(engine.now, SEALER, True)
    engine.engine.linked(engine.now, SEALER, False)
    engine.beat(MEMBER, NEXT)
    ((_, want),) = engine.sent(Want)
    engine.engine.undelivered(engine.now, SEALER, want, BROKEN)
    assert [wanted.peer for wanted in engine.engine.state.wants.values()] == [MEMBER]
    engine.engine.undelivered(engine.now, MEMBER, want, BROKEN)
    assert not engine.engine.state.wants


def test_a_beat_that_lacks_the_fragment_tells_nothing_of_it() -> None:
    engine = offered()
    peer = engine.engine.state.roster.find(SEALER)
    assert peer
    engine.beat(SEALER, Lineage.fresh(b"another"), genesis=b"another")
    peer.beat = None
    engine.beat(MEMBER, NEXT)
    assert asked(engine) == []


@pytest.mark.parametrize("leads_to_it", [True, False])
def test_a_member_that_is_asked_for_an_anchor_may_seal_no_other(leads_to_it: bool) -> None:
    """Its own seal on our anchor would be taken past the majority, and in place of the sealer's."""
    peers = (PEER, THIRD, FOURTH)
    engine = experienced(*peers)
    sealer, base = engine.engine.state.roster.sealer(0), engine.lineage
    honest, liar = (peer for peer in peers if peer != sealer)
    for peer in (honest, liar):
        engine.beat(peer, grown(base), step=3)
    assert asked(engine) == [liar]
    members = () if leads_to_it else (Entry(liar, 1, 10**6, 4),)
    engine.receive(seal_of(base, *members, sealer=liar))
    assert [job.seal.sealer for job in engine.jobs(Advance)] == [liar] * leads_to_it
    engine.beat(honest, grown(base), step=3)
    assert asked(engine) == [honest] * (not leads_to_it)


def test_a_greater_anchor_that_is_shown_later_is_waited_for_anew() -> None:
    """Else a sealer would seal on the lesser one at once, and the work in the greater would be
    lost."""
    engine = DrivenEngine(quorum=2)
    engine.beat(MEMBER, NEXT)
    engine.tick(1.0)
    engine.beat(MEMBER, BASE)
    for _ in range(90):
        engine.tick(1.0)
        engine.beat(MEMBER, BASE)
    engine.beat(MEMBER, NEXT)
    until = engine.engine.pulling.behind_until(engine.now, engine.fragment)
    assert until == engine.now + engine.engine.state.policies.timing.round_timeout_s
