"""The findings of `mend check` on the way to a learner. Nothing is dialled here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mend_optim.cli.check.findings import Attempt, Facts, faults_of, has_faults, lines_of
from mend_optim.cli.check.plain import plain_of
from mend_optim.cli.check.way import CLOCKS_MAY_DIFFER_S, UPDATE, Back, way_faults, way_lines
from mend_optim.cli.wording import bits_of
from mend_optim.protocol.handshake import PROTOCOL, Hello
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.surveyed import ClockTrip, DialBack, Surveyed, Transfer
from mend_optim.protocol.unreached import Unreached
from mend_optim.protocol.visited import Visit

MINE = "10.0.0.4"
LISTEN = Back(argument="--listen", address=":29600", port=29600)
SECOND = 10**9


def clock(ahead_s: float, bound_s: float = 0.01) -> ClockTrip:
    """A reading of a clock that is ahead by so much, as sure as that."""
    there = int(bound_s * SECOND)
    at = 1000 * SECOND + int(ahead_s * SECOND) + there
    return ClockTrip(
        asked_ns=1000 * SECOND, received_ns=at, answered_ns=at, heard_ns=1000 * SECOND + 2 * there
    )


def moved(mbit: float, took_s: float = 1.0, round_trip_s: float = 0.0) -> Transfer:
    return Transfer(nbytes=int(mbit * 125_000), took_s=took_s, round_trip_s=round_trip_s)


def lines(found: Surveyed, back: Back | None = None, params: float = 0.0) -> dict[str, str]:
    return dict(way_lines(found, [MINE], back, params))


def faults(found: Surveyed, back: Back | None = None) -> list[tuple[str, str]]:
    return [(fault.text, fault.remedy) for fault in way_faults(found, back)]


def test_a_way_without_a_fault() -> None:
    found = Surveyed(
        seen_ip=MINE,
        clock=clock(0.0),
        up=moved(12.5),
        down=moved(100, took_s=2.0),
        dialled=DialBack.REACHED,
    )
    assert lines(found, LISTEN) == {
        "sees you": "as 10.0.0.4",
        "dials back": "and reaches 10.0.0.4:29600",
        "clock": "as here, ± 10 ms",
        "bandwidth": "12.5 Mbit/s there, 50 Mbit/s back",
    }
    assert faults(found, LISTEN) == []


def test_what_was_measured_before_the_end_is_told() -> None:
    told = lines(Surveyed(up=moved(10), fault="gone"))
    assert told["bandwidth"] == "10 Mbit/s there"
    assert told["way there"] == "not measured to the end: gone"


def test_an_offer_is_timed_for_each_codec() -> None:
    found = Surveyed(up=moved(80), down=moved(80))
    told = lines(found, params=1e6)["an offer"]
    assert told.startswith('takes with codec "none" 452 ms, "bf16" 226 ms, "int8" 115 ms')
    assert "an offer" not in lines(found)


def test_a_rate_that_a_long_way_hides_is_a_least_one() -> None:
    found = Surveyed(up=moved(10, took_s=1.0, round_trip_s=0.6), down=moved(10))
    assert lines(found)["bandwidth"] == "at least 20 Mbit/s there, 10 Mbit/s back"


def test_translated_addresses_are_told() -> None:
    told = lines(Surveyed(seen_ip="203.0.113.9"))["sees you"]
    assert told == "as 203.0.113.9, and this machine is 10.0.0.4: addresses are translated between"


@pytest.mark.parametrize(
    ("ahead_s", "text"),
    [
        (0.005, "as here, ± 10 ms"),
        (3.0, "3 s ahead of this machine's, ± 10 ms"),
        (-90.0, "1 min 30 s behind this machine's, ± 10 ms"),
    ],
)
def test_a_clock_is_told_with_its_bound(ahead_s: float, text: str) -> None:
    assert lines(Surveyed(clock=clock(ahead_s)))["clock"] == text
    assert lines(Surveyed(clock=clock(0.0, bound_s=1e-6)))["clock"] == "as here, ± 1 ms"


def test_clocks_are_a_fault_once_they_surely_differ() -> None:
    limit = CLOCKS_MAY_DIFFER_S
    assert faults(Surveyed(clock=clock(limit))) == []
    assert faults(Surveyed(clock=clock(limit + 1.0, bound_s=2.0))) == []
    ((text, remedy),) = faults(Surveyed(clock=clock(-limit - 1.0)))
    assert text.startswith("its clock is 1 min 1 s behind this machine's: a learner that moves")
    assert remedy.startswith("set the clocks of both machines by a time server (NTP)")
    ((text, _),) = faults(Surveyed(clock=clock(25 * 3600.0)))
    assert text.startswith(
        "its clock is 25 h 0 min ahead of this machine's: learners do not believe"
    )
    ((text, _),) = faults(Surveyed(clock=clock(24 * 3600.0)))
    assert "a learner that moves" in text


@pytest.mark.parametrize("outcome", [each for each in DialBack if each is not DialBack.REACHED])
def test_each_way_not_to_be_reached_has_a_remedy(outcome: DialBack) -> None:
    ((text, remedy),) = faults(Surveyed(seen_ip="fd00::4", dialled=outcome), LISTEN)
    assert text.startswith("it cannot dial [fd00::4]:29600 back: ")
    assert remedy
    assert "dials back" not in lines(Surveyed(seen_ip="fd00::4", dialled=outcome), LISTEN)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Surveyed(is_too_old=True), "it is too old to dial back"),
        (Surveyed(wait_s=3.0, seen_ip=MINE), "it has not dialled back, because"),
        (Surveyed(seen_ip=MINE, fault="gone"), "it has not dialled back: gone"),
        (Surveyed(), "it has not dialled back: it sees no address"),
    ],
)
def test_one_that_was_asked_to_dial_and_did_not_is_a_fault(found: Surveyed, text: str) -> None:
    ((told, remedy),) = faults(found, LISTEN)
    assert told.startswith(text)
    assert remedy
    assert faults(found) == []


@pytest.mark.parametrize(
    ("address", "ips", "told"),
    [
        ("10.9.9.9:1024", ["10.9.9.9"], "--advertise 10.9.9.9:1024 is not where it sees you, and"),
        (
            "b.example:1024",
            ["10.9.9.9"],
            "is not where it sees you: that is 10.9.9.9, and it dials",
        ),
        ("b.example:1024", [], "is not where it sees you: that is nowhere, and it dials 10.0.0.4"),
    ],
)
def test_an_address_of_others_is_not_dialled(address: str, ips: list[str], told: str) -> None:
    back = Back(argument="--advertise", address=address, port=1024, ips=ips)
    ((text, remedy),) = faults(Surveyed(seen_ip=MINE), back)
    assert told in text
    assert remedy.startswith(f"give --advertise the address that leads to {MINE}")


def test_what_was_not_measured_is_no_fault_and_says_why() -> None:
    for found, text in (
        (Surveyed(is_too_old=True), "it is too old to tell"),
        (Surveyed(wait_s=3.0), "not measured, because others have just done so; again in 3 s"),
        (Surveyed(fault="\x1b[2J"), "not measured to the end: '\\x1b[2J'"),
    ):
        assert lines(found)["way there"].startswith(text)
        assert faults(found) == []
    assert UPDATE in lines(Surveyed(is_too_old=True))["way there"]


def facts(surveyed: Surveyed, **told: Any) -> Facts:
    hello = Hello(peer=PeerId("b", 1), address="", model=(), policy=(), protocol=PROTOCOL)
    here = Attempt(ip="10.0.0.5", took_s=0.01, local_ip=MINE)
    visit = Visit(answer=hello, round_trip_s=0.02, settings={"codec": "none"}, surveyed=surveyed)
    return Facts(address="b:1", attempts=(here,), secured="plaintext", visit=visit, **told)


def test_the_way_is_among_the_findings_of_an_address() -> None:
    found = facts(Surveyed(seen_ip="10.0.0.9", dialled=DialBack.ANSWER), asked_back=LISTEN)
    assert ("sees you", dict(lines_of(found))["sees you"]) in lines_of(found)
    assert "this machine is 10.0.0.4" in dict(lines_of(found))["sees you"]
    assert [fault.text for fault in faults_of(found)] == [
        "it cannot dial 10.0.0.9:29600 back: no answer"
    ]
    assert has_faults([found])
    assert not has_faults([facts(Surveyed())])


def test_scripts_get_the_same_as_one_object() -> None:
    whole = Surveyed(
        seen_ip=MINE, clock=clock(3.0), up=moved(8), down=moved(16), dialled=DialBack.OTHER
    )
    silent = Facts(
        address="c:1",
        attempts=(Attempt(ip="10.0.0.7", took_s=None, cause=Unreached.REFUSED),),
        secured="plaintext",
    )
    told = json.loads(json.dumps(plain_of([facts(whole, asked_back=LISTEN), silent])))
    assert not told["sound"]
    first, second = told["addresses"]
    assert first["learner"] == "b"
    assert first["dials_back"] == "somebody else"
    assert first["sees_you_as"] == MINE
    assert first["clock_offset_s"] == pytest.approx(3.0, abs=1e-6)
    assert first["clock_bound_s"] == pytest.approx(0.01, abs=1e-6)
    assert (first["bytes_per_s_there"], first["bytes_per_s_back"]) == (1e6, 2e6)
    assert [fault["text"] for fault in first["faults"]] == [
        "it cannot dial 10.0.0.4:29600 back: something else answers there"
    ]
    assert second["learner"] is None
    assert second["connects"] == {"10.0.0.7": None}
    assert second["bytes_per_s_there"] is None
    assert plain_of([facts(Surveyed())])["sound"]
    (busy,) = plain_of([facts(Surveyed(wait_s=2.0))])["addresses"]
    (old,) = plain_of([facts(Surveyed(is_too_old=True))])["addresses"]
    assert (busy["not_measured"], old["not_measured"]) == ("busy", "too old")


def test_rates_are_read_in_bits() -> None:
    assert bits_of(1_234_567) == "9.88 Mbit/s"
    assert bits_of(10) == "80 bit/s"
    assert bits_of(1.25e9) == "10 Gbit/s"
