"""Messages to protobuf and back.

Each decoder checks the names, lists and numbers that a peer sent. It raises `PeerError` for bytes
that are not a message, and nothing else. `wire_bulk.py` has the bulky messages, and `wire_parts.py`
the parts that several messages have in common.

To add a field, change `protos/peer.proto`, run `make proto`, then change the encoder and the
decoder of its message here. They stand side by side.
"""

from __future__ import annotations

from mend_optim.errors import PeerError, unreachable
from mend_optim.protocol.handshake import Hello, Life, Namesake
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import (
    Beat,
    Call,
    Content,
    Control,
    Goodbye,
    Report,
    Rumor,
    Want,
)
from mend_optim.transport._pb import peer_pb2 as pb
from mend_optim.transport.limits import (
    AWAY_LIMIT,
    PACE_LIMIT,
    RUMOR_LIMIT,
    check,
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
from mend_optim.transport.wire_parts import (
    bytes_of,
    fields_of,
    id_of,
    key_of,
    merged_of,
    parse,
    to_fields,
    to_id,
    to_key,
    to_merged,
)


def encode_id(peer: PeerId) -> bytes:
    """Encode the caller of an RPC, for the RPC's metadata."""
    return bytes_of(id_of(peer))


def decode_id(data: bytes) -> PeerId:
    """Decode the caller of an RPC. Raises `PeerError`."""
    return to_id(parse(pb.PeerId, data))


def encode_hello(hello: Hello) -> bytes:
    """Encode a hello, or the answer to one."""
    other = hello.namesake
    return bytes_of(
        pb.Hello(
            peer=id_of(hello.peer),
            address=hello.address,
            model=fields_of(hello.model),
            policy=fields_of(hello.policy),
            protocol=hello.protocol,
            refusal=clipped(hello.refusal),
            namesake=pb.Namesake(peer=id_of(other.id), life=other.life.value) if other else None,
        )
    )


def decode_hello(data: bytes) -> Hello:
    """Decode a hello. Raises `PeerError`."""
    hello = parse(pb.Hello, data)
    return Hello(
        peer=to_id(hello.peer),
        address=checked_name("address", hello.address, may_be_empty=True),
        model=to_fields(hello.model),
        policy=to_fields(hello.policy),
        protocol=hello.protocol,
        refusal=checked_text("refusal", hello.refusal),
        namesake=_to_namesake(hello.namesake) if hello.HasField("namesake") else None,
    )


def _to_namesake(namesake: pb.Namesake) -> Namesake:
    known = {life.value: life for life in Life}
    check(namesake.life in known, f"the life of a process is {namesake.life[:80]!r}")
    return Namesake(to_id(namesake.peer), known[namesake.life])


def _call(call: Call) -> pb.Call:
    return pb.Call(peer=id_of(call.peer), fragment=call.fragment, key=key_of(call.key))


def _to_call(call: pb.Call) -> Call:
    if call.HasField("key"):
        return Call(to_id(call.peer), call.fragment, to_key(call))
    return Call(to_id(call.peer), call.fragment)


def encode_want(want: Want) -> bytes:
    """Encode a want, as the request of a pull."""
    return bytes_of(_want(want))


def decode_want(data: bytes) -> Want:
    """Decode the request of a pull. Raises `PeerError`."""
    return _to_want(parse(pb.Want, data))


def encode_control(message: Control) -> bytes:
    """Encode a message for a control stream."""
    match message:
        case Beat():
            control = pb.Control(beat=_beat(message))
        case Goodbye():
            control = pb.Control(goodbye=pb.Goodbye(peer=id_of(message.peer), proof=message.proof))
        case Call():
            control = pb.Control(call=_call(message))
        case Want():
            control = pb.Control(want=_want(message))
        case _:
            unreachable(message)
    return bytes_of(control)


def decode_control(data: bytes) -> Control:
    """Decode a message of a control stream. Raises `PeerError`."""
    control = parse(pb.Control, data)
    match control.WhichOneof("kind"):
        case "beat":
            return _to_beat(control.beat)
        case "goodbye":
            return Goodbye(to_id(control.goodbye.peer), checked_proof(control.goodbye.proof))
        case "call":
            return _to_call(control.call)
        case "want":
            return _to_want(control.want)
        case _:
            raise PeerError("the control message is of an unknown kind")


def _want(want: Want) -> pb.Want:
    return pb.Want(peer=id_of(want.peer), fragment=want.fragment, have=want.have)


def _to_want(want: pb.Want) -> Want:
    return Want(to_id(want.peer), want.fragment, checked_digest("digest", want.have))


def _beat(beat: Beat) -> pb.Beat:
    return pb.Beat(
        peer=id_of(beat.peer),
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
        turned_away=map(id_of, beat.turned_away),
        zone=beat.zone,
        takes_joint=beat.takes_joint,
        declines=beat.declines,
        rests=beat.rests,
    )


def _to_beat(beat: pb.Beat) -> Beat:
    away = checked_list("processes", beat.turned_away, AWAY_LIMIT)
    return Beat(
        peer=to_id(beat.peer),
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
        turned_away=tuple(map(to_id, away)),
        zone=checked_name("zone", beat.zone, may_be_empty=True),
        takes_joint=checked_count("takes_joint", beat.takes_joint),
        declines=beat.declines,
        rests=beat.rests,
    )


def _report(report: Report) -> pb.Report:
    return pb.Report(
        key=key_of(report.key),
        held=merged_of(report.held),
        group=report.group,
        content=_content(report.content) if report.content else None,
        latency=report.latency,
    )


def _to_report(report: pb.Report) -> Report:
    return Report(
        key=to_key(report),
        held=to_merged("offers held", report.held),
        group=checked_digest("group", report.group),
        content=_to_content(report.content) if report.HasField("content") else None,
        latency=checked_count("latency", report.latency),
    )


def _content(content: Content) -> pb.Content:
    return pb.Content(key=key_of(content.key), digest=content.digest)


def _to_content(content: pb.Content) -> Content:
    check(bool(content.digest), "the content of an anchor is empty")
    return Content(to_key(content), checked_digest("content of an anchor", content.digest))


def _rumor(rumor: Rumor) -> pb.Rumor:
    return pb.Rumor(
        peer=id_of(rumor.peer),
        address=rumor.address,
        count=rumor.count,
        left=rumor.left,
        finishes=rumor.finishes,
        ready=rumor.ready,
        tokens=rumor.tokens,
        proof=rumor.proof,
        reached=rumor.reached,
        hops=rumor.hops,
        declines=rumor.declines,
    )


def _to_rumor(rumor: pb.Rumor) -> Rumor:
    return Rumor(
        peer=to_id(rumor.peer),
        address=checked_name("address", rumor.address, may_be_empty=True),
        count=checked_count("number of a beat", rumor.count),
        left=rumor.left,
        finishes=rumor.finishes,
        ready=checked_digest("ready", rumor.ready),
        tokens=checked_count("tokens", rumor.tokens),
        proof=checked_proof(rumor.proof),
        reached=rumor.reached,
        hops=checked_count("hops", rumor.hops),
        declines=rumor.declines,
    )
