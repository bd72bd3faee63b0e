"""What a learner says while it waits for others before its first step, and when it stops."""

from __future__ import annotations

from typing import Any

import pytest

from mend_optim.engine.engine import Engine
from mend_optim.engine.ledger import Event
from mend_optim.engine.mode import Mode
from mend_optim.engine.policies import Policies
from mend_optim.engine.schedule import Schedule
from mend_optim.protocol.handshake import AT_ITS_END
from mend_optim.protocol.lineage import Lineage, PeerId
from mend_optim.protocol.messages import Beat, Report
from mend_optim.protocol.unreached import Unreached
from tests.support.engines import pass_until

ME, PEER = PeerId("me", 1), PeerId("peer", 1)
SEED, OTHER = "peer:1", "third:1"
GENESIS, GREATER = b"genesis", b"zother"


def engine(*seeds: str, listens: bool = True) -> Engine:
    policies = Policies(schedule=Schedule(sync_every=4))
    return Engine(ME, "me:1" if listens else "", seeds, policies, 0.0)


def begun(*seeds: str, listens: bool = True) -> Engine:
    made = engine(*seeds, listens=listens)
    made.begin(0.0, GENESIS, (b"",))
    return made


def told(engine: Engine, now: float) -> list[Event]:
    events = [e for e in engine.drain(now) if isinstance(e, Event)]
    return [e for e in events if e.kind in ("waiting", "joined", "alone")]


def texts(engine: Engine, now: float) -> list[str]:
    return [event.text for event in told(engine, now)]


def beat(
    engine: Engine, now: float, count: int = 1, genesis: bytes = GENESIS, **facts: Any
) -> None:
    reports = (Report(Lineage.fresh(genesis).key),) if genesis else ()
    given = {"genesis": genesis, "reports": reports, **facts}
    engine.receive(now, Beat(peer=PEER, address=SEED, count=count, **given))


# The words


def test_a_cause_that_is_known_is_told_at_once() -> None:
    one = engine(SEED)
    one.unreached(0.0, SEED, Unreached.REFUSED)
    assert told(one, 0.0) == []
    one.begin(5.0, GENESIS, (b"",))
    (event,) = told(one, 5.0)
    assert event.text == "waiting up to 30 s for peer:1 (connection refused)"
    assert event.facts == {"causes": {SEED: "connection refused"}, "for_s": 30.0}


def test_no_answer_yet_is_told_after_a_beat_only() -> None:
    """Most learners are found within that time."""
    one = begun(SEED)
    one.tick(0.9)
    assert texts(one, 0.9) == []
    one.tick(1.0)
    assert texts(one, 1.0) == ["waiting up to 29 s for peer:1 (no answer yet)"]


def test_the_same_cause_is_told_once_and_another_one_again() -> None:
    one = begun(SEED)
    for now in (0.1, 0.4, 2.0):
        one.unreached(now, SEED, Unreached.REFUSED)
        one.tick(now)
    assert texts(one, 2.0) == ["waiting up to 30 s for peer:1 (connection refused)"]
    one.unreached(4.0, SEED, Unreached.PROTOCOL)
    assert texts(one, 4.0) == ["waiting up to 26 s for peer:1 (what answers is no learner)"]


def test_every_address_is_told_with_its_own_cause_and_only_while_it_is_missing() -> None:
    one = begun(SEED, OTHER)
    one.unreached(0.1, SEED, Unreached.REFUSED)
    assert texts(one, 0.1) == []  # the other one may still explain itself
    one.unreached(0.2, OTHER, Unreached.NAME)
    assert texts(one, 0.2) == [
        "waiting up to 30 s for peer:1 (connection refused), third:1 (the name does not resolve)"
    ]
    one.met(1.3, PEER, SEED, SEED)
    beat(one, 1.3)
    assert texts(one, 1.3) == ["waiting up to 29 s for third:1 (the name does not resolve)"]


def test_learners_that_come_one_after_the_other_are_told_once_a_beat() -> None:
    seeds = [f"learner-{n}:1" for n in range(6)]
    one = begun(*seeds)
    for seed in seeds:
        one.unreached(0.1, seed, Unreached.REFUSED)
    assert texts(one, 0.1) == [
        "waiting up to 30 s for learner-0:1, learner-1:1, learner-2:1, learner-3:1 and 2 more "
        "(connection refused)"
    ]
    for n, seed in enumerate(seeds[:3]):
        now = 0.2 + 0.1 * n
        one.met(now, PeerId(f"learner-{n}", 1), seed, seed)
        one.receive(
            now,
            Beat(
                peer=PeerId(f"learner-{n}", 1),
                address=seed,
                count=1,
                genesis=GENESIS,
                reports=(Report(Lineage.fresh(GENESIS).key),),
            ),
        )
        assert texts(one, now) == []
    one.tick(1.1)
    assert texts(one, 1.1) == [
        "waiting up to 29 s for learner-3:1, learner-4:1, learner-5:1 (connection refused)"
    ]


def test_a_peer_that_is_there_and_has_not_begun_is_told() -> None:
    one = begun(SEED)
    one.met(0.1, PEER, SEED, SEED)
    beat(one, 0.1, genesis=b"")
    assert texts(one, 0.1) == []
    one.tick(1.0)
    assert texts(one, 1.0) == [
        "waiting up to 29 s for peer:1 (peer is there, before its first step)"
    ]
    one.receive(1.5, Beat(peer=PEER, address=SEED, count=2))
    one.linked(1.6, PEER, True)
    one.linked(1.7, PEER, False)
    one.tick(2.0)
    assert texts(one, 2.0) == ["waiting up to 28 s for peer:1 (peer was there, and is gone)"]


def test_weights_on_their_way_are_told() -> None:
    one = begun(SEED)
    one.met(0.1, PEER, SEED, SEED)
    beat(one, 0.1, genesis=GREATER)
    one.tick(1.0)
    assert one.state.mode is Mode.SWITCHING_JOINING
    assert texts(one, 1.0) == ["waiting for the weights of peer"]


def test_so_is_a_greater_anchor_that_nobody_is_asked_for_yet() -> None:
    """It may come as a seal, or its peer have just failed to hand it over."""
    one = begun(SEED)
    one.state.claims.failed(0.0, PEER, waited_s=9.0, beat_s=9.0)
    one.met(0.1, PEER, SEED, SEED)
    greater = Lineage(tokens=8, version=1, digest=GENESIS, genesis=GENESIS)
    beat(one, 0.1, reports=(Report(greater.key),))
    one.tick(1.0)
    assert not one.state.wants
    assert texts(one, 1.0) == ["waiting for the weights of peer"]


def test_joining_lifts_the_news_of_a_wait_and_is_no_news_without_one() -> None:
    one = begun(SEED)
    one.unreached(0.1, SEED, Unreached.REFUSED)
    one.met(2.0, PEER, SEED, SEED)
    beat(one, 2.0)
    waiting, joined = told(one, 2.0)
    assert (waiting.kind, joined.kind, joined.lifts) == ("waiting", "joined", "waiting")
    quick = begun(SEED)
    quick.met(0.1, PEER, SEED, SEED)
    beat(quick, 0.1)
    (joined,) = told(quick, 0.1)
    assert (joined.kind, joined.lifts) == ("joined", "")


def test_joining_tells_that_peers_had_nobody_else() -> None:
    one = begun(SEED)
    one.itself(SEED)
    one.tick(0.5)
    assert texts(one, 0.5) == [
        "joined at position 0; peers has no address but this learner's own",
    ]
    bare = begun()
    bare.tick(0.5)
    assert texts(bare, 0.5) == ["joined at position 0"]
    other = begun(SEED, "me:1")
    other.itself("me:1")
    other.met(0.1, PEER, SEED, SEED)
    beat(other, 0.1)
    assert texts(other, 0.1) == ["joined at position 0"]


def test_alone_names_causes_and_remedies() -> None:
    one = begun(SEED, OTHER)
    one.unreached(0.1, SEED, Unreached.REFUSED)
    one.refused_at(0.2, OTHER, "codec: here none, there bf16; pass the same codec to both")
    pass_until(one, 30.0)
    assert texts(one, 30.0)[-1] == (
        "nobody to train with at peer:1 (connection refused), third:1 (refused: codec: here none, "
        "there bf16; pass the same codec to both): training alone, still looking; start the "
        "learner there, or correct its port in peers"
    )


def test_a_run_at_its_end_is_its_own_remedy() -> None:
    one, why = begun(SEED), f"peer:1 (refused: {AT_ITS_END})"
    one.refused_at(0.1, SEED, AT_ITS_END)
    pass_until(one, 30.0)
    alone = f"nobody to train with at {why}: training alone, still looking"
    assert texts(one, 30.0) == [f"waiting up to 29 s for {why}", alone]


# The end of the wait


def waits(engine: Engine, now: float) -> bool:
    pass_until(engine, now)
    return not engine.state.joined


@pytest.mark.parametrize("listens", [True, False])
@pytest.mark.parametrize("cause", [*Unreached])
def test_only_a_name_that_does_not_resolve_ends_the_wait_of_one_that_nobody_can_dial(
    cause: Unreached, listens: bool
) -> None:
    """A machine that is started seconds later refuses until then, and it may dial us."""
    one = begun(SEED, listens=listens)
    for now in (0.1, 5.0, 9.0):
        one.unreached(now, SEED, cause)
    assert waits(one, 10.0)
    ends = cause is Unreached.NAME and not listens
    assert waits(one, 10.2) is not ends
    assert waits(one, 29.9) is not ends
    assert not waits(one, 30.0)


def test_a_name_that_does_not_resolve_ends_no_wait_while_another_peer_may_come() -> None:
    one = begun(SEED, OTHER, listens=False)
    one.unreached(0.1, SEED, Unreached.NAME)
    one.unreached(0.1, OTHER, Unreached.REFUSED)
    assert waits(one, 11.0)
    one.refused_at(12.0, OTHER, "another model")
    assert not waits(one, 12.0)


def test_a_name_that_does_not_resolve_ends_no_wait_for_a_peer_that_is_known() -> None:
    one = begun(SEED, OTHER, listens=False)
    one.met(0.1, PEER, SEED, SEED)
    one.linked(0.1, PEER, True)
    beat(one, 0.2, genesis=b"")
    one.unreached(0.1, OTHER, Unreached.NAME)
    for now in range(1, 13):
        beat(one, float(now), count=1 + now, genesis=b"")
        assert waits(one, float(now))


@pytest.mark.parametrize("listens", [True, False])
def test_a_refusal_that_passes_does_not_end_the_wait(listens: bool) -> None:
    """The learner there may begin another run, and this one still look for it."""
    one = begun(SEED, OTHER, listens=listens)
    one.refused_at(0.1, SEED, AT_ITS_END)
    one.refused_at(0.2, OTHER, "another model")
    assert waits(one, 29.9)
    assert not waits(one, 30.0)


@pytest.mark.parametrize("listens", [True, False])
def test_a_refusal_by_all_ends_the_wait(listens: bool) -> None:
    one = begun(SEED, OTHER, listens=listens)
    one.refused_at(0.1, SEED, "another model")
    assert waits(one, 0.1)
    one.refused_at(0.2, OTHER, "another model")
    assert not waits(one, 0.2)
