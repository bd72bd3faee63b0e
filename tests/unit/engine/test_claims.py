"""Peers that show anchors and don't hand them over are believed less and less."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.engine.claims import LONGEST_S, Claims
from mend_optim.engine.effects import Advance, Inspect, Install, Merge
from mend_optim.protocol.lineage import Key, Lineage, PeerId
from mend_optim.protocol.messages import Want
from mend_optim.protocol.timing import Timing
from mend_optim.protocol.transfer_fault import BROKEN
from tests.support.engines import (
    BASE,
    ME,
    OTHER,
    PEER,
    THIRD,
    DrivenEngine,
    among_peers,
    grown,
    offer_of,
    seal_of,
    state_of,
)

ROUND_S = Timing().round_timeout_s
NEWER = grown(grown(BASE))
#: Of an anchor that nobody has.
CLAIMED = Key(10**9, 10**6, b"claimed")


def shows(engine: DrivenEngine, lineage: Lineage = NEWER, genesis: bytes = BASE.genesis) -> int:
    """The peer shows an anchor. Returns how many anchors it is asked for."""
    engine.beat(PEER, lineage, genesis=genesis)
    return len(engine.sent(Want))


def not_handed_over(engine: DrivenEngine) -> None:
    engine.engine.undelivered(engine.now, PEER, Want(ME, 0, BASE.digest), BROKEN)


# The account


def test_the_first_pause_is_a_beat_and_each_further_one_doubles() -> None:
    claims, now = Claims(), 0.0
    pauses = []
    for _ in range(5):
        pauses.append(claims.failed(now, PEER, 3.0, 1.0) - now)
        now += pauses[-1]
    assert pauses == [1.0, 3.0, 6.0, 12.0, 24.0]


def test_a_failure_at_once_pauses_for_a_beat() -> None:
    assert Claims().failed(0.0, PEER, 0.0, 1.0) == 1.0


def test_failures_within_a_pause_are_one() -> None:
    claims = Claims()
    assert {claims.failed(now, PEER, 4.0, 1.0) for now in (0.0, 0.5, 0.9)} == {1.0}
    assert claims.failed(1.0, PEER, 4.0, 1.0) == 1.0 + 4.0


def test_a_peer_is_believed_again_after_the_pause_and_after_an_anchor() -> None:
    claims = Claims()
    until = claims.failed(0.0, PEER, 4.0, 1.0)
    assert (claims.doubts(PEER), claims.doubts(THIRD)) == (True, False)
    claims.expire(until, [PEER.name])
    assert not claims.doubts(PEER)
    claims.failed(until, PEER, 4.0, 1.0)
    claims.kept(PEER)
    assert not claims.doubts(PEER)
    assert claims.failed(until, PEER, 4.0, 1.0) == until + 1.0


def test_a_process_that_starts_anew_is_the_same_peer() -> None:
    claims = Claims()
    claims.failed(0.0, PEER, 4.0, 1.0)
    assert claims.doubts(PeerId(PEER.name, PEER.incarnation + 1))


def test_of_a_peer_that_is_gone_nothing_stays_beyond_its_pause() -> None:
    claims = Claims()
    claims.failed(0.0, PEER, 4.0, 1.0)
    claims.expire(0.5, [])
    assert claims.doubts(PEER)
    claims.expire(1.0, [])
    assert claims.failed(1.0, PEER, 4.0, 1.0) == 1.0 + 1.0


@given(waits=st.lists(st.floats(0.0, 1e4), min_size=1, max_size=60))
def test_pauses_are_bounded_and_take_up_an_ever_larger_share(waits: list[float]) -> None:
    claims, now = Claims(), 0.0
    for failures, waited in enumerate(waits):
        now += waited
        pause = claims.failed(now, PEER, waited, 1.0) - now
        assert pause <= LONGEST_S + 1e-6
        least = max(1.0, waited) * 2 ** min(failures - 1, 11) if failures else 1.0
        assert pause >= min(least, LONGEST_S) - 1e-6
        now += pause


# The engine


def test_a_peer_that_hands_nothing_over_is_asked_after_ever_longer_pauses() -> None:
    engine = among_peers()
    asked_at = []
    for _ in range(64):
        if shows(engine):
            asked_at.append(engine.now)
            not_handed_over(engine)
        engine.tick(1.0)
    assert asked_at == [0, 1, 2, 4, 8, 16, 32]


def test_from_the_second_time_on_an_answer_that_does_not_come_counts_for_as_long_as_it_took() -> (
    None
):
    engine = among_peers()
    asked_at = []
    while len(asked_at) < 3:
        if shows(engine):
            asked_at.append(engine.now)
        engine.tick(1.0)
    first, second, third = asked_at
    assert second - first == ROUND_S + 1.0
    assert third - second == 2 * ROUND_S


def test_another_peer_is_asked_for_what_one_did_not_hand_over() -> None:
    engine = among_peers()
    shows(engine)
    not_handed_over(engine)
    engine.beat(THIRD, NEWER)
    assert engine.sent(Want) == [(THIRD, Want(ME, 0, b""))]


def test_nothing_new_instead_of_what_was_shown_is_a_failure() -> None:
    engine = among_peers()
    engine.receive(seal_of(BASE))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    shows(engine, grown(engine.lineage))
    engine.receive(state_of(BASE))
    assert engine.jobs(Install) == []
    assert engine.engine.state.claims.doubts(PEER)


def test_less_than_was_shown_is_taken_where_it_is_of_use() -> None:
    """A learner that was alone shows more than it has made an anchor of."""
    engine = among_peers()
    shows(engine, NEWER)
    engine.receive(state_of(grown(BASE)))
    assert [job.states[0].lineage for job in engine.jobs(Install)] == [grown(BASE)]
    assert not engine.engine.state.claims.doubts(PEER)


def test_an_anchor_whose_bytes_are_refused_is_a_failure() -> None:
    engine = among_peers()
    shows(engine)
    engine.receive(state_of(NEWER))
    (job,) = engine.jobs(Install)
    engine.done(job, fault="its values are not finite")
    assert shows(engine) == 0
    engine.tick(1.0)
    assert shows(engine) == 1


def test_an_anchor_that_comes_ends_the_doubt() -> None:
    engine = among_peers()
    for _ in range(3):
        shows(engine)
        not_handed_over(engine)
        engine.tick(4.0)
    assert shows(engine) == 1
    engine.receive(state_of(NEWER))
    (job,) = engine.jobs(Install)
    engine.done(job)
    assert shows(engine, grown(NEWER)) == 1


def test_no_round_waits_for_what_a_doubted_peer_shows() -> None:
    engine = DrivenEngine()
    engine.beat(PEER)
    engine.beat(THIRD, NEWER)
    engine.offer()
    engine.receive(offer_of(PEER))
    (inspect,) = engine.jobs(Inspect)
    engine.done(inspect)
    assert engine.jobs(Merge) == []
    engine.engine.undelivered(engine.now, THIRD, Want(ME, 0, BASE.digest), BROKEN)
    engine.beat(PEER)
    assert engine.merge().base == BASE


def test_another_model_of_a_doubted_peer_is_not_fetched() -> None:
    engine = among_peers()
    model = Lineage(tokens=10**9, version=9, digest=b"d", genesis=OTHER)
    assert shows(engine, model, OTHER) == 1
    assert engine.engine.state.mode.switching
    not_handed_over(engine)
    assert not engine.engine.state.mode.switching
    assert shows(engine, model, OTHER) == 0
    assert not engine.engine.state.mode.switching
    engine.tick(1.0)
    assert shows(engine, model, OTHER) == 1


@pytest.mark.parametrize(("tokens", "taken"), [(1, False), (10**3, True)])
def test_a_model_that_is_not_greater_after_all_is_not_taken(tokens: int, taken: bool) -> None:
    engine = among_peers()
    engine.step(4)
    engine.receive(seal_of(BASE))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    shows(engine, Lineage(tokens=10**9, version=9, digest=b"d", genesis=OTHER), OTHER)
    handed = Lineage(tokens=tokens, version=9, digest=b"d", genesis=OTHER)
    engine.receive(state_of(handed))
    assert bool(engine.jobs(Install)) is taken
    assert engine.engine.state.claims.doubts(PEER) is not taken
    assert not engine.engine.state.mode.switching


def test_failures_of_another_kind_count_if_they_are_more() -> None:
    """Else a peer could use up the patience for each kind."""
    for failed, others, pauses_s in ((0, 3, 8.0), (3, 1, 8.0), (0, 0, 1.0)):
        claims, other = Claims(), Claims()
        now = 0.0
        for counted, times in ((claims, failed), (other, others)):
            for _ in range(times):
                now = counted.failed(now, PEER, 2.0, 1.0)
        claims.expire(now, [PEER.name])
        claims.count_in(PEER, other)
        assert not claims.doubts(PEER)
        assert claims.failed(now, PEER, 2.0, 1.0) - now == pauses_s
