"""A message costs the engine a bounded number of operations, however large it is: they happen with
the mutex held that `step()` takes. Operations are calls, so the count is the same on every machine;
`python -m bench messages` tells the time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mend_optim.engine.engine import Engine
from mend_optim.engine.policies import Policies
from mend_optim.engine.schedule import Schedule
from mend_optim.membership import roster
from mend_optim.protocol.lineage import Key, PeerId
from mend_optim.protocol.messages import Beat, Report, Rumor
from mend_optim.protocol.peer_limits import OTHERS_LIMIT, Limits
from tests.support.engines import BASE, GENESIS, ME, PEER, DrivenEngine, offer_of

#: Calls, of Python and of C. A thousand take about a tenth of a millisecond.
MOST = 30_000


def calls_of(action: Callable[[], Any]) -> int:
    """How many functions an action calls, directly or not."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def rumors(count: int, start: int = 0, left: bool = False) -> tuple[Rumor, ...]:
    names = (f"phantom {n}" for n in range(start, start + count))
    return tuple(Rumor(PeerId(name, 1), "10.0.0.1:1", 1, left=left) for name in names)


def beat(count: int, roster: tuple[Rumor, ...] = (), held: int = 0, ping: int = 0) -> Beat:
    report = Report(Key(0, 0, b""), tuple((PeerId(f"p{n}", 1), 1) for n in range(held)))
    return Beat(
        peer=PEER,
        address="",
        count=count,
        genesis=GENESIS,
        reports=(report,),
        roster=roster,
        ping=ping,
    )


def full() -> DrivenEngine:
    """An engine whose roster hearsay has filled."""
    engine = DrivenEngine()
    engine.beat(PEER)
    engine.receive(beat(900, rumors(300)))
    assert engine.engine.state.roster.size == Limits().learners
    return engine


@pytest.mark.parametrize(
    "message",
    [
        beat(901, rumors(4160, 1000)),
        beat(901, rumors(4160, 0, left=True)),
        beat(901, held=60_000),
        beat(901, ping=1),
    ],
    ids=["newcomers", "goodbyes", "held", "question"],
)
def test_a_beat_of_megabytes_costs_a_bounded_number_of_calls(message: Beat) -> None:
    engine = full()
    assert calls_of(lambda: engine.receive(message)) < MOST


@pytest.mark.parametrize("heard", [255, 128])
def test_a_beat_among_hundreds_costs_a_bounded_number_of_calls_for_dozens_of_fragments(
    heard: int,
) -> None:
    """Any learner may seal each fragment, and one has some of them alone. Before, a beat cost as
    many calls as there are fragments, times the learners; and times the learners again where they
    told of some that nobody reaches."""
    engine, fragments = DrivenEngine(fragments=64, sync_every=64), range(64)
    everyone = [PeerId(f"peer {n}", 1) for n in range(Limits().learners - 1)]
    told = tuple(Rumor(id, f"{id.name}:1", 1) for id in everyone[heard:])
    reports = tuple(Report(BASE.key, ()) for _ in fragments)

    def hear(peer: PeerId, has: int = len(fragments)) -> None:
        engine.counts += 1
        said = replace(beat(engine.counts, told), peer=peer, address=f"{peer.name}:1")
        engine.receive(replace(said, reports=reports[:has], step=1, training=True))

    for peer in everyone[:heard]:
        engine.engine.met(engine.now, peer, f"{peer.name}:1")
        engine.engine.linked(engine.now, peer, True)
        hear(peer)
    state = engine.engine.state
    assert state.roster.size == Limits().learners
    assert len({*state.roster.sealers(len(fragments))}) == len(fragments)
    hear(everyone[1], has=3)
    assert calls_of(lambda: hear(everyone[0])) < MOST / 3
    assert calls_of(engine.engine.beats.make) < MOST / 2
    assert calls_of(lambda: engine.tick(0.1)) < 2 * MOST  # a few times a second


def test_hundreds_that_are_ahead_cost_a_bounded_number_of_calls_a_beat() -> None:
    """As for a learner that was away. Before, all learners were asked anew for each fragment whose
    anchor most of them show, and which of them seals it."""
    engine, fragments = DrivenEngine(fragments=64, sync_every=64), range(64)
    everyone = [PeerId(f"peer {n}", 1) for n in range(Limits().learners - 1)]

    def hear(peer: PeerId, key: Key) -> None:
        engine.counts += 1
        said = replace(beat(engine.counts), peer=peer, address=f"{peer.name}:1")
        reports = tuple(Report(key, ()) for _ in fragments)
        engine.receive(replace(said, reports=reports, step=1, training=True))

    for peer in everyone:
        engine.engine.met(engine.now, peer, f"{peer.name}:1")
        engine.engine.linked(engine.now, peer, True)
        hear(peer, BASE.key)
    greater = replace(BASE, version=BASE.version + 2, tokens=BASE.tokens + 1000).key
    for peer in everyone:
        hear(peer, greater)
    assert len(engine.engine.state.wants) == len(fragments)
    assert calls_of(lambda: hear(everyone[0], greater)) < 1.2 * MOST


@pytest.mark.parametrize("steps", [0, 3], ids=["no steps", "steps"])
def test_a_beat_among_hundreds_that_join_costs_a_bounded_number_of_calls(steps: int) -> None:
    """Each of them has first weights of its own. Before, it was asked of each how many train its
    model."""
    engine = Engine(ME, "me:1", ("far away:1",), Policies(schedule=Schedule(sync_every=4)), 0.0)
    engine.begin(0.0, GENESIS, (b"",))
    peers = [PeerId(f"peer {n}", 1) for n in range(Limits().learners - 1)]

    def hear(peer: PeerId, count: int) -> None:
        said = replace(beat(count), peer=peer, genesis=peer.name.encode().ljust(32))
        engine.receive(0.0, replace(said, step=steps, training=steps > 0))

    for peer in peers:
        engine.met(0.0, peer, f"{peer.name}:1")
        engine.linked(0.0, peer, True)
        hear(peer, 1)
    assert engine.state.roster.size == Limits().learners
    assert not engine.state.joined
    assert calls_of(lambda: hear(peers[0], 2)) < MOST


def test_the_offers_that_a_sealer_holds_cost_a_bounded_number_of_calls() -> None:
    engine = DrivenEngine(seals=False)
    engine.beat(PEER)
    message = replace(beat(901, held=60_000), address="peer:1")
    assert calls_of(lambda: engine.receive(message)) < MOST
    assert engine.engine.state.roster.sealer(0) == PEER


def test_a_joint_offer_of_unknown_learners_costs_a_bounded_number_of_calls() -> None:
    """Even where as many are held as may be. Anybody may pass it on."""
    engine = DrivenEngine()
    engine.beat(PEER)
    held = [offer_of(PeerId(f"held {n}", 1)) for n in range(Limits().learners - 1)]
    engine.engine.state.rounds[0].inbox |= {offer.peer: offer for offer in held}
    first, *others = [offer_of(PeerId(f"phantom {n}", 1)) for n in range(OTHERS_LIMIT + 1)]
    joint = replace(first, others=tuple(others))
    assert calls_of(lambda: engine.engine.passed_on(engine.now, joint, PEER)) < MOST


def test_goodbyes_have_the_rounds_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = full()
    asked = []
    sealer = roster.Roster.sealer
    monkeypatch.setattr(roster.Roster, "sealer", lambda self, p: asked.append(p) or sealer(self, p))
    engine.receive(beat(901, rumors(250, 0, left=True)))
    assert engine.engine.state.roster.size < 10
    assert len(asked) < 10
