"""A learner that is a few rounds behind: whose seals it asks for in place of a whole anchor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mend_optim.engine.effects import Advance, Install
from mend_optim.engine.seal_by_seal import LONGEST
from mend_optim.engine.seal_chain import MOST_SEALS
from mend_optim.protocol.lineage import Lineage, PeerId
from mend_optim.protocol.messages import Offer, Packet, Seal, Want
from mend_optim.protocol.timing import Timing
from tests.support.engines import (
    BASE,
    FOURTH,
    HERE,
    PEER,
    THERE,
    THIRD,
    DrivenEngine,
    far_sealer,
    grown,
    offer_of,
    seal_of,
    state_of,
)
from tests.unit.engine.test_majority import experienced

SEALER, MEMBER = THIRD, PEER  # by their names
BEAT_S, PATIENCE_S = Timing().beat_s, Timing().suspect_after_s
#: Anchors of this learner's model, each a seal after the one before it.
ANCHORS = [BASE]
for _ in range(MOST_SEALS + 1):
    ANCHORS.append(grown(ANCHORS[-1]))


def behind(zone: str = "") -> DrivenEngine:
    """A learner that has a stream with each of its two peers."""
    engine = DrivenEngine(seals=False, zone=zone)
    for peer in (SEALER, MEMBER):
        engine.engine.met(engine.now, peer, f"{peer.name}:1")
        engine.engine.linked(engine.now, peer, True)
        engine.beat(peer, BASE, zone=zone)
    engine.sent(Want)
    return engine


def wants(engine: DrivenEngine) -> list[tuple[PeerId, bool]]:
    """Who was asked since the last look, and whether a seal would do."""
    return [(to, want.have == engine.lineage.digest) for to, want in engine.sent(Want)]


def seal_on(base: Lineage, share: float = 0.0, sealer: PeerId = SEALER) -> Seal:
    """A seal whose bytes are this share of the weights'."""
    packet = Packet("packed", 100, memoryview(bytes(round(400 * share))))
    return replace(seal_of(base, sealer=sealer), sections={"merged": packet})


def take(engine: DrivenEngine, seal: Seal | None = None) -> None:
    """The worker takes the outer step of a seal: of this one, or of one that has come."""
    if seal:
        engine.receive(seal)
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    engine.apply()


def test_one_seal_after_the_other_is_asked_for() -> None:
    engine = behind()
    engine.beat(SEALER, ANCHORS[4])
    for base in ANCHORS[:3]:
        assert wants(engine) == [(SEALER, True)]
        take(engine, seal_on(base))
    # The beat may be as old as the last seal: the sealer may be about to send one by itself.
    assert wants(engine) == []
    engine.beat(SEALER, ANCHORS[4])
    assert wants(engine) == [(SEALER, True)]


def test_after_a_whole_anchor_the_seals_since_are_asked_for() -> None:
    engine = behind()
    engine.beat(SEALER, ANCHORS[3])
    wants(engine)
    engine.receive(state_of(ANCHORS[1], peer=SEALER))
    (install,) = engine.jobs(Install)
    engine.done(install)
    assert wants(engine) == [(SEALER, True)]


def test_more_seals_than_anybody_keeps_are_not_asked_for() -> None:
    engine = behind()
    engine.beat(SEALER, ANCHORS[MOST_SEALS])
    assert wants(engine) == [(SEALER, True)]
    engine.engine.state.wants.clear()
    engine.beat(SEALER, ANCHORS[MOST_SEALS + 1])
    assert wants(engine) == [(SEALER, False)]


@pytest.mark.parametrize(("share", "lacking", "by_seals"), [(0.5, 2, True), (0.5, 3, False)])
def test_seals_that_are_dearer_than_the_anchor_are_not_asked_for(
    share: float, lacking: int, by_seals: bool
) -> None:
    engine = behind()
    take(engine, seal_on(BASE, share))
    engine.beat(SEALER, ANCHORS[1 + lacking])
    assert wants(engine) == [(SEALER, by_seals)]


@pytest.mark.parametrize("lacking", [1, 2])
def test_the_sealer_is_asked_for_what_another_peer_shows_too(lacking: int) -> None:
    """Nobody else has its seals."""
    engine = behind()
    engine.beat(SEALER, ANCHORS[lacking])
    engine.engine.state.wants.clear()
    wants(engine)
    engine.beat(MEMBER, ANCHORS[lacking])
    assert wants(engine) == [(SEALER, True)]


def test_nobody_waits_for_the_beat_of_a_sealer_where_one_seal_is_lacking() -> None:
    """Where not all reach each other, another one may have sealed it."""
    engine = behind()
    engine.beat(MEMBER, ANCHORS[1])
    assert wants(engine) == [(MEMBER, True)]


def test_a_sealer_that_shows_nothing_is_waited_for_only_one_beat() -> None:
    engine = behind()
    engine.beat(MEMBER, ANCHORS[2])
    engine.tick(BEAT_S / 2)
    engine.beat(SEALER, BASE)
    engine.beat(MEMBER, ANCHORS[2])
    assert wants(engine) == []
    engine.tick(BEAT_S / 2)
    engine.beat(MEMBER, ANCHORS[2])
    assert wants(engine) == [(MEMBER, False)]


def test_without_a_sealer_that_answers_a_member_is_asked_for_the_whole() -> None:
    engine = behind()
    engine.engine.pulling.doubt(engine.now, SEALER, engine.now)
    engine.beat(MEMBER, ANCHORS[2])
    assert wants(engine) == [(MEMBER, False)]


def test_a_sealer_that_is_ahead_of_all_is_asked_for_seals_alone() -> None:
    """Another peer is believed. So its anchor would be taken whole, and that of the sealer not."""
    engine = experienced(PEER, THIRD, FOURTH)
    sealer, base = engine.engine.state.roster.sealer(0), engine.lineage
    assert sealer
    engine.engine.linked(engine.now, sealer, True)
    others = [peer for peer in (PEER, THIRD, FOURTH) if peer != sealer]
    for peer, anchor in ((sealer, grown(grown(base))), *((peer, grown(base)) for peer in others)):
        engine.engine.state.wants.clear()
        engine.beat(peer, anchor, step=3)
    wanted = engine.engine.state.wants[0]
    assert (wanted.peer, wanted.key, wanted.seal_only) == (sealer, grown(grown(base)).key, True)


# ── a seal that is on its way ─────────────────────────────────────────────────────────────────────


def test_nothing_is_asked_for_while_bytes_come_from_the_sealer() -> None:
    """They may be those of the seal, for an offer that came too late for the round."""
    engine = behind()
    for _ in range(6):
        engine.engine.heard(engine.now, SEALER, 0)
        engine.beat(SEALER, ANCHORS[1])
        assert wants(engine) == []
        engine.tick(1.0)
    engine.tick(PATIENCE_S)
    engine.beat(SEALER, ANCHORS[1])
    assert wants(engine) == [(SEALER, True)]


@pytest.mark.parametrize("pause_s", [0.0, PATIENCE_S])
def test_bytes_that_never_make_a_seal_are_waited_for_only_so_long(pause_s: float) -> None:
    """An insider that seals could keep a learner behind with them. After a pause they may be of
    another seal."""
    engine = behind()
    patience_s = LONGEST * Timing().round_timeout_s
    asked_after = []
    for second in range(int(patience_s) + 2):
        if second == 10:
            engine.tick(pause_s)
        engine.engine.heard(engine.now, SEALER, 0)
        engine.beat(SEALER, ANCHORS[1])
        if wants(engine):
            asked_after.append(second)
        engine.tick(1.0)
    assert asked_after == ([int(patience_s)] if not pause_s else [])


def test_bytes_of_another_peer_or_fragment_say_nothing() -> None:
    engine = DrivenEngine(seals=False, fragments=2, sync_every=8)
    for peer in (SEALER, MEMBER):
        engine.engine.met(engine.now, peer, f"{peer.name}:1")
        engine.engine.linked(engine.now, peer, True)
        engine.beat(peer)
    sealer = engine.engine.state.roster.sealer(0)
    assert sealer
    (other,) = {SEALER, MEMBER} - {sealer}
    engine.engine.heard(engine.now, sealer, 1)
    engine.engine.heard(engine.now, other, 0)
    engine.beat(sealer, ANCHORS[1], BASE)
    assert wants(engine) == [(sealer, True)]


def test_after_a_seal_has_come_the_next_one_is_asked_for_at_once() -> None:
    engine = behind()
    engine.beat(SEALER, ANCHORS[3])
    wants(engine)
    engine.engine.heard(engine.now, SEALER, 0)
    take(engine, seal_on(BASE))
    assert wants(engine) == [(SEALER, True)]


# ── a seal that comes too early ───────────────────────────────────────────────────────────────────


def test_a_seal_that_comes_before_others_is_taken_after_them() -> None:
    """It went down the stream of our offer, which is in it."""
    engine = behind()
    engine.beat(SEALER, ANCHORS[2])
    engine.receive(seal_on(ANCHORS[1]))
    assert wants(engine) == [(SEALER, True)]
    take(engine, seal_on(BASE))
    take(engine)
    assert engine.lineage == ANCHORS[2]
    assert wants(engine) == []


def test_a_seal_that_comes_before_a_whole_anchor_is_taken_after_it() -> None:
    engine = behind()
    engine.beat(SEALER, ANCHORS[4])
    engine.receive(seal_on(ANCHORS[3]))
    engine.receive(state_of(ANCHORS[3], peer=SEALER))
    (install,) = engine.jobs(Install)
    engine.done(install)
    take(engine)
    assert engine.lineage == ANCHORS[4]


def test_the_last_of_the_early_seals_is_kept_until_our_anchor_has_gone_past_it() -> None:
    engine = behind()
    kept = engine.engine.pulling.seal_by_seal
    engine.receive(seal_on(ANCHORS[1]))
    engine.receive(seal_on(ANCHORS[2]))
    assert [seal.base for seal in kept._early.values()] == [ANCHORS[2].digest]
    take(engine, seal_on(BASE))
    assert kept._early
    assert kept.next(engine.fragment) is None
    engine.beat(SEALER, ANCHORS[5])
    engine.receive(state_of(ANCHORS[5], peer=SEALER))
    (install,) = engine.jobs(Install)
    engine.done(install)
    assert not kept._early
    assert engine.jobs(Advance) == []


def test_an_early_seal_of_a_learner_that_does_not_seal_is_not_kept() -> None:
    engine = behind()
    engine.receive(seal_on(ANCHORS[1], sealer=MEMBER))
    take(engine, seal_on(BASE))
    assert engine.jobs(Advance) == []
    assert engine.lineage == ANCHORS[1]


# ── zones ─────────────────────────────────────────────────────────────────────────────────────────


def in_a_zone() -> tuple[DrivenEngine, PeerId]:
    """A learner with a neighbour, and the sealer, which is of another zone."""
    engine = DrivenEngine(seals=False, zone=HERE)
    engine.beat(MEMBER, zone=HERE)
    sealer = far_sealer(engine)
    engine.engine.linked(engine.now, MEMBER, True)
    engine.sent(Want)
    return engine, sealer


def test_a_neighbour_s_whole_anchor_goes_before_seals_of_another_zone() -> None:
    engine, sealer = in_a_zone()
    engine.beat(MEMBER, ANCHORS[2], zone=HERE)
    engine.beat(sealer, ANCHORS[2], zone=THERE)
    assert wants(engine) == [(MEMBER, False)]


def test_seals_come_from_another_zone_where_no_neighbour_has_more() -> None:
    engine, sealer = in_a_zone()
    engine.beat(sealer, ANCHORS[2], zone=THERE)
    assert wants(engine) == [(sealer, True)]


def test_a_sealer_of_the_zone_is_asked_before_other_neighbours() -> None:
    engine = behind(zone=HERE)
    engine.beat(SEALER, ANCHORS[2], zone=HERE)
    engine.engine.state.wants.clear()
    wants(engine)
    engine.beat(MEMBER, ANCHORS[2], zone=HERE)
    assert wants(engine) == [(SEALER, True)]


def test_an_offer_of_a_learner_that_is_ahead_brings_a_want_to_the_sealer() -> None:
    engine = behind()
    engine.beat(SEALER, ANCHORS[2])
    engine.engine.state.wants.clear()
    wants(engine)
    offer: Offer = replace(offer_of(MEMBER), key=ANCHORS[2].key)
    engine.receive(offer)
    assert wants(engine) == [(SEALER, True)]
