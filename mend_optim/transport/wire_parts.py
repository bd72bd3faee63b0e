"""The parts that several messages have in common, to protobuf and back: see `wire.py`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto

from mend_optim.errors import PeerError
from mend_optim.protocol.lineage import INCARNATIONS, Key, PeerId
from mend_optim.transport._pb import peer_pb2 as pb
from mend_optim.transport.limits import (
    MESSAGE_LIMIT,
    check,
    check_size,
    checked_count,
    checked_digest,
    checked_list,
    checked_name,
    checked_text,
)

_P = TypeVar("_P", bound=Proto)


def parse(kind: type[_P], data: bytes) -> _P:
    """Parse one protobuf message. Raises `PeerError`."""
    check_size(kind.__name__, len(data), MESSAGE_LIMIT)
    try:
        message: _P = kind.FromString(data)
    except (DecodeError, ValueError) as fault:
        raise PeerError(f"the bytes are not a {kind.__name__}: {fault}") from fault
    return message


def bytes_of(message: Proto) -> bytes:
    """A message's bytes."""
    data: bytes = message.SerializeToString()
    return data


def id_of(peer: PeerId) -> pb.PeerId:
    """Encode a process."""
    return pb.PeerId(name=peer.name, incarnation=peer.incarnation)


def to_id(peer: pb.PeerId) -> PeerId:
    """Decode a process. Raises `PeerError`."""
    incarnation = peer.incarnation
    fault = "an incarnation is {}; it must be below {}"
    check(incarnation < INCARNATIONS, fault, incarnation, INCARNATIONS)
    return PeerId(checked_name("peer name", peer.name), incarnation)


def key_of(key: Key) -> pb.Key:
    """Encode an anchor's place."""
    return pb.Key(tokens=key.tokens, version=key.version, digest=key.digest)


def to_key(owner: pb.Report | pb.Content | pb.Call | pb.Offer | pb.Seal | pb.Lineage) -> Key:
    """Decode the place of the anchor in a message. Raises `PeerError`."""
    check(owner.HasField("key"), f"the {type(owner).__name__} has no key")
    return Key(
        checked_count("tokens of an anchor", owner.key.tokens),
        checked_count("version of an anchor", owner.key.version),
        checked_digest("digest", owner.key.digest),
    )


def merged_of(pairs: Iterable[tuple[PeerId, int]]) -> list[pb.Merged]:
    """Encode processes with numbers of their offers."""
    return [pb.Merged(peer=id_of(peer), seq=seq) for peer, seq in pairs]


def to_merged(what: str, pairs: Any) -> tuple[tuple[PeerId, int], ...]:
    """Decode processes with numbers of their offers; `what` names them in a `PeerError`."""
    return tuple(to_pair(pair) for pair in checked_list(what, pairs))


def to_pair(pair: pb.Merged) -> tuple[PeerId, int]:
    """Decode a process and the number of an offer of it. Raises `PeerError`."""
    return to_id(pair.peer), checked_count("number of an offer", pair.seq)


def fields_of(pairs: Iterable[tuple[str, str]]) -> list[pb.Field]:
    """Encode names and values."""
    return [pb.Field(name=name, value=value) for name, value in pairs]


def to_fields(fields: Any) -> tuple[tuple[str, str], ...]:
    """Decode names and values. Raises `PeerError`."""
    return tuple(
        (checked_text("field name", field.name), checked_text("field value", field.value))
        for field in checked_list("fields", fields)
    )
