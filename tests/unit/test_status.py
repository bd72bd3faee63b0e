"""A status, printed: ten lines for people; its repr keeps every field."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mend_optim import Status
from mend_optim.engine.ledger import MemberRecord, RoundRecord
from mend_optim.engine.policies import Policies
from mend_optim.engine.progress import Progress
from mend_optim.engine.schedule import Schedule
from mend_optim.engine.state import EngineState
from mend_optim.protocol.lineage import Lineage, PeerId
from mend_optim.protocol.refusals import Refused
from mend_optim.status import FragmentStatus, PeerStatus, missed_rounds, peer_statuses
from tests.support.engines import PEER as OTHER
from tests.support.engines import DrivenEngine

ROUND = RoundRecord(
    fragment=0,
    version=12,
    tokens=123_456,
    digest="5eedfeed00",
    reason="all_present",
    members=tuple(
        MemberRecord(name=name, incarnation=1, seq=1, tokens=8, steps=8, weight=0.5)
        for name in "ab"
    ),
)
PULLED = RoundRecord(fragment=0, version=13, tokens=123_464, digest="feed", reason="pulled")
PEER = PeerStatus(name="b", incarnation=1, state="alive", address="b:1", step=9, tokens=9)
FRAGMENT = FragmentStatus(
    index=0, tokens=123_456, version=12, digest="5eedfeed00", unmerged_tokens=16
)
STATUS = Status(
    name="a",
    address="127.0.0.1:29600",
    step=1500,
    tokens=96_000,
    unmerged_tokens=16,
    joined=True,
    rounds_adopted=12,
    fragments=(FRAGMENT,),
    roster=(PEER, replace(PEER, name="c", state="suspected"), replace(PEER, name="d", slow=2.51)),
    rounds=(ROUND, PULLED),
    bytes_sent=1_234_567,
    bytes_received=7_654_321,
    seconds_in_mend=0.52,
    position=1500,
    cluster_step=1510,
    cluster_tokens=123_456,
    sync_every=8,
    latency=3,
    security="none: plaintext, within this machine",
)
PRINTED = """\
a has joined
  address   127.0.0.1:29600
  trained   1,500 steps, 96,000 tokens: 16 unmerged, 0 dropped, 0 superseded
  position  1,500, the farthest learner's is 1,510
  anchor    version 12, 123,456 tokens, digest 5eedfeed
  rounds    12 adopted, one is due every 8 steps, each takes 3 steps; the last merged a, b
  peers     b alive, c suspected, d alive, 2.5 times slower
  security  none: plaintext, within this machine
  traffic   1.2 MB sent, 7.7 MB received
  time      0.5 s in mend_optim"""


def test_a_status_names_the_unit_of_rounds() -> None:
    shortest = str(replace(STATUS, sync_every=1, latency=1))
    assert "one is due every 1 step, each takes 1 step; the last" in shortest


def test_a_learner_with_an_empty_roster_trains_alone() -> None:
    """It may have been refused by all that it dials, or they have left."""
    alone = replace(STATUS, roster=())
    assert str(alone).splitlines()[0] == "a trains alone: nobody else is here"
    assert str(replace(alone, joined=False)).splitlines()[0] == "a has not joined yet"


@pytest.mark.parametrize("ended", ["agreed", "left"])
def test_a_learner_that_has_ended_tells_no_farthest_learner(ended: str) -> None:
    """Its roster has lost those that ended before it."""
    assert "  position  1,500\n" in str(replace(STATUS, ended=ended))


def test_a_status_prints_as_lines_for_people() -> None:
    assert str(STATUS) == PRINTED


def test_the_zone_is_told_if_there_is_one() -> None:
    lines = str(replace(STATUS, zone="east")).splitlines()
    assert lines[1:3] == ["  address   127.0.0.1:29600", "  zone      east"]


@pytest.mark.parametrize(
    ("missed", "text"),
    [
        ((1, 1), "b alive"),
        ((0, 4), "b alive, late: not in the last 4 rounds of fragment 1"),
        ((2, 0, 9), "b alive, late: not in the last 9 rounds of fragments 0, 2"),
        ((2,), "b alive, late: not in the last 2 rounds of fragment 0"),
        ((5, 2), "b alive, late: not in the last 5 rounds of all fragments"),
    ],
)
def test_a_late_peer_is_told_with_the_rounds_that_it_missed(
    missed: tuple[int, ...], text: str
) -> None:
    late = replace(STATUS, roster=(replace(PEER, missed=missed),))
    assert f"  peers     {text}" in str(late).splitlines()


def test_a_learner_that_declines_to_seal_is_told() -> None:
    lines = str(replace(STATUS, declines=True, roster=(replace(PEER, declines=True),))).splitlines()
    assert lines[5].endswith("; the last merged a, b; it declines to seal")
    assert lines[6] == "  peers     b alive, declines to seal"


@pytest.mark.parametrize("which", ["this learner", "the peer", "neither"])
def test_those_that_have_ended_are_neither_suspected_nor_waiting(which: str) -> None:
    """A learner ends with all on its roster, and need not have heard that they did, too."""
    driven = DrivenEngine()
    driven.beat(OTHER)
    state = driven.engine.state
    (peer,) = state.roster
    assert peer.beat
    peer.beat = replace(peer.beat, finishes=True, ended=b"ended" if which == "the peer" else b"")
    driven.engine.linked(driven.now, OTHER, False)
    state.ended = b"ended" if which == "this learner" else b""
    (status,) = peer_statuses(state, {})
    found = (status.state, status.finishing)
    assert found == (("suspected", True) if which == "neither" else ("ended", False))


def test_missed_rounds_are_those_in_a_row_in_which_a_learner_was_expected() -> None:
    state = EngineState(PeerId("a", 1), "", (), Policies(schedule=Schedule(fragments=2)))
    state.fragments = [Progress(state.me, p, Lineage.fresh(b""), 0) for p in range(2)]
    missed, pulled = replace(ROUND, absent=("c",)), replace(PULLED, absent=())
    state.records.extend([missed, ROUND, missed, pulled, missed, replace(missed, fragment=1)])
    state.records.extend([replace(missed, fragment=2), replace(ROUND, fragment=1)])
    assert missed_rounds(state, "c") == (2, 0)
    assert missed_rounds(state, "b") == (0, 0)


def test_its_repr_is_that_of_its_fields() -> None:
    assert repr(STATUS).startswith("Status(name='a', address='127.0.0.1:29600', step=1500, ")


def test_lines_do_not_grow_with_the_cluster() -> None:
    many = replace(STATUS, roster=(PEER,) * 40, fragments=(FRAGMENT,) * 8)
    peers = "  peers     " + "b alive, " * 5 + "35 more"
    assert peers in str(many).splitlines()
    assert "digest 5eedfeed, and 7 more" in str(many)
    assert len(str(many).splitlines()) == len(PRINTED.splitlines())


def test_a_learner_before_it_joins_and_one_without_peers() -> None:
    waiting = replace(STATUS, joined=False, roster=(), rounds=(), fragments=(), latency=0)
    assert str(waiting).startswith("a has not joined yet\n")
    assert "  anchor    none\n" in str(waiting)
    assert "  peers     none\n" in str(waiting)
    assert "  rounds    12 adopted, one is due every 8 steps\n" in str(waiting)
    assert str(Status(name="a", address="", step=0, tokens=0)).startswith("a has no peers\n")


def test_a_learner_that_has_ended_says_how() -> None:
    def line(ended: str, unmerged: int) -> str:
        return str(replace(STATUS, ended=ended, unmerged_tokens=unmerged)).splitlines()[0]

    assert line("agreed", 0) == "a has ended, and all have agreed on one model"
    assert line("agreed", 12288) == "a has ended, and 12,288 of its tokens are in no anchor"
    assert {line("left", unmerged) for unmerged in (0, 8)} == {
        "a has left, and has agreed on no model"
    }


def test_refusals_are_told_once_there_are_some() -> None:
    refused = (Refused("mallory", "offer refused: …", 1200), Refused("", "no hello", 3))
    line = "  refused   1,203 messages and streams, most of mallory: offer refused: …"
    assert str(replace(STATUS, refused=refused)) == f"{PRINTED}\n{line}"
