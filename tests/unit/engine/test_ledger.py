from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given

from mend_optim.engine.ledger import describe, sealed_record, whole_anchor_record
from mend_optim.protocol.lineage import Entry, Key, Lineage, PeerId
from mend_optim.protocol.messages import Offer, Packet, Seal
from tests.support.strategies import lineages

A, B, C = (PeerId(name, i) for i, name in enumerate("abc", start=1))
SEAL = Seal(
    sealer=B,
    fragment=3,
    base=b"base",
    key=Key(70, 2, b"\xab\xcd"),
    members=(Entry(A, 5, 30, 3), Entry(B, 1, 40, 4)),
    weights=(0.25, 0.75),
    absent=("c",),
    reason="grace_expired",
    payload=b"payload",
)


def test_a_sealed_round_names_sealer_members_absent_and_reason() -> None:
    record = sealed_record(SEAL, mine=True)
    assert (record.fragment, record.version, record.tokens, record.digest) == (3, 2, 70, "abcd")
    assert (record.sealer, record.absent, record.reason, record.mine) == (
        "b",
        ("c",),
        "grace_expired",
        True,
    )
    assert [
        (m.name, m.incarnation, m.seq, m.tokens, m.steps, m.weight) for m in record.members
    ] == [
        ("a", 1, 5, 30, 3, 0.25),
        ("b", 2, 1, 40, 4, 0.75),
    ]


def test_what_came_back_of_a_round_is_all_but_ones_own() -> None:
    own, other, moment = (Packet("packed", 9, memoryview(bytes(size))) for size in (100, 20, 3))
    offer = Offer(
        peer=A,
        fragment=3,
        seq=5,
        tokens=30,
        steps=3,
        genesis=b"g",
        key=Key(0, 0, b""),
        due=True,
        sections={"delta": own, "moment:m": moment},
    )
    seal = replace(SEAL, sections={"0": own, "1": other, "moment:m": moment})
    record = sealed_record(seal, True, offer)
    assert (record.offer_bytes, record.merged_bytes) == (103, 23)
    assert sealed_record(seal, False).merged_bytes == 123  # it came whole


def test_a_record_tells_the_share_of_the_own_delta_and_its_json_too() -> None:
    record = sealed_record(SEAL, True, None, 0.25)
    assert (record.share, sealed_record(SEAL, True).share) == (0.25, 1.0)
    assert json.loads(record.json(B, 0.0))["share"] == 0.25


def test_a_record_is_one_line_of_json() -> None:
    line = sealed_record(SEAL, mine=False).json(B, 1795271336.12345)
    assert "\n" not in line
    read = json.loads(line)
    assert (read["time"], read["name"], read["incarnation"]) == (1795271336.123, "b", 2)
    assert read["members"][1] == {
        "name": "b",
        "incarnation": 2,
        "seq": 1,
        "tokens": 40,
        "steps": 4,
        "weight": 0.75,
    }
    assert (read["digest"], read["absent"], read["mine"]) == ("abcd", ["c"], False)


def test_a_taken_anchor_names_those_whose_merged_work_it_lacks() -> None:
    old = Lineage(tokens=50, version=5, digest=b"old", genesis=b"g", merged={A: 3, B: 2, C: 1})
    new = Lineage(tokens=60, version=4, digest=b"new", genesis=b"g", merged={A: 3, B: 1})
    record = whole_anchor_record(1, old, new, "pulled", dropped_tokens=9)
    assert record.superseded == ("b", "c")
    assert (record.fragment, record.version, record.tokens, record.digest) == (
        1,
        4,
        60,
        b"new".hex(),
    )
    assert (record.reason, record.mine, record.dropped_tokens) == ("pulled", False, 9)


@given(lineages, lineages)
def test_nobody_is_superseded_by_an_anchor_that_merged_as_much(old: Lineage, new: Lineage) -> None:
    missing = any(new.merged.get(peer, 0) < seq for peer, seq in old.merged.items())
    assert bool(whole_anchor_record(0, old, new, "pulled").superseded) == missing


def test_an_event_about_a_peer_names_it_and_its_incarnation() -> None:
    event = describe(B, "met", "is back", lifts="evicted", address="b:1")
    assert (event.kind, event.text, event.lifts) == ("met", "b is back", "evicted")
    assert event.facts == {"peer": "b", "incarnation": 2, "address": "b:1"}
