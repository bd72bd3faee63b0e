"""The answers to peers that want an anchor."""

from __future__ import annotations

import pytest
import torch

from mend_optim.engine.effects import Export, Found
from mend_optim.engine.mode import Mode
from mend_optim.protocol.lineage import Lineage, PeerId
from mend_optim.protocol.messages import Beat, Report, State, Want
from mend_optim.protocol.transfer_fault import BROKEN
from tests.support.engines import BASE, GENESIS, ME, OTHER, PEER, THIRD, DrivenEngine, grown


def test_an_anchor_is_not_sent_to_a_peer_that_has_it() -> None:
    """A peer that is as far as this learner may still ask. It would only install what it has."""
    engine = DrivenEngine()
    for peer in (PEER, THIRD):
        engine.beat(peer)
    engine.receive(Want(PEER, 0, BASE.digest))
    engine.receive(Want(THIRD, 0, b"another"))
    (export,) = engine.jobs(Export)
    engine.done(export)
    assert [to for to, _ in engine.sent(State)] == [THIRD]
    assert engine.engine.state.unanswered == []


@pytest.mark.parametrize(
    ("genesis", "have"), [(GENESIS, BASE.digest), (OTHER, b""), (OTHER, b"another")]
)
def test_a_newcomer_that_asks_before_its_beat_gets_the_anchor_that_is_founded_for_it(
    genesis: bytes, have: bytes
) -> None:
    """It has heard how much a learner has trained alone, and its beat is still on its way. Until
    then, there is only the anchor that this learner began with. A newcomer with other first weights
    took that, and kept its own moments when the founded one came."""
    engine = DrivenEngine()
    engine.engine.met(engine.now, PEER, "")
    engine.step()
    assert engine.engine.state.mode is Mode.SOLO
    engine.receive(Want(PEER, 0, have))
    engine.tick(3.0)
    assert engine.jobs(Export) == []  # it would be copied again and again
    reports = (Report(BASE.key),)
    engine.receive(Beat(peer=PEER, address="", count=1, genesis=genesis, reports=reports))
    boundaries = engine.engine.boundaries
    assert boundaries.fragments_to_copy() == [0]
    boundaries.reserve_all()
    boundaries.found((torch.zeros(0),))
    (found,) = engine.jobs(Found)
    engine.done(found, digest=b"founded")
    (export,) = engine.jobs(Export)
    engine.done(export)
    assert [(to, state.lineage) for to, state in engine.sent(State)] == [(PEER, engine.lineage)]
    assert engine.lineage.tokens == 10
    assert engine.engine.state.unanswered == []


def test_an_asker_whose_beat_does_not_end_our_time_alone_gets_the_anchor_that_is_there() -> None:
    """It has no weights to show, so nothing is founded for it."""
    engine = DrivenEngine()
    engine.engine.met(engine.now, PEER, "")
    engine.step()
    engine.receive(Want(PEER, 0, b""))
    assert engine.jobs(Export) == []
    engine.receive(Beat(peer=PEER, address="", count=1))
    assert engine.engine.state.mode is Mode.SOLO
    engine.tick(1.0)
    (export,) = engine.jobs(Export)
    engine.done(export)
    assert [(to, state.lineage) for to, state in engine.sent(State)] == [(PEER, BASE)]


def test_what_peers_wanted_that_are_gone_is_forgotten() -> None:
    """A peer may ask, and start anew, again and again."""
    engine = DrivenEngine()
    engine.step()
    for incarnation in (1, 2, 3):
        asker = PeerId(PEER.name, incarnation)
        engine.engine.met(engine.now, asker, "")
        engine.receive(Want(asker, 0, BASE.digest))
        for export in engine.jobs(Export):
            engine.done(export)
        assert [want.peer for want in engine.engine.state.unanswered] == [asker]


def test_a_want_that_came_during_a_switch_in_vain_is_answered_after_it() -> None:
    engine = DrivenEngine(quorum=2)
    engine.beat(PEER, BASE)
    engine.step(1)
    engine.beat(THIRD, grown(Lineage.fresh(OTHER)), genesis=OTHER)
    engine.receive(Want(PEER, 0, b""))
    assert engine.engine.state.mode is Mode.SWITCHING_TRAINING
    engine.engine.undelivered(engine.now, THIRD, Want(ME, 0, b""), BROKEN)
    engine.jobs(Export)
    engine.tick(1.0)
    assert len(engine.jobs(Export)) == 1
