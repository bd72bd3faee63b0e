"""The payload of bulky messages. Packets are checked before they are decoded, and what passes is
finite and bounded. Whole offers, seals and anchors go through the worker: what it takes leads two
learners to the same finite anchor, and what it refuses changes nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from unittest.mock import patch

import torch
from torch import Tensor

from mend_optim import DiLoCoNesterov, Guard, Nesterov
from mend_optim.codecs.buffers import Buffers
from mend_optim.codecs.packing import MOST, PACKED, RAW
from mend_optim.codecs.powersgd import PowerSGD
from mend_optim.codecs.registry import (
    CODECS,
    LOSSLESS,
    check_packet,
    decode_packet,
    decoded,
    encode_packet,
    find_codec,
)
from mend_optim.codecs.sparse import Sparse
from mend_optim.engine.effects import Advance, Done, Export, Inspect, Install, Merge, Prepare
from mend_optim.engine.moment_schedule import Moment
from mend_optim.errors import PeerError
from mend_optim.model.layout import Layout
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Bulk, Offer, Packet, Seal, State
from mend_optim.protocol.tree_digest import short_digest
from mend_optim.transport._pb import peer_pb2 as pb
from mend_optim.transport.frames import to_frames
from mend_optim.worker import fragment_anchor
from mend_optim.worker.anchors import Anchors
from mend_optim.worker.correction import Reading
from mend_optim.worker.moment_packet import check_moment, decode_moment, encode_moment
from mend_optim.worker.seal_payload import payload_digest
from tests.fuzz.target import Target, joined, parted, same
from tests.fuzz.wire_targets import assembled
from tests.support.engines import BASE, GENESIS

# ── packets ───────────────────────────────────────────────────────────────────────────────────────

#: The first byte of an input chooses one of these, and its highest bit a packet without a form.
SHAPES = (
    ((16, 12), (5,)),
    ((1,),),
    ((300,), (8, 4, 3), (0,), (2, 50)),
    ((), (33,), (7, 9)),
)
MOMENTS = (
    Moment(name="exp_avg", order="first", decay=0.9),
    Moment(name="exp_avg_sq", order="second", decay=0.99, nonnegative=True),
    Moment(name="exact", order="second", decay=0.99, exact=True),
)


def equal(one: Tensor, other: Tensor, what: str) -> None:
    """Raise unless both have the same bits."""
    if not torch.equal(one.view(torch.int32), other.view(torch.int32)):
        raise AssertionError(f"{what}: {one.tolist()} is not {other.tolist()}")


def numels(shapes: tuple[tuple[int, ...], ...]) -> int:
    return sum(map(math.prod, shapes))


def packet(data: bytes) -> bool:
    """A packet of any codec."""
    if not data:
        return False
    shapes = SHAPES[data[0] % len(SHAPES)]
    codec = RAW if data[0] & 0x80 else PACKED
    found = Packet(codec, numels(shapes), memoryview(data[1:]))
    try:
        check_packet(found, shapes)
    except PeerError:
        return False
    values = decode_packet(found, shapes, torch.full((found.numel,), math.nan))
    assert bool((values.abs() <= MOST).all()), values
    by_parts = [part.clone() for part in decoded(found, shapes)]
    equal(torch.cat([torch.zeros(0), *by_parts]), values, "part by part")
    # -0 is 0 to the codecs that send only some values.
    again, _ = encode_packet(LOSSLESS, values, shapes)
    check_packet(again, shapes)
    assert torch.equal(decode_packet(again, shapes), values), "there and back"
    return True


def drawn(numel: int, seed: int = 0) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def packet_seeds() -> Iterator[bytes]:
    codecs = (*CODECS.values(), LOSSLESS, Sparse(density=0.05), PowerSGD(rank=2, min_ratio=1.01))
    for codec in codecs:
        for choice, shapes in enumerate(SHAPES):
            made, _ = encode_packet(codec, drawn(numels(shapes)), shapes)
            yield bytes([choice + (0x80 if made.codec == RAW else 0)]) + bytes(made.data)


def moments(data: bytes) -> bool:
    """A packet of a moment."""
    if not data:
        return False
    shapes = SHAPES[data[0] % len(SHAPES)]
    moment = MOMENTS[data[0] // len(SHAPES) % len(MOMENTS)]
    found = Packet(PACKED, numels(shapes), memoryview(data[1:]))
    try:
        check_moment(moment, found, shapes)
    except PeerError:
        return False
    values = torch.full((found.numel,), math.nan)
    updates = decode_moment(moment, found, shapes, values)
    assert bool((values.abs() <= MOST).all()), values
    assert not moment.nonnegative or bool((values >= 0).all()), values
    again = encode_moment(moment, values, updates, shapes, exact=True)
    out = torch.full((found.numel,), math.nan)
    same(decode_moment(moment, again, shapes, out), updates, "updates")
    equal(out, values, "there and back")
    return True


def moment_seeds() -> Iterator[bytes]:
    for choice, shapes in enumerate(SHAPES):
        for place, moment in enumerate(MOMENTS):
            values = drawn(numels(shapes)).abs_()
            updates = tuple(i % 2 * 3 for i in range(len(shapes)))
            for exact in (False, True):
                made = encode_moment(moment, values, updates, shapes, exact=exact)
                yield bytes([choice + len(SHAPES) * place]) + bytes(made.data)


# ── the worker ────────────────────────────────────────────────────────────────────────────────────

#: The first byte of an input chooses one of these learners.
OUTERS = (
    ("mean", Nesterov(), "none"),
    ("median", DiLoCoNesterov(), "int8"),
    ("norm_preserving", Nesterov(momentum=0.0), "powersgd"),
    ("trimmed_mean", Nesterov(), "none"),
)
WEIGHTS = {"w": (4, 6), "b": (5,)}
BUFFERS = {
    "mean": torch.tensor([1.0, -2.0, math.inf]),
    "count": torch.tensor(7),
    "mask": torch.tensor([True, False]),
    "half": torch.tensor([0.5, 3.0], dtype=torch.bfloat16),
}
#: Bytes of the largest message about a fragment, as `Settings` has it, and about the buffers.
LIMITS = (2048, 256)
MINE, YOURS = PeerId("me", 1), PeerId("you", 1)


@cache
def layout() -> Layout:
    tensors = [torch.zeros(shape) for shape in WEIGHTS.values()]
    return Layout(list(WEIGHTS), tensors, 1, buffers=list(BUFFERS.items()))


def buffer_values() -> Tensor:
    fragment = layout().fragments[1]
    values = torch.zeros(fragment.nbytes, dtype=torch.uint8)  # type: ignore[attr-defined]
    for place, tensor in enumerate(BUFFERS.values()):
        fragment.view(place, values).copy_(tensor)  # type: ignore[attr-defined]
    return values


def learner(choice: int) -> Anchors:
    scheme, outer, codec = OUTERS[choice % len(OUTERS)]
    starts = [drawn(layout().fragments[0].numel), buffer_values()]
    return Anchors(
        layout(),
        starts,
        codec=find_codec(codec),
        outer=outer,
        scheme=scheme,
        buffers=Buffers(),
        moments=MOMENTS[:2],
        guard=Guard(),
    )


def offer_from(anchors: Anchors, author: PeerId, fragment: int, seed: int) -> Offer:
    """A real offer."""
    numel = layout().fragments[0].numel
    tensor = buffer_values() if fragment else anchors.fragments[0].theta - drawn(numel, seed) / 100
    moment = Reading(drawn(numel, seed).abs_(), (3, 0))
    readings = {} if fragment else {known.name: moment for known in MOMENTS[:2]}
    job = Prepare(fragment=fragment, seq=1, tensor=tensor, moments=readings)
    done, _ = anchors.perform(job)
    assert not done.fault
    return Offer(
        peer=author,
        fragment=fragment,
        seq=1,
        tokens=10,
        steps=2,
        rate=0.2,
        genesis=GENESIS,
        key=BASE.key,
        due=True,
        sections=done.sections,
    )


def merged(anchors: Anchors, offers: tuple[Offer, ...]) -> Done:
    weights = (1 / len(offers),) * len(offers)
    named = tuple(moment.name for moment in MOMENTS[:2])
    job = Merge(
        fragment=offers[0].fragment,
        base=BASE,
        offers=offers,
        weights=weights,
        moments=named,
        period=2,
    )
    return anchors.perform(job)[0]


def seal_of(offers: tuple[Offer, ...], done: Done) -> Seal:
    members = tuple(offer.entry for offer in offers)
    return Seal(
        sealer=MINE,
        fragment=offers[0].fragment,
        base=BASE.digest,
        key=BASE.seal(members, done.digest).key,
        members=members,
        weights=(1 / len(offers),) * len(offers),
        absent=(),
        reason="all_present",
        payload=done.digest,
        sections=done.sections,
    )


def bits(anchors: Anchors) -> list[bytes]:
    return [part.view(torch.uint8).numpy().tobytes() for part in anchors.copies()]


def check_finite(anchors: Anchors) -> None:
    theta = anchors.fragments[0].theta
    assert bool((theta.abs() <= MOST).all()), theta
    anchors.fragments[1].refuse_strange(anchors.fragments[1].theta)


def take(anchors: Anchors, seal: Seal, made_here: bool) -> str:
    """Take the outer step of a seal; returns why it was refused."""
    before = bits(anchors)
    job = Advance(
        seal=seal, lineage=BASE, merged_own_offer=False, replace=True, sealed_here=made_here
    )
    done, _ = anchors.perform(job)
    if done.fault:
        same(bits(anchors), before, "a refused seal changes nothing")
    else:
        check_finite(anchors)
    return done.fault


def on_offer(choice: int, offer: Offer) -> bool:
    """A sealer inspects an offer, merges it with a good one, and all take the seal."""
    sealer = learner(choice)
    done, _ = sealer.perform(Inspect(offer))
    if done.fault or not offer.steps:
        return False
    offers = (offer_from(learner(choice), YOURS, offer.fragment, 1), offer)
    done = merged(sealer, offers)
    if done.fault or done.outsized:
        return False
    seal, other = seal_of(offers, done), learner(choice)
    same(take(sealer, seal, True), "", "its own seal")
    same(take(other, seal, False), "", "a good seal")
    same(bits(other), bits(sealer), "all have the same anchor")
    return True


def on_seal(choice: int, seal: Seal) -> bool:
    """A learner takes a seal of a sealer that may lie, but knows how to compute a digest."""
    seal = replace(seal, payload=payload_digest(seal.sections, seal.weights))
    one, other = learner(choice), learner(choice)
    fault = take(one, seal, False)
    same(take(other, seal, False), fault, "both decide alike")
    same(bits(other), bits(one), "all have the same anchor")
    return not fault


def on_state(choice: int, state: State) -> bool:
    """A learner takes a whole anchor, and passes the same on."""
    parts = [state.sections[name].data for name in sorted(state.sections)]
    state = replace(state, content=short_digest(*parts))
    mine = learner(choice)
    before = bits(mine)
    done, _ = mine.perform(Install(states=(state,), merged_own_offer=False, replace=True))
    if done.fault:
        same(bits(mine), before, "a refused anchor changes nothing")
        return False
    check_finite(mine)
    copy, _ = mine.perform(Export(state.fragment, BASE))
    shown = State(
        peer=MINE,
        fragment=state.fragment,
        lineage=BASE,
        content=copy.digest,
        sections=copy.sections,
    )
    other = learner(choice)
    done, _ = other.perform(Install(states=(shown,), merged_own_offer=False, replace=True))
    same(done.fault, "", "what it passes on")
    same(bits(other), bits(mine), "all have the same anchor")
    return True


def on_bulk(choice: int, message: Bulk) -> bool:
    match message:
        case Offer():
            return on_offer(choice, message)
        case Seal():
            return on_seal(choice, message)
        case State():
            return on_state(choice, message)


def worker(data: bytes) -> bool:
    """An offer, a seal or a whole anchor, as frames. The checks must refuse by themselves: the net
    below them, which blames all that is raised on the peer, is away."""
    choice = data[0] if data else 0
    try:
        message = next(assembled(parted(data[1:]), LIMITS), None)
    except PeerError:
        return False
    with patch.object(fragment_anchor, "blamed_on_peer", nullcontext):
        return message is not None and on_bulk(choice, message)


def worker_seeds() -> Iterator[bytes]:
    for choice in range(len(OUTERS)):
        for fragment in (0, 1):
            sealer, other = learner(choice), learner(choice)
            offers = (
                offer_from(sealer, MINE, fragment, 1),
                offer_from(other, YOURS, fragment, 2),
            )
            done = merged(sealer, offers)
            seal = seal_of(offers, done)
            same(take(sealer, seal, True), "", "its own seal")
            copy, _ = sealer.perform(Export(fragment, BASE))
            state = State(
                peer=MINE,
                fragment=fragment,
                lineage=BASE,
                content=copy.digest,
                sections=copy.sections,
            )
            for message in (offers[1], seal, replace(seal, weights=(0.0, 0.0)), state):
                yield bytes([choice]) + joined(list(to_frames(message)))


TARGETS = (
    Target("packet", packet, packet_seeds),
    Target("moment", moments, moment_seeds),
    Target("worker", worker, worker_seeds, weight=5, protos=(pb.Frame,), before_list=1),
)
