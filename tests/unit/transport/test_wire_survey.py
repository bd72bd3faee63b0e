"""The messages of surveys on the wire, and their limits."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.errors import PeerError
from mend_optim.protocol.survey_words import (
    CHUNK_BYTES,
    TOKEN_BYTES,
    Ask,
    Chunk,
    Dialled,
    DialPort,
    ReadClock,
    Reading,
    Reply,
    SendBytes,
    TakeBytes,
    Taken,
    Token,
    Turn,
)
from mend_optim.protocol.surveyed import MOST_BYTES, DialBack
from mend_optim.transport._pb import peer_pb2 as pb
from mend_optim.transport.wire_survey import (
    LEAST_PORT,
    MOST_PORT,
    MOST_WAIT_S,
    decode_ask,
    decode_reply,
    encode_ask,
    encode_reply,
)

CHUNKS = st.binary(min_size=1, max_size=100).map(Chunk)
SIZES = st.integers(0, MOST_BYTES)
ASKS = st.one_of(
    st.just(ReadClock()),
    SIZES.map(SendBytes),
    SIZES.map(TakeBytes),
    CHUNKS,
    st.integers(LEAST_PORT, MOST_PORT).map(DialPort),
)
TIMES = st.integers(0, 2**62)
ANSWERS = st.one_of(
    st.builds(Turn, st.floats(0, MOST_WAIT_S), st.sampled_from(["", "10.0.0.5", "fd00::5"])),
    st.builds(Reading, TIMES, TIMES),
    CHUNKS,
    SIZES.map(Taken),
    st.binary(min_size=TOKEN_BYTES, max_size=TOKEN_BYTES).map(Token),
    st.sampled_from(DialBack).map(Dialled),
)


@given(ASKS)
def test_what_is_asked_survives_the_wire(ask: Ask) -> None:
    assert decode_ask(encode_ask(ask)) == ask


@given(ANSWERS)
def test_what_is_answered_survives_the_wire(answer: Reply) -> None:
    assert decode_reply(encode_reply(answer)) == answer


@given(st.binary(max_size=200))
def test_bytes_are_a_message_or_a_fault_of_the_peer(data: bytes) -> None:
    for decode in (decode_ask, decode_reply):
        with suppress(PeerError):
            decode(data)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({}, "no such question"),
        ({"send": MOST_BYTES + 1}, "the limit is"),
        ({"take": MOST_BYTES + 1}, "the limit is"),
        ({"take": 2**64 - 1}, "the limit is"),
        ({"chunk": b""}, "empty"),
        ({"chunk": bytes(CHUNK_BYTES + 1)}, "the limit is"),
        *[({"dial": port}, "port") for port in (0, 22, LEAST_PORT - 1, MOST_PORT + 1, 2**32 - 1)],
    ],
)
def test_nobody_asks_for_more_than_the_limits(told: dict[str, Any], words: str) -> None:
    with pytest.raises(PeerError, match=words):
        decode_ask(pb.Ask(**told).SerializeToString())


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({}, "no such reply"),
        ({"chunk": bytes(CHUNK_BYTES + 1)}, "the limit is"),
        ({"clock": pb.Reading(received_ns=2**64 - 1)}, "the limit is"),
        ({"turn": pb.Turn(wait_s=float("nan"))}, "finite"),
        ({"turn": pb.Turn(wait_s=1e9)}, "the limit is"),
        ({"turn": pb.Turn(seen_ip="\x1b[2J")}, "no IP address"),
        ({"turn": pb.Turn(seen_ip="1" * 65)}, "the limit is"),
        ({"token": b"short"}, "a token has 5 bytes"),
        ({"dialled": "whatever"}, "no such outcome"),
    ],
)
def test_no_answer_is_believed_beyond_the_limits(told: dict[str, Any], words: str) -> None:
    with pytest.raises(PeerError, match=words):
        decode_reply(pb.Reply(**told).SerializeToString())
