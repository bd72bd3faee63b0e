"""The statement that an author of an offer signs: one encoding for each, and none for two."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from mend_optim.errors import PeerError
from mend_optim.protocol.lineage import Claim, PeerId
from mend_optim.protocol.messages import SIGNATURE, Packet, Sections
from mend_optim.protocol.statement import (
    PACKET_DIGEST_BYTES,
    Statement,
    content_of,
    decode,
    encode,
    pack,
    packet_digest,
    statement_of,
    unpack,
)
from tests import reference
from tests.support.engines import PEER, offer_of

counters = st.one_of(st.integers(0, 3), st.integers(0, 2**62))
peers = st.builds(PeerId, st.one_of(st.sampled_from(["a", "ab", "b"]), st.text()), counters)
statements = st.builds(
    Statement,
    genesis=st.binary(max_size=4),
    fragment=counters,
    sender=peers,
    claim=st.builds(Claim, peers, st.integers(-1, 2**62)),
    seq=counters,
    follows=counters,
    tokens=counters,
    steps=counters,
    again=st.tuples(counters, counters),
    rate=st.floats(0, allow_nan=False),
    content=st.binary(max_size=4),
)
parts = st.lists(st.binary(max_size=5), max_size=5)
packets = st.builds(
    Packet,
    st.sampled_from(["none", "packed", "x"]),
    st.integers(0, 3),
    st.binary(max_size=3).map(memoryview),
)
sections = st.dictionaries(st.sampled_from(["delta", "moment.a", "moment.ab", "b"]), packets)


# ── parts ─────────────────────────────────────────────────────────────────────────────────────────


@given(parts, parts)
@example([b"ab", b"c"], [b"a", b"bc"])
@example([b""], [])
def test_different_parts_have_different_bytes(one: list[bytes], other: list[bytes]) -> None:
    assert (pack(one) == pack(other)) is (one == other)
    assert unpack(pack(one), 5) == one


@given(parts.filter(bool), st.integers(1, 9))
def test_parts_that_end_early_are_refused(whole: list[bytes], cut: int) -> None:
    data = pack(whole)
    assume(cut < 4 + len(whole[-1]))
    with pytest.raises(PeerError, match=r"parts or fewer|ends beyond"):
        unpack(data[:-cut], 5)


def test_more_parts_than_asked_for_are_refused() -> None:
    assert unpack(memoryview(pack([b"", b"a"])), 2) == [b"", b"a"]
    with pytest.raises(PeerError, match="are not 1 parts or fewer"):
        unpack(pack([b"", b"a"]), 1)


# ── statements ────────────────────────────────────────────────────────────────────────────────────


@given(statements)
def test_the_encoding_is_that_of_the_table(told: Statement) -> None:
    (sender, here), ((author, there), settled) = told.sender, told.claim
    counters = (told.fragment, here, there, settled, told.seq, told.follows, told.tokens)
    assert encode(told) == reference.signed_bytes(
        told.genesis,
        sender,
        author,
        (*counters, told.steps, *told.again),
        told.rate,
        told.content,
    )
    assert decode(encode(told)) == told


@given(statements, statements)
def test_no_two_statements_have_the_same_bytes(one: Statement, other: Statement) -> None:
    assert (encode(one) == encode(other)) is (one == other)


@given(statements, statements, st.sampled_from(Statement._fields))
def test_every_field_is_in_the_bytes(one: Statement, other: Statement, name: str) -> None:
    assume(getattr(one, name) != getattr(other, name))
    assert encode(one._replace(**{name: getattr(other, name)})) != encode(one)


@given(statements, st.data())
def test_a_changed_byte_is_another_statement_or_none(told: Statement, data: st.DataObject) -> None:
    whole = bytearray(encode(told))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found = decode(bytes(whole))
    except PeerError:
        return
    assert found != told
    assert encode(found) == whole


@given(st.one_of(st.binary(max_size=300), parts.map(pack)))
def test_what_is_no_statement_is_refused(data: bytes) -> None:
    with pytest.raises(PeerError):
        decode(data)


def test_a_statement_of_another_purpose_is_refused() -> None:
    told = encode(statement_of(offer_of(PEER), b""))
    with pytest.raises(PeerError, match="are not a statement about an offer"):
        decode(told.replace(b"mend-optim offer 2", b"mend-optim offer 1"))


def test_an_offer_that_is_sent_again_is_the_same_statement() -> None:
    offer = offer_of(PEER)
    again = replace(offer, due=False, key=offer.key._replace(tokens=9))
    assert statement_of(again, b"c") == statement_of(offer, b"c")


def test_the_statement_is_of_the_claim_that_the_offer_makes() -> None:
    mine = statement_of(offer_of(PEER, seq=3), b"")
    assert (mine.sender, mine.claim) == (PEER, Claim(PEER, 2))
    other = Claim(PeerId("author", 4), 1)
    assert statement_of(offer_of(PEER, seq=3, inherited=other), b"").claim == other


# ── content ───────────────────────────────────────────────────────────────────────────────────────


def bytes_in(held: Sections) -> dict[str, tuple[str, int, bytes]]:
    return {name: (p.codec, p.numel, bytes(p.data)) for name, p in held.items()}


@given(sections, sections)
def test_the_content_tells_sections_apart(one: Sections, other: Sections) -> None:
    alike = bytes_in(one) == bytes_in(other) or ("delta" not in one and "delta" not in other)
    assert (content_of(one) == content_of(other)) is alike


WHOLE = {name: Packet("none", 1, memoryview(b"same")) for name in ("delta", "moment.a")}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize(
    "change", [{"codec": "packed"}, {"numel": 2}, {"data": memoryview(b"other")}]
)
def test_everything_of_a_packet_is_in_the_content(name: str, change: dict[str, Any]) -> None:
    changed = {**WHOLE, name: replace(WHOLE[name], **change)}
    assert content_of(changed) != content_of(WHOLE)
    renamed = {"delta": WHOLE["delta"], "moment.b": WHOLE["moment.a"]}
    assert content_of(renamed) != content_of(WHOLE)


@given(sections, packets)
def test_the_content_begins_with_the_delta_and_has_no_signature(
    held: dict[str, Packet], delta: Packet
) -> None:
    whole = {**held, "delta": delta}
    content = content_of(whole)
    assert content[:PACKET_DIGEST_BYTES] == packet_digest(delta)
    assert statement_of(offer_of(PEER), content).delta == packet_digest(delta)
    assert content_of({**whole, SIGNATURE: delta}) == content
    assert content_of(dict(reversed(whole.items()))) == content
