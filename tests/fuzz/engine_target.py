"""The engine, as peers that speak the protocol but mean harm can drive it: any messages in any
order, of two peers. Nothing is raised, and all that the learner says after it can be said: a number
that a peer chose never makes this learner's own messages impossible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mend_optim.engine.effects import Done, Send, Work
from mend_optim.errors import PeerError
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import (
    Beat,
    Bulk,
    Call,
    Goodbye,
    Message,
    Report,
    Rumor,
    Want,
)
from mend_optim.transport import wire
from mend_optim.transport._pb import peer_pb2 as pb
from mend_optim.transport.frames import sender, to_frames
from tests.fuzz.target import Target, joined, parted
from tests.fuzz.wire_targets import assembled
from tests.support.engines import (
    BASE,
    GENESIS,
    ME,
    PAYLOAD,
    PEER,
    THIRD,
    DrivenEngine,
    grown,
    offer_of,
    seal_of,
    state_of,
)

LIMITS = (1 << 12, 1 << 12)
#: Parts of one input.
MOST = 24
SIGNS = (b"steps", b"tick", b"copied")


def decoded(part: bytes) -> Message | None:
    """The message in one part: of a control stream, or the whole of a bulky one in its frame."""
    try:
        if part[:1] == b"c":
            return wire.decode_control(part[1:])
        return next(assembled([part[1:]], LIMITS), None)
    except PeerError:
        return None


def encoded(message: Message) -> bytes:
    if isinstance(message, Bulk):
        (frame,) = to_frames(message)
        return b"b" + frame
    return b"c" + wire.encode_control(message)


class Driven:
    """A learner that trains, whose jobs are done at once and whose messages are all encoded."""

    def __init__(self, seals: bool) -> None:
        self.learner = DrivenEngine(seals=seals)
        for peer in (PEER, THIRD):
            self.learner.beat(peer)
        self.settle()

    def settle(self) -> None:
        """Do the jobs that are due, and encode what is sent."""
        engine = self.learner.engine
        for _ in range(8):
            effects = engine.drain(self.learner.now)
            for effect in effects:
                if isinstance(effect, Send):
                    encoded_again = decoded(encoded(without_bytes(effect.message)))
                    assert encoded_again is not None, effect.message
                elif isinstance(effect, Work):
                    engine.finished(self.learner.now, effect.job, Done(digest=PAYLOAD))
            if not effects:
                return

    def train(self) -> None:
        """Steps up to a boundary, and the copy that it asks for."""
        self.learner.step(4)
        boundaries = self.learner.engine.boundaries
        for p in boundaries.fragments_to_copy():
            boundaries.reserve(p)
            boundaries.snapshot(p, None)
        self.settle()

    def take(self, part: bytes) -> bool:
        """What one part of the input does; whether it was a message that a transport would take."""
        if part == b"steps":
            self.train()
        elif part == b"tick":
            self.learner.tick(1.0)
        else:
            message = decoded(part)
            # The transport refuses whoever speaks for another.
            if message is None or sender(message) not in (PEER, THIRD):
                return False
            self.learner.receive(message)
        self.settle()
        return True


def without_bytes(message: Message) -> Message:
    return replace(message, sections={}) if isinstance(message, Bulk) else message


def engine(data: bytes) -> bool:
    """Messages for a learner; the first byte says whether it seals."""
    driven = Driven(seals=data[:1] == b"\1")
    taken = [driven.take(part) for part in parted(data[1:])[:MOST]]
    driven.train()
    for _ in range(4):
        driven.learner.tick(5.0)
        driven.settle()
    return all(taken) and bool(taken)


def seeds() -> Iterator[bytes]:
    later = grown(BASE)
    seal = seal_of(BASE)
    beat = Beat(
        peer=PEER,
        address="peer:1",
        count=9,
        step=3,
        tokens=30,
        seconds_per_step=1.0,
        training=True,
        genesis=GENESIS,
        reports=(Report(BASE.key, ((ME, 1),)),),
        roster=(Rumor(PeerId("fourth", 1), "fourth:1", 5), Rumor(THIRD, "", 7, left=True)),
        ping=3,
        pong=1,
        position=4,
    )
    ahead = replace(beat, count=10, reports=(Report(later.key),))
    own = seal_of(BASE, offer_of(PEER).entry, offer_of(ME, steps=4).entry)
    plain: list[list[Message | bytes]] = [
        [beat, b"steps", Call(PEER, 0), own],
        [b"steps", offer_of(PEER), offer_of(THIRD), b"tick", b"steps"],
        [ahead, state_of(later), b"steps", Want(PEER, 0, b"")],
        [seal, b"steps", Goodbye(THIRD), b"tick", replace(beat, peer=THIRD, genesis=b"zother")],
        [replace(beat, finishes=True, ready=b"r" * 16), b"tick"],
    ]
    for seals in (b"\0", b"\1"):
        for parts in plain:
            yield seals + joined([p if isinstance(p, bytes) else encoded(p) for p in parts])


TARGETS = (
    Target(
        "engine", engine, seeds, weight=5, growth=2000, protos=(pb.Frame, pb.Control), before_list=1
    ),
)
