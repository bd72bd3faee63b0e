"""The messages of surveys to protobuf and back: see `wire.py`."""

from __future__ import annotations

from mend_optim.errors import PeerError, unreachable
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
from mend_optim.transport.address import is_ip
from mend_optim.transport.limits import check, check_size, checked_count, checked_number
from mend_optim.transport.wire_parts import parse

#: The ports that a learner dials back. Those below are of services that are no learners.
LEAST_PORT, MOST_PORT = 1024, 65535
#: Seconds that a learner may make a surveyor wait.
MOST_WAIT_S = 86_400.0
#: Characters of an IP address.
IP_LIMIT = 64
_UNKNOWN = "this version knows of no such {}; install the same mend-optim on both"


def encode_ask(ask: Ask) -> bytes:
    """Encode what a surveyor asks."""
    data: bytes = _ask(ask).SerializeToString()
    return data


def _ask(ask: Ask) -> pb.Ask:
    match ask:
        case ReadClock():
            return pb.Ask(clock=True)
        case SendBytes():
            return pb.Ask(send=ask.nbytes)
        case TakeBytes():
            return pb.Ask(take=ask.nbytes)
        case Chunk():
            return pb.Ask(chunk=ask.data)
        case DialPort():
            return pb.Ask(dial=ask.port)
        case _:
            unreachable(ask)


def decode_ask(data: bytes) -> Ask:
    """Decode what a surveyor asks. Raises `PeerError`, also if it asks for too much."""
    told = parse(pb.Ask, data)
    match told.WhichOneof("kind"):
        case "clock":
            return ReadClock()
        case "send":
            check_size("the transfer", told.send, MOST_BYTES)
            return SendBytes(told.send)
        case "take":
            check_size("the transfer", told.take, MOST_BYTES)
            return TakeBytes(told.take)
        case "chunk":
            return Chunk(_chunk(told.chunk))
        case "dial":
            fault = f"port {told.dial} is not from {LEAST_PORT} to {MOST_PORT}"
            check(LEAST_PORT <= told.dial <= MOST_PORT, fault)
            return DialPort(told.dial)
    raise PeerError(_UNKNOWN.format("question"))


def encode_reply(reply: Reply) -> bytes:
    """Encode what a learner answers."""
    data: bytes = _reply(reply).SerializeToString()
    return data


def _reply(reply: Reply) -> pb.Reply:
    match reply:
        case Turn():
            return pb.Reply(turn=pb.Turn(wait_s=reply.wait_s, seen_ip=reply.seen_ip))
        case Reading():
            return pb.Reply(
                clock=pb.Reading(received_ns=reply.received_ns, answered_ns=reply.answered_ns)
            )
        case Chunk():
            return pb.Reply(chunk=reply.data)
        case Taken():
            return pb.Reply(taken=reply.nbytes)
        case Token():
            return pb.Reply(token=reply.token)
        case Dialled():
            return pb.Reply(dialled=reply.outcome.value)
        case _:
            unreachable(reply)


def decode_reply(data: bytes) -> Reply:
    """Decode what a learner answers. Raises `PeerError`."""
    told = parse(pb.Reply, data)
    match told.WhichOneof("kind"):
        case "turn":
            return _turn(told.turn)
        case "clock":
            return Reading(
                checked_count("a time", told.clock.received_ns),
                checked_count("a time", told.clock.answered_ns),
            )
        case "chunk":
            return Chunk(_chunk(told.chunk))
        case "taken":
            return Taken(told.taken)
        case "token":
            check(len(told.token) == TOKEN_BYTES, f"a token has {len(told.token)} bytes")
            return Token(told.token)
        case "dialled":
            return _dialled(told.dialled)
    raise PeerError(_UNKNOWN.format("reply"))


def _chunk(data: bytes) -> bytes:
    check(bool(data), "a chunk is empty")
    check_size("a chunk", len(data), CHUNK_BYTES)
    return data


def _turn(turn: pb.Turn) -> Turn:
    check_size("an IP address", len(turn.seen_ip), IP_LIMIT)
    check(not turn.seen_ip or is_ip(turn.seen_ip), f"{turn.seen_ip!a} is no IP address")
    return Turn(checked_number("a wait", turn.wait_s, MOST_WAIT_S), turn.seen_ip)


def _dialled(word: str) -> Dialled:
    try:
        return Dialled(DialBack(word))
    except ValueError:
        raise PeerError(_UNKNOWN.format("outcome")) from None
