"""Where a learner goes on when it has joined: in step with those that start with it, or where those
are that trained on without it."""

from __future__ import annotations

import pytest

from mend_optim.engine.accounts import Totals
from mend_optim.engine.engine import Engine
from mend_optim.engine.joining import Resumed
from mend_optim.engine.mode import Mode
from mend_optim.engine.policies import Policies
from mend_optim.engine.schedule import Schedule
from mend_optim.engine.standing import Standing
from mend_optim.protocol.lineage import Claim, Lineage, PeerId
from mend_optim.protocol.messages import Beat, Report

ME, PEER, FORMER = PeerId("me", 2), PeerId("peer", 1), PeerId("me", 1)
OTHER = PeerId("other", 1)
GENESIS = b"genesis"
ANCHOR = Lineage(tokens=160, version=5, digest=b"five", genesis=GENESIS)


def started(*seeds: str) -> Engine:
    """It is told of one peer, or of these."""
    policies = Policies(schedule=Schedule(sync_every=16))
    return Engine(ME, "me:1", seeds or ("peer:1",), policies, 0.0)


def restored(engine: Engine, step: int = 83, anchor: Lineage = ANCHOR) -> None:
    standing = Standing(
        lineage=anchor,
        claim=Claim(FORMER, 5),
        cycle_start=80,
        settled=Totals(80, 80),
        dropped_tokens=0,
        pending=None,
        correction_pending=False,
        adopt_at=None,
    )
    engine.begin(1.0, GENESIS, (b"",), Resumed(Totals(step, step), [standing]))


def beat(
    engine: Engine,
    count: int,
    position: int,
    training: bool = True,
    anchor: Lineage | None = ANCHOR,
    peer: PeerId = PEER,
) -> None:
    """Of a peer that is here with that anchor, or, without one, has not begun."""
    engine.met(1.0, peer, f"{peer.name}:1", "peer:1")
    genesis, reports = (GENESIS, (Report(anchor.key),)) if anchor else (b"", ())
    engine.receive(
        1.0,
        Beat(
            peer=peer,
            address=f"{peer.name}:1",
            count=count,
            step=position,
            tokens=0,
            seconds_per_step=0.1,
            training=training,
            genesis=genesis,
            reports=reports,
            position=position,
        ),
    )


def greater(anchor: Lineage) -> Lineage:
    return Lineage(
        tokens=anchor.tokens + 32, version=anchor.version + 1, digest=b"six", genesis=GENESIS
    )


def test_who_restarts_with_the_others_goes_on_from_its_own_position() -> None:
    """Though they may have stepped on before it was ready: it has the anchor still to fetch."""
    engine = started()
    restored(engine)
    beat(engine, 1, 83, training=False, anchor=greater(ANCHOR))
    for count, position in ((2, 84), (3, 90), (4, 100)):
        assert not engine.state.joined
        beat(engine, count, position, anchor=ANCHOR if count == 4 else greater(ANCHOR))
        engine.state.wants.clear()
        engine.tick(1.0)
    assert engine.state.joined
    assert engine.state.position == 83


@pytest.mark.parametrize("before", [True, False])
def test_who_comes_back_late_goes_on_from_where_the_others_are(before: bool) -> None:
    engine = started()
    if before:
        beat(engine, 1, 500)
    restored(engine)
    beat(engine, 2, 500 + before)
    assert engine.state.joined
    assert engine.state.position == 500


def test_what_a_peer_says_before_it_has_begun_is_not_its_position() -> None:
    engine = started()
    restored(engine)
    beat(engine, 1, 0, training=False, anchor=None)
    assert not engine.state.joined
    beat(engine, 2, 120)
    assert engine.state.joined
    assert engine.state.position == 120


def test_nobody_goes_back() -> None:
    engine = started()
    restored(engine)
    beat(engine, 1, 10)
    assert engine.state.joined
    assert engine.state.position == 83


def test_a_peer_that_shows_a_model_without_anchors_keeps_nobody_from_joining() -> None:
    """It came before the first step. Nothing of such a model would ever arrive."""
    engine = started()
    engine.met(1.0, PEER, "peer:1", "peer:1")
    engine.receive(
        1.0, Beat(peer=PEER, address="peer:1", count=1, step=9, training=True, genesis=b"another")
    )
    engine.begin(1.0, GENESIS, (b"",))
    assert engine.state.mode is Mode.JOINING


def test_it_catches_up_with_what_peers_show_when_it_begins_however_long_it_has_heard_them() -> None:
    engine = started()
    beat(engine, 1, 90)
    beat(engine, 2, 95, anchor=greater(ANCHOR))
    restored(engine)
    assert not engine.state.joined
    engine.state.fragments[0].lineage = greater(ANCHOR)
    engine.state.wants.clear()
    beat(engine, 3, 96, anchor=greater(ANCHOR))
    assert engine.state.joined


def test_of_two_branches_that_lead_in_turns_it_needs_neither_newest_anchor() -> None:
    """Else a machine between two rooms would fetch now the one's and now the other's for ever."""
    first, second = greater(ANCHOR), greater(greater(ANCHOR))
    engine = started()
    restored(engine)
    beat(engine, 1, 90, anchor=first)
    beat(engine, 1, 90, anchor=second, peer=OTHER)
    engine.state.fragments[0].lineage = first
    engine.state.wants.clear()
    beat(engine, 2, 91, anchor=first)
    assert not engine.state.joined  # with the other one it has not caught up
    engine.state.fragments[0].lineage = second
    engine.state.wants.clear()
    beat(engine, 3, 92, anchor=greater(second))
    assert engine.state.joined
    assert engine.state.wants[0].peer == PEER  # it fetches while it trains


@pytest.mark.parametrize("how", ["trained meanwhile", "cut off"])
def test_a_peer_that_was_heard_long_ago_must_be_caught_up_with(how: str) -> None:
    """Else first weights would be trained beside a trained model, or old ones beside a new one."""
    fresh = Lineage.fresh(GENESIS)
    first, later = (fresh, ANCHOR) if how == "trained meanwhile" else (ANCHOR, greater(ANCHOR))
    engine = started("peer:1", "other:1")
    restored(engine, step=0, anchor=first)
    beat(engine, 1, 80, training=False, anchor=first)
    if how == "cut off":
        engine.linked(1.0, PEER, True)
        engine.linked(1.0, PEER, False)
        engine.tick(2.0)
        engine.linked(2.0, PEER, True)
    assert not engine.state.joined  # another learner is still to come
    beat(engine, 2, 90, anchor=later)
    engine.state.wants.clear()
    engine.tick(2.0)
    assert not engine.state.joined
    engine.state.fragments[0].lineage = later
    engine.tick(2.0)
    assert engine.state.joined
