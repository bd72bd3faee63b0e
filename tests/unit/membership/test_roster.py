from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.errors import UsageError
from mend_optim.membership.broadcasts import DEAF, FANOUT
from mend_optim.membership.graves import GOODBYES, GRAVES, LEFT, TOLD
from mend_optim.membership.peer import Peer
from mend_optim.membership.resumed import RESUMED_S
from mend_optim.membership.roster import AWAY, PHANTOMS, Roster
from mend_optim.membership.sealers import sealer_of
from mend_optim.membership.turned_away import TURNED_AWAY
from mend_optim.protocol.handshake import Life, Namesake
from mend_optim.protocol.lineage import CLOCKS_DIFFER_NS, Key, PeerId
from mend_optim.protocol.messages import Beat, Report, Rumor
from mend_optim.protocol.peer_limits import Limits
from mend_optim.protocol.timing import Timing

TIMING = Timing(beat_s=1, evict_after_s=30)  # suspected after 3 s
NO_REPORT = Report(Key(0, 0, b""))
ME, B = PeerId("a", 1), PeerId("b", 1)


def new(*names: str, now: float = 0.0, address: str = "a:1", learners: int = 256) -> Roster:
    """The roster of a, who has heard the first beat of each of `names`."""
    roster = Roster(ME, address, TIMING, Limits(learners=learners))
    for name in names:
        roster.hear(now, beat(name, 1))
    return roster


def beat(name: str, count: int, incarnation: int = 1, **facts: Any) -> Beat:
    return Beat(peer=PeerId(name, incarnation), address=f"{name}:1", count=count, **facts)


def rumor(name: str, count: int, incarnation: int = 1, left: bool = False) -> Rumor:
    return Rumor(PeerId(name, incarnation), f"{name}:1", count, left)


def known(roster: Roster, name: str = "b") -> Peer:
    return roster.peers[name]


# Silence, and what is none


def test_the_time_that_a_learner_was_stopped_is_no_silence() -> None:
    roster = new("b", "c")
    roster.expire(1.0)
    roster.slept(101.0, 100.0)
    assert (known(roster).heard_at, roster.expire(101.0)) == (100.0, [])
    roster.hear(101.5, beat("c", 2))
    roster.slept(102.0, 1.0)
    assert known(roster, "c").heard_at == 102.0  # nobody is heard in the future
    assert roster.expire(131.0) == [B]


def test_a_learner_that_was_stopped_has_still_heard_its_peers_itself() -> None:
    roster = new("b")
    roster.slept(101.0, 100.0)
    roster.expire(101.0)
    assert known(roster).heard
    roster.gossip(131.0, [rumor("b", 2)])
    roster.expire(131.0)
    assert not known(roster).heard


def test_a_dead_peer_is_evicted_by_a_learner_that_is_stopped_again_and_again() -> None:
    roster = new("b")
    roster.slept(5.0, 5.0)
    roster.slept(10.0, 5.0)
    assert known(roster).heard_at == 5.0
    roster.touch(11.0, B)
    roster.slept(20.0, 8.0)  # it was heard in between
    assert known(roster).heard_at == 19.0
    roster.slept(28.0, 8.0)
    assert roster.expire(49.0) == [B]


def test_a_peer_that_was_evicted_for_its_silence_is_lost_until_it_is_met_again() -> None:
    roster = new("b", "c")
    assert not roster.has_lost(B)
    roster.leave(PeerId("c", 1))
    roster.expire(30.0)
    assert roster.has_lost(B)
    assert not roster.has_lost(PeerId("c", 1))  # it said goodbye, and hangs up itself
    assert not roster.has_lost(PeerId("b", 2))
    roster.closed = True
    assert not roster.has_lost(B)  # nobody comes back now
    roster.closed = False
    roster.meet(31.0, B, "b:1")
    assert not roster.has_lost(B)


# Beats


def test_a_peer_that_finds_that_nobody_can_dial_it_seals_no_more() -> None:
    names = ("a", "b", "c")
    first = next(f for f in range(99) if sealer_of(f, names) == "b")
    roster = new("b", "c")
    assert roster.sealer(first) == B
    roster.gossip(1.0, [Rumor(B, "", 2)])
    assert roster.sealer(first) == B  # it speaks for itself
    roster.hear(1.0, replace(beat("b", 2), address=""))
    assert roster.sealer(first) != B
    roster.gossip(2.0, [rumor("b", 3)])
    assert known(roster).address == ""
    roster.hear(3.0, beat("b", 4))
    assert roster.sealer(first) == B


def test_hearsay_tells_that_nobody_can_dial_a_peer() -> None:
    roster = new("b")
    roster.gossip(1.0, [rumor("c", 1)])
    assert known(roster, "c").address == "c:1"
    roster.gossip(2.0, [Rumor(PeerId("c", 1), "", 2)])
    assert known(roster, "c").address == ""


def test_a_peer_that_says_hello_without_an_address_has_none() -> None:
    roster = new("b")
    roster.meet(1.0, B, "")
    assert known(roster).address == ""


def test_a_beat_makes_a_peer_known_and_alive() -> None:
    roster = new("b")
    assert roster.alive() == [B]
    assert roster.size == 2
    assert not roster.alone
    assert known(roster).address == "b:1"


@given(st.permutations([(i, c) for i in (1, 2) for c in (1, 2, 3)]))
def test_the_newest_beat_is_kept_in_whatever_order_they_arrive(
    order: list[tuple[int, int]],
) -> None:
    roster = new()
    for incarnation, count in order:
        roster.hear(0, beat("b", count, incarnation, step=10 * incarnation + count))
    peer = known(roster)
    assert (peer.id.incarnation, peer.count) == (2, 3)
    assert peer.beat == beat("b", 3, 2, step=23)


def test_an_older_beat_is_no_sign_of_life() -> None:
    roster = new()
    roster.hear(0, beat("b", 5))
    assert roster.hear(2, beat("b", 5)) is None
    assert roster.hear(2, beat("b", 4)) is None
    assert known(roster).heard_at == 0


def test_a_beat_that_gossip_overtook_is_still_the_newest_report() -> None:
    """On a slow link every beat is overtaken: the peer would look alive, and never as if it
    trained."""
    roster = new()
    roster.gossip(0, [rumor("b", 7)])
    assert roster.hear(1, beat("b", 6, training=True)) is known(roster)
    assert known(roster).training
    assert (known(roster).count, known(roster).heard_at) == (7, 1)  # gossip may lie
    assert roster.hear(1, beat("b", 5)) is None


def test_our_own_beats_and_rumors_are_ignored() -> None:
    roster = new()
    assert roster.hear(0, beat("a", 9, incarnation=7)) is None
    roster.gossip(0, [rumor("a", 10), rumor("a", 0, left=True)])
    assert roster.leave(ME) is False
    assert roster.alone


def test_nobody_says_our_goodbye() -> None:
    """Passed on, it would make all others forget a learner that is here."""
    roster = new()
    assert roster.leave(ME) is False
    assert roster.rumors() == ()


def test_a_greater_incarnation_replaces_and_a_smaller_one_is_ignored() -> None:
    roster = new()
    roster.hear(0, beat("b", 50, incarnation=1, training=True))
    roster.hear(1, beat("b", 1, incarnation=2))
    assert roster.hear(2, beat("b", 51, incarnation=1)) is None
    assert roster.alive() == [PeerId("b", 2)]
    assert not known(roster).training
    assert roster.find(B) is None


def test_a_roster_is_its_peers_and_their_last_beats() -> None:
    roster = new("b", "c")
    roster.hear(1, beat("b", 2, genesis=b"g"))
    roster.gossip(1, [rumor("d", 1)])  # nobody has heard d itself
    assert [peer.id.name for peer in roster] == ["b", "c", "d"]
    assert roster.beats() == [beat("b", 2, genesis=b"g"), beat("c", 1)]
    assert roster.beats(genesis=b"g") == [beat("b", 2, genesis=b"g")]
    assert roster.beats(genesis=b"") == [beat("c", 1)]


# Peers that can send, but hear nothing of us


def told(count: int, of_us: int | None) -> Beat:
    """A beat of b, which knows our beat number `of_us`, from whomever; None: it does not count us
    among the living."""
    return beat("b", count, roster=(Rumor(ME, "a:1", of_us),) if of_us is not None else ())


def test_a_peer_that_has_not_heard_of_us_for_a_while_is_suspected() -> None:
    roster = new("b")
    for count in range(1, DEAF):
        roster.broadcast(count, count)
    roster.hear(0, told(2, of_us=None))
    assert roster.alive() == [B]
    roster.broadcast(DEAF, DEAF)
    roster.hear(0, told(3, of_us=None))
    assert known(roster).suspected
    assert roster.sealer(0) == ME


def test_a_peer_that_hears_of_us_again_is_alive_at_once() -> None:
    roster = new("b")
    for count in range(1, DEAF + 3):
        roster.broadcast(count, count)
    roster.hear(0, told(2, of_us=None))
    assert known(roster).suspected
    roster.hear(0, told(3, of_us=5))
    assert roster.alive() == [B]


@pytest.mark.parametrize("behind", [DEAF, 3 * DEAF])
def test_a_peer_on_a_long_way_is_not_deaf(behind: int) -> None:
    """Its beats tell of ours of long ago, but of a newer one each time."""
    roster = new("b")
    for count in range(1, 100):
        roster.broadcast(count, count)
        if count > behind:
            roster.hear(count, told(count, of_us=count - behind))
            assert roster.alive() == [B]
    for count in range(100, 100 + DEAF):
        roster.broadcast(count, count)
    roster.hear(100, told(100, of_us=99 - behind))
    assert known(roster).suspected


def test_nobody_is_deaf_because_a_hostile_learner_told_it_of_beats_to_come() -> None:
    """It tells of the greatest count that anybody has told it."""
    roster = new("b")
    for count in range(1, 5 * DEAF):
        roster.broadcast(count, count)
        roster.hear(count, told(1 + count, of_us=10**6 if count > 3 else count))
        assert roster.alive() == [B]


def test_nobody_is_deaf_because_beats_followed_one_another_at_once() -> None:
    """A start of many learners makes many beats within a second, and each takes a while to
    arrive. Beats at their usual pace count all the same."""
    roster = new("b")
    for count in range(1, 100):
        roster.broadcast(count / 100, count)
    roster.hear(1, told(2, of_us=None))
    assert roster.alive() == [B]
    for count in range(1, DEAF):
        roster.broadcast(1 + count, 100 + count)
    roster.hear(1 + DEAF, told(3, of_us=None))
    assert known(roster).suspected


def test_nobody_is_deaf_because_we_were_silent() -> None:
    """Stopped for an hour, we find that all others suspect us, and need not suspect them."""
    roster = new("b")
    roster.broadcast(0, 1)
    roster.hear(3600, told(2, of_us=None))
    assert roster.alive() == [B]


def test_who_is_deaf_is_not_gone_and_others_hear_of_it() -> None:
    roster = new("b")
    for count in range(1, DEAF + 1):
        roster.broadcast(count, count)
    for second in range(60):
        roster.hear(second, told(2 + second, of_us=None))
        assert roster.expire(second) == []
    assert known(roster).suspected
    assert roster.rumors() == (Rumor(B, "b:1", 61),)


def test_a_new_hello_ends_deafness() -> None:
    roster = new("b")
    for count in range(1, DEAF + 1):
        roster.broadcast(count, count)
    roster.hear(0, told(2, of_us=None))
    roster.meet(0, B, "b:1")
    roster.hear(0, told(3, of_us=None))
    assert roster.alive() == [B]


def test_nobody_is_deaf_before_news_of_us_can_have_come_back() -> None:
    """When two have met on a long way, their first beats and the news of these take a while. A peer
    that has told of one of them, or told of none for as long as until an eviction, is judged."""
    for met_at, hears in ((100, True), (200, False)):
        roster = new("b")
        roster.meet(met_at, B, "b:1")
        for count in range(met_at, met_at + 29):
            roster.broadcast(count, count)
            roster.hear(count, told(count, of_us=None))
            assert roster.alive() == [B]
        roster.hear(met_at + 29, told(met_at + 29, of_us=met_at + 5 if hears else None))
        assert roster.alive() == [B]
        for count in range(met_at + 30, met_at + 30 + DEAF):
            roster.broadcast(count, count)
        roster.hear(met_at + 29.5 if hears else met_at + 30, told(met_at + 50, of_us=None))
        assert known(roster).suspected


def test_a_peer_that_says_hello_again_and_again_may_be_deaf() -> None:
    roster = new("b")
    for count in range(29):
        roster.meet(count, B, "b:1")
        roster.broadcast(count, 1 + count)
        roster.hear(count, told(1 + count, of_us=None))
    assert roster.alive() == [B]
    roster.meet(30, B, "b:1")
    for count in range(30, 30 + DEAF):
        roster.broadcast(count, 1 + count)
    roster.hear(30 + DEAF, told(31 + DEAF, of_us=None))
    assert known(roster).suspected


@given(st.lists(st.integers(0, 30) | st.none(), max_size=40))
def test_deaf_is_who_shows_no_news_of_ours(knowledge: list[int | None]) -> None:
    """Beside a twin that keeps all that the peer ever told."""
    roster = new("b")
    best = news_at = 0
    for count, of_us in enumerate(knowledge, 1):
        roster.broadcast(count, count)
        if of_us is not None and best < of_us <= count:
            best, news_at = of_us, count
        roster.hear(0, told(1 + count, of_us if of_us is not None and of_us <= count else None))
        assert known(roster).deaf == (count - news_at >= DEAF)


# Gossip


def test_liveness_spreads_by_gossip() -> None:
    roster = new("b")
    roster.expire(3)
    assert roster.alive() == []
    roster.gossip(3, [rumor("b", 2), rumor("c", 1)])
    assert [peer.name for peer in roster.alive()] == ["b", "c"]


def test_an_old_rumor_revives_nobody() -> None:
    roster = new("b")
    roster.expire(3)
    roster.gossip(3, [rumor("b", 1)])
    assert roster.alive() == []


def test_suspects_are_not_passed_on() -> None:
    roster = new("b", "c")
    roster.link(0, B, up=False)
    assert [r.peer.name for r in roster.rumors()] == ["c"]


def test_what_one_passes_on_another_learns() -> None:
    roster, other = new("b", "c"), Roster(PeerId("z", 1), "z:1", TIMING)
    roster.leave(PeerId("c", 1))
    other.hear(0, beat("c", 9))
    for goodbye in other.gossip(0, roster.rumors()):
        other.leave(goodbye.peer)
    assert other.alive() == [B]


# Silence


def test_silence_makes_a_suspect_then_evicts() -> None:
    roster = new("b")
    assert roster.expire(2.9) == []
    assert not known(roster).suspected
    assert roster.expire(3) == []
    assert known(roster).suspected
    assert roster.expire(29.9) == []
    assert roster.expire(30) == [B]
    assert roster.alone


def test_a_peer_that_is_known_by_hearsay_may_be_silent_for_twice_as_long() -> None:
    """On a way of many links, what others tell comes in fits and starts. Learners that suspect such
    a sealer for a moment choose another one."""
    roster = new()
    roster.gossip(0, [rumor("b", 1)])
    for now, suspected in ((3, False), (5.9, False), (6, True)):
        assert roster.wake_at() == 6
        roster.expire(now)
        assert known(roster).suspected == suspected
    assert roster.expire(30) == [B]
    assert roster.alone


def test_hearsay_is_evicted_as_soon_as_other_peers() -> None:
    roster = Roster(ME, "me:1", Timing(beat_s=1, evict_after_s=3.5))
    roster.gossip(0, [rumor("b", 1)])
    assert roster.wake_at() == 3.5
    assert roster.expire(3.5) == [B]


@pytest.mark.parametrize("how", ["it has said hello", "there is a stream", "it was heard"])
def test_a_peer_that_is_not_known_by_hearsay_alone_is_suspected_after_three_beats(how: str) -> None:
    roster = new()
    if how == "it has said hello":
        roster.meet(0, B, "b:1")
    else:
        roster.gossip(0, [rumor("b", 1)])
    if how == "there is a stream":
        roster.link(0, B, True)
    elif how == "it was heard":
        roster.hear(0, beat("b", 2))
    assert roster.wake_at() == 3
    roster.expire(3)
    assert known(roster).suspected


@pytest.mark.parametrize("sign", ["beat", "rumor", "bytes", "link", "hello"])
def test_any_sign_of_life_clears_suspicion(sign: str) -> None:
    roster = new("b")
    roster.expire(5)
    act = {
        "beat": lambda: roster.hear(5, beat("b", 2)),
        "rumor": lambda: roster.gossip(5, [rumor("b", 2)]),
        "bytes": lambda: roster.touch(5, B),
        "link": lambda: roster.link(5, B, up=True),
        "hello": lambda: roster.meet(5, B, "b:1"),
    }[sign]
    assert known(roster).suspected
    act()
    assert not known(roster).suspected
    assert roster.expire(7.9) == []
    assert roster.alive() == [B]


def test_a_broken_link_makes_a_suspect_at_once() -> None:
    roster = new("b")
    roster.link(0, B, up=True)
    roster.link(0.5, B, up=False)
    assert roster.alive() == []
    assert not known(roster).linked


def test_news_of_another_incarnations_link_is_ignored() -> None:
    roster = new("b")
    roster.link(0, PeerId("b", 2), up=False)
    roster.touch(9, PeerId("b", 2))
    assert roster.alive() == [B]
    assert known(roster).heard_at == 0


@given(
    st.lists(st.tuples(st.floats(0, 1e4), st.booleans()), min_size=1, max_size=5),
    st.sampled_from([3.5, 6.0, 30.0]),
)
def test_something_expires_whenever_it_says_it_will(
    heard: list[tuple[float, bool]], evict_after_s: float
) -> None:
    """Else a virtual clock would stand still, and a real loop would spin."""
    roster = Roster(ME, "me:1", Timing(beat_s=1, evict_after_s=evict_after_s))
    for i, (now, itself) in enumerate(heard):
        if itself:
            roster.hear(now, beat(f"peer-{i}", 1))
        else:
            roster.gossip(now, [rumor(f"peer-{i}", 1)])
    while not roster.alone:
        before = [peer.suspected for peer in roster.peers.values()]
        roster.expire(roster.wake_at())
        assert [peer.suspected for peer in roster.peers.values()] != before
    assert roster.wake_at() == float("inf")


# Tombstones


def test_the_evicted_stay_out_until_there_is_newer_news() -> None:
    roster = new()
    roster.hear(0, beat("b", 5))
    roster.expire(30)
    roster.gossip(31, [rumor("b", 5)])
    assert roster.hear(31, beat("b", 5)) is None
    assert roster.alone
    roster.gossip(31, [rumor("b", 6)])
    assert roster.alive() == [B]


def test_a_hello_lifts_the_tombstone_of_the_evicted() -> None:
    roster = new()
    roster.hear(0, beat("b", 5))
    roster.expire(30)
    assert roster.meet(31, B, "b:2") is known(roster)
    assert (known(roster).count, known(roster).address) == (5, "b:2")


def test_a_goodbye_is_final_for_its_incarnation() -> None:
    roster = new("b")
    assert roster.leave(B) is True
    assert roster.leave(B) is False
    assert roster.hear(1, beat("b", 99)) is None
    assert roster.meet(1, B, "b:1") is None
    roster.gossip(1, [rumor("b", 99)])
    assert roster.alone


def test_after_a_goodbye_the_next_incarnation_is_welcome() -> None:
    roster = new("b")
    roster.leave(B)
    assert roster.hear(1, beat("b", 1, incarnation=2)) is known(roster)
    assert roster.alive() == [PeerId("b", 2)]


def test_a_goodbye_is_passed_on_with_its_proof_in_the_next_beats_and_no_longer() -> None:
    roster = new("b")
    roster.leave(B, b"proof")
    goodbye = Rumor(B, "", LEFT, left=True, proof=b"proof")
    for count in range(TOLD):
        assert roster.rumors() == (goodbye,)
        roster.broadcast(count, count + 1)
    assert roster.rumors() == ()
    assert roster.leave(B) is False  # and yet it is known to have left
    assert roster.gossip(0, [rumor("b", 99, B.incarnation)]) == []
    assert roster.find(B) is None


def test_only_the_last_goodbyes_are_remembered_and_fewer_passed_on() -> None:
    """A cluster whose learners get a new name at every start must not carry all of them for
    ever."""
    roster = new("b", learners=2 * GRAVES)
    for i in range(2 * GRAVES):
        roster.leave(PeerId(f"x{i}", 1))
        roster.leave(PeerId("x0", 1 + i))  # a goodbye that is new again is among the last
    left = [r.peer.name for r in roster.rumors() if r.left]
    assert left == [*(f"x{i}" for i in range(2 * GRAVES - GOODBYES + 1, 2 * GRAVES)), "x0"]
    late = [i for i in range(1, 2 * GRAVES) if roster.hear(1, beat(f"x{i}", 9))]
    assert late == list(range(1, GRAVES + 1))
    assert roster.hear(1, beat("x0", 9)) is None


def test_a_goodbye_of_a_past_incarnation_changes_nothing() -> None:
    roster = new()
    roster.hear(0, beat("b", 1, incarnation=2))
    roster.gossip(0, [rumor("b", 0, incarnation=1, left=True)])
    assert roster.alive() == [PeerId("b", 2)]


def test_a_goodbye_of_an_unknown_peer_keeps_its_late_beats_out() -> None:
    roster = new()
    assert roster.leave(B) is False
    assert roster.hear(0, beat("b", 3)) is None


def test_hello_of_ourselves_or_of_a_past_incarnation_meets_nobody() -> None:
    roster = new()
    roster.hear(0, beat("b", 1, incarnation=2))
    assert roster.meet(0, B, "b:1") is None
    assert roster.meet(0, PeerId("a", 9), "a:2") is None
    assert roster.alive() == [PeerId("b", 2)]


def test_a_process_with_an_earlier_start_is_turned_away_until_it_exceeds_the_later_one() -> None:
    roster, later = new(), PeerId("b", 2)
    roster.hear(0, beat("b", 1, incarnation=2))
    assert roster.namesake(B) == Namesake(later, Life.ALIVE)
    roster.expire(4)
    assert roster.namesake(B) == Namesake(later, Life.SUSPECTED)
    roster.expire(31)
    assert roster.namesake(B) == Namesake(later, Life.GONE)
    assert roster.namesake(later) is None
    assert roster.meet(32, B, "b:1") is None
    assert roster.meet(32, PeerId("b", 3), "b:1") is not None
    assert roster.namesake(PeerId("b", 3)) is None


def test_a_process_that_said_goodbye_is_gone_for_itself_too() -> None:
    roster = new("b")
    roster.leave(B)
    assert roster.namesake(B) == Namesake(B, Life.GONE)


def test_a_live_process_shall_hear_of_those_that_are_turned_away_because_of_it() -> None:
    roster = new()
    roster.hear(0, beat("b", 1, incarnation=3))
    for incarnation in (2, 1):
        roster.meet(0, PeerId("b", incarnation), "")
    assert roster.turned_away() == (B,)
    roster.expire(4)
    assert roster.turned_away() == ()
    roster.hear(5, beat("b", 2, incarnation=3))
    assert roster.turned_away() == (B,)
    roster.leave(PeerId("b", 3))
    assert roster.turned_away() == ()


def test_a_process_that_was_turned_away_is_forgotten_with_the_next_one_of_its_name() -> None:
    roster = new()
    roster.hear(0, beat("b", 1, incarnation=2))
    roster.meet(0, B, "")
    roster.meet(0, PeerId("b", 3), "")
    assert roster.turned_away() == ()


def test_only_the_last_that_were_turned_away_are_remembered_and_fewer_passed_on() -> None:
    roster = new(learners=2 * TURNED_AWAY)
    for i in range(TURNED_AWAY + 1):
        roster.hear(0, beat(f"b{i}", 1, incarnation=2))
        roster.meet(0, PeerId(f"b{i}", 1), "")
    assert len(list(roster._turned_away)) == TURNED_AWAY
    assert len(roster.turned_away()) == AWAY
    assert roster.turned_away()[-1] == PeerId(f"b{TURNED_AWAY}", 1)


def test_a_peer_that_says_hello_before_its_first_beat_is_on_the_roster() -> None:
    roster = new()
    roster.meet(0, B, "b:1")
    assert roster.alive() == [B]
    assert not known(roster).training
    assert roster.hear(1, beat("b", 1, training=True)) is known(roster)
    assert known(roster).training


news = st.one_of(
    st.builds(lambda i, c: ("hear", i, c), st.integers(1, 3), st.integers(1, 5)),
    st.builds(lambda i, c: ("gossip", i, c), st.integers(1, 3), st.integers(1, 5)),
    st.builds(lambda i: ("meet", i, 0), st.integers(1, 3)),
    st.builds(lambda i: ("leave", i, 0), st.integers(1, 3)),
    st.just(("expire", 0, 0)),
)


@given(st.lists(news, max_size=12))
def test_incarnations_only_grow_and_goodbyes_last(events: list[tuple[str, int, int]]) -> None:
    roster, greatest, gone, now = new(), 0, 0, 0.0
    for what, incarnation, count in events:
        id = PeerId("b", incarnation)
        if what == "hear":
            roster.hear(now, beat("b", count, incarnation))
        elif what == "gossip":
            roster.gossip(now, [rumor("b", count, incarnation)])
        elif what == "meet":
            roster.meet(now, id, "b:1")
        elif what == "leave":
            roster.leave(id)
            gone = max(gone, incarnation)
        else:
            now += 31
            roster.expire(now)
        here = roster.peers.get("b")
        assert here is None or (here.id.incarnation >= greatest and here.id.incarnation > gone)
        greatest = here.id.incarnation if here else greatest


# The sealer

names = st.lists(st.text("bcdefg", min_size=1, max_size=4), min_size=1, max_size=8, unique=True)
fragments = st.integers(0, 30)


def view(me: str, everyone: list[str]) -> Roster:
    roster = Roster(PeerId(me, 1), f"{me}:1", TIMING)
    for name in everyone:
        roster.hear(0, beat(name, 1))
    return roster


@given(names, fragments, st.data())
def test_all_who_see_the_same_learners_agree_on_the_sealer(
    names: list[str], fragment: int, data: st.DataObject
) -> None:
    views = [view(me, data.draw(st.permutations(names))) for me in names]
    assert len({roster.sealer(fragment) for roster in views}) == 1


def test_who_cannot_be_dialled_never_seals() -> None:
    roster = new(address="")
    roster.hear(0, Beat(peer=B, address="", count=1))
    assert {roster.sealer(p) for p in range(20)} == {None}
    roster.hear(0, beat("c", 1))
    assert {roster.sealer(p) for p in range(20)} == {PeerId("c", 1)}


def test_a_suspect_never_seals() -> None:
    roster = new("b")
    fragment = next(p for p in range(99) if roster.sealer(p) == B)
    roster.link(0, B, up=False)
    assert roster.sealer(fragment) == ME


def test_a_restarted_learner_has_the_roles_it_had() -> None:
    roster = new("b")
    before = [roster.sealer(p) == B for p in range(30)]
    roster.hear(1, beat("b", 1, incarnation=2))
    assert [roster.sealer(p) == PeerId("b", 2) for p in range(30)] == before


# The audience of a beat


def test_in_a_small_roster_everybody_hears_every_beat() -> None:
    roster = new(*(f"peer-{i}" for i in range(FANOUT)))
    assert len(roster.audience(7)) == FANOUT


@given(st.integers(1, 70), st.integers(0, 1000))
def test_everybody_hears_a_beat_in_turn(others: int, first: int) -> None:
    roster = new(*(f"peer-{i}" for i in range(others)))
    rounds = [roster.audience(first + i) for i in range(-(-others // FANOUT))]
    assert {peer.name for audience in rounds for peer in audience} == set(roster.peers)
    assert all(len(set(audience)) == len(audience) <= FANOUT for audience in rounds)


def test_peers_that_no_beat_reaches_take_no_turn_from_the_others() -> None:
    """Anybody can tell of hundreds, or say hello in their names."""
    roster = new("b")
    roster.meet(0, PeerId("c", 1), "c:1")
    roster.link(0, PeerId("c", 1), up=True)
    roster.gossip(0, [rumor(f"told-{n}", 1) for n in range(2 * FANOUT)])
    for n in range(2 * FANOUT):
        roster.meet(0, PeerId(f"met-{n}", 1), "m:1")
    assert roster.size > 4 * FANOUT
    audiences = [roster.audience(count) for count in range(3)]
    assert audiences == [[B, PeerId("c", 1)]] * 3


def test_a_peer_that_comes_back_while_its_stream_stands_hears_our_beats() -> None:
    """Two learners that have left each other out send no hello, and hear of each other by others.
    In a big roster no beat would go to a peer that is hearsay."""
    roster = new(*(f"peer-{i}" for i in range(FANOUT)))
    for peer in roster:
        roster.link(0, peer.id, up=True)
    left_out = PeerId("peer-0", 1)
    roster.leave_out(left_out)
    roster.gossip(1, [rumor("peer-0", 2)])
    assert left_out in {id for count in range(2) for id in roster.audience(count)}
    roster.leave_out(left_out)
    roster.link(2, left_out, up=False)
    roster.gossip(3, [rumor("peer-0", 3)])
    assert known(roster, "peer-0").is_hearsay


def test_a_hello_finds_a_stream_that_has_stood_all_along() -> None:
    roster = new("b")
    roster.link(0, B, up=True)
    assert roster.expire(30.0) == [B]
    roster.gossip(30.0, [rumor("b", 2)])
    assert known(roster).is_hearsay  # nothing came on that stream for long
    roster.expire(60.0)
    roster.meet(60.0, B, "b:1")
    assert known(roster).linked


# Timing


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"beat_s": 0}, "timing.beat_s must be a number of seconds > 0, got 0"),
        ({"round_timeout_s": -1}, "timing.round_timeout_s .* got -1"),
        ({"join_timeout_s": -1}, "timing.join_timeout_s must be a number of seconds >= 0, got -1"),
        ({"join_timeout_s": None}, "timing.join_timeout_s .* got None"),
        ({"evict_after_s": "30"}, "timing.evict_after_s .* got '30'"),
        (
            {"beat_s": 10},
            r"timing.evict_after_s must be more than three beats \(30 s\), got 30.0; "
            "a peer is suspected",
        ),
    ],
)
def test_a_wrong_timeout_is_named(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Timing(**wrong)


# Hearsay


def test_hearsay_seals_nothing_and_counts_for_no_quorum() -> None:
    roster = new("b")
    before = roster.sealer(0)
    roster.gossip(0, [rumor(f"phantom-{i}", 9) for i in range(50)])
    assert roster.size == 52
    assert roster.heard == 2
    assert roster.sealer(0) == before


def test_a_hello_alone_counts_for_no_quorum() -> None:
    """A caller that says hello in ten names, and sends no beat, must not stop all rounds."""
    roster = new("b")
    for i in range(10):
        roster.meet(5.0, PeerId(f"phantom-{i}", 1), f"phantom-{i}:1")
    assert roster.heard == 2


def test_a_phantom_can_seal_nothing() -> None:
    """The end of a run waits for a learner that can."""
    roster = new("b")
    roster.meet(5.0, PeerId("phantom", 1), "phantom:1")
    assert [peer.id for peer in roster.able(0)] == [B]


def test_phantoms_hold_rounds_up_only_while_learners_meet() -> None:
    roster = new("b", now=2.0)
    for i in range(1, 100):
        now = 2.0 + i
        roster.meet(now, PeerId(f"phantom-{i}", 1), "")
        assert roster.known_at(started=False) == min(now, 2.0 + PHANTOMS) + TIMING.beat_s


def test_the_roster_has_so_many_places_and_hearsay_gives_its_own_up() -> None:
    roster = new("b", learners=4)
    roster.gossip(0, [rumor(name, 9) for name in "cdefg"])
    assert set(roster.peers) == {"b", "c", "d"}
    assert roster.hear(0, beat("x", 1)) is not None
    assert roster.meet(0, PeerId("y", 1), "y:1") is not None
    assert set(roster.peers) == {"b", "x", "y"}
    roster.link(0, PeerId("y", 1), True)
    assert roster.meet(0, PeerId("z", 1), "z:1") is None
    assert roster.hear(0, beat("z", 1)) is None
    assert set(roster.peers) == {"b", "x", "y"}
    roster.leave(B)
    assert roster.meet(0, PeerId("z", 1), "z:1") is not None


def test_of_one_beat_only_so_many_rumors_are_looked_at() -> None:
    roster = new("b", learners=4)
    roster.gossip(0, [rumor("b", 10 + i) for i in range(20)])
    assert known(roster).count == 10 + 15


def test_a_linked_peer_says_goodbye_itself() -> None:
    roster = new("b")
    roster.link(0, B, True)
    goodbye = rumor("b", 2**62, left=True)
    assert roster.gossip(0, [goodbye, rumor("b", 2**62, incarnation=2**62, left=True)]) == []
    assert roster.alive() == [B]
    roster.link(1, B, False)
    assert roster.gossip(1, [goodbye]) == [goodbye]


def test_hearsay_of_a_process_from_the_future_is_not_believed() -> None:
    """It would lock the real one out by a number that nobody reaches."""
    day = CLOCKS_DIFFER_NS
    roster = Roster(PeerId("me", day), "me:1", Timing())
    far, near = 2 * day + 1, 2 * day
    assert roster.gossip(0, [rumor("b", 1, far), rumor("c", 0, far, left=True)]) == []
    assert list(roster) == []
    roster.gossip(0, [rumor("b", 1, near)])
    assert [peer.id for peer in roster] == [PeerId("b", near)]
    hour = 3600.0
    roster.gossip(hour, [rumor("d", 1, far), rumor("e", 1, near + int(hour * 1e9) + 1)])
    assert [peer.id.name for peer in roster] == ["b", "d"]
    assert roster.hear(hour, beat("e", 1, incarnation=2**60)) is not None


def test_a_linked_peer_has_no_other_process_by_hearsay() -> None:
    roster = new("b")
    roster.link(0, B, True)
    roster.gossip(0, [rumor("b", 1, incarnation=9)])
    assert roster.find(B)
    roster.link(1, B, False)
    roster.gossip(1, [rumor("b", 1, incarnation=9)])
    assert roster.find(PeerId("b", 9))


@given(
    st.lists(st.sampled_from("bcdefg"), min_size=1, unique=True),
    st.sets(st.sampled_from("bcdefg")),
    fragments,
)
def test_a_learner_may_seal_by_what_others_may_see(
    names: list[str], suspected: set[str], fragment: int
) -> None:
    """It seals with those that are not suspected; or with itself besides; or with everybody."""
    roster = new(*names)
    for name in suspected & set(names):
        known(roster, name).silent = True
    live = [ME.name, *(set(names) - suspected)]
    assert roster.sealer(fragment) == PeerId(sealer_of(fragment, live), 1)
    for name in [ME.name, *names]:
        seen = (live, [*{*live, name}], [ME.name, *names])
        may = any(sealer_of(fragment, learners) == name for learners in seen)
        assert roster.may_seal(fragment, PeerId(name, 1)) == may or name == ME.name


def sealers(roster: Roster, fragments: int = 12) -> set[str]:
    found = [roster.sealer(fragment) for fragment in range(fragments)]
    return {id.name for id in found if id}


def test_a_learner_that_declines_seals_nothing() -> None:
    roster = new("b", "c")
    assert sealers(roster) == {"a", "b", "c"}
    roster.hear(1.0, beat("b", 2, declines=True))
    assert sealers(roster) == {"a", "c"}
    roster.place.is_weak = True
    assert sealers(roster) == {"c"}
    roster.hear(2.0, beat("b", 3))
    assert sealers(roster) == {"b", "c"}


@pytest.mark.parametrize("why", ["is_weak", "lacks_model", "is_behind"])
def test_a_learner_that_cannot_seal_leaves_its_place_to_others(why: str) -> None:
    roster = new("b", "c")
    setattr(roster.place, why, True)
    assert sealers(roster) == {"b", "c"}
    setattr(roster.place, why, False)
    assert sealers(roster) == {"a", "b", "c"}


def test_a_learner_with_another_model_seals_nothing_here() -> None:
    roster = new("b", "c")
    roster.trains_other = lambda beat: beat.peer == B
    assert sealers(roster) == {"a", "c"}


@pytest.mark.parametrize(("training", "weak"), [(True, True), (False, False)])
def test_the_link_of_one_that_has_yet_to_join_is_not_weak(training: bool, weak: bool) -> None:
    roster = new("b")
    roster.hear(1.0, replace(beat("b", 2, declines=True), training=training))
    assert known(roster).declines
    assert known(roster).is_weak is weak
    known(roster).beat, known(roster).rumor = None, replace(rumor("b", 3), declines=True)
    assert known(roster).is_weak  # nobody tells whether it has joined


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 0, 5, 6]),
            st.booleans(),
            st.sampled_from(["is live", "is live", "is silent", "cannot be dialled"]),
        ),
        min_size=2,
        max_size=6,
    ),
    st.integers(0, 8),
)
def test_the_sealers_of_all_fragments_are_those_of_each(
    peers: list[tuple[int, bool, str]], fragments: int
) -> None:
    """Also where some have fewer fragments than others."""
    roster = new()
    for i, (reports, declines, how) in enumerate(peers):
        said = beat(f"peer-{i}", 1, reports=reports * (NO_REPORT,), declines=declines)
        roster.hear(0.0, replace(said, address="") if how == "cannot be dialled" else said)
        known(roster, f"peer-{i}").silent = how == "is silent"
    assert roster.sealers(fragments) == [roster.sealer(p) for p in range(fragments)]


def test_no_other_fragment_moves_if_a_sealer_declines() -> None:
    roster = new("b", "c", "d")
    before = [roster.sealer(fragment) for fragment in range(12)]
    roster.hear(1.0, beat("b", 2, declines=True))
    after = [roster.sealer(fragment) for fragment in range(12)]
    assert all(new == old or old == B for old, new in zip(before, after, strict=True))


def test_if_all_decline_all_seal() -> None:
    roster = new("b", "c")
    roster.place.is_weak = True
    for name in "bc":
        roster.hear(1.0, beat(name, 2, declines=True))
    assert sealers(roster) == {"a", "b", "c"}


def test_a_round_that_a_learner_began_before_it_declined_counts() -> None:
    """Others may not have heard yet that it declines, or no longer does."""
    roster = new("b", "c", "d")
    before = [roster.sealer(fragment) for fragment in range(12)]
    for name in "bc":
        roster.hear(1.0, beat(name, 2, declines=True))
    for fragment, sealer in enumerate(before):
        assert sealer
        assert sealer == ME or roster.may_seal(fragment, sealer)


def test_a_seal_of_the_substitute_counts_for_a_while_after_its_learner_seals_again() -> None:
    """It was on its way, or is being made: the substitute may hear of it later."""
    roster = new("b", "c", "d")
    roster.hear(1.0, beat("b", 2, training=True, declines=True))
    substitutes = [roster.sealer(fragment) for fragment in range(12)]
    roster.hear(2.0, beat("b", 3))
    moved = [(p, id) for p, id in enumerate(substitutes) if id != roster.sealer(p)]
    strangers = [(p, PeerId(name, 1)) for p, id in moved for name in "cd" if id and name != id.name]
    peers = [(p, id) for p, id in moved if id != ME]
    assert peers
    for count, at in enumerate((1.0 + RESUMED_S, 2.0 + RESUMED_S), 4):
        for name in "bcd":
            roster.hear(at, beat(name, count))
    roster.expire(1.0 + RESUMED_S)
    assert all(roster.may_seal(p, id) for p, id in peers if id)
    assert not any(roster.may_seal(p, id) for p, id in strangers)
    roster.expire(2.0 + RESUMED_S)
    assert not any(roster.may_seal(p, id) for p, id in peers if id)


def test_newcomers_that_have_joined_make_nobody_else_a_sealer() -> None:
    """All of a new run join at one time. Before, each of them was a substitute of all others then,
    and anybody might seal anything for ten minutes."""
    roster = new("b", "c", "d")
    for name in "bcd":
        roster.hear(1.0, beat(name, 2, declines=True))
    for name in "bcd":
        roster.hear(2.0, beat(name, 3, training=True))
    for p in range(12):
        others = {PeerId(name, 1) for name in "bcd"} - {roster.sealer(p)}
        assert not any(roster.may_seal(p, other) for other in others)


def test_rumors_tell_that_a_peer_seals_again() -> None:
    roster = new("c", "d")
    roster.go_betweens.believes_in = lambda id: True
    roster.meet(0.0, PeerId("c", 1), "c:1")
    roster.link(0.0, PeerId("c", 1), True)
    told = Rumor(B, "b:1", 1, reached=True, declines=True)
    roster.hear(1.0, beat("c", 2, training=True, roster=(told,)))
    roster.gossip(1.0, [told])
    substitutes = [roster.sealer(fragment) for fragment in range(12)]
    roster.gossip(2.0, [replace(told, count=2, declines=False)])
    moved = [(p, id) for p, id in enumerate(substitutes) if id not in (ME, roster.sealer(p))]
    assert moved
    assert all(roster.may_seal(p, id) for p, id in moved if id)


def test_that_a_peer_declines_is_passed_on() -> None:
    """Its own beats count for more."""
    roster = new("b")
    roster.hear(1.0, beat("b", 2, declines=True))
    (told,) = roster.rumors()
    assert told.declines
    other = new("c")
    other.gossip(1.0, [told])
    assert known(other).declines
    other.hear(1.0, beat("b", 3))
    other.gossip(1.0, [replace(told, count=4)])
    assert not known(other).declines


def test_a_suspect_may_seal_what_it_would_seal_and_hearsay_nothing() -> None:
    """It would seal with those that are not suspected, or with all of them."""
    roster = new("b", "c", "d")
    for fragment in range(8):
        for name in "bcd":
            known(roster, name).silent = False
        first = roster.sealer(fragment)
        assert first is not None
        assert roster.may_seal(fragment, first)
        others = [PeerId(name, 1) for name in "bcd" if name != first.name]
        assert not any(roster.may_seal(fragment, other) for other in others)
        if first == ME:
            continue
        known(roster, first.name).silent = True
        assert roster.sealer(fragment) != first
        assert roster.may_seal(fragment, first)
        known(roster, first.name).beat = None
        assert not roster.may_seal(fragment, first)
        roster.hear(0.0, beat(first.name, 9 + fragment))


# Those that seal again


def declining(name: str, count: int, declines: bool, incarnation: int = 1) -> Rumor:
    return replace(rumor(name, count, incarnation), declines=declines)


def has_resumed(roster: Roster, name: str = "b") -> bool:
    """Whether a substitute's seal counts beside those of this learner."""
    return roster.resumed.besides(ME, lambda id: False)(known(roster, name).id)


def test_an_older_word_tells_of_nobody_that_it_seals_again() -> None:
    roster = new()
    roster.gossip(0.0, [declining("b", 5, True)])
    roster.gossip(0.0, [declining("b", 3, False)])
    assert not has_resumed(roster)
    roster.gossip(0.0, [declining("b", 6, False)])
    assert has_resumed(roster)


def test_a_beat_counts_also_if_gossip_was_faster() -> None:
    roster = new()
    roster.hear(0.0, beat("b", 1, training=True, declines=True))
    roster.gossip(0.0, [declining("b", 2, False)])
    assert not has_resumed(roster)
    roster.hear(0.0, beat("b", 2, declines=False))
    assert has_resumed(roster)


def test_processes_that_have_gone_are_no_learners_that_seal_again() -> None:
    roster = new()
    for n in range(1, 41):
        roster.gossip(0.0, [declining("b", 1, True, n)])
        roster.gossip(0.0, [declining("b", 2, False, n)])
    roster.expire(1.0)
    assert len(roster.resumed._until) == 1
