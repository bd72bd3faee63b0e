"""Sights, for those that watch, to protobuf and back: see `wire.py`."""

from __future__ import annotations

from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.peer_limits import MOST_LEARNERS
from mend_optim.protocol.sight import (
    REPORTED_LIMIT,
    REPORTED_NAME,
    ROUNDS_SHOWN,
    VERSION,
    SeenPeer,
    SeenRound,
    Sight,
)
from mend_optim.transport._pb import peer_pb2 as pb
from mend_optim.transport.limits import (
    check,
    checked_count,
    checked_list,
    checked_name,
    checked_number,
)
from mend_optim.transport.wire_parts import parse, to_id

#: The counters of a sight, which are called alike on both sides.
_COUNTS = (
    "step",
    "tokens",
    "position",
    "cluster_step",
    "cluster_tokens",
    "sync_every",
    "latency",
    "rounds",
    "unmerged_tokens",
    "dropped_tokens",
    "superseded_tokens",
    "bytes_sent",
    "bytes_received",
)


def encode_look() -> bytes:
    """Encode what a watcher asks."""
    data: bytes = pb.Look(version=VERSION).SerializeToString()
    return data


def check_look(data: bytes) -> None:
    """Raise `PeerError` unless a watcher reads what this version shows."""
    look = parse(pb.Look, data)
    fault = f"the watcher reads version {look.version} of a sight, and this is {VERSION}"
    check(look.version == VERSION, f"{fault}; install the same mend-optim on both")


def encode_sight(sight: Sight) -> bytes:
    """Encode where a learner stands."""
    message = pb.Sight(
        version=VERSION,
        peer=_id(sight.peer),
        address=sight.address,
        joined=sight.joined,
        seconds_per_step=sight.seconds_per_step,
        quiet_s=sight.quiet_s,
        codec=sight.codec,
        roster=[_seen(peer) for peer in sight.roster],
        last=[_round(each) for each in sight.last],
        reported=[pb.Reported(name=name, value=value) for name, value in sight.reported],
        zone=sight.zone,
        **{name: getattr(sight, name) for name in _COUNTS},
    )
    data: bytes = message.SerializeToString()
    return data


def decode_sight(data: bytes) -> Sight:
    """Decode where a learner stands. Raises `PeerError`."""
    told = parse(pb.Sight, data)
    check(told.version == VERSION, f"the sight has version {told.version}, and this is {VERSION}")
    return Sight(
        peer=to_id(told.peer),
        address=checked_name("address", told.address, may_be_empty=True),
        joined=told.joined,
        seconds_per_step=checked_number("seconds of a step", told.seconds_per_step),
        quiet_s=checked_number("seconds since a round", told.quiet_s),
        codec=checked_name("codec", told.codec, may_be_empty=True),
        roster=tuple(map(_to_seen, checked_list("peers", told.roster, MOST_LEARNERS))),
        last=tuple(map(_to_round, checked_list("rounds", told.last, ROUNDS_SHOWN))),
        reported=tuple(
            map(_to_reported, checked_list("reported numbers", told.reported, REPORTED_LIMIT))
        ),
        zone=checked_name("zone", told.zone, may_be_empty=True),
        **{name: checked_count(name, getattr(told, name)) for name in _COUNTS},
    )


def _id(peer: PeerId) -> pb.PeerId:
    return pb.PeerId(name=peer.name, incarnation=peer.incarnation)


def _seen(peer: SeenPeer) -> pb.Seen:
    return pb.Seen(
        peer=pb.PeerId(name=peer.name, incarnation=peer.incarnation),
        address=peer.address,
        state=peer.state,
        step=peer.step,
        tokens=peer.tokens,
        slow=peer.slow,
        finishing=peer.finishing,
        zone=peer.zone,
        declines=peer.declines,
        missed=peer.missed,
    )


def _to_seen(peer: pb.Seen) -> SeenPeer:
    id = to_id(peer.peer)
    return SeenPeer(
        name=id.name,
        incarnation=id.incarnation,
        address=checked_name("address", peer.address, may_be_empty=True),
        state=checked_name("state", peer.state),
        step=checked_count("step", peer.step),
        tokens=checked_count("tokens", peer.tokens),
        slow=checked_number("slowness", peer.slow),
        finishing=peer.finishing,
        zone=checked_name("zone", peer.zone, may_be_empty=True),
        declines=peer.declines,
        missed=tuple(
            checked_count("missed rounds", rounds)
            for rounds in checked_list("fragments", peer.missed)
        ),
    )


def _round(each: SeenRound) -> pb.SeenRound:
    return pb.SeenRound(
        fragment=each.fragment,
        version=each.version,
        tokens=each.tokens,
        reason=each.reason,
        sealer=each.sealer,
        members=each.members,
        absent=each.absent,
    )


def _to_round(each: pb.SeenRound) -> SeenRound:
    return SeenRound(
        fragment=each.fragment,
        version=checked_count("version of an anchor", each.version),
        tokens=checked_count("tokens of an anchor", each.tokens),
        reason=checked_name("reason", each.reason, may_be_empty=True),
        sealer=checked_name("peer name", each.sealer, may_be_empty=True),
        members=tuple(
            checked_name("peer name", name)
            for name in checked_list("members", each.members, MOST_LEARNERS)
        ),
        absent=tuple(
            checked_name("peer name", name)
            for name in checked_list("absent peers", each.absent, MOST_LEARNERS)
        ),
    )


def _to_reported(each: pb.Reported) -> tuple[str, float]:
    name = checked_name("name of a number", each.name)
    check(len(name) <= REPORTED_NAME, f"a reported number has a name of {len(name)} characters")
    return name, each.value
