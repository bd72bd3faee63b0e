"""Offers of a zone that its relay has made one, and what a sealer does with it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.engine import joint_offers
from mend_optim.engine.effects import PASS_ON, Advance, Inspect, Join, Merge, Outsize, Prepare, Send
from mend_optim.engine.joint_offers import may_join
from mend_optim.engine.moment_schedule import Moment
from mend_optim.engine.relaying import TRIES
from mend_optim.engine.round import Round, whole
from mend_optim.membership.zones import zone_of
from mend_optim.protocol.lineage import Claim, PeerId
from mend_optim.protocol.messages import (
    JOINT_DELTAS,
    JOINT_MOMENTS,
    NO_JOINT,
    Call,
    Offer,
    Packet,
    Sections,
)
from mend_optim.protocol.peer_limits import Limits
from mend_optim.protocol.transfer_fault import BROKEN
from tests import reference
from tests.support.engines import (
    FOURTH,
    HERE,
    ME,
    PEER,
    THERE,
    THIRD,
    DrivenEngine,
    far_sealer,
    grown,
    offer_of,
    seal_of,
)

DELTA = {"delta": Packet("none", 1, memoryview(b"1234"))}
MOMENTS = {**DELTA, "moment.exp_avg": Packet("packed", 1, memoryview(b"5678"))}
JOINED = {"delta": Packet("none", 1, memoryview(b"5678"))}
NEAR = THIRD


def with_delta(offer: Offer) -> Offer:
    return replace(offer, sections=DELTA)


# The relay


def relay(*, joins: bool = True, **settings: Any) -> tuple[DrivenEngine, PeerId]:
    """A learner with one neighbour; a learner of another zone seals."""
    engine = DrivenEngine(zone=HERE, joins=joins, **settings)
    engine.beat(NEAR, zone=HERE)
    return engine, far_sealer(engine)


def all_beat(engine: DrivenEngine) -> None:
    """So that nobody is suspected; and what this learner sends to itself arrives."""
    roster = engine.engine.state.roster
    for peer in roster:
        takes = peer.beat.takes_joint if peer.beat else None
        zone = zone_of(roster, peer.id)
        engine.beat(peer.id, address=peer.address, zone=zone, takes_joint=takes)
    engine.log += engine.engine.drain(engine.now)


def pass_time(engine: DrivenEngine, seconds: float) -> None:
    for _ in range(int(2 * seconds)):
        engine.tick(0.5)
        all_beat(engine)


def train(engine: DrivenEngine) -> None:
    for _ in range(4):
        engine.step()
        all_beat(engine)


def offer_own(engine: DrivenEngine, sections: Sections = DELTA) -> None:
    if not engine.engine.boundaries.fragments_to_copy():
        train(engine)
    engine.reserve()
    engine.engine.boundaries.snapshot(0, torch.zeros(0))
    (prepare,) = engine.jobs(Prepare)
    engine.done(prepare, sections=sections)
    all_beat(engine)
    engine.tick(0.1)


def offer_own_alone(engine: DrivenEngine, without: PeerId | None = None) -> None:
    """The relay offers, and waits in vain for those that have not offered."""
    train(engine)
    engine.reserve()
    engine.engine.boundaries.snapshot(0, torch.zeros(0))
    (prepare,) = engine.jobs(Prepare)
    engine.done(prepare, sections=DELTA)
    if without:
        engine.engine.state.roster.leave(without)
    pass_time(engine, 6.0)


def offer_near(engine: DrivenEngine, sections: Sections = DELTA) -> None:
    engine.receive(replace(offer_of(NEAR), sections=sections))
    (inspect,) = engine.jobs(Inspect)
    engine.done(inspect)


def sent(engine: DrivenEngine) -> list[tuple[PeerId, str, str, tuple[str, ...]]]:
    """The offers that were sent: to whom, how, whose, and with whose."""
    taken = engine._take(lambda e: isinstance(e, Send) and isinstance(e.message, Offer))
    return [
        (e.to, e.reply, e.message.peer.name, tuple(o.peer.name for o in e.message.others))
        for e in taken
    ]


@pytest.mark.parametrize("first", ["own", "near"])
def test_a_relay_sends_one_offer_for_its_zone(first: str) -> None:
    engine, far = relay()
    train(engine)
    for offers in (offer_own, offer_near) if first == "own" else (offer_near, offer_own):
        offers(engine)
    (join,) = engine.jobs(Join)
    assert [offer.peer for offer in join.offers] == [ME, NEAR]
    assert join.weights == (0.5, 0.5)
    assert sent(engine) == []
    engine.done(join, sections=JOINED)
    assert sent(engine) == [(far, "", ME.name, (NEAR.name,))]
    pending = engine.fragment.pending
    assert pending
    assert pending.sent_to == far
    engine.tick(0.5)
    assert sent(engine) == []


def test_it_calls_its_neighbours_and_waits_for_them_for_a_while() -> None:
    engine, far = relay()
    offer_own(engine)
    assert [to for to, _ in engine.sent(Call)] == [NEAR]
    assert sent(engine) == []
    engine.receive(Call(far, 0))
    assert sent(engine) == []
    pass_time(engine, 6.0)
    assert sent(engine) == [(far, "", ME.name, ())]


def test_without_joining_its_own_offer_goes_at_once() -> None:
    engine, far = relay(joins=False)
    offer_own(engine)
    assert sent(engine) == [(far, "", ME.name, ())]


@pytest.mark.parametrize("first", ["own", "near"])
def test_for_a_sealer_that_takes_no_joint_offers_none_waits(first: str) -> None:
    """Its guard clips, or it says nothing of joint offers."""
    engine, far = relay()
    engine.beat(far, address="far:1", zone=THERE, takes_joint=NO_JOINT)
    train(engine)
    ways = {"own": (far, "", ME.name, ()), "near": (far, PASS_ON, NEAR.name, ())}
    for which in ("own", "near") if first == "own" else ("near", "own"):
        offer_own(engine) if which == "own" else offer_near(engine)
        assert sent(engine) == [ways[which]]
    assert engine.jobs(Join) == []


def test_our_own_offer_that_waits_goes_once_the_sealer_takes_no_joint_ones() -> None:
    """Another learner may have become the sealer."""
    engine, far = relay()
    offer_own(engine)
    assert sent(engine) == []
    engine.beat(far, address="far:1", zone=THERE, takes_joint=NO_JOINT)
    offer_near(engine)
    assert engine.jobs(Join) == []
    assert sorted(sent(engine)) == [(far, "", ME.name, ()), (far, PASS_ON, NEAR.name, ())]


def test_a_relay_joins_whatever_its_own_guard_does() -> None:
    engine, far = relay(clips=True)
    engine.beat(far, address="far:1", zone=THERE, takes_joint=JOINT_MOMENTS)
    offer_own(engine)
    offer_near(engine)
    assert len(engine.jobs(Join)) == 1


def test_offers_that_cannot_be_joined_go_one_by_one() -> None:
    engine, far = relay()
    offer_own(engine)
    offer_near(engine)
    (join,) = engine.jobs(Join)
    engine.done(join, fault="not finite")
    engine.tick(0.1)
    assert sorted(sent(engine)) == [(far, "", ME.name, ()), (far, PASS_ON, NEAR.name, ())]
    assert ["not joined" in fault for fault in engine.faults()] == [True]


def joined(engine: DrivenEngine) -> tuple[Join, Offer]:
    """The relay's worker joins the zone's offers. Returns that job and the relay's own offer."""
    offer_own(engine)
    offer_near(engine)
    (join,) = engine.jobs(Join)
    pending = engine.fragment.pending
    assert pending
    assert pending.offer
    return join, pending.offer


def test_the_bytes_of_the_others_do_not_travel() -> None:
    engine, _ = relay()
    join, _ = joined(engine)
    engine.done(join, sections=JOINED)
    ((_, offer),) = engine.sent(Offer)
    assert offer.sections == JOINED
    assert [other.sections for other in offer.others] == [{}]


def test_what_the_sealer_has_is_not_sent_again() -> None:
    engine, far = relay()
    join, _ = joined(engine)
    engine.done(join, sections=JOINED)
    ((_, offer),) = engine.sent(Offer)
    engine.engine.delivered(engine.now, far, offer)
    engine.tick(0.1)
    assert sent(engine) == []


def test_nothing_is_sent_if_our_own_offer_was_merged_while_it_was_joined() -> None:
    engine, far = relay()
    join, own = joined(engine)
    engine.receive(seal_of(engine.lineage, own.entry, sealer=far))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    engine.done(join, sections=JOINED)
    assert ME.name not in [author for _, _, author, _ in sent(engine)]


def test_nothing_is_sent_to_a_former_sealer() -> None:
    engine, far = relay()
    join, _ = joined(engine)
    engine.engine.state.roster.leave(far)
    engine.done(join, sections=JOINED)
    assert [to for to, *_ in sent(engine) if to == far] == []


def test_however_often_the_sealer_calls_an_offer_that_waits_stays_here() -> None:
    engine, far = relay(sync_every=400, grace_s=1000.0)
    engine.step(400)
    offer_own(engine)
    for _ in range(60):
        pass_time(engine, 0.5)
        engine.receive(Call(far, 0))
    assert sent(engine) == []
    assert engine.faults() == []


def test_a_peer_of_another_opinion_that_calls_gets_our_offer_from_us() -> None:
    """Nothing that waits here goes to a sealer which only others see."""
    engine, _ = relay()
    offer_own(engine)
    other = PeerId("other", 1)
    engine.beat(other, address="other:1", zone="north")
    engine.receive(Call(other, 0))
    assert sent(engine) == [(other, "", ME.name, ())]


def test_the_offer_of_a_dead_learner_of_another_zone_is_not_joined() -> None:
    engine, far = relay()
    engine.beat(PEER, address="far:1", zone=THERE)
    receive(engine, with_delta(offer_of(PEER)))
    engine.engine.linked(engine.now, PEER, False)
    joined_before = engine.jobs(Join)
    offer_own_alone(engine, without=PEER)
    assert joined_before + engine.jobs(Join) == []
    assert (far, PASS_ON, PEER.name, ()) in sent(engine)


def test_a_zone_of_too_many_is_not_joined_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """No peer would take it."""
    monkeypatch.setattr(joint_offers, "OTHERS_LIMIT", 1)
    engine, far = relay()
    more = PeerId("zzz", 1)
    engine.beat(more, zone=HERE)
    offer_own(engine)
    offer_near(engine)
    receive(engine, with_delta(offer_of(more)))
    (join,) = engine.jobs(Join)
    assert [offer.peer for offer in join.offers] == [ME, NEAR]
    engine.done(join, sections=JOINED)
    engine.tick(0.1)
    assert sorted(sent(engine)) == [
        (far, "", ME.name, (NEAR.name,)),
        (far, PASS_ON, more.name, ()),
    ]


@pytest.mark.parametrize("living", [(), (PEER,), (NEAR,)], ids=["none", "relay", "another"])
def test_a_joint_offer_is_passed_on_whole_once_all_are_gone_that_made_it(
    living: tuple[PeerId, ...],
) -> None:
    """The bytes are those of all. One that lives offers its work again. The sender of another offer
    is gone, too."""
    engine, far = relay()
    engine.engine.state.rounds[0].add(*joint().together, with_delta(offer_of(FOURTH)))
    if NEAR not in living:
        engine.engine.state.roster.leave(NEAR)
    for peer in living:
        engine.beat(peer, zone=HERE)
    pass_time(engine, 6.0)  # one that lives may offer, too, and is waited for
    whole_one = [] if living else [(far, PASS_ON, PEER.name, (NEAR.name,))]
    assert sorted(sent(engine)) == [(far, PASS_ON, FOURTH.name, ()), *whole_one]


def test_a_joint_offer_that_the_sealer_does_not_keep_is_given_up_and_all_are_named() -> None:
    engine, far = relay()
    engine.engine.state.rounds[0].add(*joint().together)
    engine.engine.state.roster.leave(NEAR)
    for _ in range(TRIES):
        pass_time(engine, 200.0)
        ((to, offer),) = engine.sent(Offer)
        assert to == far
        engine.engine.delivered(engine.now, far, offer)
    pass_time(engine, 200.0)
    assert held(engine) == set()
    (told,) = engine.faults()
    assert f"offer 1 of {PEER.name} and {NEAR.name}, which are gone, given up" in told


def relayed() -> tuple[DrivenEngine, PeerId, Offer]:
    """A relay that has sent a joint offer to the sealer, and that offer."""
    engine, far = relay()
    join, _ = joined(engine)
    engine.done(join, sections=JOINED)
    ((to, offer),) = engine.sent(Offer)
    assert to == far
    return engine, far, offer


def test_what_the_sealer_does_not_keep_is_passed_on_by_itself() -> None:
    engine, far, offer = relayed()
    engine.engine.delivered(engine.now, far, offer)
    pass_time(engine, 2.0)
    assert sent(engine) == []  # its beats may tell of it soon
    pass_time(engine, 13.0)
    assert (far, PASS_ON, NEAR.name, ()) in sent(engine)


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_in_a_joint_offer_on_its_way_is_not_passed_on_by_itself(fails: bool) -> None:
    """A slow link would carry it twice."""
    engine, far, offer = relayed()
    pass_time(engine, 30.0)
    assert sent(engine) == []
    if fails:
        engine.engine.undelivered(engine.now, far, offer, BROKEN)
        pass_time(engine, 15.0)
        assert (far, PASS_ON, NEAR.name, ()) in sent(engine)


@pytest.mark.parametrize(
    "changed",
    [
        {"steps": 0},
        {"inherited": Claim(PEER, 0)},
        {"again": (10, 1)},
        {"sections": {**DELTA, "anything": DELTA["delta"]}},
        {"sections": {"moment.exp_avg": DELTA["delta"]}},
        {"sections": {}},
        {"others": (offer_of(PEER),)},
        {"carrier": PEER},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_only_new_work_of_its_own_sender_is_joined(changed: dict[str, object]) -> None:
    plain = with_delta(offer_of(NEAR))
    assert may_join(plain)
    assert not may_join(replace(plain, **changed))  # type: ignore[arg-type]


@pytest.mark.parametrize("sections", [DELTA, MOMENTS], ids=["delta", "moments"])
@pytest.mark.parametrize("level", range(4))
def test_a_level_says_which_offers_are_joined(sections: Sections, level: int) -> None:
    """A later version may say a greater one."""
    needed = JOINT_DELTAS if sections is DELTA else JOINT_MOMENTS
    offer = replace(offer_of(NEAR), sections=sections)
    assert may_join(offer, level) == (level >= needed)


@pytest.mark.parametrize("level", [JOINT_DELTAS, JOINT_MOMENTS])
@pytest.mark.parametrize("whose", ["own", "near"])
def test_offers_with_moments_are_joined_for_a_sealer_that_takes_them(
    whose: str, level: int
) -> None:
    """A former version could not read what such an offer says of them."""
    engine, far = relay()
    known_moments(engine, "exp_avg")
    engine.beat(far, address="far:1", zone=THERE, takes_joint=level)
    offer_own(engine, sections=MOMENTS if whose == "own" else DELTA)
    offer_near(engine, sections=MOMENTS if whose == "near" else DELTA)
    jobs = engine.jobs(Join)
    if level == JOINT_MOMENTS:
        assert [[offer.peer for offer in job.offers] for job in jobs] == [[ME, NEAR]]
    else:
        assert jobs == []
        pass_time(engine, 6.0)
        assert {(far, "", ME.name, ()), (far, PASS_ON, NEAR.name, ())} <= set(sent(engine))


def test_moments_of_another_inner_optimizer_go_one_by_one() -> None:
    """The relay knows no mean of them. Joined without them, they would never be averaged."""
    engine, far = relay()
    known_moments(engine, "momentum_buffer")
    engine.beat(far, address="far:1", zone=THERE, takes_joint=JOINT_MOMENTS)
    offer_own(engine)
    offer_near(engine, sections=MOMENTS)
    pass_time(engine, 6.0)
    assert engine.jobs(Join) == []
    assert {(far, "", ME.name, ()), (far, PASS_ON, NEAR.name, ())} <= set(sent(engine))


def known_moments(engine: DrivenEngine, name: str) -> None:
    """The inner optimizer of this learner has a moment of this name."""
    state = engine.engine.state
    state.policies = replace(state.policies, moments=(Moment(name=name, order="first", decay=0.9),))


# The sealer


def sealer(*, joins: bool = True, clips: bool = False) -> DrivenEngine:
    """The sealer of the other zone."""
    engine = DrivenEngine(zone=THERE, quorum=4, joins=joins, clips=clips)
    for peer in (PEER, THIRD):
        engine.beat(peer, zone=HERE)
    engine.beat(FOURTH, zone=THERE)
    return engine


def joint(*others: Offer) -> Offer:
    return replace(with_delta(offer_of(PEER)), others=others or (offer_of(THIRD),))


def receive(engine: DrivenEngine, offer: Offer) -> None:
    engine.receive(offer)
    for inspect in engine.jobs(Inspect):
        engine.done(inspect)


def held(engine: DrivenEngine) -> set[str]:
    return {peer.name for peer in engine.engine.state.rounds[0].inbox}


def test_a_joint_offer_counts_for_all_that_are_in_it() -> None:
    engine = sealer()
    receive(engine, joint())
    assert held(engine) == {PEER.name, THIRD.name}
    engine.engine.state.rounds[0].add(offer_of(ME))
    receive(engine, replace(offer_of(FOURTH), sections=DELTA))
    engine.tick(2.0)
    (merge,) = engine.jobs(Merge)
    assert [offer.peer for offer in merge.offers] == [FOURTH, ME, PEER, THIRD]
    assert [offer.carrier for offer in merge.offers] == [None, None, None, PEER]


@pytest.mark.parametrize(
    ("offer", "why"),
    [
        (joint(offer_of(FOURTH)), "which is not its neighbour"),
        (joint(offer_of(ME)), "of this learner"),
        (joint(replace(offer_of(THIRD), genesis=b"another")), "cannot be joined"),
        (joint(offer_of(THIRD, inherited=Claim(FOURTH, 0))), "cannot be joined"),
        (joint(offer_of(THIRD, 0, 0)), "cannot be joined"),
        (replace(offer_of(PEER, 0, 0), others=(offer_of(THIRD),)), "joined with others"),
        (replace(joint(), inherited=Claim(FOURTH, 0)), "joined with others"),
    ],
    ids=["far", "ours", "another model", "inherited", "nothing", "by nothing", "by an heir"],
)
def test_a_joint_offer_that_may_not_be_is_refused(offer: Offer, why: str) -> None:
    engine = sealer()
    receive(engine, offer)
    assert held(engine) == set()
    (told,) = engine.faults()
    assert why in told


def test_a_neighbour_cannot_offer_the_sealers_own_work() -> None:
    engine = DrivenEngine(zone=HERE, joins=True)
    engine.beat(PEER, zone=HERE)
    receive(engine, joint(offer_of(ME)))
    assert held(engine) == set()
    assert ["offer of this learner" in fault for fault in engine.faults()] == [True]


def test_one_of_a_learner_that_is_not_known_yet_is_neither_taken_nor_refused() -> None:
    engine = sealer()
    receive(engine, joint(offer_of(PeerId("new", 1))))
    assert held(engine) == set()
    assert engine.faults() == []


def test_one_of_a_neighbour_does_not_keep_the_offers_out_that_it_names() -> None:
    """What is passed on to another zone must be there by itself."""
    engine, far = relay()
    engine.beat(FOURTH, zone=HERE)
    receive(engine, replace(with_delta(offer_of(FOURTH)), others=(offer_of(NEAR),)))
    assert held(engine) == set()
    receive(engine, with_delta(offer_of(NEAR)))
    assert held(engine) == {NEAR.name}
    pass_time(engine, 6.0)
    assert [offer.peer for to, offer in engine.sent(Offer) if to == far] == [NEAR]


@pytest.mark.parametrize(
    ("changed", "p", "joins", "takes"),
    [
        ({}, 0, True, JOINT_MOMENTS),
        ({}, 1, False, NO_JOINT),
        ({"signed": True}, 0, False, NO_JOINT),
        ({"joins": False}, 0, False, NO_JOINT),
        ({"clips": True}, 0, True, NO_JOINT),
    ],
    ids=["joins", "buffers", "signed", "a codec that loses", "a guard that clips"],
)
def test_where_offers_are_joined(changed: dict[str, bool], p: int, joins: bool, takes: int) -> None:
    driven = DrivenEngine(joins=True, buffers=True).engine
    state = driven.state
    state.policies = replace(state.policies, **changed)  # type: ignore[arg-type]
    assert (state.joins(p), state.takes_joint(p)) == (joins, takes)
    assert p or driven.beats.make().takes_joint == takes


def test_a_joint_offer_that_cannot_be_merged_whole_counts_for_no_quorum() -> None:
    """Another process brings earlier work of one that is in it."""
    engine = sealer()
    receive(engine, joint(offer_of(THIRD, 2)))
    receive(engine, with_delta(offer_of(FOURTH, inherited=Claim(THIRD, 0))))
    engine.engine.state.rounds[0].add(offer_of(ME))
    engine.tick(2.0)
    assert engine.jobs(Merge) == []
    assert held(engine) == {ME.name, FOURTH.name}


def test_a_joint_offer_of_more_learners_than_a_seal_may_have_is_not_merged() -> None:
    engine = DrivenEngine(zone=THERE, joins=True)
    state = engine.engine.state
    state.policies = replace(state.policies, limits=Limits(learners=2))
    for peer in (PEER, THIRD, FOURTH):
        engine.beat(peer, zone=HERE)
    receive(engine, joint(offer_of(THIRD), offer_of(FOURTH)))
    engine.tick(5.0)
    assert engine.jobs(Merge) == []
    assert held(engine) == set()


@pytest.mark.parametrize("settings", [{"joins": False}, {"clips": True}], ids=str)
def test_where_offers_are_not_joined_none_is_taken(settings: dict[str, bool]) -> None:
    engine = sealer(**settings)
    receive(engine, joint())
    assert held(engine) == set()
    assert engine.faults() == []


def test_one_of_a_learner_that_lives_is_not_taken_from_another() -> None:
    engine = sealer()
    engine.engine.linked(engine.now, PEER, True)
    engine.engine.passed_on(engine.now, joint(), THIRD)
    assert engine.jobs(Inspect) == []


def test_one_of_learners_that_are_gone_is_taken_from_whoever_passes_it_on() -> None:
    """This learner may have forgotten them, and does not know that they were neighbours."""
    engine = sealer()
    for peer in (PEER, THIRD):
        engine.engine.state.roster.leave(peer)
    engine.engine.passed_on(engine.now, joint(), FOURTH)
    (inspect,) = engine.jobs(Inspect)
    engine.done(inspect)
    inbox = engine.engine.state.rounds[0].inbox
    assert {peer: offer.passed_by for peer, offer in inbox.items()} == {PEER: FOURTH, THIRD: FOURTH}


def test_a_joint_one_brings_no_more_unknown_learners_than_there_may_be() -> None:
    """Anybody may pass such an offer on, and invent its authors."""
    engine = sealer()
    few = engine.engine.state.policies.limits.learners
    known, unknown = 3, [PeerId(f"x-{i}", 1) for i in range(few + 1)]
    for author in unknown[:-known]:
        engine.engine.state.rounds[0].inbox[author] = offer_of(author)
    others = [offer_of(author) for author in unknown[-known:]]
    for count, is_taken in ((known, False), (known - 1, True)):
        engine.engine.passed_on(engine.now, joint(*others[:count]), FOURTH)
        assert bool(engine.jobs(Inspect)) is is_taken


def test_what_is_wrong_with_one_that_is_passed_on_is_the_fault_of_that_peer() -> None:
    engine = sealer()
    engine.engine.state.roster.leave(PEER)
    engine.engine.passed_on(engine.now, joint(offer_of(ME)), FOURTH)
    assert held(engine) == set()
    (told,) = engine.faults()
    assert told.startswith(f"offer 1 of {FOURTH.name} refused: ")


def test_it_is_taken_whole_or_not_at_all() -> None:
    """The sealer has the work of one of them already."""
    engine = sealer()
    receive(engine, with_delta(offer_of(THIRD)))
    receive(engine, joint())
    assert held(engine) == {THIRD.name}
    assert engine.engine.state.rounds[0].inbox[THIRD].carrier is None


@pytest.mark.parametrize("later", [replace(offer_of(THIRD), seq=2), replace(offer_of(PEER), seq=2)])
@pytest.mark.parametrize("by", [None, PEER])
def test_a_later_offer_of_one_of_them_does_not_drive_it_out(
    later: Offer, by: PeerId | None
) -> None:
    """It comes from its sender, or from the relay. In it may be other work than in the former."""
    engine = sealer()
    receive(engine, joint())
    if by is None:
        receive(engine, with_delta(later))
    else:
        engine.engine.passed_on(engine.now, with_delta(later), by)
        for inspect in engine.jobs(Inspect):
            engine.done(inspect)
    inbox = engine.engine.state.rounds[0].inbox
    assert {peer: offer.seq for peer, offer in inbox.items()} == {PEER: 1, THIRD: 1}


def test_nor_does_a_later_joint_offer_of_others() -> None:
    engine = sealer()
    near = PeerId("near", 1)
    engine.beat(near, zone=HERE)
    receive(engine, joint(offer_of(THIRD), offer_of(near)))
    receive(engine, replace(joint(), seq=2))
    assert held(engine) == {PEER.name, THIRD.name, near.name}


@pytest.mark.parametrize(
    "own",
    [
        offer_of(THIRD, 1),
        offer_of(THIRD, 9, steps=5),
        offer_of(THIRD, 10, inherited=Claim(FOURTH, 0)),
    ],
    ids=["earlier", "of other work", "inherited"],
)
def test_the_word_of_its_author_drives_out_an_invented_part(own: Offer) -> None:
    """The author cannot have made the other one before this one."""
    engine = sealer()
    receive(engine, joint(offer_of(THIRD, 9)))
    receive(engine, with_delta(own))
    inbox = engine.engine.state.rounds[0].inbox
    assert {peer: (offer.seq, offer.steps) for peer, offer in inbox.items()} == {
        THIRD: (own.seq, own.steps)
    }


def test_once_one_of_them_is_merged_elsewhere_the_others_are_not_held() -> None:
    engine = sealer()
    receive(engine, joint())
    round = engine.engine.state.rounds[0]
    round.purge(grown(engine.lineage, offer_of(THIRD).entry))
    assert held(engine) == set()


def test_the_author_of_a_refused_part_still_takes_part() -> None:
    round = Round(0)
    round.add(*joint().together, offer_of(FOURTH))
    round.launch(0.0)
    members = round.close(0.0, [], "all_present", 9)
    part = [offer.peer for offer in members].index(THIRD)
    round.refuse({part: Outsize(times=9.0, rms=1.0)})
    assert {peer: offer.steps for peer, offer in round.inbox.items()} == {THIRD: 0, FOURTH: 4}


@pytest.mark.parametrize(
    ("changed", "left"),
    [({}, {PEER, THIRD}), ({"seq": 2}, set()), ({"carrier": None}, {THIRD})],
    ids=["the same", "another number", "by itself"],
)
def test_a_joint_offer_is_whole_with_just_the_offers_that_it_names(
    changed: dict[str, Any], left: set[PeerId]
) -> None:
    first, part = joint().together
    assert {offer.peer for offer in whole([first, replace(part, **changed)])} == left


PEERS = [PeerId(name, 1) for name in "abcdef"]


@st.composite
def inboxes(draw: st.DrawFn) -> list[Offer]:
    """Offers and joint offers of six learners, of which some are lost."""
    offers: list[Offer] = []
    rest = draw(st.permutations(PEERS))
    while rest:
        count = draw(st.integers(1, len(rest)))
        first, *others = rest[:count]
        rest = rest[count:]
        made = replace(offer_of(first), others=tuple(offer_of(peer) for peer in others))
        offers += made.together
    kept = draw(st.lists(st.sampled_from(offers), unique_by=lambda offer: offer.peer))
    other_seq = draw(st.sets(st.sampled_from(PEERS), max_size=1))
    strays = draw(st.dictionaries(st.sampled_from(PEERS), st.sampled_from([None, *PEERS])))
    kept = [replace(o, seq=2) if o.peer in other_seq else o for o in kept]
    # One has offered by itself since, or in another joint offer.
    for i, offer in enumerate(kept):
        carrier = strays.get(offer.peer, offer.carrier)
        if not offer.others and carrier != offer.peer:
            kept[i] = replace(offer, carrier=carrier)
    return kept


@given(inboxes())
def test_no_part_of_a_joint_offer_stays_without_the_others(offers: list[Offer]) -> None:
    parts = {o.peer.name: (o.seq, [(x.peer.name, x.seq) for x in o.others]) for o in offers}
    carriers = {o.peer.name: o.carrier.name for o in offers if o.carrier}
    expected = reference.whole_offers(parts, carriers)
    assert {offer.peer.name for offer in whole(offers)} == expected


def names(offers: Iterable[Offer]) -> set[str]:
    return {offer.peer.name for offer in offers}


def test_a_round_of_few_learners_has_no_part_of_a_joint_offer() -> None:
    round = Round(0)
    made = replace(offer_of(PEERS[0]), others=tuple(offer_of(peer) for peer in PEERS[1:3]))
    round.add(*made.together)
    round.add(offer_of(PEERS[5]))
    assert names(round.candidates(PEERS, 4)) == {"a", "b", "c", "f"}
    assert names(round.candidates([PEERS[5]], 3)) == {"f"}
