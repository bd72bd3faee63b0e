"""Two learners that each take the other for the sealer, because their rosters differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from mend_optim.engine.effects import Advance, Inspect, Merge
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Beat, Call, Offer
from tests.support.engines import BASE, ME, THIRD, DrivenEngine, offer_of, seal_of

#: For as long a learner waits whose name is the lesser one of the two.
PATIENCE_S = 30.0


def standoff(prefix: str = "z") -> tuple[DrivenEngine, PeerId]:
    """A learner with the sealer by its roster, which has sent its own offer here."""
    engine = DrivenEngine()
    for i in range(100):
        other = PeerId(f"{prefix}-{i}", 1)
        engine.beat(other, address="other:1")
        if engine.engine.state.roster.sealer(0) == other:
            engine.offer()
            admit(engine, offer_of(other))
            return engine, other
        engine.engine.state.roster.leave(other)
    raise AssertionError("nobody seals")


def admit(engine: DrivenEngine, offer: Offer) -> None:
    engine.receive(offer)
    for inspect in engine.jobs(Inspect):
        engine.done(inspect)


def wait(engine: DrivenEngine, other: PeerId, seconds: float, held: int = 0) -> None:
    """Time passes, and the other one beats: it has our offer. `held`: the number of its own that it
    has, too."""
    for _ in range(round(seconds)):
        engine.now += 1.0
        own = ((other, held),) if held else ()
        engine.beat(other, address="other:1", held=((ME, 1), *own))
        engine.engine.tick(engine.now)


def test_the_one_with_the_lesser_name_merges_both_offers() -> None:
    engine, other = standoff()
    wait(engine, other, PATIENCE_S - 1)
    assert engine.jobs(Merge) == []
    assert [to for to, _ in engine.sent(Offer)] == [other]
    wait(engine, other, 5)
    assert [o.peer for o in engine.merge().offers] == [ME, other]
    assert engine.sent(Offer) == []


def test_the_other_one_waits_twice_as_long() -> None:
    engine, other = standoff("a")
    wait(engine, other, 2 * PATIENCE_S - 1)
    assert engine.jobs(Merge) == []
    wait(engine, other, 2)
    assert [o.peer for o in engine.merge().offers] == [other, ME]


def test_a_stop_is_no_standoff() -> None:
    """The sealer may have run its rounds meanwhile."""
    engine, other = standoff()
    wait(engine, other, 2)
    engine.now += 10 * PATIENCE_S
    engine.engine.tick(engine.now)
    wait(engine, other, PATIENCE_S - 7)  # the first seconds of a stop count
    assert engine.engine.state.sealer(0) == other
    wait(engine, other, 7)
    assert engine.engine.state.sealer(0) == ME


def test_it_goes_on_so_without_waiting_again() -> None:
    engine, other = standoff()
    wait(engine, other, PATIENCE_S + 1)
    engine.done(engine.merge())
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    engine.apply()
    wait(engine, other, 1)
    assert engine.engine.state.sealer(0) == ME


def test_it_steps_back_where_another_learner_seals_and_waits_again() -> None:
    """Several may hold an offer of the sealer. Else all of them would go on sealing for good."""
    engine, other = standoff()
    wait(engine, other, PATIENCE_S + 1)
    assert engine.engine.state.sealer(0) == ME
    merge = engine.merge()
    engine.receive(seal_of(BASE, sealer=other))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    engine.apply()
    engine.done(merge)
    wait(engine, other, PATIENCE_S - 1)
    assert engine.engine.state.sealer(0) == other
    wait(engine, other, 3)
    assert engine.engine.state.sealer(0) == ME


@pytest.mark.parametrize("calls", [True, False])
def test_a_sealer_that_seals_is_left_to_it(calls: bool) -> None:
    """It calls for offers, or has an offer of its own."""
    engine, other = standoff()
    if calls:
        wait(engine, other, PATIENCE_S - 2)
        engine.receive(Call(other, 0, BASE.key))
    wait(engine, other, PATIENCE_S - 1, held=0 if calls else 1)
    assert engine.jobs(Merge) == []
    assert engine.engine.state.sealer(0) == other


def test_a_beat_of_the_sealer_is_searched_once() -> None:
    """It may tell of thousands of offers, and each message has the round looked at."""
    engine, other = standoff()
    wait(engine, other, 1)
    found = engine.engine.state.roster.find(other)
    assert found
    assert found.beat
    held = Counted(found.beat.reports[0].held)
    found.beat = replace(found.beat, reports=(replace(found.beat.reports[0], held=held),))
    for _ in range(3):
        engine.engine.sealer.poll(engine.now, 0)
    assert held.searched == 1


def shown(engine: DrivenEngine) -> set[PeerId]:
    """The authors of the offers that this learner tells in its beats."""
    engine.sent(Beat)
    engine.engine.beats.send(THIRD)
    ((_, beat),) = engine.sent(Beat)
    return {peer for peer, _ in beat.reports[0].held}


def test_a_learner_shows_its_own_offer_only_while_it_seals() -> None:
    """It has its own one from when it sealed, or as a relay. If it showed that, the one that seals
    by nobody's roster but its own would never stand in."""
    engine, other = standoff()
    engine.engine.state.rounds[0].add(offer_of(ME))
    assert shown(engine) == {other}
    wait(engine, other, PATIENCE_S + 1)
    assert engine.engine.state.sealer(0) == ME
    assert shown(engine) == {ME, other}


class Counted(tuple[tuple[PeerId, int], ...]):
    """Offers that a peer holds, and how often somebody went through them."""

    searched = 0

    def __iter__(self) -> Iterator[tuple[PeerId, int]]:
        self.searched += 1
        return super().__iter__()


@pytest.mark.parametrize("calls", [True, False])
def test_it_ends_when_the_sealer_begins_to_seal(calls: bool) -> None:
    engine, other = standoff()
    wait(engine, other, PATIENCE_S + 1)
    assert engine.engine.state.sealer(0) == ME
    if calls:
        engine.receive(Call(other, 0, BASE.key))
    wait(engine, other, 1, held=0 if calls else 1)
    assert engine.engine.state.sealer(0) == other


def test_a_call_of_somebody_else_ends_nothing() -> None:
    engine, other = standoff()
    wait(engine, other, PATIENCE_S + 1)
    engine.beat(THIRD, address="")
    engine.receive(Call(THIRD, 0, BASE.key))
    assert engine.engine.state.sealer(0) == ME


def test_an_anchor_that_moves_shows_that_somebody_seals() -> None:
    engine, other = standoff()
    wait(engine, other, PATIENCE_S - 2)
    engine.receive(seal_of(engine.lineage, sealer=other))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    engine.apply()
    wait(engine, other, PATIENCE_S - 1)
    assert engine.engine.state.sealer(0) == other


def test_without_an_offer_of_the_sealer_there_is_no_standoff() -> None:
    engine, other = standoff()
    engine.engine.state.rounds[0].drop(other)
    wait(engine, other, 3 * PATIENCE_S)
    assert engine.engine.state.sealer(0) == other


def test_an_empty_offer_makes_no_standoff() -> None:
    """The sealer may have answered a call of ours, when this learner was the sealer."""
    engine, other = standoff()
    engine.engine.state.rounds[0].drop(other)
    admit(
        engine,
        Offer(
            peer=other,
            fragment=0,
            seq=0,
            tokens=0,
            steps=0,
            genesis=BASE.genesis,
            key=BASE.key,
            due=False,
        ),
    )
    wait(engine, other, 3 * PATIENCE_S)
    assert engine.engine.state.sealer(0) == other


def test_it_ends_with_the_sealer() -> None:
    """Another one may seal next, and it has no offer here."""
    engine, other = standoff()
    wait(engine, other, PATIENCE_S + 1)
    engine.engine.state.stands_in[0] = THIRD
    assert engine.engine.state.sealer(0) == other
    engine.engine.state.roster.leave(other)
    engine.beat(other.beyond(other.incarnation), address="other:1")
    wait(engine, other.beyond(other.incarnation), 1)
    assert engine.engine.state.stands_in == {}
