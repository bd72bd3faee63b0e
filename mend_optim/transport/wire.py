"""Messages to protobuf and back.

Each decoder checks the names, lists and numbers that a peer sent. It raises `PeerError` for bytes
that are not a message, and nothing else. `frames.py` carries the payload of bulky messages.

To add a field, change `protos/peer.proto`, run `make proto`, then change the encoder and the
decoder of its message here. They stand side by side.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto

from mend_optim.errors import PeerError, unreachable
from mend_optim.protocol.handshake import Hello, Life, Namesake
from mend_optim.protocol.lineage import INCARNATIONS, Claim, Entry, Key, Lineage, PeerId
from mend_optim.protocol.messages import (
    Beat,
    Bulk,
    Call,
    Control,
    Goodbye,
    Offer,
    Report,
    Rumor,
    Seal,
    Sections,
    State,
    Want,
)
from mend_optim.transport._pb import peer_pb2 as pb
from mend_optim.transport.limits import (
    AWAY_LIMIT,
    MESSAGE_LIMIT,
    PACE_LIMIT,
    RUMOR_LIMIT,
    check,
    check_size,
    checked_count,
    checked_digest,
    checked_genesis,
    checked_list,
    checked_name,
    checked_number,
    checked_proof,
    checked_reports,
    checked_text,
    clipped,
)
from mend_optim.transport.wire_paces import pace_of, to_pace

_P = TypeVar("_P", bound=Proto)


def parse(kind: type[_P], data: bytes) -> _P:
    """Parse one protobuf message. Raises `PeerError`."""
    check_size(kind.__name__, len(data), MESSAGE_LIMIT)
    try:
        message: _P = kind.FromString(data)
    except (DecodeError, ValueError) as fault:
        raise PeerError(f"the bytes are not a {kind.__name__}: {fault}") from fault
    return message


def _bytes(message: Proto) -> bytes:
    data: bytes = message.SerializeToString()
    return data


# ── small parts ───────────────────────────────────────────────────────────────────────────────────


def _id(peer: PeerId) -> pb.PeerId:
    return pb.PeerId(name=peer.name, incarnation=peer.incarnation)


def _to_id(peer: pb.PeerId) -> PeerId:
    limit = "an incarnation is {}; it must be below {}".format
    check(peer.incarnation < INCARNATIONS, limit(peer.incarnation, INCARNATIONS))
    return PeerId(checked_name("peer name", peer.name), peer.incarnation)


def _key(key: Key) -> pb.Key:
    return pb.Key(tokens=key.tokens, version=key.version, digest=key.digest)


def _to_key(owner: pb.Report | pb.Offer | pb.Seal | pb.Lineage) -> Key:
    check(owner.HasField("key"), f"the {type(owner).__name__} has no key")
    return Key(
        checked_count("tokens of an anchor", owner.key.tokens),
        checked_count("version of an anchor", owner.key.version),
        checked_digest("digest", owner.key.digest),
    )


def _merged(pairs: Iterable[tuple[PeerId, int]]) -> list[pb.Merged]:
    return [pb.Merged(peer=_id(peer), seq=seq) for peer, seq in pairs]


def _to_merged(what: str, pairs: Any) -> tuple[tuple[PeerId, int], ...]:
    return tuple(_to_pair(pair) for pair in checked_list(what, pairs))


def _to_pair(pair: pb.Merged) -> tuple[PeerId, int]:
    return _to_id(pair.peer), checked_count("number of an offer", pair.seq)


def _fields(pairs: Iterable[tuple[str, str]]) -> list[pb.Field]:
    return [pb.Field(name=name, value=value) for name, value in pairs]


def _to_fields(fields: Any) -> tuple[tuple[str, str], ...]:
    return tuple(
        (checked_text("field name", field.name), checked_text("field value", field.value))
        for field in checked_list("fields", fields)
    )


# ── hello and control ─────────────────────────────────────────────────────────────────────────────


def encode_id(peer: PeerId) -> bytes:
    """Encode the caller of an RPC, for the RPC's metadata."""
    return _bytes(_id(peer))


def decode_id(data: bytes) -> PeerId:
    """Decode the caller of an RPC. Raises `PeerError`."""
    return _to_id(parse(pb.PeerId, data))


def encode_hello(hello: Hello) -> bytes:
    """Encode a hello, or the answer to one."""
    other = hello.namesake
    return _bytes(
        pb.Hello(
            peer=_id(hello.peer),
            address=hello.address,
            model=_fields(hello.model),
            policy=_fields(hello.policy),
            protocol=hello.protocol,
            refusal=clipped(hello.refusal),
            namesake=pb.Namesake(peer=_id(other.id), life=other.life.value) if other else None,
        )
    )


def decode_hello(data: bytes) -> Hello:
    """Decode a hello. Raises `PeerError`."""
    hello = parse(pb.Hello, data)
    return Hello(
        peer=_to_id(hello.peer),
        address=checked_name("address", hello.address, may_be_empty=True),
        model=_to_fields(hello.model),
        policy=_to_fields(hello.policy),
        protocol=hello.protocol,
        refusal=checked_text("refusal", hello.refusal),
        namesake=_to_namesake(hello.namesake) if hello.HasField("namesake") else None,
    )


def _to_namesake(namesake: pb.Namesake) -> Namesake:
    known = {life.value: life for life in Life}
    check(namesake.life in known, f"the life of a process is {namesake.life[:80]!r}")
    return Namesake(_to_id(namesake.peer), known[namesake.life])


def encode_want(want: Want) -> bytes:
    """Encode a want, as the request of a pull."""
    return _bytes(_want(want))


def decode_want(data: bytes) -> Want:
    """Decode the request of a pull. Raises `PeerError`."""
    return _to_want(parse(pb.Want, data))


def encode_control(message: Control) -> bytes:
    """Encode a message for a control stream."""
    match message:
        case Beat():
            control = pb.Control(beat=_beat(message))
        case Goodbye():
            control = pb.Control(goodbye=pb.Goodbye(peer=_id(message.peer), proof=message.proof))
        case Call():
            control = pb.Control(call=pb.Call(peer=_id(message.peer), fragment=message.fragment))
        case Want():
            control = pb.Control(want=_want(message))
        case _:
            unreachable(message)
    return _bytes(control)


def decode_control(data: bytes) -> Control:
    """Decode a message of a control stream. Raises `PeerError`."""
    control = parse(pb.Control, data)
    match control.WhichOneof("kind"):
        case "beat":
            return _to_beat(control.beat)
        case "goodbye":
            return Goodbye(_to_id(control.goodbye.peer), checked_proof(control.goodbye.proof))
        case "call":
            return Call(_to_id(control.call.peer), control.call.fragment)
        case "want":
            return _to_want(control.want)
        case _:
            raise PeerError("the control message is of an unknown kind")


def _want(want: Want) -> pb.Want:
    return pb.Want(peer=_id(want.peer), fragment=want.fragment, have=want.have)


def _to_want(want: pb.Want) -> Want:
    return Want(_to_id(want.peer), want.fragment, checked_digest("digest", want.have))


def _beat(beat: Beat) -> pb.Beat:
    return pb.Beat(
        peer=_id(beat.peer),
        address=beat.address,
        count=beat.count,
        step=beat.step,
        tokens=beat.tokens,
        seconds_per_step=beat.seconds_per_step,
        training=beat.training,
        genesis=beat.genesis,
        reports=[_report(report) for report in beat.reports],
        roster=[_rumor(rumor) for rumor in beat.roster],
        ping=beat.ping,
        pong=beat.pong,
        position=beat.position,
        paces=[pace_of(cause, level) for cause, level in beat.paces],
        latency=beat.latency,
        finishes=beat.finishes,
        ready=beat.ready,
        ended=beat.ended,
        turned_away=map(_id, beat.turned_away),
        zone=beat.zone,
    )


def _to_beat(beat: pb.Beat) -> Beat:
    away = checked_list("processes", beat.turned_away, AWAY_LIMIT)
    return Beat(
        peer=_to_id(beat.peer),
        address=checked_name("address", beat.address, may_be_empty=True),
        count=checked_count("number of a beat", beat.count),
        step=checked_count("steps", beat.step),
        tokens=checked_count("tokens", beat.tokens),
        seconds_per_step=checked_number("seconds per step", beat.seconds_per_step),
        training=beat.training,
        genesis=checked_genesis(beat.genesis),
        reports=tuple(map(_to_report, checked_reports(beat.reports))),
        roster=tuple(map(_to_rumor, checked_list("rumors", beat.roster, RUMOR_LIMIT))),
        ping=checked_count("ping", beat.ping),
        pong=checked_count("pong", beat.pong),
        position=checked_count("position", beat.position),
        paces=tuple(to_pace(pace) for pace in checked_list("paces", beat.paces, PACE_LIMIT)),
        latency=checked_count("latency", beat.latency),
        finishes=beat.finishes,
        ready=checked_digest("ready", beat.ready),
        ended=checked_digest("ended", beat.ended),
        turned_away=tuple(map(_to_id, away)),
        zone=checked_name("zone", beat.zone, may_be_empty=True),
    )


def _report(report: Report) -> pb.Report:
    return pb.Report(key=_key(report.key), held=_merged(report.held), group=report.group)


def _to_report(report: pb.Report) -> Report:
    return Report(
        key=_to_key(report),
        held=_to_merged("offers held", report.held),
        group=checked_digest("group", report.group),
    )


def _rumor(rumor: Rumor) -> pb.Rumor:
    return pb.Rumor(
        peer=_id(rumor.peer),
        address=rumor.address,
        count=rumor.count,
        left=rumor.left,
        finishes=rumor.finishes,
        ready=rumor.ready,
        tokens=rumor.tokens,
        proof=rumor.proof,
    )


def _to_rumor(rumor: pb.Rumor) -> Rumor:
    return Rumor(
        peer=_to_id(rumor.peer),
        address=checked_name("address", rumor.address, may_be_empty=True),
        count=checked_count("number of a beat", rumor.count),
        left=rumor.left,
        finishes=rumor.finishes,
        ready=checked_digest("ready", rumor.ready),
        tokens=checked_count("tokens", rumor.tokens),
        proof=checked_proof(rumor.proof),
    )


# ── bulky messages ────────────────────────────────────────────────────────────────────────────────


def header_of(message: Bulk) -> pb.Header:
    """Return the header of a bulky message: everything but its sections' bytes."""
    sections = [
        pb.Section(name=name, codec=packet.codec, numel=packet.numel, nbytes=packet.nbytes)
        for name, packet in message.sections.items()
    ]
    match message:
        case Offer():
            return pb.Header(offer=_offer(message), sections=sections)
        case Seal():
            return pb.Header(seal=_seal(message), sections=sections)
        case State():
            return pb.Header(state=_state(message), sections=sections)
        case _:
            unreachable(message)


def message_from(header: pb.Header, sections: Sections) -> Bulk:
    """Return the message of a header, with these sections. Raises `PeerError`.

    The caller checks the sections; see `Assembler`."""
    match header.WhichOneof("kind"):
        case "offer":
            return _to_offer(header.offer, sections)
        case "seal":
            return _to_seal(header.seal, sections)
        case "state":
            return _to_state(header.state, sections)
        case _:
            raise PeerError("the header is of an unknown kind")


def _claim(claim: Claim) -> pb.Merged:
    return pb.Merged(peer=_id(claim.author), seq=claim.settled)


def _to_claim(claim: pb.Merged) -> Claim:
    return Claim(*_to_pair(claim))


def _offer(offer: Offer) -> pb.Offer:
    return pb.Offer(
        peer=_id(offer.peer),
        fragment=offer.fragment,
        seq=offer.seq,
        tokens=offer.tokens,
        steps=offer.steps,
        genesis=offer.genesis,
        key=_key(offer.key),
        due=offer.due,
        follows=offer.follows,
        rate=offer.rate,
        again_tokens=offer.again[0],
        again_steps=offer.again[1],
        inherited=_claim(offer.inherited) if offer.inherited else None,
    )


def _to_offer(offer: pb.Offer, sections: Sections) -> Offer:
    inherited = _to_claim(offer.inherited) if offer.HasField("inherited") else None
    check(
        inherited is None or inherited.settled < offer.seq,
        "the offer claims work that comes after it",
    )
    return Offer(
        peer=_to_id(offer.peer),
        fragment=offer.fragment,
        seq=checked_count("number of an offer", offer.seq),
        tokens=checked_count("tokens of an offer", offer.tokens),
        steps=checked_count("steps of an offer", offer.steps),
        rate=checked_number("rate of an offer", offer.rate),
        genesis=checked_genesis(offer.genesis),
        key=_to_key(offer),
        due=offer.due,
        sections=sections,
        inherited=inherited,
        follows=checked_count("number of an offer", offer.follows),
        again=_to_share(offer),
    )


def _seal(seal: Seal) -> pb.Seal:
    members = [
        pb.Member(
            peer=_id(entry.peer),
            seq=entry.seq,
            tokens=entry.tokens,
            steps=entry.steps,
            weight=weight,
            again_tokens=share[0],
            again_steps=share[1],
        )
        for entry, weight, share in zip(
            seal.members, seal.weights, seal.shares or [(0, 0)] * len(seal.members), strict=True
        )
    ]
    return pb.Seal(
        sealer=_id(seal.sealer),
        fragment=seal.fragment,
        base=seal.base,
        key=_key(seal.key),
        members=members,
        absent=seal.absent,
        reason=seal.reason,
        payload=seal.payload,
        period=seal.period,
    )


def _to_seal(seal: pb.Seal, sections: Sections) -> Seal:
    members = checked_list("members", seal.members)
    shares = tuple(_to_share(member) for member in members)
    return Seal(
        sealer=_to_id(seal.sealer),
        fragment=seal.fragment,
        base=checked_digest("digest", seal.base),
        key=_to_key(seal),
        members=tuple(_to_entry(member) for member in members),
        weights=tuple(checked_number("weight", m.weight, 1.0) for m in members),
        absent=tuple(
            checked_name("peer name", name) for name in checked_list("absent peers", seal.absent)
        ),
        reason=checked_name("reason", seal.reason, may_be_empty=True),
        payload=checked_digest("digest", seal.payload),
        period=checked_count("period", seal.period),
        shares=shares if any(map(any, shares)) else (),
        sections=sections,
    )


def _to_share(told: pb.Offer | pb.Member) -> tuple[int, int]:
    return (
        checked_count("tokens of a residual", told.again_tokens),
        checked_count("steps of a residual", told.again_steps),
    )


def _to_entry(member: pb.Member) -> Entry:
    return Entry(
        _to_id(member.peer),
        checked_count("number of an offer", member.seq),
        checked_count("tokens of a member", member.tokens),
        checked_count("steps of a member", member.steps),
    )


def _state(state: State) -> pb.State:
    return pb.State(
        peer=_id(state.peer),
        fragment=state.fragment,
        lineage=_lineage(state.lineage),
        content=state.content,
        period=state.period,
    )


def _to_state(state: pb.State, sections: Sections) -> State:
    return State(
        peer=_to_id(state.peer),
        fragment=state.fragment,
        lineage=_to_lineage(state.lineage),
        content=checked_digest("content", state.content),
        period=checked_count("period", state.period),
        sections=sections,
    )


def _lineage(lineage: Lineage) -> pb.Lineage:
    return pb.Lineage(
        key=_key(lineage.key), genesis=lineage.genesis, merged=_merged(lineage.merged.items())
    )


def _to_lineage(lineage: pb.Lineage) -> Lineage:
    key = _to_key(lineage)
    pairs = _to_merged("merged peers", lineage.merged)
    merged = dict(pairs)
    check(len(merged) == len(pairs), "a peer is merged twice in one lineage")
    return Lineage(
        tokens=key.tokens,
        version=key.version,
        digest=key.digest,
        genesis=checked_genesis(lineage.genesis),
        merged=merged,
    )
