"""The answers to peers that want an anchor."""

from __future__ import annotations

from mend_optim.engine.effects import Export
from mend_optim.protocol.messages import State, Want
from tests.support.engines import BASE, PEER, THIRD, DrivenEngine


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
