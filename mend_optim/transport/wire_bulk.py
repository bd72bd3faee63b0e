"""The headers of bulky messages, offers, seals and states, to protobuf and back: see `wire.py`.
`frames.py` carries their sections."""

from __future__ import annotations

from dataclasses import replace

from mend_optim.errors import PeerError, unreachable
from mend_optim.protocol.lineage import Claim, Entry, Lineage
from mend_optim.protocol.messages import Bulk, Offer, Seal, Sections, State
from mend_optim.protocol.peer_limits import MOST_LEARNERS, OTHERS_LIMIT
from mend_optim.transport._pb import peer_pb2 as pb
from mend_optim.transport.limits import (
    check,
    checked_count,
    checked_digest,
    checked_genesis,
    checked_list,
    checked_name,
    checked_number,
)
from mend_optim.transport.wire_parts import (
    id_of,
    key_of,
    merged_of,
    to_id,
    to_key,
    to_merged,
    to_pair,
)


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
    return pb.Merged(peer=id_of(claim.author), seq=claim.settled)


def _to_claim(claim: pb.Merged) -> Claim:
    return Claim(*to_pair(claim))


def _offer(offer: Offer) -> pb.Offer:
    return pb.Offer(
        peer=id_of(offer.peer),
        fragment=offer.fragment,
        seq=offer.seq,
        tokens=offer.tokens,
        steps=offer.steps,
        genesis=offer.genesis,
        key=key_of(offer.key),
        due=offer.due,
        follows=offer.follows,
        rate=offer.rate,
        again_tokens=offer.again[0],
        again_steps=offer.again[1],
        inherited=_claim(offer.inherited) if offer.inherited else None,
        others=map(_offer, offer.others),
    )


def _to_offer(offer: pb.Offer, sections: Sections) -> Offer:
    others = checked_list("offers of others", offer.others, OTHERS_LIMIT)
    check(not any(other.others for other in others), "an offer in another one has others")
    fragments = {offer.fragment, *(other.fragment for other in others)}
    check(len(fragments) == 1, "a joint offer is of several fragments")
    names = {offer.peer.name, *(other.peer.name for other in others)}
    check(len(names) == 1 + len(others), "a joint offer has two offers of one learner")
    return replace(_to_one(offer, sections), others=tuple(_to_one(other, {}) for other in others))


def _to_one(offer: pb.Offer, sections: Sections) -> Offer:
    inherited = _to_claim(offer.inherited) if offer.HasField("inherited") else None
    check(
        inherited is None or inherited.settled < offer.seq,
        "the offer claims work that comes after it",
    )
    return Offer(
        peer=to_id(offer.peer),
        fragment=offer.fragment,
        seq=checked_count("number of an offer", offer.seq),
        tokens=checked_count("tokens of an offer", offer.tokens),
        steps=checked_count("steps of an offer", offer.steps),
        rate=checked_number("rate of an offer", offer.rate),
        genesis=checked_genesis(offer.genesis),
        key=to_key(offer),
        due=offer.due,
        sections=sections,
        inherited=inherited,
        follows=checked_count("number of an offer", offer.follows),
        again=_to_share(offer),
    )


def _seal(seal: Seal) -> pb.Seal:
    members = [
        pb.Member(
            peer=id_of(entry.peer),
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
        sealer=id_of(seal.sealer),
        fragment=seal.fragment,
        base=seal.base,
        key=key_of(seal.key),
        members=members,
        absent=seal.absent,
        reason=seal.reason,
        payload=seal.payload,
        period=seal.period,
    )


def _to_seal(seal: pb.Seal, sections: Sections) -> Seal:
    members = checked_list("members", seal.members, MOST_LEARNERS)
    shares = tuple(_to_share(member) for member in members)
    return Seal(
        sealer=to_id(seal.sealer),
        fragment=seal.fragment,
        base=checked_digest("digest", seal.base),
        key=to_key(seal),
        members=tuple(_to_entry(member) for member in members),
        weights=tuple(checked_number("weight", m.weight, 1.0) for m in members),
        absent=tuple(
            checked_name("peer name", name)
            for name in checked_list("absent peers", seal.absent, MOST_LEARNERS)
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
        to_id(member.peer),
        checked_count("number of an offer", member.seq),
        checked_count("tokens of a member", member.tokens),
        checked_count("steps of a member", member.steps),
    )


def _state(state: State) -> pb.State:
    return pb.State(
        peer=id_of(state.peer),
        fragment=state.fragment,
        lineage=_lineage(state.lineage),
        content=state.content,
        period=state.period,
    )


def _to_state(state: pb.State, sections: Sections) -> State:
    return State(
        peer=to_id(state.peer),
        fragment=state.fragment,
        lineage=_to_lineage(state.lineage),
        content=checked_digest("content", state.content),
        period=checked_count("period", state.period),
        sections=sections,
    )


def _lineage(lineage: Lineage) -> pb.Lineage:
    return pb.Lineage(
        key=key_of(lineage.key), genesis=lineage.genesis, merged=merged_of(lineage.merged.items())
    )


def _to_lineage(lineage: pb.Lineage) -> Lineage:
    key = to_key(lineage)
    pairs = to_merged("merged peers", lineage.merged)
    merged = dict(pairs)
    check(len(merged) == len(pairs), "a peer is merged twice in one lineage")
    return Lineage(
        tokens=key.tokens,
        version=key.version,
        digest=key.digest,
        genesis=checked_genesis(lineage.genesis),
        merged=merged,
    )
