"""What must be in a whole anchor, by what other learners tell, and what a learner tells itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from mend_optim.engine.contents import ANY, NOBODYS, Contents, expected
from mend_optim.engine.effects import Advance, Attest, Install
from mend_optim.engine.state import TRIAL
from mend_optim.protocol.lineage import Key, Lineage, PeerId
from mend_optim.protocol.messages import MOST_CONTENTS, Beat, Content, Report, Want
from mend_optim.protocol.peer_limits import Limits
from mend_optim.protocol.timing import Timing
from tests.support.engines import (
    FOURTH,
    PEER,
    THIRD,
    DrivenEngine,
    grown,
    seal_of,
    state_of,
)

FIFTH = PeerId("fifth", 1)
SENDER, X, Y, Z = (PeerId(name, 1) for name in ("sender", "x", "y", "z"))


def key(n: int) -> Key:
    return Key(10 * n, n, b"%d" % n)


def beat(peer: PeerId, told: Mapping[int, bytes], at: int = 9) -> Beat:
    """A beat of a peer that has come to the anchor `at`, and tells what is in these."""
    contents = tuple(Content(key(n), digest) for n, digest in told.items())
    reports = (Report(key(at), contents=contents),)
    return Beat(peer=peer, address="", count=1, genesis=b"g", reports=reports, step=1)


TRUE, FALSE = b"true", b"false"
CASES: dict[str, tuple[list[Beat], bytes | None]] = {
    "nobody else": ([beat(SENDER, {5: TRUE})], ANY),
    "one other": ([beat(SENDER, {}), beat(X, {5: TRUE})], TRUE),
    "the sender says so, too": ([beat(SENDER, {5: TRUE}), beat(X, {5: TRUE})], TRUE),
    "the sender against one": ([beat(SENDER, {5: FALSE}), beat(X, {5: TRUE})], None),
    "the sender against two": (
        [beat(SENDER, {5: FALSE}), beat(X, {5: TRUE}), beat(Y, {5: TRUE})],
        TRUE,
    ),
    "a liar against two": ([beat(X, {5: FALSE}), beat(Y, {5: TRUE}), beat(Z, {5: TRUE})], TRUE),
    "one of two is about to tell": ([beat(X, {5: TRUE}), beat(Y, {4: TRUE}, at=5)], None),
    "one of three is": (
        [beat(X, {5: TRUE}), beat(Y, {5: TRUE}), beat(Z, {4: TRUE}, at=5)],
        TRUE,
    ),
    "the only other one is": ([beat(X, {4: TRUE}, at=5)], None),
    "a former version is at it": ([beat(X, {}, at=5)], ANY),
    "all are past it": ([beat(X, {6: TRUE, 7: TRUE}), beat(Y, {8: TRUE})], ANY),
    "all are before it": ([beat(X, {3: TRUE, 4: TRUE}, at=4)], ANY),
    "nobody has had it": ([beat(X, {3: TRUE, 7: TRUE})], NOBODYS),
    "another one is past it, and is about to tell": ([beat(X, {3: TRUE}, at=6)], NOBODYS),
    "nobody but the sender has had it": (
        [beat(SENDER, {5: TRUE}), beat(X, {4: TRUE}), beat(Y, {6: TRUE})],
        NOBODYS,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_word_of_the_others_decides(case: str) -> None:
    voters, content = CASES[case]
    assert expected(voters, 0, key(5), SENDER) == content


def test_a_learner_tells_of_its_last_anchors() -> None:
    contents = Contents()
    for n in (1, 2, 3, 1, 4, 5):
        contents.note(key(n), b"c%d" % n)
    assert contents.told() == tuple(Content(key(n), b"c%d" % n) for n in (3, 1, 4, 5))
    assert len(contents.told()) == MOST_CONTENTS


# ── in the engine ─────────────────────────────────────────────────────────────────────────────────


def advance(engine: DrivenEngine, digest: bytes = b"here") -> None:
    """One more round. The worker says what is in its anchor."""
    engine.now += 1.0
    sealer = engine.engine.state.roster.sealer(0)
    assert sealer
    engine.receive(seal_of(engine.lineage, sealer=sealer))
    (job,) = engine.jobs(Advance)
    engine.done(job)
    for attest in engine.jobs(Attest):
        engine.done(attest, digest=digest)
    engine.apply()


def told_by(engine: DrivenEngine) -> tuple[Content, ...]:
    engine.tick(Timing().beat_s)
    (_, last) = engine.sent(Beat)[-1]
    return last.reports[0].contents


def beside(*peers: PeerId) -> DrivenEngine:
    engine = DrivenEngine(seals=False)
    for peer in peers:
        engine.beat(peer)
    return engine


def test_each_anchor_is_told_of_with_what_is_in_it() -> None:
    engine = beside(PEER, THIRD)
    advance(engine)
    first = engine.lineage.key
    advance(engine, b"next")
    assert told_by(engine) == (Content(first, b"here"), Content(engine.lineage.key, b"next"))


def test_of_two_learners_neither_tells_what_is_in_its_anchors() -> None:
    engine = beside(PEER)
    advance(engine)
    assert told_by(engine) == ()


def test_nothing_is_told_where_one_word_is_enough() -> None:
    engine = beside(PEER, THIRD)
    state = engine.engine.state
    state.policies = replace(state.policies, limits=Limits(majority=False))
    advance(engine)
    assert told_by(engine) == ()


def experienced(*peers: PeerId, rounds: int = TRIAL) -> DrivenEngine:
    engine = beside(*peers)
    for _ in range(rounds):
        advance(engine)
    return engine


def shows(engine: DrivenEngine, peer: PeerId, lineage: Lineage, digest: bytes = b"") -> None:
    """A peer has come to that anchor, and tells what is in it; or in the one before alone."""
    content = Content(lineage.key, digest) if digest else Content(engine.lineage.key, b"here")
    engine.beat(peer, lineage, step=3, genesis=lineage.genesis, contents=(content,))


def two_ahead(engine: DrivenEngine) -> Lineage:
    return grown(grown(engine.lineage))


def installed(engine: DrivenEngine) -> list[bytes]:
    """What is to be in the anchors that are installed."""
    return [content for job in engine.jobs(Install) for content in job.contents]


def test_an_anchor_is_taken_with_what_most_others_have_in_it() -> None:
    engine = experienced(PEER, THIRD, FOURTH)
    ahead = two_ahead(engine)
    for peer in (PEER, THIRD, FOURTH):
        shows(engine, peer, ahead, TRUE)
    engine.receive(state_of(ahead, peer=PEER))
    assert installed(engine) == [TRUE]


def test_an_anchor_is_kept_until_the_others_tell_what_is_in_it() -> None:
    engine = experienced(PEER, THIRD, FOURTH)
    ahead = two_ahead(engine)
    for peer in (PEER, THIRD, FOURTH):
        shows(engine, peer, ahead)
    ((asked, _),) = engine.sent(Want)
    engine.receive(state_of(ahead, peer=asked))
    assert installed(engine) == []
    first, second = {PEER, THIRD, FOURTH} - {asked}
    shows(engine, first, ahead, TRUE)
    assert installed(engine) == []
    shows(engine, second, ahead, TRUE)
    assert installed(engine) == [TRUE]


def test_an_anchor_that_nobody_else_has_had_is_not_taken() -> None:
    engine = experienced(PEER, THIRD, FOURTH)
    ahead = two_ahead(engine)
    made_up = replace(ahead, tokens=ahead.tokens - 1, digest=b"made up")
    for peer in (THIRD, FOURTH):
        shows(engine, peer, ahead, TRUE)
        before = Content(engine.lineage.key, b"here")
        contents = (before, Content(ahead.key, TRUE))
        engine.beat(peer, ahead, step=3, genesis=ahead.genesis, contents=contents)
    engine.engine.state.wants.clear()
    shows(engine, PEER, made_up, TRUE)
    ((asked, _),) = engine.sent(Want)[-1:]
    assert asked == PEER
    engine.receive(state_of(made_up, peer=PEER))
    assert installed(engine) == []
    assert engine.engine.state.claims.doubts(PEER)
    assert engine.engine.state.refusals.counted() == ()


def test_a_learner_with_little_to_lose_takes_anything() -> None:
    engine = experienced(PEER, THIRD, FOURTH, rounds=TRIAL - 1)
    ahead = two_ahead(engine)
    for peer in (PEER, THIRD, FOURTH):
        shows(engine, peer, ahead, TRUE)
    engine.receive(state_of(ahead, peer=PEER))
    assert installed(engine) == [ANY]


def test_a_learner_that_is_stuck_takes_anything() -> None:
    engine = experienced(PEER, THIRD)
    ahead = two_ahead(engine)
    shows(engine, PEER, ahead, FALSE)
    shows(engine, THIRD, ahead, TRUE)
    engine.receive(state_of(ahead, peer=PEER))
    assert installed(engine) == []
    engine.tick(Timing().evict_after_s - 1)
    shows(engine, PEER, ahead, FALSE)
    shows(engine, THIRD, ahead, TRUE)
    engine.receive(state_of(ahead, peer=PEER))
    assert installed(engine) == []
    engine.tick(4.0)
    shows(engine, PEER, ahead, FALSE)
    shows(engine, THIRD, ahead, TRUE)
    engine.receive(state_of(ahead, peer=PEER))
    assert installed(engine) == [ANY]


def test_a_peer_whose_anchor_has_something_else_in_it_is_doubted() -> None:
    engine = experienced(PEER, THIRD, FOURTH, FIFTH)
    ahead = two_ahead(engine)
    for peer in (PEER, THIRD, FOURTH, FIFTH):
        shows(engine, peer, ahead, TRUE)
    engine.receive(state_of(ahead, peer=PEER))
    (job,) = engine.jobs(Install)
    engine.done(job, fault="other learners have something else under its key")
    assert engine.engine.state.claims.doubts(PEER)
    assert engine.engine.state.refusals.counted()[0].peer == PEER.name
