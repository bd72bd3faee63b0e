"""The limits on messages from a peer, and the checks that hold a peer to them.

Every check raises `PeerError` with a text that names the thing, its size and the limit."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, TypeVar

from mend_optim.errors import PeerError
from mend_optim.protocol.lineage import DIGEST_BYTES, ROLLBACK_BYTES, Rollback
from mend_optim.protocol.peer_limits import (
    COUNT_LIMIT,
    COUNTER_LIMIT,
    MOST_LEARNERS,
    NAME_LIMIT,
    is_plain,
)
from mend_optim.protocol.proofs import PROOF_LIMIT

#: Bytes of one protobuf message.
MESSAGE_LIMIT = 4 << 20
#: Bytes of a text that a peer wrote for people: a reason, or a field of its model or settings.
TEXT_LIMIT = 1024
#: Bytes of a digest.
DIGEST_LIMIT = 32
#: Bytes of a genesis.
GENESIS_LIMIT = DIGEST_BYTES + ROLLBACK_BYTES + NAME_LIMIT
#: Sections of one bulky message.
SECTION_LIMIT = 256
#: Bytes of the sections of one bulky message that this version doesn't know.
UNKNOWN_LIMIT = 1 << 20
#: Rumors in one beat: of every learner that there may be, and the goodbyes that it passes on.
RUMOR_LIMIT = MOST_LEARNERS + 64
#: Offers held that one beat tells of, in all of its reports: each learner's, of each fragment.
HELD_LIMIT = 1 << 14
#: Reports, one per fragment, and processes turned away in one beat.
REPORT_LIMIT = 1 << 13
AWAY_LIMIT = 1024
#: Paces in one beat.
PACE_LIMIT = 8

_C = TypeVar("_C", bound=Collection[object])


def check(holds: bool, fault: str, *parts: object) -> None:
    """Raise `PeerError` unless `holds`, with a text that `fault` makes of the parts. A beat takes
    thousands of checks, so no text is made for one that holds."""
    if not holds:
        raise PeerError(fault.format(*parts) if parts else fault)


def check_size(what: str, nbytes: int, limit: int) -> None:
    """Raise unless `what`, of `nbytes` bytes, is within `limit`."""
    check(nbytes <= limit, "{} is {} bytes; the limit is {}", what, nbytes, limit)


def checked_name(what: str, text: str, *, may_be_empty: bool = False) -> str:
    """Return a name. Raise if it is too long, empty where it must not be, or could pass for
    another: names are printable, and in the composed form of Unicode (NFC)."""
    check(bool(text) or may_be_empty, "{} is empty", what)
    check_size(what, len(text.encode()), NAME_LIMIT)
    check(is_plain(text), "{} {!a} is not printable text in NFC", what, text)
    return text


def checked_text(what: str, text: str) -> str:
    """Return a text for people with everything escaped that is not printable, such as line breaks
    and terminal codes. Raise if it is too long."""
    check_size(what, len(text.encode()), TEXT_LIMIT)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def clipped(text: str) -> str:
    """Return as much of a text for people as a peer takes."""
    return text.encode()[:TEXT_LIMIT].decode(errors="ignore")


def checked_count(what: str, count: int) -> int:
    """Return a counter, or raise if it is too great."""
    check(count <= COUNTER_LIMIT, "{} is {}; the limit is {}", what, count, COUNTER_LIMIT)
    return count


def checked_digest(what: str, digest: bytes) -> bytes:
    """Return a digest, or raise if it is too long."""
    check_size(what, len(digest), DIGEST_LIMIT)
    return digest


def checked_proof(proof: bytes) -> bytes:
    """Return a proof, or raise if it is too long."""
    check_size("a proof", len(proof), PROOF_LIMIT)
    return proof


def checked_genesis(genesis: bytes) -> bytes:
    """Return a genesis: a digest, or a digest and the rollback that led to it. Raise if it is
    neither."""
    if len(genesis) <= DIGEST_BYTES:
        return genesis
    check_size("genesis", len(genesis), GENESIS_LIMIT)
    try:
        rollback = Rollback.told_by(genesis)
    except ValueError as error:
        raise PeerError(f"the genesis is damaged: {error}") from None
    if rollback:
        checked_name("name in a genesis", rollback.by)
    return genesis


def checked_list(what: str, entries: _C, limit: int = COUNT_LIMIT) -> _C:
    """Return a list, or raise if it has too many entries."""
    count = len(entries)
    check(count <= limit, "the message has {} {}; the limit is {}", count, what, limit)
    return entries


def checked_reports(reports: Any) -> Any:
    """Return a beat's reports, or raise if they are too many, or tell of too many offers held."""
    checked_list("reports", reports, REPORT_LIMIT)
    held = sum(len(report.held) for report in reports)
    check(held <= HELD_LIMIT, f"the beat has {held} offers held; the limit is {HELD_LIMIT}")
    return reports


def checked_number(what: str, value: float, limit: float = math.inf) -> float:
    """Return a number, or raise unless it is finite, at least 0 and at most `limit`."""
    check(math.isfinite(value) and value >= 0, "{} is {}; it must be finite and >= 0", what, value)
    check(value <= limit, "{} is {}; the limit is {:g}", what, value, limit)
    return value
