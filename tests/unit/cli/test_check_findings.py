"""What `mend check` says of what it found. Nothing is dialled here."""

from __future__ import annotations

from typing import Any

import pytest

from mend_optim.cli.check.findings import (
    Attempt,
    Facts,
    agreement,
    allowed_differences,
    differences,
    doubles,
    faults_of,
    has_faults,
    lines_of,
    told_address,
)
from mend_optim.cli.check.plain import plain_of
from mend_optim.protocol.handshake import PROTOCOL, Hello
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.unreached import Unreached
from mend_optim.protocol.visited import COUNT, Visit
from mend_optim.transport.visit import told_value

HERE = Attempt(ip="10.0.0.5", took_s=0.012)


def answer(name: str = "b", address: str = "10.0.0.5:29600", **told: Any) -> Visit:
    hello = Hello(peer=PeerId(name, 1), address=address, model=(), policy=(), protocol=PROTOCOL)
    return Visit(answer=hello, round_trip_s=0.02, **told)


def facts(visit: Visit | None, *attempts: Attempt, **told: Any) -> Facts:
    return Facts(
        address="b:29600", attempts=attempts or (HERE,), secured="plaintext", visit=visit, **told
    )


def faults(found: Facts) -> list[tuple[str, str]]:
    return [(fault.text, fault.remedy) for fault in faults_of(found)]


def test_a_learner_that_answers_has_no_fault() -> None:
    found = facts(answer(settings={COUNT: "7"}), back=("10.0.0.5:29600", None))
    assert faults(found) == []
    assert dict(lines_of(found)) == {
        "resolves": "to 10.0.0.5",
        "connects": "in 12 ms",
        "answers": "as b, started 1970-01-01 00:00:00 UTC",
        "secured": "plaintext",
        "round trip": "20 ms",
        "address": "tells others to dial 10.0.0.5:29600",
        "model": "7 parameters",
    }
    hidden = facts(answer(address=""), back=("", None))
    assert dict(lines_of(hidden))["address"] == "tells no address: it dials"
    assert faults(hidden) == []


@pytest.mark.parametrize("cause", Unreached)
def test_every_cause_comes_with_a_remedy_for_who_asks(cause: Unreached) -> None:
    ((text, remedy),) = faults(facts(Visit(cause=cause, fault="UNAVAILABLE")))
    assert text
    assert remedy
    assert " in peers" not in remedy


def test_silence_is_told_in_plain_words() -> None:
    silent = Visit(cause=Unreached.ANSWER, fault="DEADLINE_EXCEEDED: …", silent_s=10.0)
    ((text, remedy),) = faults(facts(silent))
    assert text.startswith("the port accepts connections, but nothing answers within 10 s: ")
    assert "frozen" in text
    assert "firewalls" in remedy


def test_one_address_of_a_name_may_be_unreached() -> None:
    six = Attempt(ip="fd00::5", took_s=None, cause=Unreached.ROUTE)
    found = facts(answer(), six, HERE)
    assert faults(found) == [
        ("fd00::5: no route to that host", "check the network between the two machines")
    ]
    assert ("connects", "in 12 ms to 10.0.0.5") in lines_of(found)


def test_another_version_is_a_fault() -> None:
    other = Hello(peer=PeerId("b", 1), address="", model=(), policy=(), protocol=PROTOCOL + 1)
    ((text, remedy),) = faults(facts(Visit(answer=other)))
    assert f"version {PROTOCOL + 1} of the protocol" in text
    assert remedy == "install the same mend-optim on both"


def test_an_address_of_one_machine_alone_is_a_fault_for_another() -> None:
    visit = answer(address="127.0.0.1:29600")
    assert told_address(visit, "10.0.0.5") == "127.0.0.1:29600"
    ((text, _),) = faults(facts(visit, back=("127.0.0.1:29600", None)))
    assert text == "it tells others to dial 127.0.0.1:29600, which no other machine can"
    near = Attempt(ip="127.0.0.1", took_s=0.0)
    assert faults(facts(visit, near, back=("127.0.0.1:29600", None))) == []


def test_an_address_without_a_host_is_that_of_the_connection() -> None:
    assert told_address(answer(address=":29600"), "10.0.0.5") == "10.0.0.5:29600"
    assert told_address(answer(address=""), "10.0.0.5") == ""


def test_settings_are_compared_and_names_are_escaped() -> None:
    one = facts(answer("a", settings={"codec": "none", "merge": "mean"}))
    other = facts(answer("\x1b[31m", settings={"merge": "mean"}))
    table = "\n".join(differences([one, other, facts(Visit(cause=Unreached.ANSWER))]))
    assert "codec" in table
    assert "not set" in table
    assert "merge" not in table
    assert "\x1b" not in table
    assert differences([one]) == []


def test_settings_that_are_equal_are_told() -> None:
    told = {"codec": "none", "guard": "None"}
    one, other = facts(answer("a", settings=told)), facts(answer("b", settings=told))
    guarded = facts(answer("c", settings={**told, "guard": "Guard(norm=8.0, clip=False)"}))
    packed = facts(answer("c", settings={**told, "codec": "int8"}))
    away, mute = facts(Visit(cause=Unreached.ANSWER)), facts(answer("c"))
    equal = "The settings that learners must share are equal on the {} learners that answered."
    assert agreement([one, other]) == equal.format(2)
    assert agreement([one, away, other]) == equal.format(2)
    assert agreement([one, other, guarded]) == equal.format(3)
    # Two addresses of one learner, or one learner, are nothing to compare.
    for found in ([one, one], [one, away], [one], [], [mute, facts(answer("d"))]):
        assert agreement(found) == ""
    assert differences([one, packed])
    assert agreement([one, packed]) == ""


def test_a_learner_that_tells_no_settings_is_not_said_to_differ() -> None:
    """One of another version of the protocol. Nobody knows whether its settings are equal."""
    one, other = (facts(answer(name, settings={"codec": "none"})) for name in "ab")
    found = [one, facts(answer("c")), other]
    assert differences(found) == []
    assert not has_faults(found)
    assert agreement(found) == ""
    packed = facts(answer("d", settings={"codec": "int8"}))
    assert [line.split() for line in differences([*found, packed])] == [
        ["setting", "a", "b", "d"],
        ["codec", "none", "none", "int8"],
    ]


def test_guards_that_differ_are_told_and_are_no_fault() -> None:
    found = [
        facts(answer(name, settings={"codec": "none", "guard": guard}))
        for name, guard in (("a", "Guard(norm=8.0, clip=False)"), ("b", "None"), ("c", "absent"))
    ]
    assert differences(found) == []
    assert not has_faults(found)
    told = "\n".join(allowed_differences(found))
    assert "Guard(norm=8.0, clip=False)  None  absent" in told
    assert "codec" not in told
    # An older learner does not say which guard it has.
    assert allowed_differences([found[0], found[2]]) == []
    plain = plain_of(found)
    assert (plain["sound"], plain["differing"]) == (True, {})
    assert set(plain["allowed_to_differ"]) == {"guard"}


def test_two_processes_of_one_name_are_found_and_one_at_two_addresses_is_none() -> None:
    twin = Hello(peer=PeerId("b", 2), address="", model=(), policy=())
    ((fault),) = doubles([facts(answer()), facts(Visit(answer=twin))])
    assert fault.text.startswith("b is the name of 2 learners")
    assert doubles([facts(answer()), facts(answer())]) == []


def test_a_value_is_read_of_the_refusal_that_is_about_it() -> None:
    refusal = "outer: here ?, there Nesterov(gain=1; 2); pass the same outer to both"
    assert told_value(refusal, "outer") == "Nesterov(gain=1; 2)"
    assert told_value(refusal, "codec") is None
    assert told_value("", "codec") is None
