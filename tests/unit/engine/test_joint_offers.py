"""Offers of a zone that its relay has made one, and what a sealer does with it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.engine.effects import PASS_ON, Inspect, Join, Merge, Prepare, Send
from mend_optim.engine.joint_offers import may_join
from mend_optim.engine.round import Round, whole
from mend_optim.protocol.lineage import Claim, PeerId
from mend_optim.protocol.messages import Call, Offer, Packet
from tests import reference
from tests.support.engines import FOURTH, ME, PEER, THIRD, DrivenEngine, grown, offer_of

DELTA = {"delta": Packet("none", 1, memoryview(b"1234"))}
JOINED = {"delta": Packet("none", 1, memoryview(b"5678"))}
HERE, THERE = "east", "west"
NEAR = THIRD


def with_delta(offer: Offer) -> Offer:
    return replace(offer, sections=DELTA)


# The relay


def relay(*, joins: bool = True) -> tuple[DrivenEngine, PeerId]:
    """A learner with one neighbour; a learner of another zone seals."""
    engine = DrivenEngine(zone=HERE, joins=joins)
    engine.beat(NEAR, zone=HERE)
    roster = engine.engine.state.roster
    for i in range(100):
        far = PeerId(f"far-{i}", 1)
        engine.beat(far, address="far:1", zone=THERE)
        if roster.sealer(0) == far:
            engine.engine.linked(engine.now, far, True)
            return engine, far
        roster.leave(far)
    raise AssertionError("nobody seals")


def all_beat(engine: DrivenEngine) -> None:
    """So that nobody is suspected; and what this learner sends to itself arrives."""
    for peer in engine.engine.state.roster:
        near = peer.id == NEAR
        address = None if near else "far:1"
        engine.beat(peer.id, address=address, zone=HERE if near else THERE)
    engine.log += engine.engine.drain(engine.now)


def pass_time(engine: DrivenEngine, seconds: float) -> None:
    for _ in range(int(2 * seconds)):
        engine.tick(0.5)
        all_beat(engine)


def train(engine: DrivenEngine) -> None:
    for _ in range(4):
        engine.step()
        all_beat(engine)


def offer_own(engine: DrivenEngine) -> None:
    if not engine.engine.boundaries.fragments_to_copy():
        train(engine)
    engine.reserve()
    engine.engine.boundaries.snapshot(0, torch.zeros(0))
    (prepare,) = engine.jobs(Prepare)
    engine.done(prepare, sections=DELTA)
    all_beat(engine)
    engine.tick(0.1)


def offer_near(engine: DrivenEngine) -> None:
    engine.receive(with_delta(offer_of(NEAR)))
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


def test_offers_that_cannot_be_joined_go_one_by_one() -> None:
    engine, far = relay()
    offer_own(engine)
    offer_near(engine)
    (join,) = engine.jobs(Join)
    engine.done(join, fault="not finite")
    engine.tick(0.1)
    assert sorted(sent(engine)) == [(far, "", ME.name, ()), (far, PASS_ON, NEAR.name, ())]
    assert ["not joined" in fault for fault in engine.faults()] == [True]


def test_what_the_sealer_does_not_keep_is_passed_on_by_itself() -> None:
    engine, far = relay()
    offer_own(engine)
    offer_near(engine)
    engine.done(engine.jobs(Join)[0], sections=JOINED)
    sent(engine)
    pass_time(engine, 15.0)
    assert (far, PASS_ON, NEAR.name, ()) in sent(engine)


@pytest.mark.parametrize(
    "changed",
    [
        {"steps": 0},
        {"inherited": Claim(PEER, 0)},
        {"again": (10, 1)},
        {"sections": {**DELTA, "moment.exp_avg": DELTA["delta"]}},
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


# The sealer


def sealer(*, joins: bool = True) -> DrivenEngine:
    """The sealer of the other zone."""
    engine = DrivenEngine(zone=THERE, quorum=4, joins=joins)
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
        (joint(offer_of(ME)), "which is not its neighbour"),
        (joint(replace(offer_of(THIRD), genesis=b"another")), "cannot be joined"),
        (joint(offer_of(THIRD, inherited=Claim(FOURTH, 0))), "cannot be joined"),
        (joint(offer_of(THIRD, 0, 0)), "cannot be joined"),
    ],
    ids=["of another zone", "ours", "another model", "inherited", "nothing"],
)
def test_a_joint_offer_that_may_not_be_is_refused(offer: Offer, why: str) -> None:
    engine = sealer()
    receive(engine, offer)
    assert held(engine) == set()
    (told,) = engine.faults()
    assert why in told


def test_where_offers_are_not_joined_none_is_taken() -> None:
    engine = sealer(joins=False)
    receive(engine, joint())
    assert held(engine) == set()
    assert engine.faults() == []


def test_one_that_is_passed_on_is_not_taken() -> None:
    engine = sealer()
    engine.engine.passed_on(engine.now, joint(), THIRD)
    assert engine.jobs(Inspect) == []


def test_it_is_taken_whole_or_not_at_all() -> None:
    """The sealer has the work of one of them already."""
    engine = sealer()
    receive(engine, with_delta(offer_of(THIRD)))
    receive(engine, joint())
    assert held(engine) == {THIRD.name}
    assert engine.engine.state.rounds[0].inbox[THIRD].carrier is None


def test_once_one_of_them_is_merged_elsewhere_the_others_are_not_held() -> None:
    engine = sealer()
    receive(engine, joint())
    round = engine.engine.state.rounds[0]
    round.purge(grown(engine.lineage, offer_of(THIRD).entry))
    assert held(engine) == set()


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
    return [replace(o, seq=2) if o.peer in other_seq else o for o in kept]


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
