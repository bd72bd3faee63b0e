"""Every message that docs/troubleshooting.md quotes is said, word for word, at the level that the
page gives.

Each heading of the page that has a quote has a producer here, which lets the library say it. Names
of learners, addresses and numbers are examples; nothing else in a quote may differ."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import Parameter
from torch.optim import SGD, Optimizer

from mend_optim import (
    Credentials,
    Event,
    FailSlow,
    Int4,
    MendError,
    MendOptimizer,
    Timing,
    UsageError,
    environment,
)
from mend_optim.engine.effects import Advance, Install, Outsize, Prepare, Retake
from mend_optim.engine.engine import Engine
from mend_optim.engine.ledger import MemberRecord, RoundRecord
from mend_optim.engine.other_models import OtherModels
from mend_optim.engine.policies import Policies
from mend_optim.engine.schedule import Schedule
from mend_optim.engine.state import EngineState
from mend_optim.engine.stragglers import Stragglers
from mend_optim.model.unseen_moves import CALLS
from mend_optim.protocol.handshake import PROTOCOL, Hello, Life, Namesake, refusal
from mend_optim.protocol.lineage import Key, Lineage, PeerId, Rollback
from mend_optim.protocol.messages import Beat, Content, Goodbye, Level, Offer, Report, Rumor
from mend_optim.protocol.transfer_fault import BROKEN
from mend_optim.protocol.unreached import Unreached
from mend_optim.runtime import long_wait
from mend_optim.runtime.event_log import WARNINGS, EventLog, level_of
from mend_optim.transport import background_log
from mend_optim.transport.control import Links
from mend_optim.transport.goodbyes import Goodbyes
from tests.support.engines import (
    BASE,
    GENESIS,
    PEER,
    DrivenEngine,
    among_peers,
    offer_of,
    seal_of,
    state_of,
)
from tests.support.learners import (
    LOCKSTEP,
    LOOPBACK,
    PATIENCE_S,
    TIMING,
    Watch,
    cluster,
    descent,
    drive,
    parameters,
    step,
    together,
    weights,
)
from tests.support.two_steps import Mover
from tests.unit.engine.test_majority import experienced
from tests.unit.transport.recorder import Recorder
from tests.unit.transport.test_diagnosis import PLACES

pytestmark = pytest.mark.usefixtures("no_environment")

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
ENTRY = re.compile(r"^### (.+?)\n+```text\n(.*?)\n```\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
ADDRESS = re.compile(r"(?<![\w:'\[])[\w.-]+:\d+")
NUMBER = re.compile(r"\d[\d.,]*(?<![.,])")

A, B, C = (PeerId(name, 1) for name in "abc")
SEED = "b:29600"
Said = Sequence["Event | str"]


def entries() -> dict[str, tuple[str, str]]:
    """By heading, the quote and what follows it."""
    page = PAGE.read_text(encoding="utf-8")
    return {heading: (quote, text) for heading, quote, text in ENTRY.findall(page)}


def generic(text: str) -> str:
    """A message without what is only an example in it."""
    return NUMBER.sub("0", ADDRESS.sub("ADDRESS", text))


# ── the first step ────────────────────────────────────────────────────────────────────────────────


def first(watch: Watch, kind: str) -> list[Event]:
    return watch.until(kind)[:1]


@contextmanager
def looking(*seeds: str, **options: Any) -> Iterator[Watch]:
    """A learner that looks for others at these addresses, with nobody there, until it is alone."""
    watch = Watch()
    timing = Timing(beat_s=0.1, join_timeout_s=1.0, round_timeout_s=30.0, evict_after_s=30.0)
    told = {"name": "a", "listen": LOOPBACK, "timing": timing, "on_event": watch, **options}
    told |= {"insecure": True}  # some of the places have a name, and nobody there
    with MendOptimizer(descent(1.0), peers=seeds, **told) as optimizer:
        optimizer.join()
        yield watch


def dial(place: str) -> Said:
    """What a learner says that is told to find another at that kind of place."""

    async def visit() -> Said:
        async with PLACES[place][0]() as seed:
            return await asyncio.to_thread(look, seed)

    def look(seed: str) -> Said:
        with looking(seed) as watch:
            return watch.of("waiting")[-1:]

    return asyncio.run(visit())


def alone() -> Said:
    async def visit() -> Said:
        async with PLACES["closed port"][0]() as seed:
            with looking(seed) as watch:
                return first(watch, "alone")

    return asyncio.run(visit())


def joining(*causes: Unreached) -> Engine:
    engine = Engine(A, "a:1", (SEED,), Policies(schedule=Schedule(sync_every=4)), 0.0)
    for cause in causes:
        engine.unreached(0.0, SEED, cause)
    engine.begin(0.0, GENESIS, (b"",))
    return engine


def of(engine: Engine, now: float, *kinds: str) -> list[Event]:
    events = [e for e in engine.drain(now) if isinstance(e, Event)]
    return [e for e in events if e.kind in kinds][-1:]


def unreached(cause: Unreached) -> Said:
    return of(joining(cause), 0.0, "waiting")


def meets(genesis: bytes) -> Engine:
    """A learner that waits, and has met a peer with these first weights, or before its own."""
    engine = joining()
    engine.met(0.0, B, SEED, SEED)
    reports = (Report(BASE.key),) if genesis else ()
    engine.receive(0.0, Beat(peer=B, address=SEED, count=1, genesis=genesis, reports=reports))
    engine.tick(1.0)
    return engine


def lone_and_still() -> Said:
    """A learner that waits for one that has trained alone, and takes no step now."""
    engine = joining()
    engine.met(0.0, B, SEED, SEED)
    reports = (Report(Key(400, 1, b"trained")),)
    facts = {"step": 40, "training": True, "genesis": b"zother", "reports": reports}
    for at in range(1, 62):
        roster = (Rumor(A, "a:1", at, reached=True),)
        engine.receive(at, Beat(peer=B, address=SEED, count=at, roster=roster, **facts))
        engine.tick(at)
    return of(engine, 61.0, "waiting")


def undialled() -> Said:
    engine = joining()
    engine.presence.undialled("a:1", (C, B))
    return of(engine, 0.0, "undialled")


def dialled() -> Said:
    engine = joining()
    engine.presence.undialled("a:1", (B,))
    engine.presence.dialled("a:1")
    return of(engine, 1.0, "dialled")


def came_and_went() -> Said:
    engine = meets(b"")
    engine.linked(1.1, B, True)
    engine.linked(1.2, B, False)
    engine.tick(2.0)
    return of(engine, 2.0, "waiting")


def joined() -> Said:
    engine = joining(Unreached.REFUSED)
    engine.met(0.0, B, SEED, SEED)
    reports = (Report(BASE.key),)
    engine.receive(0.0, Beat(peer=B, address=SEED, count=1, genesis=GENESIS, reports=reports))
    (event,) = of(engine, 0.0, "joined")
    assert event.lifts == "waiting"
    return [event]


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────


def refused(inner: Optimizer | None = None, **there: Any) -> Said:
    """What a learner says whose peer differs from it in this."""
    told = {"name": "b", "listen": LOOPBACK, "timing": TIMING, **there}
    with (
        MendOptimizer(inner or descent(1.0), **told) as b,
        looking(b.status().address) as watch,
    ):
        return first(watch, "refused")


def hello(peer: PeerId, protocol: int = PROTOCOL) -> Hello:
    return Hello(peer=peer, address="", model=(), policy=(), protocol=protocol)


def said_of(reason: str) -> Said:
    engine = joining()
    engine.refused(0.0, SEED, reason)
    return of(engine, 0.0, "refused")


def outranked(life: Life, kind: str) -> Said:
    """What a learner says of another process of its name."""
    engine = joining()
    engine.outranked(0.0, SEED, Namesake(PeerId("a", 10**18), life))
    return of(engine, 0.0, kind)


def at_its_end() -> Said:
    recorder = Recorder("a")
    recorder.met = lambda id, address, seed: False  # type: ignore[method-assign]
    return said_of(Links(recorder, None, Goodbyes(None)).agree(hello(A), hello(B), SEED))  # type: ignore[arg-type]


# ── peers that are gone ───────────────────────────────────────────────────────────────────────────


def finishes(beats: int, *kinds: str) -> Said:
    """A learner finishes beside b, whose training loop stands still."""
    engine = DrivenEngine()
    engine.beat(B, step=120)
    engine.engine.rest(engine.now, finishing=True)
    for _ in range(beats):
        engine.now += 1.0
        engine.beat(B, step=120)
        engine.engine.tick(engine.now)
    return of(engine.engine, engine.now, *kinds)


def unfinished() -> Said:
    """A script ends beside one that trains."""
    engine = DrivenEngine()
    engine.step(10, tokens=256)
    engine.beat(B, step=1)
    engine.engine.ending.tell_unfinished()
    return engine.events("unfinished")


def ends_below_quorum() -> Said:
    watch = Watch()
    with cluster(descent(0.0), descent(0.0), quorum=3, each=[{"on_event": watch}, {}]) as both:
        drive(both, 10, lambda i, s: 1.0)
        together(*(optimizer.finish for optimizer in both))
        return watch.until("unfinished")


def pair(*peers: PeerId) -> DrivenEngine:
    engine = DrivenEngine()
    for peer in peers:
        engine.beat(peer)
        engine.engine.linked(engine.now, peer, True)
    engine.tick(1.0)
    return engine


def silence(engine: DrivenEngine, beats: int, *alive: PeerId) -> DrivenEngine:
    for _ in range(beats):
        for peer in alive:
            engine.beat(peer)
        engine.tick(1.0)
    return engine


def suspected() -> Said:
    engine = pair(B, C)
    engine.engine.linked(engine.now, B, False)
    return silence(engine, 2, C).events("suspected")


def returned() -> Said:
    return silence(silence(pair(B, C), 6, C), 1, B, C).events("returned")


def evicted() -> Said:
    return silence(pair(B, C), 31, C).events("evicted")


def left(*peers: PeerId) -> Said:
    engine = pair(*peers)
    engine.receive(Goodbye(B))
    return engine.events("left")


def company() -> Said:
    engine = DrivenEngine()
    engine.engine.presence.alone(Event("alone", "nobody is here"))
    engine.beat(B)
    engine.tick(1.0)
    return engine.events("together")


def quorum(*back: PeerId) -> Said:
    """A quorum of three that two cannot meet, and then perhaps can."""
    engine = DrivenEngine(quorum=3)
    silence(engine, 1, B)
    engine.offer()
    silence(engine, 62, B)
    said = engine.events("below_quorum")
    return silence(engine, 2, B, *back).events("quorum") if back else said


def late_beats() -> Said:
    """A peer is silent for five beats, again and again."""
    engine = DrivenEngine()
    for _ in range(9):
        silence(engine, 1, B)
        silence(engine, 5)
    return engine.events("late_beats")


def transfers(kind: str) -> Said:
    """The beats of a peer come, and none of its offers gets through to it, for two minutes."""
    engine = DrivenEngine(seals=False)
    silence(engine, 1, B)
    engine.offer()
    ((_, offer),) = engine.sent(Offer)
    for _ in range(2):
        silence(engine, 60, B)
        engine.engine.undelivered(engine.now, B, offer, BROKEN)
        silence(engine, 2, B)
    engine.engine.delivered(engine.now, B, offer)
    return engine.events(kind)


def uneven() -> Said:
    """This learner counts steps, and another one the tokens of its batches."""
    engine = DrivenEngine()
    engine.step(10, tokens=1)
    engine.beat(B, step=10, tokens=40960)
    engine.tick(1.0)
    return engine.events("uneven")


def other_models(kind: str) -> Said:
    """Two learners, of a room of their own, train another model beside this one."""
    engine = experienced(PeerId("d", 1))
    looked, began = OtherModels(engine.engine.state), engine.now
    for turn in range(3):
        there = Lineage(tokens=1, version=1, digest=b"%d" % turn, genesis=b"another")
        for peer in (B, C):
            engine.beat(peer, there, step=3, genesis=there.genesis)
        looked.look(began + 30.0 * turn)
    for peer in (B, C):
        engine.beat(peer, engine.lineage, step=3)
    looked.look(began + 61.0)
    return engine.events(kind)


def switched() -> Said:
    engine = DrivenEngine(seals=False)
    engine.beat(B)
    engine.step()
    theirs = Lineage(tokens=10_410, version=5, digest=b"d", genesis=b"another")
    engine.beat(B, theirs, genesis=theirs.genesis)
    engine.receive(state_of(theirs, peer=B))
    (install,) = engine.jobs(Install)
    engine.done(install)
    return engine.events("switched")


def other_branch() -> Said:
    """40 tokens of this learner were merged, and another branch has more, without them."""
    engine = DrivenEngine(seals=False)
    engine.beat(B)
    offer = engine.offer(steps=4)
    engine.receive(seal_of(BASE, offer.entry, sealer=B))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    engine.apply()
    engine.receive(state_of(replace(BASE, tokens=10_410, version=9, digest=b"d"), peer=B))
    (install,) = engine.jobs(Install)
    engine.done(install)
    return engine.events("switched")


# ── slow learners ─────────────────────────────────────────────────────────────────────────────────


def slow(kind: str) -> Said:
    policies = Policies(schedule=Schedule(sync_every=10), failslow=FailSlow(restart_s=20.0))
    state = EngineState(A, "a:1", (), policies)
    state.genesis = GENESIS
    watch = Stragglers(state)
    for count in range(9, 70):
        for peer in (B, C, PeerId("d", 1)):
            slower = 2.0 if peer == C and count < 56 else 1.0
            paces = (("compute", Level(slower, 1.0, 0.01, count)),)
            state.roster.meet(float(count), peer, f"{peer.name}:1")
            beat = Beat(peer=peer, address="", count=count, genesis=GENESIS, paces=paces)
            state.roster.hear(float(count), beat)
        watch.review(float(count))
    return [e for e in state.out if isinstance(e, Event) and e.kind == kind]


def late() -> Said:
    engine = DrivenEngine()
    for _ in range(20):
        engine.engine.state.measured(0, engine.engine.state.me, -30)
    return engine.events("late")


def declines(kind: str) -> Said:
    """A learner that seals two of six fragments, slowly, and tries again after a while."""
    engine = DrivenEngine(fragments=6)
    state = engine.engine.state
    said: list[Event] = []
    while not said:
        for peer in (B, C):
            own = [state.sealer(p) == state.me for p in range(6)]
            latencies = [90 if mine else 10 for mine in own]
            engine.beat(peer, address=f"{peer.name}:1", latencies=latencies)
        engine.tick(1.0)
        said = engine.events(kind)
    return said


# ── what is not merged ────────────────────────────────────────────────────────────────────────────


def healed() -> Said:
    watch = Watch()
    each = [{"on_event": watch}, {}]
    options = {**LOCKSTEP, "quorum": 1, "grace": 0.2}
    with cluster(descent(0.0), descent(0.0), each=each, **options) as both:
        drive(both, 2, lambda i, s: 1.0 if i else math.nan)
        return first(watch, "healed")


def outsized() -> Said:
    engine = among_peers()
    refused = offer_of(C, seq=0, steps=0).entry
    engine.receive(seal_of(engine.lineage, refused, offer_of(B).entry))
    (advance,) = engine.jobs(Advance)
    engine.done(advance, outsized={0: Outsize(1.0, 214.0)})
    return engine.events("outsized")


def forked() -> Said:
    engine = among_peers()
    engine.fragment.held.note(engine.lineage.key, b"ours")
    engine.beat(C, engine.lineage, content=Content(engine.lineage.key, b"theirs"))
    return engine.events("forked")


def outvoted() -> Said:
    engine = among_peers()
    engine.fragment.held.begin_anew(handed_over=True)
    engine.fragment.held.note(engine.lineage.key, b"ours")
    for peer in (PEER, B, C):
        theirs = Content(engine.lineage.key, b"theirs")
        engine.beat(peer, engine.lineage, step=1, content=theirs)
    engine.tick(0.1)
    return engine.events("outvoted")


def other_weights() -> Said:
    watch = Watch()
    with cluster(descent(0.0), descent(0.0), **LOCKSTEP) as both:
        drive(both, 4, lambda i, s: 1.0)
        saved = both[0].state_dict()
    with closing(MendOptimizer(descent(7.0), name="a", listen=LOOPBACK, on_event=watch)) as again:
        again.load_state_dict(saved)
        step(again, 1.0)
        return watch.until("restored")


def rolled_back() -> Said:
    engine = among_peers()
    again = engine.lineage.rolled_back(Rollback(1, "b").genesis())
    engine.beat(B, again, genesis=again.genesis)
    engine.receive(state_of(again, peer=B))
    (install,) = engine.jobs(Install)
    engine.done(install)
    return engine.events("rolled_back")


def no_anchor() -> Said:
    engine = among_peers()
    engine.step(4)
    engine.reserve()
    engine.engine.boundaries.snapshot(0, None)
    (prepare,) = engine.jobs(Prepare)
    engine.done(prepare, fault="its parameters are not finite")
    (retake,) = engine.jobs(Retake)
    engine.done(retake, fault="its parameters are not finite")
    return engine.events("fault")


def jumped() -> Said:
    watch = Watch()
    with cluster(descent(0.0), descent(0.0), each=[{"on_event": watch}, {}], **LOCKSTEP) as both:
        drive(both, 40, lambda i, s: 1.0)
        for parameter in parameters(both[0]):
            parameter.fill_(1000.0)
        drive(both, 1, lambda i, s: 1.0)
        return watch.until("jumped")


def replaced() -> Said:
    """A newcomer whose optimizer was trained before it was wrapped."""
    watch = Watch()
    late = SGD([Parameter(torch.full((3,), 8.0))], lr=1.0, momentum=0.5)
    step(late, 1.0)
    with cluster(descent(0.0), descent(0.0), **LOCKSTEP) as both:
        drive(both, 4, lambda i, s: 1.0)
        options = {"name": "c", "listen": LOOPBACK, "on_event": watch, "timing": TIMING, **LOCKSTEP}
        with closing(MendOptimizer(late, peers=[both[0].status().address], **options)) as newcomer:
            newcomer.join()
            return watch.until("replaced")


def past_the_wrapper() -> Said:
    watch = Watch()
    inner = descent(0.0)
    with cluster(inner, started=False, each=[{"on_event": watch}]):
        for _ in range(CALLS):
            step(inner, 1.0)
        return watch.until("unseen")


def unseen() -> Said:
    watch = Watch()
    inner = Mover(weights(0.0))
    with cluster(inner, started=False, each=[{"on_event": watch}]) as (optimizer,):
        for _ in range(CALLS):
            optimizer.move()
        return watch.until("unseen")


class Unknown(Optimizer):
    """An optimizer whose moments nobody knows."""

    def __init__(self) -> None:
        super().__init__([Parameter(torch.ones(3))], {"lr": 0.1})


@contextmanager
def often() -> Iterator[list[str]]:
    """The lines of the log where a wait of no time is a long one."""
    with pytest.MonkeyPatch.context() as patch, log_lines() as lines:
        patch.setattr(long_wait, "LINE_EVERY_S", 0.05)
        yield lines


def long_join() -> Said:
    async def visit() -> Said:
        async with PLACES["closed port"][0]() as seed:
            with often() as lines, looking(seed):
                return [line for line in lines if line.startswith("a: still waiting")][-1:]

    return asyncio.run(visit())


def long_synchronize() -> Said:
    """The other learner neither steps nor rests, and the quorum needs it."""
    with often() as lines, cluster(descent(0.0), descent(0.0), sync_every=2) as both:
        drive(both, 3, lambda i, s: 1.0)
        assert not both[0].synchronize(1.0)
        return [line for line in lines if line.startswith("a: synchronize()")][-1:]


def beyond_the_end() -> Said:
    with log_lines() as lines, cluster(descent(0.0)) as (alone,):
        drive([alone], 1, lambda i, s: 1.0)
        assert alone.finish()
        drive([alone], 2, lambda i, s: 1.0)
        return [line for line in lines if "trains alone" in line]


def broken_thread() -> Said:
    with cluster(descent(0.0)) as (alone,):
        drive([alone], 1, lambda i, s: 1.0)
        assert alone._learner is not None
        alone._learner.worker.put(lambda: torch.empty(1 << 50))  # more than any machine has
        alone._learner.worker.thread.join(PATIENCE_S)
        with pytest.raises(MendError) as error:
            drive([alone], 1, lambda i, s: 1.0)
        assert "can't allocate memory" in str(error.value.__cause__)
    return [str(error.value)]


def begins(inner: Optimizer, kind: str, **options: Any) -> Said:
    watch = Watch()
    told = {"name": "a", "listen": LOOPBACK, "timing": TIMING, "on_event": watch, **options}
    with MendOptimizer(inner, **told) as optimizer:
        optimizer.join()
        return first(watch, kind)


# ── rounds, and settings ──────────────────────────────────────────────────────────────────────────


@contextmanager
def log_lines() -> Iterator[list[str]]:
    lines: list[str] = []
    logger = logging.getLogger("mend_optim")
    before = logger.level

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Keep(logging.INFO)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        background_log.flush(10.0)
        logger.removeHandler(handler)
        logger.setLevel(before)


def first_merge() -> Said:
    with log_lines() as lines, cluster(descent(0.0), descent(0.0), **LOCKSTEP) as both:
        drive(both, 1, lambda i, s: 1.0)
    return [line for line in lines if line.startswith("a: first merge")]


def summary() -> Said:
    now = 0.0
    log = EventLog("a", lambda: 16, lambda: now)
    members = tuple(
        MemberRecord(name=name, incarnation=1, seq=1, tokens=8, steps=8, weight=0.5)
        for name in "ab"
    )
    with log_lines() as lines:
        for version in range(1, 32):
            record = RoundRecord(
                fragment=0,
                version=version,
                tokens=1000 * version,
                digest="5eed",
                reason="all_present",
                members=members,
            )
            log.tell(Event("round", "a round", {"round": record}))
            now += 1.0
    return lines[1:]


def unknown_variable() -> Said:
    with pytest.MonkeyPatch.context() as patch, log_lines() as lines:
        patch.setattr(environment, "_reported", set())
        patch.setenv("MEND_PEER", "b:1")
        MendOptimizer(descent(1.0))
    return lines


def wrong_variable() -> Said:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEND_PEERS", "b")
        with pytest.raises(UsageError) as error:
            MendOptimizer(descent(1.0))
    return [str(error.value)]


def open_links() -> Said:
    with pytest.raises(UsageError) as error:
        MendOptimizer(descent(1.0), listen="0.0.0.0:29600")
    return [str(error.value)]


def taken_port() -> Said:
    with socket.create_server(("127.0.0.1", 0)) as server:
        listen = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(UsageError) as error:
            MendOptimizer(descent(1.0), listen=listen)
    return [str(error.value)]


def bare_links() -> Said:
    with log_lines() as lines:
        MendOptimizer(descent(1.0), name="a", listen="127.0.0.1:0", insecure=True).close()
    return [line for line in lines if "insecure" in line]


def open_secret() -> Said:
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder) / "cluster.secret"
        secret.touch(0o644)
        secret.chmod(0o644)
        credentials = Credentials.secret(secret)
        with pytest.raises(UsageError) as error:
            MendOptimizer(descent(1.0), listen=LOOPBACK, credentials=credentials)
    return [str(error.value).replace(f"{folder}/", "")]


def wrong_class() -> Said:
    with pytest.raises(UsageError) as error:
        MendOptimizer(descent(1.0), codec=Int4)  # type: ignore[arg-type]
    return [str(error.value)]


PRODUCERS: dict[str, Callable[[], Said]] = {
    "Connection refused": lambda: dial("closed port"),
    "A name that does not resolve": lambda: dial("no such name"),
    "A name that is only this learner's": lambda: unreached(Unreached.ITSELF),
    "No answer": lambda: dial("silent"),
    "Nothing but a connection": lambda: unreached(Unreached.MUTE),
    "Not a learner": lambda: dial("HTTP/1"),
    "Closed connections": lambda: unreached(Unreached.CLOSED),
    "Credentials that don't fit": lambda: unreached(Unreached.EXPIRED),
    "No route": lambda: unreached(Unreached.ROUTE),
    "A learner that is leaving": lambda: unreached(Unreached.LEAVING),
    "A peer before its first step": lambda: of(meets(b""), 1.0, "waiting"),
    "A peer that came and went": came_and_went,
    "An earlier process that is not given up": lambda: outranked(Life.SUSPECTED, "waiting"),
    "A clock that was set back": lambda: outranked(Life.GONE, "renewed"),
    "The weights are on their way": lambda: of(meets(b"zother"), 1.0, "waiting"),
    "A lone learner that takes no step": lone_and_still,
    "A long wait": long_join,
    "Joined after all": joined,
    "Alone": alone,
    "Another model": lambda: refused(SGD([Parameter(torch.ones(4))], lr=1.0)),
    "Other settings": lambda: refused(codec="int8"),
    "One name twice": lambda: refused(name="a"),
    "Another version": lambda: said_of(refusal(hello(A), hello(B, PROTOCOL - 1))),
    "Two live processes of one name": lambda: outranked(Life.ALIVE, "refused"),
    "A run at its end": at_its_end,
    "Nobody dials this learner": undialled,
    "Somebody dials this learner": dialled,
    "Suspected": suspected,
    "Back again": returned,
    "Beats that come late": late_beats,
    "Large messages that don't get through": lambda: transfers("stuck"),
    "Large messages that get through again": lambda: transfers("unstuck"),
    "Evicted": evicted,
    "Left": lambda: left(B, C),
    "Nobody is left": lambda: left(B),
    "No longer alone": company,
    "No quorum": lambda: quorum(),
    "A quorum again": lambda: quorum(C),
    "Tokens that are counted in two ways": uneven,
    "Two models side by side": lambda: other_models("parted"),
    "Another model was taken over": switched,
    "Another branch was taken over": other_branch,
    "Trained weights gave way to others": replaced,
    "One model again": lambda: other_models("agreed"),
    "An end that has to wait": lambda: finishes(2, "finishing"),
    "An end that is held up": lambda: finishes(32, "held_up"),
    "An end without finish()": unfinished,
    "An end that leaves work out": ends_below_quorum,
    "Steps after the end": beyond_the_end,
    "A synchronize() that takes long": long_synchronize,
    "Slow": lambda: slow("slow"),
    "Costly": lambda: slow("costly"),
    "As fast as before": lambda: slow("recovered"),
    "Rounds that take long": late,
    "A learner that seals nothing": lambda: declines("declines"),
    "A learner that seals again": lambda: declines("seals_again"),
    "Weights that are not finite": healed,
    "Offers that are too large": outsized,
    "No finite anchor": no_anchor,
    "Weights beside a checkpoint": other_weights,
    "A run that was rolled back": rolled_back,
    "Two anchors under one key": forked,
    "An anchor that was falsified": outvoted,
    "Weights that were replaced": jumped,
    "Training without a step": unseen,
    "Steps past the wrapper": past_the_wrapper,
    "Moments that are not known": lambda: begins(Unknown(), "unknown"),
    "Work that a merge cannot take": lambda: begins(
        descent(1.0), "unclosed", codec="powersgd", merge="median"
    ),
    "A thread that has failed": broken_thread,
    "The first merge": first_merge,
    "The summary": summary,
    "Links that would leave this machine": open_links,
    "A port that is taken": taken_port,
    "Links without credentials": bare_links,
    "A secret that others may read": open_secret,
    "A variable that means nothing": unknown_variable,
    "A wrong value in a variable": wrong_variable,
    "A class in place of an instance": wrong_class,
}


def test_every_quote_has_a_producer() -> None:
    assert list(PRODUCERS) == list(entries())


@pytest.mark.parametrize("heading", PRODUCERS)
def test_a_message_is_said_as_it_is_quoted(heading: str) -> None:
    quote, text = entries()[heading]
    said = PRODUCERS[heading]()
    assert said
    for one in said:
        line = f"a: {one.text}" if isinstance(one, Event) else one
        assert generic(line) == generic(quote)
        if isinstance(one, Event):
            loudness = logging.getLevelName(level_of(one)).lower()
            words = f"as loud as the {'warning' if one.kind == 'joined' else 'news'} before"
            assert f"*Event:* `{one.kind}` ({words if one.lifts else loudness})" in text


def test_every_warning_is_on_the_page() -> None:
    kinds = re.findall(r"^\*Event:\* `(\w+)`", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(WARNINGS) <= set(kinds)


def test_every_cause_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [cause for cause in Unreached if cause.value not in page] == []


def test_only_examples_may_differ() -> None:
    assert generic("a: waits 30 s for b:29600") == generic("a: waits 1,200 s for 127.0.0.1:9")
    assert generic("a: waits for b:1 (refused)") != generic("a: waits for b:1 (silent)")
