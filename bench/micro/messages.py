"""How long the largest messages of a peer, and beats in a big run, hold up a learner: the engine's
part, during which `step()` may wait for the mutex, and the decoding before it, on the network
loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from time import perf_counter

from bench.result import Result, compared, plain
from mend_optim.engine.engine import Engine
from mend_optim.engine.policies import Policies
from mend_optim.engine.quorum import Grace, Quorum
from mend_optim.engine.schedule import Schedule
from mend_optim.protocol.lineage import Key, PeerId
from mend_optim.protocol.messages import Beat, Report, Rumor
from mend_optim.transport.limits import HELD_LIMIT, RUMOR_LIMIT
from mend_optim.transport.wire import decode_control, encode_control

REPEATS = 30
FRAGMENTS = 8
#: Of a big run.
LEARNERS, PARTS = 256, 16
GENESIS = b"genesis"
START, AHEAD = Key(0, 0, b""), Key(1000, 2, b"ahead")
PEER = PeerId("peer", 1)
LIMIT_MS = 5.0


def _rumors(count: int, start: int, left: bool = False) -> tuple[Rumor, ...]:
    names = (f"phantom {n}" for n in range(start, start + count))
    return tuple(Rumor(PeerId(name, 1), "10.0.0.1:1", 1, left=left) for name in names)


def _beat(count: int, roster: tuple[Rumor, ...] = (), held: int = 0, ping: int = 0) -> Beat:
    offers = tuple((PeerId(f"p{n}", 1), 1) for n in range(held // FRAGMENTS))
    return Beat(
        peer=PEER,
        address="",
        count=count,
        genesis=GENESIS,
        reports=(Report(START, offers),) * FRAGMENTS,
        roster=roster,
        ping=ping,
    )


def _engine() -> Engine:
    """An engine whose roster is full of hearsay."""
    policies = Policies(
        schedule=Schedule(sync_every=16, fragments=FRAGMENTS),
        quorum=Quorum(),
        grace=Grace(max_s=1.0),
    )
    engine = Engine(PeerId("me", 1), "me:1", (), policies, 0.0)
    engine.begin(0.0, GENESIS, (b"",) * FRAGMENTS)
    engine.met(0.0, PEER, "")
    engine.receive(0.0, _beat(1))
    engine.receive(0.0, _beat(2, _rumors(300, 0)))
    engine.drain(0.0)
    return engine


def _beat_of(peer: PeerId, count: int, roster: tuple[Rumor, ...], key: Key = START) -> Beat:
    reports = (Report(key, ()),) * PARTS
    beat = replace(_beat(count, roster), peer=peer, address=f"{peer.name}:1", reports=reports)
    return replace(beat, step=1, training=True)


def _in_a_crowd(heard: int, key: Key = START) -> list[float]:
    """The milliseconds that the engine takes for beats of peers, so many of which it has heard. It
    knows the others by hearsay, and nobody reaches them. All show the anchor with this key, in each
    fragment."""
    policies = Policies(schedule=Schedule(sync_every=PARTS, fragments=PARTS))
    engine = Engine(PeerId("me", 1), "me:1", (), policies, 0.0)
    engine.begin(0.0, GENESIS, (b"",) * PARTS)
    peers = [PeerId(f"peer {n}", 1) for n in range(LEARNERS - 1)]
    told = tuple(Rumor(peer, f"{peer.name}:1", 1) for peer in peers[heard:])
    for peer in peers[:heard]:
        engine.met(0.0, peer, f"{peer.name}:1")
        engine.linked(0.0, peer, True)
        engine.receive(0.0, _beat_of(peer, 1, told))
    for peer in peers[:heard]:
        engine.receive(1.0, _beat_of(peer, 2, told, key))
    engine.drain(1.0)
    took_ms = []
    for peer in peers[:REPEATS]:
        beat = _beat_of(peer, 3, told, key)
        began = perf_counter()
        engine.receive(2.0, beat)
        took_ms.append(1e3 * (perf_counter() - began))
    return took_ms


def run() -> Iterator[Result]:
    """Beats as large as the wire takes them, and beats in a big run, against the limit of 5 ms."""
    limits, size = [LIMIT_MS] * REPEATS, f"{PARTS} fragments"
    for heard in (LEARNERS - 1, LEARNERS // 2):
        what = f"engine, a beat of one of {LEARNERS - 1} that train, {heard} of which it hears"
        yield compared("messages", what, "ms", _in_a_crowd(heard), limits, goal="<= 1", notes=size)
    what = f"engine, a beat of one of {LEARNERS - 1} that are ahead in each fragment"
    took_ms = _in_a_crowd(LEARNERS - 1, AHEAD)
    yield compared("messages", what, "ms", took_ms, limits, goal="<= 1", notes=size)
    beats = {
        "rumors of newcomers": _beat(3, _rumors(RUMOR_LIMIT, 1000)),
        "goodbyes of all": _beat(3, _rumors(RUMOR_LIMIT, 0, left=True)),
        "offers held": _beat(3, held=HELD_LIMIT),
        "a question": _beat(3, ping=1),
    }
    for what, beat in beats.items():
        encoded = encode_control(beat)
        size = f"a beat of {len(encoded) / 1e6:.1f} MB"
        engine_ms, decoding_ms = [], []
        for _ in range(REPEATS):
            engine = _engine()
            began = perf_counter()
            engine.receive(1.0, beat)
            engine_ms.append(1e3 * (perf_counter() - began))
            began = perf_counter()
            decode_control(encoded)
            decoding_ms.append(1e3 * (perf_counter() - began))
        yield compared(
            "messages", f"engine, {what}", "ms", engine_ms, limits, goal="<= 1", notes=size
        )
        yield plain("messages", f"decoding, {what}", "ms", decoding_ms, notes=size)
