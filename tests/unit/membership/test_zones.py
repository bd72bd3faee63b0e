"""The first hop of an offer, from zone to zone."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mend_optim.membership.roster import Roster
from mend_optim.membership.zones import are_neighbours, first_hop, zone_of
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Beat, Rumor
from mend_optim.protocol.timing import Timing
from tests import reference

ZONES = st.sampled_from(["", "east", "west"])
CLUSTERS = st.dictionaries(st.text("abcdefgh", min_size=1, max_size=3), ZONES, min_size=1)


def roster_of(me: str, zones: dict[str, str], **facts: object) -> Roster:
    """The roster of one learner of a cluster that has heard all others, and is linked with them.
    `facts`: other fields of their beats."""
    roster = Roster(PeerId(me, 1), f"{me}:1", Timing(), zone=zones[me])
    for name in zones.keys() - {me}:
        told = {"training": True, "address": f"{name}:1", "zone": zones[name], **facts}
        roster.hear(0.0, Beat(peer=PeerId(name, 1), count=1, **told))  # type: ignore[arg-type]
        roster.link(0.0, PeerId(name, 1), True)
    return roster


@given(CLUSTERS, st.integers(0, 40), st.data())
def test_it_is_the_reference(zones: dict[str, str], fragment: int, data: st.DataObject) -> None:
    me, to = (data.draw(st.sampled_from(sorted(zones))) for _ in "mt")
    found = first_hop(roster_of(me, zones), fragment, PeerId(to, 1))
    assert found == PeerId(reference.first_hop(zones, me, to, fragment), 1)


@given(CLUSTERS, st.integers(0, 40), st.data())
def test_all_offers_of_a_zone_go_through_one_learner_of_it(
    zones: dict[str, str], fragment: int, data: st.DataObject
) -> None:
    to = data.draw(st.sampled_from(sorted(zones)))
    for zone in {"east", "west"} - {zones[to]}:
        inside = [name for name in zones if zones[name] == zone]
        hops = {name: first_hop(roster_of(name, zones), fragment, PeerId(to, 1)) for name in inside}
        assert len(set(hops.values())) == min(1, len(inside))
        assert {hop.name for hop in hops.values()} <= set(inside)


THREE = {"a": "east", "b": "east", "c": "west"}


def relay_of_a(roster: Roster, *without: PeerId) -> set[str]:
    """The first hops of a's offers to c, of some fragments."""
    return {first_hop(roster, p, PeerId("c", 1), without).name for p in range(8)}


def test_a_learner_that_cannot_relay_does_not() -> None:
    b = PeerId("b", 1)
    roster = roster_of("a", THREE)
    assert relay_of_a(roster) == {"a", "b"}
    assert relay_of_a(roster, b) == {"a"}
    assert relay_of_a(roster_of("a", THREE, training=False)) == {"a"}
    assert relay_of_a(roster_of("a", THREE, address="")) == {"a"}
    roster.link(1.0, b, False)
    assert relay_of_a(roster) == {"a"}
    roster.link(2.0, b, True)
    assert relay_of_a(roster) == {"a", "b"}


def test_a_learner_that_does_not_reach_the_sealer_does_not_relay() -> None:
    """It would keep the offer for good."""

    def reaching(names: str) -> Roster:
        rumors = tuple(Rumor(PeerId(name, 1), f"{name}:1", 1, reached=True) for name in names)
        roster = roster_of("a", THREE, roster=rumors)
        assert relay_of_a(roster) == {"a", "b"}  # they may have just met
        for name in "bc":
            roster.touch(10.0, PeerId(name, 1))
        return roster

    assert relay_of_a(reaching("abc")) == {"a", "b"}
    assert relay_of_a(reaching("a")) == {"a"}
    assert relay_of_a(reaching("")) == {"a", "b"}  # nobody tells


def test_a_learner_that_cannot_be_dialled_relays_for_nobody() -> None:
    roster = Roster(PeerId("a", 1), "", Timing(), zone="east")
    for name in "bc":
        told = Beat(peer=PeerId(name, 1), address=f"{name}:1", count=1, training=True)
        roster.hear(0.0, Beat(**{**_fields(told), "zone": THREE[name]}))
        roster.link(0.0, told.peer, True)
    assert relay_of_a(roster) == {"b"}


def _fields(beat: Beat) -> dict[str, object]:
    return {name: getattr(beat, name) for name in ("peer", "address", "count", "training")}


def test_a_learner_that_declines_to_seal_relays_only_if_nobody_else_can() -> None:
    """Its link is weak, and all of its zone would wait for it."""
    roster, b = roster_of("a", THREE), PeerId("b", 1)
    beat = roster.peers["b"].beat
    assert beat
    roster.hear(1.0, replace(beat, count=2, declines=True))
    assert relay_of_a(roster) == {"a"}
    assert relay_of_a(roster, b) == {"a"}
    roster.place.is_weak = True
    assert relay_of_a(roster) == {"a", "b"}
    roster.hear(2.0, replace(beat, count=3))
    assert relay_of_a(roster) == {"b"}


def test_learners_without_a_zone_are_nobodys_neighbours() -> None:
    roster = roster_of("a", {"a": "", "b": "", "c": "west", "d": "west"})
    a, b, c, d, e = (PeerId(name, 1) for name in "abcde")
    assert [zone_of(roster, id) for id in (a, c, e)] == ["", "west", ""]
    assert are_neighbours(roster, c, d)
    assert not are_neighbours(roster, a, b)
    assert not are_neighbours(roster, b, c)
    assert not are_neighbours(roster, e, e)
