"""One learner's engine, driven by hand: a test plays its peers, its worker and its training thread,
one event at a time."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

import torch

from mend_optim.engine.effects import Done, Job, Merge, Prepare, Send, Work
from mend_optim.engine.engine import Engine
from mend_optim.engine.late_adoption import Adoption
from mend_optim.engine.ledger import Event
from mend_optim.engine.period import AutoPeriod
from mend_optim.engine.policies import Policies, weights
from mend_optim.engine.progress import Progress
from mend_optim.engine.quorum import Grace, Quorum
from mend_optim.engine.schedule import Schedule
from mend_optim.membership.failslow import FailSlow
from mend_optim.membership.roster import Roster
from mend_optim.protocol.lineage import Claim, Entry, Key, Lineage, PeerId
from mend_optim.protocol.messages import (
    Beat,
    Content,
    Level,
    Message,
    Offer,
    Report,
    Rumor,
    Seal,
    State,
)
from mend_optim.protocol.timing import Timing

ME, PEER, THIRD, FOURTH = (PeerId(name, 1) for name in ("me", "peer", "third", "fourth"))
GENESIS, OTHER = b"genesis", b"zother"
BASE = Lineage.fresh(GENESIS)
PAYLOAD = b"payload"

T = TypeVar("T")
#: Two zones.
HERE, THERE = "east", "west"


def grown(lineage: Lineage, *entries: Entry) -> Lineage:
    """The lineage after a seal of these, or of somebody's ten tokens."""
    return lineage.seal(
        entries or [Entry(PeerId("somebody", 1), lineage.version + 1, 10, 1)], PAYLOAD
    )


def seal_of(base: Lineage, *entries: Entry, sealer: PeerId = PEER, key: Key | None = None) -> Seal:
    members = entries or (Entry(PeerId("somebody", 1), base.version + 1, 10, 1),)
    new = key or grown(base, *members).key
    return Seal(
        sealer=sealer,
        fragment=0,
        base=base.digest,
        key=new,
        members=members,
        weights=tuple(weights("tokens", members)),
        absent=(),
        reason="all_present",
        payload=PAYLOAD,
    )


def state_of(lineage: Lineage, fragment: int = 0, peer: PeerId = PEER) -> State:
    return State(peer=peer, fragment=fragment, lineage=lineage, content=b"content")


def offer_of(
    peer: PeerId, seq: int = 1, steps: int = 4, due: bool = True, inherited: Claim | None = None
) -> Offer:
    return Offer(
        peer=peer,
        fragment=0,
        seq=seq,
        tokens=10 * steps,
        steps=steps,
        genesis=GENESIS,
        key=BASE.key,
        due=due,
        inherited=inherited,
    )


class DrivenEngine:
    """A learner that has begun and joined. `seals`: whether it can be dialled; its peers cannot be,
    so that it runs all rounds, or else they are. `buffers`: whether its last fragment is that of
    buffers."""

    def __init__(
        self,
        seals: bool = True,
        quorum: int | None = None,
        grace_s: float = 0.0,
        failslow: FailSlow | None = FailSlow(),
        residual_in_weights: bool = False,
        auto: AutoPeriod | None = None,
        buffers: bool = False,
        zone: str = "",
        joins: bool = False,
        clips: bool = False,
        weighting: str = "tokens",
        weighs_work: bool = True,
        adoption: Adoption = Adoption(),
        **schedule: Any,
    ) -> None:
        self.now, self.seals, self.counts = 0.0, seals, 0
        plan = Schedule(**{"sync_every": 4, **schedule})
        some = Quorum(minimum=quorum)
        policies = Policies(
            schedule=plan,
            quorum=some,
            grace=Grace(max_s=grace_s),
            failslow=failslow,
            residual_in_weights=residual_in_weights,
            weighting=weighting,
            weighs_work=weighs_work,
            adoption=adoption,
            auto=auto,
            zone=zone,
            joins=joins,
            clips=clips,
        )
        self.engine = Engine(ME, "me:1" if seals else "", (), policies, self.now)
        self.engine.begin(self.now, GENESIS, (b"",) * (plan.fragments + buffers))
        self.log: list[Any] = []
        assert self.engine.state.joined

    @property
    def fragment(self) -> Progress:
        return self.engine.state.fragments[0]

    @property
    def lineage(self) -> Lineage:
        return self.fragment.lineage

    def beat(
        self,
        peer: PeerId = PEER,
        *lineages: Lineage,
        step: int = 1,
        genesis: bytes = GENESIS,
        slower: float = 0.0,
        held: tuple[tuple[PeerId, int], ...] = (),
        address: str | None = None,
        pong: int = 0,
        latency: int = 0,
        zone: str = "",
        takes_joint: int | None = None,
        reaches: Collection[PeerId] | None = None,
        far: Mapping[PeerId, int] | None = None,
        content: Content | None = None,
        tokens: int | None = None,
        latencies: Sequence[int] = (),
        declines: bool = False,
        rests: bool = False,
    ) -> None:
        """A beat of a peer that trains; it is met before. `slower`: how many times slower it is
        than it was, if it says anything. `held`: the offers that it says it has. `address`: where
        it can be dialled, if that is not as of all peers. `takes_joint`: None is as of this
        learner. `reaches`: those that it reaches; None: it does not say. `far`: the links on its
        ways to others.
        `content`: of its last anchor; None: it does not say. `tokens`: None is as `step` counts
        them. `latencies`: how many steps its rounds of each fragment take."""
        self.counts += 1
        if address is None:
            address = "" if self.seals else f"{peer.name}:1"
        self.engine.met(self.now, peer, address)
        reports = tuple(
            Report(lineage.key, held, content=content, latency=latencies[p] if latencies else 0)
            for p, lineage in enumerate(lineages or [BASE] * len(self.engine.state.fragments))
        )
        paces = (("compute", Level(slower, 1.0, 0.01, 9 + self.counts)),) if slower else ()
        beat = Beat(
            peer=peer,
            address=address,
            count=self.counts,
            step=step,
            tokens=10 * step if tokens is None else tokens,
            seconds_per_step=1.0,
            training=True,
            genesis=genesis,
            reports=reports,
            pong=pong,
            position=step,
            paces=paces,
            latency=latency,
            zone=zone,
            declines=declines,
            rests=rests,
            takes_joint=self.engine.state.takes_joint(0) if takes_joint is None else takes_joint,
            roster=(
                *(Rumor(id, f"{id.name}:1", self.counts, reached=True) for id in reaches or ()),
                *(
                    Rumor(id, f"{id.name}:1", self.counts, hops=hops)
                    for id, hops in (far or {}).items()
                ),
            ),
        )
        self.receive(beat)

    def receive(self, message: Message) -> None:
        self.engine.receive(self.now, message)

    def step(self, count: int = 1, tokens: int = 10) -> None:
        for _ in range(count):
            self.now += 1.0
            self._hear()
            self.engine.boundaries.stepped(tokens, 1.0)

    def _hear(self) -> None:
        """While this learner trains, its network loop looks at the clock, and hears the peers that
        live."""
        state = self.engine.state
        state.stops.look(self.now)
        for id in state.roster.alive():
            state.roster.touch(self.now, id)

    def reserve(self) -> None:
        """The training thread begins to copy what is wanted."""
        for p in self.engine.boundaries.fragments_to_copy():
            self.engine.boundaries.reserve(p)

    def copied(self, p: int = 0) -> Prepare:
        self.engine.boundaries.snapshot(p, torch.zeros(0))
        (prepare,) = self.jobs(Prepare)
        self.done(prepare)
        return prepare

    def offer(self, steps: int = 4) -> Offer:
        """Train up to the boundary and offer; returns the offer, whichever peer it goes to."""
        self.step(steps)
        self.reserve()
        self.copied()
        pending = self.fragment.pending
        assert pending is not None
        assert pending.offer is not None
        return pending.offer

    def done(self, job: Job, **outcome: Any) -> None:
        """The worker has performed a job."""
        self.engine.finished(self.now, job, Done(**{"digest": PAYLOAD, **outcome}))

    def apply(self) -> None:
        """The training thread takes the correction of an anchor that has come."""
        self.engine.correction_applied(self.now, 0, False)

    def tick(self, seconds: float) -> None:
        """So much time passes, in which the network loop looks at the engine at least as often as
        beats are due."""
        until, beat_s = self.now + seconds, self.engine.state.policies.timing.beat_s
        while self.now + beat_s < until:
            self.now += beat_s
            self.engine.tick(self.now)
        self.now = until
        self.engine.tick(self.now)

    def _take(self, choose: Any) -> list[Any]:
        self.log += self.engine.drain(self.now)
        taken = [e for e in self.log if choose(e)]
        self.log = [e for e in self.log if not choose(e)]
        return taken

    def sent(self, kind: type[T]) -> list[tuple[PeerId, T]]:
        """Messages of this kind, and to whom, that were not looked at yet."""
        return [
            (e.to, e.message)
            for e in self._take(lambda e: isinstance(e, Send) and isinstance(e.message, kind))
        ]

    def jobs(self, kind: type[T]) -> list[T]:
        """Jobs of this kind for the worker that were not looked at yet."""
        return [
            e.job for e in self._take(lambda e: isinstance(e, Work) and isinstance(e.job, kind))
        ]

    def events(self, *kinds: str) -> list[Event]:
        """Events of these kinds that were not looked at yet."""
        return self._take(lambda e: isinstance(e, Event) and e.kind in kinds)

    def faults(self) -> list[str]:
        return [e.text for e in self._take(lambda e: isinstance(e, Event) and e.kind == "fault")]

    def merge(self) -> Merge:
        (job,) = self.jobs(Merge)
        return job


def among_peers(**schedule: Any) -> DrivenEngine:
    """A learner whose peer runs the rounds."""
    engine = DrivenEngine(seals=False, **schedule)
    engine.beat()
    return engine


def sealer_before(other: PeerId) -> PeerId:
    """A peer that seals fragment 0 where `other` would seal it otherwise."""
    for i in range(100):
        roster, peer = Roster(other, "me:1", Timing()), PeerId(f"peer-{i}", 1)
        roster.hear(0.0, Beat(peer=peer, address="other:1", count=1))
        if roster.sealer(0) == peer != other:
            return peer
    raise AssertionError("nobody goes before it")


def far_sealer(engine: DrivenEngine) -> PeerId:
    """A peer of the zone `THERE` that seals fragment 0."""
    roster = engine.engine.state.roster
    for i in range(100):
        far = PeerId(f"far-{i}", 1)
        engine.beat(far, address="far:1", zone=THERE)
        if roster.sealer(0) == far:
            engine.engine.linked(engine.now, far, True)
            return far
        roster.leave(far)
    raise AssertionError("nobody seals")


def pass_until(engine: Engine, now: float) -> None:
    """Time passes, and the network loop looks at the clock every second meanwhile: later looks
    would be after a stop of this learner."""
    looked_at = engine.state.stops._looked_at
    start = 0 if math.isinf(looked_at) else math.floor(looked_at)
    for second in range(start + 1, math.ceil(now)):
        engine.tick(float(second))
    engine.tick(now)
