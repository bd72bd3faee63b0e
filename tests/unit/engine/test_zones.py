"""Offers and seals that go from zone to zone through a relay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mend_optim.engine.effects import EXCHANGE, PASS_ON, Advance, Inspect, Send
from mend_optim.protocol.lineage import Lineage, PeerId
from mend_optim.protocol.messages import Call, Offer, Seal, Want
from tests.support.engines import (
    HERE,
    ME,
    THERE,
    THIRD,
    DrivenEngine,
    far_sealer,
    grown,
    offer_of,
    seal_of,
)

NEAR = THIRD


def member() -> tuple[DrivenEngine, PeerId]:
    """A learner whose offers a neighbour relays to the sealer."""
    engine = DrivenEngine(seals=False, zone=HERE)
    engine.beat(NEAR, zone=HERE)
    engine.engine.linked(engine.now, NEAR, True)
    return engine, far_sealer(engine)


def relay() -> tuple[DrivenEngine, PeerId]:
    """A learner that holds the offer of a neighbour, and is not the sealer."""
    return relay_to(THERE)


def relay_to(zone: str) -> tuple[DrivenEngine, PeerId]:
    """The same. The sealer is in that zone."""
    engine = DrivenEngine(zone=HERE)
    engine.beat(NEAR, zone=HERE)
    far = far_sealer(engine)
    engine.beat(far, address="far:1", zone=zone)
    engine.receive(offer_of(NEAR))
    (inspect,) = engine.jobs(Inspect)
    engine.done(inspect)
    return engine, far


def sends(engine: DrivenEngine, kind: type[Offer] | type[Seal]) -> list[tuple[PeerId, str]]:
    """To whom messages of a kind are sent, and on what streams."""
    taken = engine._take(lambda e: isinstance(e, Send) and isinstance(e.message, kind))
    return [(effect.to, effect.reply) for effect in taken]


# ── a learner of the zone ─────────────────────────────────────────────────────────────────────────


def test_an_offer_goes_to_the_relay() -> None:
    engine, _ = member()
    engine.offer()
    assert sends(engine, Offer) == [(NEAR, "")]


def test_it_goes_to_the_sealer_itself_if_the_relay_dies() -> None:
    engine, far = member()
    engine.offer()
    sends(engine, Offer)
    engine.engine.linked(engine.now, NEAR, False)
    assert sends(engine, Offer) == [(far, "")]


def delivered(engine: DrivenEngine, far: PeerId) -> Offer:
    """The relay has the learner's offer."""
    offer = engine.offer()
    both_beat(engine, far)
    ((to, sent),) = engine.sent(Offer)
    assert to == NEAR
    engine.engine.delivered(engine.now, NEAR, sent)
    return offer


def both_beat(engine: DrivenEngine, far: PeerId, *anchors: Lineage, seq: int = 0) -> None:
    """The relay says that it holds the offer `seq`, and the sealer shows its anchor."""
    engine.beat(NEAR, zone=HERE, held=((ME, seq),) if seq else ())
    engine.beat(far, *anchors, address="far:1", zone=THERE, step=2)


def withheld(engine: DrivenEngine, far: PeerId, seconds: float = 70.0) -> Offer:
    """The sealer calls for so long for an offer that the relay has."""
    offer = delivered(engine, far)
    called(engine, far, offer, seconds)
    return offer


def called(engine: DrivenEngine, far: PeerId, offer: Offer, seconds: float) -> None:
    for _ in range(int(2 * seconds)):
        engine.tick(0.5)
        both_beat(engine, far, engine.lineage, seq=offer.seq)
        engine.receive(Call(far, 0, engine.lineage.key))


def test_it_goes_to_the_sealer_itself_if_the_relay_withholds_it() -> None:
    engine, far = member()
    offer = withheld(engine, far)
    assert sends(engine, Offer) == [(far, "")]  # once
    (told,) = engine.faults()
    assert told.startswith(f"relaying of offer {offer.seq} of {NEAR.name} refused: {far.name} lack")
    counted = engine.engine.state.refusals.counted()
    assert [(r.peer, r.times) for r in counted] == [(NEAR.name, 1)]


def test_a_call_that_comes_at_once_does_not_accuse_the_relay() -> None:
    engine, far = member()
    delivered(engine, far)
    engine.tick(0.5)
    engine.receive(Call(far, 0))
    assert sends(engine, Offer) == []
    assert engine.faults() == []


@pytest.mark.parametrize(("seconds", "is_named"), [(30.0, False), (70.0, True)])
def test_nobody_knows_how_long_the_first_offer_takes_by_the_relay(
    seconds: float, is_named: bool
) -> None:
    engine, far = member()
    withheld(engine, far, seconds)
    assert len(engine.faults()) == is_named


@pytest.mark.parametrize(("steps", "named_after"), [(1, 8.0), (10, 22.0), (20, 42.0)])
def test_a_relay_may_take_as_long_as_it_usually_does(steps: int, named_after: float) -> None:
    """The way between two zones may be slow."""
    engine, far = member()
    engine.engine.state.step_s = 1.0
    offer = delivered(engine, far)
    engine.step(steps)
    merged(engine, far, offer)
    offer = delivered(engine, far)
    called(engine, far, offer, named_after - 4.0)
    assert engine.faults() == []
    called(engine, far, offer, 8.0)
    assert len(engine.faults()) == 1


def test_a_sealer_that_has_gone_on_may_have_merged_the_offer() -> None:
    """Its seal comes by the relay. Meanwhile it calls for offers on its new anchor."""
    engine, far = member()
    offer = delivered(engine, far)
    beyond = grown(engine.lineage)
    for _ in range(140):
        engine.tick(0.5)
        both_beat(engine, far, seq=offer.seq)
        engine.receive(Call(far, 0, beyond.key))
    assert sends(engine, Offer) == []
    assert engine.faults() == []


def test_a_relay_that_withheld_an_offer_gets_no_other_for_a_while() -> None:
    engine, far = member()
    merged(engine, far, withheld(engine, far))
    merged_offer = engine.offer()
    assert sends(engine, Offer)[-1:] == [(far, "")]
    merged(engine, far, merged_offer)
    for _ in range(70):
        engine.tick(1.0)
        both_beat(engine, far, engine.lineage)
    sends(engine, Offer)
    engine.offer()
    assert sends(engine, Offer) == [(NEAR, "")]


def merged(engine: DrivenEngine, far: PeerId, offer: Offer) -> None:
    """The sealer has merged an offer."""
    engine.receive(seal_of(engine.lineage, offer.entry, sealer=far))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    engine.apply()


def test_while_the_relay_has_the_offer_the_sealers_anchor_is_not_fetched_at_once() -> None:
    engine, far = member()
    delivered(engine, far)
    beyond = grown(engine.lineage)
    both_beat(engine, far, beyond)
    assert engine.sent(Want) == []
    for _ in range(8):
        engine.tick(0.5)
        both_beat(engine, far, beyond)
    assert [to for to, _ in engine.sent(Want)] == [far]


@pytest.mark.parametrize("zone", [HERE, THERE])
def test_a_seal_is_taken_from_a_neighbour_only(zone: str) -> None:
    engine, far = member()
    by = PeerId("by", 1)
    engine.beat(by, zone=zone)
    engine.beat(far, address="far:1", zone=THERE, reaches=(ME,))
    engine.receive(replace(seal_of(engine.lineage, sealer=far), passed_by=by))
    assert len(engine.jobs(Advance)) == (zone == HERE)
    assert len(engine.faults()) == (zone != HERE)


# ── the relay ─────────────────────────────────────────────────────────────────────────────────────


def test_a_neighbours_offer_is_passed_on_until_the_sealer_holds_it() -> None:
    engine, far = relay()
    assert sends(engine, Offer) == [(far, PASS_ON)]
    engine.beat(far, address="far:1", zone=THERE, held=((NEAR, 1),))
    for _ in range(10):
        engine.tick(0.5)
        engine.beat(NEAR, zone=HERE)
        engine.beat(far, address="far:1", zone=THERE, held=((NEAR, 1),))
    assert sends(engine, Offer) == []


def arrived(engine: DrivenEngine, far: PeerId) -> None:
    """The sealer has the neighbour's offer."""
    ((_, offer),) = engine.sent(Offer)
    engine.engine.delivered(engine.now, far, offer)


def shows(engine: DrivenEngine, far: PeerId, anchor: Lineage) -> None:
    """For 20 seconds the sealer shows this anchor, and does not hold the offer."""
    for _ in range(40):
        engine.tick(0.5)
        engine.beat(NEAR, zone=HERE)
        engine.beat(far, anchor, address="far:1", zone=THERE)


def test_an_offer_that_the_sealer_may_have_merged_is_not_passed_on_again() -> None:
    """Its beats tell of the new anchor before the seal is here."""
    engine, far = relay()
    arrived(engine, far)
    shows(engine, far, grown(engine.lineage))
    assert sends(engine, Offer) == []
    shows(engine, far, engine.lineage)
    assert sends(engine, Offer) == [(far, PASS_ON)]


def test_an_offer_that_the_sealer_has_not_merged_is_passed_on_although_it_is_always_ahead() -> None:
    """Its seals may be on their way for longer than its rounds take."""
    engine, far = relay()
    arrived(engine, far)
    beyond = grown(engine.lineage)
    shows(engine, far, beyond)
    shows(engine, far, grown(beyond))
    assert sends(engine, Offer) == []
    engine.receive(seal_of(engine.lineage, sealer=far))
    engine.done(engine.jobs(Advance)[0])
    assert engine.lineage == beyond
    shows(engine, far, grown(beyond))
    assert sends(engine, Offer) == [(far, PASS_ON)]
    engine.engine.delivered(engine.now, far, offer_of(NEAR))
    shows(engine, far, grown(beyond))
    assert sends(engine, Offer) == []


def test_in_the_sealers_own_zone_nobody_passes_offers_on() -> None:
    engine, far = relay_to(HERE)
    for _ in range(10):
        engine.tick(0.5)
        engine.beat(NEAR, zone=HERE)
        engine.beat(far, address="far:1", zone=HERE)
    assert sends(engine, Offer) == []


def test_the_offer_of_a_learner_that_lives_is_never_given_up() -> None:
    engine, far = relay()
    for _ in range(2000):
        for _, offer in engine.sent(Offer):
            engine.engine.delivered(engine.now, far, offer)
        engine.tick(0.5)
        engine.beat(NEAR, zone=HERE)
        engine.beat(far, address="far:1", zone=THERE)
    assert NEAR in engine.engine.state.rounds[0].inbox
    assert engine.faults() == []


def test_the_seal_is_handed_down_to_neighbours_whose_offers_are_here() -> None:
    engine, far = relay()
    seal = seal_of(engine.lineage, offer_of(NEAR).entry, sealer=far)
    engine.receive(seal)
    assert sends(engine, Seal) == []  # its bytes are not verified yet
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    assert sends(engine, Seal) == [(NEAR, EXCHANGE)]


def test_a_seal_that_is_refused_is_handed_to_nobody() -> None:
    engine, far = relay()
    engine.receive(seal_of(engine.lineage, offer_of(NEAR).entry, sealer=far))
    (advance,) = engine.jobs(Advance)
    engine.done(advance, fault="its digest is another one")
    assert sends(engine, Seal) == []


# ── the sealer ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("zone", "kept"), [(HERE, True), (THERE, False), ("", False)])
def test_the_offer_of_a_learner_that_lives_is_taken_from_its_neighbour_only(
    zone: str, kept: bool
) -> None:
    engine = DrivenEngine(zone=THERE)
    engine.beat(THIRD, zone=HERE)
    engine.engine.linked(engine.now, THIRD, True)
    by = PeerId("by", 1)
    engine.beat(by, zone=zone)
    engine.engine.passed_on(engine.now, offer_of(THIRD), by)
    assert len(engine.jobs(Inspect)) == kept
