"""Paces in beats, to protobuf and back: see `wire.py`."""

from __future__ import annotations

from mend_optim.protocol.messages import Level
from mend_optim.transport._pb import peer_pb2 as pb
from mend_optim.transport.limits import check, checked_name, checked_number


def pace_of(cause: str, level: Level) -> pb.Pace:
    """Encode one pace of a beat."""
    return pb.Pace(
        cause=cause, now=level.now, before=level.before, spread=level.spread, run=level.run
    )


def to_pace(pace: pb.Pace) -> tuple[str, Level]:
    """Decode one pace of a beat. Raises `PeerError`."""
    level = Level(
        now=checked_number("pace", pace.now),
        before=checked_number("pace", pace.before),
        spread=checked_number("spread", pace.spread),
        run=pace.run,
    )
    check(level.now > 0 and level.before > 0, "a pace is 0; it must be greater")
    return checked_name("cause", pace.cause), level
