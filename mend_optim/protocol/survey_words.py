"""The messages of a survey: the surveyor's questions, and the learner's answers. See `surveyed.py`
for the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from mend_optim.protocol.surveyed import DialBack

#: Bytes of one chunk.
CHUNK_BYTES = 64 << 10
#: Bytes of a token, which proves to a learner that it has dialled the surveyor.
TOKEN_BYTES = 16


@dataclass(frozen=True, slots=True)
class ReadClock:
    """Ask for the time. The answer is a `Reading`."""


@dataclass(frozen=True, slots=True)
class SendBytes:
    """Ask for bytes, which come in chunks."""

    nbytes: int


@dataclass(frozen=True, slots=True)
class TakeBytes:
    """Announce bytes, which follow in chunks. The answer is `Taken`."""

    nbytes: int


@dataclass(frozen=True, slots=True)
class DialPort:
    """Ask to be dialled at a port. The answers are a `Token`, and then `Dialled`."""

    port: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some of the bytes that were announced or asked for."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Turn:
    """The learner's first word: how long the surveyor must wait, and which IP address it is seen
    under. It has its turn if it need not wait."""

    wait_s: float
    seen_ip: str


@dataclass(frozen=True, slots=True)
class Reading:
    """The learner's clock when it read the question, and when it answered, in nanoseconds."""

    received_ns: int
    answered_ns: int


@dataclass(frozen=True, slots=True)
class Taken:
    """All bytes that were announced are here."""

    nbytes: int


@dataclass(frozen=True, slots=True)
class Token:
    """The bytes that the surveyor must say on the connection that the learner makes."""

    token: bytes


@dataclass(frozen=True, slots=True)
class Dialled:
    """How it went."""

    outcome: DialBack


Ask: TypeAlias = ReadClock | SendBytes | TakeBytes | Chunk | DialPort
Reply: TypeAlias = Turn | Reading | Chunk | Taken | Token | Dialled
