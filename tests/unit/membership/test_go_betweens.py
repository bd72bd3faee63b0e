"""Learners of which some do not reach each other choose the same sealers, and ways to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.membership.go_betweens import LONGEST_S, MOST_HOPS
from mend_optim.membership.roster import Roster
from mend_optim.membership.sealers import sealer_of
from mend_optim.membership.zones import first_hop
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Beat, Rumor
from mend_optim.protocol.timing import Timing

TIMING = Timing(beat_s=1, evict_after_s=30)
Graph = Mapping[str, set[str]]


def id_of(name: str) -> PeerId:
    return PeerId(name, 1)


def told(graph: Graph, name: str, count: int = 1) -> Beat:
    """The beat of a learner that knows all others, and reaches some of them."""
    others = sorted(set(graph) - {name})
    rumors = [Rumor(id_of(x), f"{x}:1", count, reached=x in graph[name]) for x in others]
    return Beat(
        peer=id_of(name), address=f"{name}:1", count=count, training=True, roster=tuple(rumors)
    )


def roster_of(graph: Graph, me: str, merged: Iterable[str] | None = None) -> Roster:
    """The roster of a learner among others, each of which has heard those that it reaches.
    `merged`: the learners whose work is in an anchor; None: all."""
    roster = Roster(id_of(me), f"{me}:1", TIMING)
    known = set(graph if merged is None else merged)
    roster.go_betweens.believes_in = lambda id: id.name in known
    for name in sorted(graph[me]):
        roster.meet(0.0, id_of(name), f"{name}:1")
        roster.link(0.0, id_of(name), True)
    for name in sorted(graph[me]):
        beat = told(graph, name)
        roster.hear(0.0, beat)
        roster.gossip(0.0, beat.roster)
    return roster


def joined(names: Iterable[str], apart: Iterable[tuple[str, str]]) -> Graph:
    """All of these reach each other, but for some pairs."""
    cut = {frozenset(pair) for pair in apart}
    listed = list(names)
    return {a: {b for b in listed if a != b and frozenset((a, b)) not in cut} for a in listed}


#: Two rooms, and a machine that both reach.
ROOMS = joined("acdef", [(x, y) for x in "cd" for y in "ef"])


def test_two_rooms_choose_the_same_sealers_by_the_machine_that_both_reach() -> None:
    rosters = {me: roster_of(ROOMS, me) for me in ROOMS}
    for p in range(10):
        expected = id_of(sealer_of(p, ROOMS))
        for me, roster in rosters.items():
            assert roster.sealer(p) == expected
            assert roster.may_seal(p, expected)
            reached = expected.name == me or expected.name in ROOMS[me]
            assert first_hop(roster, p, expected) == (expected if reached else id_of("a"))


NAMES = "abcdefgh"


@given(st.sets(st.sampled_from([pair for pair in combinations(NAMES, 2) if "a" not in pair])))
def test_one_machine_that_all_reach_is_enough(apart: set[tuple[str, str]]) -> None:
    graph = joined(NAMES, apart)
    for me in NAMES:
        roster = roster_of(graph, me)
        for p in range(3):
            sealer = roster.sealer(p)
            assert sealer is not None
            assert sealer.name == sealer_of(p, NAMES)
            hop = first_hop(roster, p, sealer)
            assert sealer.name in {me, *graph[me]} or sealer.name in graph[hop.name]


def test_a_learner_whose_work_is_in_no_anchor_seals_only_for_those_that_hear_it() -> None:
    """A peer may make up learners."""
    roster = roster_of(ROOMS, "c", merged="acd")
    assert {roster.sealer(p).name for p in range(12)} == {"a", "c", "d"}  # type: ignore[union-attr]
    assert not any(roster.may_seal(p, id_of("e")) for p in range(12))


def test_a_learner_that_nobody_reaches_seals_nothing() -> None:
    alone = {**ROOMS, "e": set(), "a": set("cdf"), "f": {"a"}}
    roster = roster_of(alone, "c")
    assert {roster.sealer(p).name for p in range(12)} == {"a", "c", "d", "f"}  # type: ignore[union-attr]


def far_fragment(roster: Roster) -> tuple[int, PeerId]:
    """A fragment whose sealer this learner does not reach."""
    for p in range(20):
        sealer = roster.sealer(p)
        if sealer and sealer.name in "ef":
            return p, sealer
    raise AssertionError("all sealers are near")


def test_a_sealer_that_is_met_needs_no_go_between() -> None:
    roster = roster_of(ROOMS, "c")
    p, sealer = far_fragment(roster)
    roster.meet(1.0, sealer, f"{sealer.name}:1")
    assert roster.go_betweens.choose(p, sealer) == id_of("a")
    roster.link(1.0, sealer, True)
    assert roster.go_betweens.choose(p, sealer) is None
    assert first_hop(roster, p, sealer) == sealer


@pytest.mark.parametrize(
    "fate", ["silent", "without a stream", "without an address", "not yet joined", "left out"]
)
def test_a_go_between_that_is_not_there_is_none(fate: str) -> None:
    roster = roster_of(ROOMS, "c")
    p, sealer = far_fragment(roster)
    if fate == "silent":
        roster.peers["a"].silent = True
    elif fate == "without a stream":
        roster.link(1.0, id_of("a"), False)
        roster.touch(2.0, id_of("a"))
    elif fate == "without an address":
        roster.peers["a"].address = ""
    elif fate == "not yet joined":
        roster.hear(2.0, replace(told(ROOMS, "a", 2), training=False))
    without = [id_of("a")] if fate == "left out" else []
    assert roster.go_betweens.choose(p, sealer, without) is None
    assert (roster.sealer(p) == sealer) == (fate == "left out")


def test_a_go_between_is_a_neighbour_if_one_is_there() -> None:
    """An offer leaves a zone through its relay, which joins it with others."""
    graph = joined("abcdes", [("c", "s")])
    roster = roster_of(graph, "c")
    for zone, names in (("here", "ab"), ("there", "de")):
        for name in names:
            roster.hear(1.0, replace(told(graph, name, 2), zone=zone))
    chosen = {roster.go_betweens.choose(p, id_of("s"), zone="here") for p in range(12)}
    assert chosen == {id_of("a"), id_of("b")}
    chosen = {roster.go_betweens.choose(p, id_of("s"), zone="") for p in range(12)}
    assert chosen == set(map(id_of, "abde"))


def test_a_go_between_that_declines_to_seal_is_chosen_only_if_there_is_no_other() -> None:
    """Its link is weak."""
    graph = joined("abcdef", [("a", name) for name in "ef"] + [("b", name) for name in "ef"])
    roster = roster_of(graph, "a")
    far = id_of("e")
    chosen = {roster.go_betweens.choose(p, far) for p in range(12)}
    assert chosen == {id_of("c"), id_of("d")}
    for names, left in (("c", "d"), ("cd", "cd")):
        for name in names:
            roster.hear(1.0, replace(told(graph, name, len(names) + 1), declines=True))
        chosen = {roster.go_betweens.choose(p, far) for p in range(12)}
        assert chosen == set(map(id_of, left))


def test_a_doubt_ends_and_the_next_one_lasts_twice_as_long() -> None:
    roster = roster_of(ROOMS, "c")
    p, sealer = far_fragment(roster)

    def lasts(now: float) -> float:
        roster.go_betweens.doubt(now, id_of("a"), 60.0)
        assert roster.sealer(p) != sealer
        passed = 0.0
        while roster.sealer(p) != sealer:
            passed += 1.0
            roster.touch(now + passed, id_of("a"))
            roster.go_betweens.expire(now + passed)
        return passed

    assert [lasts(0.0), lasts(1000.0), lasts(2000.0)] == [60.0, 120.0, 240.0]
    del roster.peers["a"]
    roster.go_betweens.expire(5000.0)
    roster.peers["a"] = roster_of(ROOMS, "c").peers["a"]
    assert lasts(6000.0) == 60.0


def test_doubts_that_come_of_earlier_ones_last_an_hour_at_most() -> None:
    """A run may be below its quorum for hours, which is no fault of a go-between."""
    roster = roster_of(ROOMS, "c")
    p, sealer = far_fragment(roster)
    for day in range(12):
        roster.go_betweens.doubt(86400.0 * day, id_of("a"), 480.0)
    end = 86400.0 * 11 + LONGEST_S
    for now, chosen in ((end - 1, False), (end, True)):
        roster.touch(now, id_of("a"))
        roster.go_betweens.expire(now)
        assert (roster.sealer(p) == sealer) == chosen


def test_a_peer_that_is_heard_no_more_is_known_by_hearsay() -> None:
    """Its last beat would be believed for ever, while others tell that it lives."""
    roster = roster_of(joined("abc", []), "c")
    before = roster.heard
    roster.link(5.0, id_of("b"), False)
    for second in range(5, 60):
        roster.touch(second, id_of("a"))
        roster.gossip(second, [Rumor(id_of("b"), "b:1", second)])
        assert roster.expire(second) == []
        heard = roster.peers["b"].heard
        assert heard == (second < 30)
    assert roster.heard == before - 1
    assert roster.peers["b"].reaches == frozenset()
    assert not roster.peers["b"].suspected


def test_a_stream_on_which_nothing_comes_does_not_count() -> None:
    """A net that drops all packets breaks no stream, and gRPC notices late. Meanwhile offers would
    go to a sealer that this learner does not reach."""
    graph = joined("abc", [])
    roster = roster_of(graph, "c")
    for second in range(60):
        roster.touch(second, id_of("a"))
        if second < 20:
            roster.touch(second, id_of("b"))
        roster.gossip(second, [Rumor(id_of("b"), "b:1", second)])
        assert roster.expire(second) == []
        is_here = second < 19 + TIMING.evict_after_s
        assert (roster.peers["b"].heard, roster.has_lost(id_of("b"))) == (is_here, not is_here)
        assert not roster.has_lost(id_of("a"))
    roster.link(60.0, id_of("b"), False)
    assert not roster.peers["b"].suspected  # another learner would seal for it
    roster.link(61.0, id_of("b"), True)
    roster.hear(61.0, told(graph, "b", 61))
    roster.expire(62.0)
    assert roster.peers["b"].reached
    assert not roster.has_lost(id_of("b"))


def test_a_new_stream_is_a_sign_before_the_first_beat_on_it() -> None:
    roster = roster_of(joined("abc", []), "c")
    roster.link(5.0, id_of("b"), False)
    roster.link(29.0, id_of("b"), True)
    roster.touch(29.0, id_of("a"))
    roster.expire(31.0)
    assert roster.peers["b"].reached
    assert not roster.has_lost(id_of("b"))


def test_in_a_big_roster_beats_are_rarer() -> None:
    names = "abcdefghijklmnopq"
    roster = roster_of(joined(names, []), "c")
    others = [id_of(name) for name in names if name != "c"]
    for second, is_here in ((20, True), (40, True), (59, True), (60, False)):
        roster.gossip(second, [Rumor(id, f"{id.name}:1", second) for id in others])
        assert roster.expire(second) == []
        assert roster.peers["b"].heard == is_here


def test_beats_tell_whom_a_learner_reaches() -> None:
    roster = roster_of(ROOMS, "c")
    assert {rumor.peer.name for rumor in roster.rumors() if rumor.reached} == {"a", "d"}
    assert {rumor.peer.name for rumor in roster.rumors()} == {"a", "d", "e", "f"}
    roster.link(1.0, id_of("d"), False)
    roster.touch(2.0, id_of("d"))
    assert {rumor.peer.name for rumor in roster.rumors() if rumor.reached} == {"a"}


def test_a_peer_that_comes_back_by_hearsay_is_lost_until_the_two_meet_anew() -> None:
    """The stream from before its eviction may still stand, and nothing tells that it does."""
    roster = roster_of(joined("abc", []), "c")
    b = id_of("b")
    roster.touch(29.0, id_of("a"))
    assert roster.expire(31.0) == [b]
    roster.gossip(32.0, [Rumor(b, "b:1", 40)])
    assert roster.has_lost(b)
    roster.meet(33.0, b, "b:1")
    roster.link(33.0, b, True)
    assert not roster.has_lost(b)


# ── ways of several links ─────────────────────────────────────────────────────────────────────────


class Net:
    """Learners that tell each other their rosters, beat by beat. Links may come and go."""

    def __init__(self, graph: Graph) -> None:
        self.graph = {name: set(there) for name, there in graph.items()}
        alone: Graph = {name: set() for name in graph}
        self.rosters = {me: roster_of(alone, me) for me in graph}
        for roster in self.rosters.values():
            roster.go_betweens.believes_in = lambda id: True
        self.count = 0
        for me in graph:
            for name in graph[me]:
                self.rosters[me].meet(0.0, id_of(name), f"{name}:1")
                self.rosters[me].link(0.0, id_of(name), True)

    def beat(self, times: int = 1) -> None:
        for _ in range(times):
            self.count += 1
            beats = {name: self._beat_of(name) for name in self.graph}
            for me, roster in self.rosters.items():
                for name in sorted(self.graph[me]):
                    roster.hear(self.count, beats[name])
                    roster.gossip(self.count, beats[name].roster)
                assert roster.expire(self.count) == []

    def _beat_of(self, name: str) -> Beat:
        return Beat(
            peer=id_of(name),
            address=f"{name}:1",
            count=self.count,
            training=True,
            roster=self.rosters[name].rumors(),
        )

    def links_to(self, sealer: PeerId, p: int) -> dict[str, int]:
        """By learner, the links on the way that its offers take: each goes on to the
        first hop of the learner that has it."""
        found = {}
        for me in self.graph:
            at, links = me, 0
            while at != sealer.name and links < len(self.graph):
                at, links = first_hop(self.rosters[at], p, sealer).name, links + 1
            found[me] = links
        return found


def distances(graph: Graph, to: str) -> dict[str, int]:
    """The slow, obvious twin: all that are reached in one step more, and so on."""
    found, here, links = {to: 0}, {to}, 0
    while here:
        links += 1
        here = {there for name in here for there in graph[name]} - set(found)
        found.update(dict.fromkeys(here, links))
    return found


@st.composite
def nets(draw: st.DrawFn) -> Graph:
    """Up to nine learners, each of which reaches all others by some way."""
    names = NAMES[: draw(st.integers(3, len(NAMES)))]
    tree = {(names[draw(st.integers(0, i - 1))], names[i]) for i in range(1, len(names))}
    more = draw(st.sets(st.sampled_from(list(combinations(names, 2))), max_size=3))
    linked = {frozenset(pair) for pair in tree | more}
    return {a: {b for b in names if frozenset((a, b)) in linked} - {a} for a in names}


@given(nets())
def test_all_choose_the_same_sealers_and_the_shortest_ways_to_them(graph: Graph) -> None:
    """Before, only where each reached the sealer, or a peer that reaches it."""
    net = Net(graph)
    net.beat(2 * len(graph))
    for p in range(4):
        sealer = id_of(sealer_of(p, graph))
        assert {roster.sealer(p) for roster in net.rosters.values()} == {sealer}
        assert net.links_to(sealer, p) == distances(graph, sealer.name)


def test_a_way_that_is_longer_than_any_that_is_told_is_none() -> None:
    """Else two learners that each take the other for the way would do so for ever."""
    names = [chr(ord("a") + i) for i in range(MOST_HOPS + 3)]
    graph: Graph = {
        name: {names[j] for j in (i - 1, i + 1) if 0 <= j < len(names)}
        for i, name in enumerate(names)
    }
    net = Net(graph)
    net.beat(3 * len(names))
    last = id_of(names[-1])
    hops = [net.rosters[name].go_betweens.hops([last]).get(last, 0) for name in names[:-2]]
    assert hops == [0, 0, *range(MOST_HOPS, 1, -1)]
    # The last but one still hears it, and tells that it lives, but reaches it no more.
    net.rosters[names[-2]].peers[last.name].linked = False
    net.beat(MOST_HOPS + 1)
    assert all(not roster.go_betweens.hops([last]) for roster in net.rosters.values())


def test_ways_that_nobody_has_are_not_taken_from_a_beat() -> None:
    """A hostile peer may tell any number."""
    roster = roster_of(ROOMS, "c")
    far = id_of("far")
    for count, (hops, told_by_us) in enumerate(
        [(0, 0), (1, 0), (2, 3), (MOST_HOPS - 1, MOST_HOPS), (MOST_HOPS, 0), (10**9, 0)], start=2
    ):
        beat = told(ROOMS, "a", count)
        news = Rumor(far, "far:1", count, hops=hops)
        roster.hear(1.0, replace(beat, roster=(*beat.roster, news)))
        roster.gossip(1.0, [news])
        assert {rumor.hops for rumor in roster.rumors() if rumor.peer == far} == {told_by_us}
        by_a = roster.go_betweens.choose(0, far) == id_of("a")
        assert by_a == (1 < hops <= MOST_HOPS)


def test_the_ways_of_a_peer_that_is_heard_no_more_are_none() -> None:
    net = Net(joined("abcd", [("a", "c"), ("a", "d"), ("b", "d")]))
    net.beat(8)
    roster = net.rosters["a"]
    assert roster.go_betweens.hops([id_of("d")]) == {id_of("d"): 3}
    for second in range(8, 60):
        roster.gossip(second, [Rumor(id_of(name), f"{name}:1", second + 50) for name in "bcd"])
        roster.expire(second)
    assert roster.peers["b"].far == {}


def test_a_newcomer_is_not_chosen_either_if_those_that_it_does_not_reach_cannot_seal() -> None:
    """Nobody can dial them, so all that may seal are heard; but they choose a sealer, too."""
    roster = roster_of(joined("abc", []), "b", merged="ab")
    chosen = {roster.sealer(p) for p in range(12)}
    assert chosen == set(map(id_of, "abc"))
    beat = told(joined("abc", []), "c", 2)
    hidden = Rumor(id_of("hidden"), "", 1, hops=2)
    roster.hear(1.0, replace(beat, roster=(*beat.roster, hidden)))
    assert {roster.sealer(p) for p in range(12)} == set(map(id_of, "ab"))
