"""What must be in a whole anchor, by what other learners attest; what a learner attests itself; and
what its user is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from mend_optim.engine.attestations import ANY, TOLD
from mend_optim.engine.effects import Advance, Attest, Install
from mend_optim.engine.held import EVERY, HELD, Held
from mend_optim.engine.state import TRIAL
from mend_optim.protocol.lineage import Key, Lineage, PeerId
from mend_optim.protocol.messages import Beat, Content, Want
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

TRUE, FALSE = b"true", b"false"
FIFTH = PeerId("fifth", 1)


def key(n: int) -> Key:
    return Key(10 * n, n, b"%d" % n)


# ── what this learner attests ─────────────────────────────────────────────────────────────────────


def test_the_last_anchor_with_a_digest_is_told() -> None:
    held = Held()
    assert held.told() is None
    held.note(key(1), b"c1")
    held.note(key(2), b"c2")
    assert held.told() == Content(key(2), b"c2")
    assert held.has(key(1)) == b"c1"
    assert held.has(key(3)) == b""


def test_old_anchors_are_forgotten() -> None:
    held = Held()
    for n in range(HELD + 1):
        held.note(key(n), b"c%d" % n)
    assert held.has(key(0)) == b""
    assert held.has(key(1)) == b"c1"


BEAT_S = 2.0


def test_the_worker_is_asked_once_for_a_digest_and_not_for_that_of_first_weights() -> None:
    held, keys = Held(), [Key(0, 0, b"first"), key(1), key(1)]
    assert [held.comes(9.0 * n, key, BEAT_S) for n, key in enumerate(keys)] == [False, True, False]
    assert [held.stands(key) for key in (keys[0], keys[0], key(1), key(1))] == [False] * 4


@pytest.mark.parametrize(("pause_s", "every"), [(BEAT_S, 1), (0.9 * BEAT_S, EVERY)])
def test_where_rounds_are_faster_than_beats_not_every_anchor_is_attested(
    pause_s: float, every: int
) -> None:
    held = Held()
    held.comes(0.0, Key(0, 0, b"first"), BEAT_S)
    asked = [n for n in range(1, 3 * EVERY + 1) if held.comes(n * pause_s, key(n), BEAT_S)]
    assert asked == list(range(every, 3 * EVERY + 1, every))


def test_an_anchor_that_stands_from_beat_to_beat_is_attested() -> None:
    held = Held()
    held.comes(0.0, key(1), BEAT_S)
    assert not held.comes(0.1, key(2), BEAT_S)
    assert [held.stands(each) for each in (key(2), key(3), key(3), key(3))] == [
        False,
        False,
        True,
        False,
    ]


def test_a_whole_anchor_begins_anew() -> None:
    held = Held()
    held.comes(0.0, key(1), BEAT_S)
    held.note(key(1), FALSE)
    held.begin_anew(handed_over=True)
    assert held.told() is None
    assert held.comes(0.1, key(1), BEAT_S)


def advance(engine: DrivenEngine, digest: bytes = b"here") -> None:
    """One more round. The worker says what is in its anchor."""
    engine.now += 1.0
    sealer = engine.engine.state.roster.sealer(0)
    assert sealer
    engine.receive(seal_of(engine.lineage, sealer=sealer))
    (job,) = engine.jobs(Advance)
    engine.done(job)
    attested(engine, digest)
    engine.apply()


def attested(engine: DrivenEngine, digest: bytes = b"here") -> None:
    for attest in engine.jobs(Attest):
        engine.done(attest, digest=digest)


def told_by(engine: DrivenEngine) -> Content | None:
    engine.tick(Timing().beat_s)
    (_, last) = engine.sent(Beat)[-1]
    return last.reports[0].content


def beside(*peers: PeerId, rounds: int = 0) -> DrivenEngine:
    engine = DrivenEngine(seals=False)
    for peer in peers:
        engine.beat(peer)
    for _ in range(rounds):
        advance(engine)
    return engine


@pytest.mark.parametrize("peers", [(PEER,), (PEER, THIRD)])
@pytest.mark.parametrize("majority", [True, False])
def test_each_learner_attests_what_it_holds(peers: tuple[PeerId, ...], majority: bool) -> None:
    """Also one of two, and one that takes the word of anybody."""
    engine = beside(*peers)
    state = engine.engine.state
    state.policies = replace(state.policies, limits=Limits(majority=majority))
    assert told_by(engine) is None
    advance(engine)
    assert told_by(engine) == Content(engine.lineage.key, b"here")
    for peer in peers:
        engine.beat(peer, engine.lineage)
    advance(engine, b"next")
    assert told_by(engine) == Content(engine.lineage.key, b"next")


def test_until_the_worker_has_the_digest_the_anchor_before_is_told() -> None:
    engine = beside(PEER)
    advance(engine)
    before = engine.lineage.key
    engine.receive(seal_of(engine.lineage, sealer=PEER))
    (job,) = engine.jobs(Advance)
    engine.done(job)
    assert told_by(engine) == Content(before, b"here")


def test_an_anchor_of_a_checkpoint_is_attested() -> None:
    engine = DrivenEngine()
    engine.fragment.lineage = grown(engine.lineage)
    engine.beat(PEER)
    engine.tick(2 * Timing().beat_s)
    attested(engine)
    assert told_by(engine) == Content(engine.lineage.key, b"here")


# ── what others attest of an anchor that is handed over ───────────────────────────────────────────

HANDED = key(5)
CASES: dict[str, tuple[Mapping[PeerId, Mapping[int, bytes]], bytes]] = {
    "nobody": ({}, ANY),
    "the sender alone": ({PEER: {5: TRUE}}, ANY),
    "another one alone: a tie with what the sender hands over": ({THIRD: {5: FALSE}}, ANY),
    "another one and the sender agree": ({PEER: {5: TRUE}, THIRD: {5: TRUE}}, TRUE),
    "another one and the sender differ": ({PEER: {5: FALSE}, THIRD: {5: TRUE}}, ANY),
    "two others": ({THIRD: {5: TRUE}, FOURTH: {5: TRUE}}, TRUE),
    "two others against the sender": (
        {PEER: {5: FALSE}, THIRD: {5: TRUE}, FOURTH: {5: TRUE}},
        TRUE,
    ),
    "two others that differ": ({THIRD: {5: TRUE}, FOURTH: {5: FALSE}}, ANY),
    "two and two": (
        {PEER: {5: FALSE}, THIRD: {5: TRUE}, FOURTH: {5: TRUE}, FIFTH: {5: FALSE}},
        ANY,
    ),
    "two others against one and the sender": (
        {THIRD: {5: TRUE}, FOURTH: {5: TRUE}, FIFTH: {5: FALSE}},
        ANY,
    ),
    "of other anchors": ({THIRD: {4: TRUE, 6: TRUE}, FOURTH: {3: TRUE, 7: FALSE}}, ANY),
    "two others before they came farther": (
        {THIRD: {5: TRUE, 6: FALSE}, FOURTH: {5: TRUE, 7: FALSE}},
        TRUE,
    ),
}


def attest(engine: DrivenEngine, peer: PeerId, n: int, digest: bytes, step: int = 1) -> None:
    engine.beat(peer, step=step, content=Content(key(n), digest))


def expected(engine: DrivenEngine, sender: PeerId = PEER) -> bytes:
    lineage = replace(engine.lineage, tokens=50, version=5, digest=b"5")
    return engine.engine.adoption.attestations.expected(state_of(lineage, peer=sender))


@pytest.mark.parametrize("case", CASES)
def test_a_majority_of_those_that_attest_the_key_decides(case: str) -> None:
    told, content = CASES[case]
    engine = beside(PEER, THIRD, FOURTH, FIFTH)
    for peer, by_version in told.items():
        for n, digest in by_version.items():
            attest(engine, peer, n, digest)
    assert expected(engine) == content


def test_those_that_have_not_trained_do_not_count() -> None:
    engine = beside(PEER)
    for peer in (THIRD, FOURTH):
        attest(engine, peer, 5, TRUE, step=0)
    assert expected(engine) == ANY


def test_those_of_another_model_do_not_count() -> None:
    engine = beside(PEER, THIRD, FOURTH)
    for peer in (THIRD, FOURTH):
        engine.beat(peer, genesis=b"another", content=Content(key(5), TRUE))
    assert expected(engine) == ANY
    for peer in (THIRD, FOURTH):  # nor do they, for the model that they have now, by that
        engine.beat(peer)
    assert expected(engine) == ANY


def test_those_that_are_gone_do_not_count() -> None:
    engine = beside(PEER)
    for peer in (THIRD, FOURTH):
        attest(engine, peer, 5, TRUE)
    assert expected(engine) == TRUE
    engine.tick(Timing().suspect_after_s + 1)
    attest(engine, PEER, 4, TRUE)
    assert expected(engine) == ANY


def test_the_last_anchors_that_a_peer_told_of_are_remembered() -> None:
    engine = beside(PEER, THIRD, FOURTH)
    for peer in (THIRD, FOURTH):
        attest(engine, peer, 5, FALSE)
        attest(engine, peer, 5, TRUE)
        for n in range(6, 5 + TOLD):
            attest(engine, peer, n, b"later")
    assert expected(engine) == TRUE
    attest(engine, FOURTH, 5 + TOLD, b"later")
    assert expected(engine) == ANY


def test_processes_that_are_gone_are_forgotten() -> None:
    engine = beside(PEER)
    for n in range(9):
        engine.now += 1
        attest(engine, PeerId("again", 1 + n), 5, TRUE)
    attest(engine, PEER, 5, TRUE)
    assert len(engine.engine.adoption.attestations._told) <= len(engine.engine.state.roster.peers)


def test_one_word_is_enough_where_the_user_says_so() -> None:
    engine = beside(PEER, THIRD, FOURTH)
    for peer in (THIRD, FOURTH):
        attest(engine, peer, 5, TRUE)
    state = engine.engine.state
    state.policies = replace(state.policies, limits=Limits(majority=False))
    assert expected(engine) == ANY


def test_nobody_checks_an_anchor_of_its_own() -> None:
    engine = beside(PEER, THIRD, FOURTH)
    for peer in (THIRD, FOURTH):
        attest(engine, peer, 5, TRUE)
    assert expected(engine, engine.engine.state.me) == ANY


# ── in the engine ─────────────────────────────────────────────────────────────────────────────────


def shows(engine: DrivenEngine, peer: PeerId, lineage: Lineage, digest: bytes) -> None:
    content = Content(lineage.key, digest)
    engine.beat(peer, lineage, step=3, genesis=lineage.genesis, content=content)


def installed(engine: DrivenEngine) -> list[bytes]:
    """The digests that the installed anchors must have."""
    return [content for job in engine.jobs(Install) for content in job.contents]


@pytest.mark.parametrize("rounds", [1, TRIAL])
def test_an_anchor_is_taken_if_it_is_what_most_others_have(rounds: int) -> None:
    """Also by a learner that has little to lose."""
    engine = beside(PEER, THIRD, FOURTH, rounds=rounds)
    ahead = grown(grown(engine.lineage))
    for peer in (PEER, THIRD, FOURTH):
        shows(engine, peer, ahead, TRUE)
    engine.receive(state_of(ahead, peer=PEER))
    assert installed(engine) == [TRUE]


def test_an_anchor_is_taken_while_nobody_attests_it() -> None:
    engine = beside(PEER, THIRD, FOURTH, rounds=TRIAL)
    ahead = grown(grown(engine.lineage))
    for peer in (PEER, THIRD, FOURTH):
        engine.beat(peer, ahead, step=3, content=Content(engine.lineage.key, b"here"))
    engine.receive(state_of(ahead, peer=PEER))
    assert installed(engine) == [ANY]


def test_a_learner_that_is_stuck_takes_anything() -> None:
    engine = beside(PEER, THIRD, FOURTH, rounds=TRIAL)
    ahead = grown(grown(engine.lineage))

    def handed_over() -> list[bytes]:
        for peer in (PEER, THIRD, FOURTH):
            shows(engine, peer, ahead, TRUE)
        engine.receive(state_of(ahead, peer=PEER))
        (job,) = engine.jobs(Install)
        engine.done(job, fault="other learners have something else under its key")
        return list(job.contents)

    assert handed_over() == [TRUE]
    assert engine.engine.state.claims.doubts(PEER)
    assert [r.peer for r in engine.engine.state.refusals.counted()] == [PEER.name]
    engine.tick(Timing().evict_after_s - 1)
    assert handed_over() == [TRUE]
    engine.tick(2.0)
    assert handed_over() == [ANY]


# ── what the user is told ─────────────────────────────────────────────────────────────────────────


def hears(engine: DrivenEngine, *peers: PeerId, digest: bytes = TRUE) -> None:
    for peer in peers:
        shows(engine, peer, engine.lineage, digest)


def forked(engine: DrivenEngine) -> list[tuple[str, int, int]]:
    told = [event.facts for event in engine.events("forked")]
    return [(facts["peer"], facts["incarnation"], facts["fragment"]) for facts in told]


def take_whole(engine: DrivenEngine, peer: PeerId, digest: bytes) -> None:
    """The learner takes a whole anchor of a peer, with that in it."""
    ahead = grown(grown(engine.lineage))
    engine.beat(peer, ahead, step=3)
    engine.receive(state_of(ahead, peer=peer))
    (job,) = engine.jobs(Install)
    engine.done(job)
    attested(engine, digest)
    engine.apply()


@pytest.mark.parametrize("majority", [True, False])
@pytest.mark.parametrize("by_seals", [True, False])
def test_the_user_is_told_of_each_process_once_and_nothing_else_happens(
    by_seals: bool, majority: bool
) -> None:
    engine = beside(PEER, THIRD, FOURTH, rounds=TRIAL if by_seals else 0)
    if not by_seals:
        take_whole(engine, PEER, FALSE)
    state, lineage = engine.engine.state, engine.lineage
    state.policies = replace(state.policies, limits=Limits(majority=majority))
    engine.sent(Want)
    for _ in range(2):
        hears(engine, PEER, digest=b"here" if by_seals else FALSE)
        hears(engine, THIRD, FOURTH)
    assert forked(engine) == [(THIRD.name, 1, 0), (FOURTH.name, 1, 0)]
    hears(engine, PeerId(THIRD.name, 2))
    assert forked(engine) == [(THIRD.name, 2, 0)]
    assert engine.sent(Want) == []
    assert engine.jobs(Install) == []
    assert engine.lineage == lineage
    assert not any(map(state.claims.doubts, (PEER, THIRD, FOURTH)))
    assert list(state.refusals.counted()) == []


def test_the_user_is_told_of_each_fragment() -> None:
    engine = DrivenEngine(fragments=2)
    lineages = [fragment.lineage for fragment in engine.engine.state.fragments]
    for fragment in engine.engine.state.fragments:
        fragment.held.note(fragment.lineage.key, b"here")
    for _ in range(2):
        engine.beat(PEER, *lineages, content=Content(engine.lineage.key, TRUE))
    assert forked(engine) == [(PEER.name, 1, 0), (PEER.name, 1, 1)]


def test_a_peer_that_was_at_another_model_is_not_told_of_again() -> None:
    engine = beside(PEER, THIRD, rounds=TRIAL)
    hears(engine, PEER)
    engine.beat(PEER, genesis=b"")
    engine.beat(PEER, genesis=b"another", content=Content(engine.lineage.key, TRUE))
    hears(engine, PEER)
    assert forked(engine) == [(PEER.name, 1, 0)]


def test_nothing_is_said_of_peers_that_have_the_same_or_another_anchor_or_model() -> None:
    engine = beside(PEER, THIRD, FOURTH, FIFTH, rounds=TRIAL)
    hears(engine, PEER, digest=b"here")
    engine.beat(THIRD, engine.lineage, content=Content(grown(engine.lineage).key, TRUE))
    engine.beat(FOURTH, engine.lineage)
    engine.beat(FIFTH, genesis=b"another", content=Content(engine.lineage.key, TRUE))
    assert forked(engine) == []


def test_an_anchor_of_before_is_compared() -> None:
    """A learner that is behind tells of it."""
    engine = beside(PEER, THIRD)
    advance(engine)
    behind = engine.lineage
    advance(engine)
    shows(engine, PEER, behind, b"here")
    shows(engine, THIRD, behind, TRUE)
    assert forked(engine) == [(THIRD.name, 1, 0)]


def test_digests_of_before_a_whole_anchor_are_not_compared() -> None:
    engine = beside(PEER, THIRD)
    advance(engine)
    before = engine.lineage
    take_whole(engine, PEER, FALSE)
    shows(engine, THIRD, before, TRUE)
    assert forked(engine) == []
