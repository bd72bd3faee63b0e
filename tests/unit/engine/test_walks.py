"""A learner's engine, walked through all its modes by whatever a network, a worker and a training
thread may do to it, beside obvious twins of its mode and of its fragments' motion."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from mend_optim.engine.effects import (
    Advance,
    Done,
    Extend,
    Found,
    Install,
    Job,
    Prepare,
    Reoffer,
    Retake,
    Send,
    Work,
)
from mend_optim.engine.engine import Engine
from mend_optim.engine.joining import Resumed
from mend_optim.engine.mode import Mode
from mend_optim.engine.policies import Policies
from mend_optim.engine.progress import Motion
from mend_optim.engine.schedule import Schedule
from mend_optim.engine.state import EngineState
from mend_optim.protocol.lineage import Entry, Lineage, PeerId
from mend_optim.protocol.messages import (
    Beat,
    Call,
    Goodbye,
    Message,
    Offer,
    Report,
    Want,
)
from mend_optim.protocol.transfer_fault import BROKEN
from tests.support.depth import many
from tests.support.engines import GENESIS, OTHER, PAYLOAD, offer_of, seal_of, state_of

NAMES = ("peer", "third")
SEED = "peer:1"
COPIED_IN = (Mode.FOUNDING, Mode.TRAINING)
BEFORE_JOINED = (Mode.NEW, Mode.JOINING, Mode.SWITCHING_JOINING)

names = st.sampled_from(NAMES)
picks = st.integers(0, 20)


class Walk(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now, self.count, self.groups, self.rare = 0.0, 0, 0, 0
        self.incarnations = dict.fromkeys(("me", *NAMES), 1)
        self.lineages = {genesis: [Lineage.fresh(genesis)] for genesis in (GENESIS, OTHER)}
        self.jobs: list[Job] = []
        self.sent: list[tuple[PeerId, Message]] = []
        #: Fragments that the training thread copies now; all of them if they are to found anchors.
        self.copying: list[int] = []
        self.copying_all = False
        #: Fragments that ranks will copy, and until when each is held.
        self.held: dict[int, float] = {}
        #: Corrections that await the training thread, by fragment: whether they replace weights.
        self.corrections: dict[int, bool] = {}
        self.was_joined = False
        self.engine: Engine

    @initialize(
        fragments=st.integers(1, 2),
        dialled=st.booleans(),
        seeded=st.booleans(),
        adopt_after=st.sampled_from([None, None, 0, 2]),
        residual=st.booleans(),
        begun=st.sampled_from([True, True, True, False]),
    )
    def start(
        self,
        fragments: int,
        dialled: bool,
        seeded: bool,
        adopt_after: int | None,
        residual: bool,
        begun: bool,
    ) -> None:
        self.policies = Policies(
            schedule=Schedule(sync_every=2, fragments=fragments, adopt_after=adopt_after),
            residual_in_weights=residual,
        )
        self.address = "me:1" if dialled else ""
        self.seeds = (SEED,) if seeded else ()
        self.engine = self.new_engine()
        if begun:
            self.begin()

    def new_engine(self) -> Engine:
        me = PeerId("me", self.incarnations["me"])
        return Engine(me, self.address, self.seeds, self.policies, self.now)

    @property
    def state(self) -> EngineState:
        return self.engine.state

    def id(self, name: str) -> PeerId:
        return PeerId(name, self.incarnations[name])

    def lineage(self, genesis: bytes, pick: int, p: int = 0) -> Lineage:
        """One of all that there are, or that of our fragment `p`."""
        own = [f.lineage for f in self.state.fragments[p : p + 1] if f.lineage.genesis == genesis]
        found = [*self.lineages[genesis], *own]
        return found[pick % len(found)]

    def drain(self) -> None:
        for effect in self.engine.drain(self.now):
            match effect:
                case Work(job):
                    self.jobs.append(job)
                case Send(to, message):
                    assert to != self.state.me
                    self.sent.append((to, message))

    # ── the network ───────────────────────────────────────────────────────────────────────────────

    @rule(
        name=names,
        genesis=st.sampled_from([GENESIS, GENESIS, GENESIS, OTHER, OTHER, b""]),
        picks=st.lists(picks),
        grown=st.sampled_from([0, 0, 1, 40]),
    )
    def beat(self, name: str, genesis: bytes, picks: list[int], grown: int) -> None:
        if genesis and grown:
            self.others_train(genesis, self.count, grown)
        self.count += 1
        peer, address = self.id(name), f"{name}:1"
        self.engine.met(self.now, peer, address, address)
        reports = []
        if genesis:
            picks = [*picks, 0, 0, 0][: max(1, len(self.state.groups))]
            groups = [*self.state.groups, b""]
            keys = [self.lineage(genesis, pick, p).key for p, pick in enumerate(picks)]
            reports = [Report(key, (), groups[p]) for p, key in enumerate(keys)]
        step = self.count if any(report.key.tokens for report in reports) else 0
        beat = Beat(
            peer=peer,
            address=address,
            count=self.count,
            step=step,
            tokens=10 * step,
            training=bool(genesis) and self.count % 3 > 0,
            genesis=genesis,
            reports=tuple(reports),
            position=step,
            ping=self.count % 2,
            pong=self.state.question.number,
        )
        self.engine.receive(self.now, beat)
        self.drain()

    def others_train(self, genesis: bytes, pick: int, tokens: int) -> None:
        base = self.lineage(genesis, pick)
        entry = Entry(PeerId("somebody", 1), base.version + 1, tokens, 1)
        self.lineages[genesis].append(base.seal([entry], PAYLOAD))

    @rule(
        kind=st.sampled_from(["goodbye", "up", "down", "call", "call", "want", "heard"]),
        name=names,
        p=st.integers(0, 2),
        pick=picks,
    )
    def news(self, kind: str, name: str, p: int, pick: int) -> None:
        engine, now, peer = self.engine, self.now, self.id(name)
        match kind:
            case "goodbye":
                engine.receive(now, Goodbye(peer))
                self.incarnations[name] += 1
            case "up" | "down":
                engine.linked(now, peer, kind == "up")
            case "call":
                engine.receive(now, Call(peer, p))
            case "want":
                have = self.lineage(GENESIS, pick, p).digest
                engine.receive(now, Want(peer, p, have))
            case "heard":
                engine.heard(now, peer, p)
        self.drain()

    @precondition(lambda self: self.state.fragments)
    @rule(
        kind=st.sampled_from(["offer", "offer", "seal", "seal of ours", "anchor", "other anchor"]),
        name=names,
        p=st.integers(0, 2),
        pick=picks,
    )
    def message(self, kind: str, name: str, p: int, pick: int) -> None:
        match kind:
            case "offer":
                self.offer(name, p, steps=pick % 4, due=pick > 10)
            case "seal" | "seal of ours":
                self.seal(name, p, pick, with_ours=kind == "seal of ours")
            case _:
                genesis = OTHER if kind == "other anchor" else GENESIS
                anchor = state_of(self.lineage(genesis, pick, p), p, self.id(name))
                self.engine.receive(self.now, anchor)
        self.drain()

    def offer(self, name: str, p: int, steps: int, due: bool) -> None:
        peer = self.id(name)
        at = self.state.fragments[p % len(self.state.fragments)].lineage
        last = at.last_merged(peer)
        offer = offer_of(peer, last + 1, steps, due)
        self.engine.receive(
            self.now, replace(offer, fragment=p, genesis=at.genesis, key=at.key, follows=last)
        )
        self.drain()

    def seal(self, name: str, p: int, pick: int, with_ours: bool) -> None:
        """Of our anchor or another one, with our pending offer in it or without."""
        fragment = self.state.fragments[p % len(self.state.fragments)]
        base = self.lineage(self.state.genesis, pick, fragment.fragment)
        pending = fragment.pending
        ours = pending.offer if pending and with_ours else None
        entries = [ours.entry] if ours else []
        seal = seal_of(base, *entries, sealer=self.id(name))
        self.lineages[base.genesis].append(base.seal(seal.members, PAYLOAD))
        self.engine.receive(self.now, replace(seal, fragment=fragment.fragment))
        self.drain()

    @precondition(lambda self: self.state.wants)
    @rule(arrives=st.sampled_from([True, True, False]))
    def answer(self, arrives: bool) -> None:
        """The anchor that a peer was asked for comes, or cannot be had from it."""
        switch = self.state.switch
        genesis = switch.genesis if switch else self.state.genesis
        for p, peer in [(p, wanted.peer) for p, wanted in self.state.wants.items()]:
            if arrives:
                newest = max(
                    self.lineages.get(genesis, self.lineages[GENESIS]), key=lambda one: one.key
                )
                self.engine.receive(self.now, state_of(newest, p, peer))
            else:
                self.engine.undelivered(self.now, peer, Want(self.state.me, p, b""), BROKEN)
            self.drain()

    @precondition(lambda self: self.sent)
    @rule(pick=picks, arrives=st.booleans())
    def transport(self, pick: int, arrives: bool) -> None:
        to, message = self.sent.pop(pick % len(self.sent))
        if arrives and isinstance(message, Offer):
            self.engine.delivered(self.now, to, message)
        elif not arrives:
            self.engine.undelivered(self.now, to, message, BROKEN)
        self.drain()

    # ── time ──────────────────────────────────────────────────────────────────────────────────────

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 1.0, 2.0, 4.0, 4.0, 100.0]))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.held = {p: until for p, until in self.held.items() if until > self.now}
        self.engine.tick(self.now)
        self.drain()

    # ── the training thread ───────────────────────────────────────────────────────────────────────

    @precondition(lambda self: self.state.mode is Mode.NEW)
    @rule()
    def begin(self) -> None:
        groups = (b"",) * self.policies.schedule.fragments
        self.engine.begin(self.now, GENESIS, groups)
        self.drain()

    @precondition(lambda self: self.state.joined and not self.copying)
    @rule(tokens=st.integers(0, 30), count=st.integers(1, 3))
    def train(self, tokens: int, count: int) -> None:
        """Some steps; after the last one the thread copies what is wanted."""
        for _ in range(count):
            self.engine.boundaries.stepped(tokens, 1.0)
        if self.engine.boundaries.must_wait():
            self.engine.boundaries.waited_out()
        self.copy()

    @precondition(lambda self: self.state.joined and not self.copying)
    @rule()
    def rest(self) -> None:
        self.engine.rest(self.now)
        self.engine.boundaries.settled()
        self.copy()
        self.drain()

    def copy(self) -> None:
        boundaries = self.engine.boundaries
        self.copying = boundaries.fragments_to_copy()
        self.copying_all = bool(self.copying) and boundaries.founding
        for p in self.copying:
            boundaries.moments(p)
        if self.copying_all:
            boundaries.reserve_all()
        else:
            for p in self.copying:
                boundaries.reserve(p)

    @precondition(lambda self: self.state.joined and not self.copying)
    @rule(steps=st.integers(0, 2), seconds=st.sampled_from([1.0, 5.0, 1000.0]))
    def hold(self, steps: int, seconds: float) -> None:
        """Ranks decide on the copy of a later step."""
        p = self.engine.boundaries.wanted_in(steps)
        if p is not None:
            assert p not in self.held
            self.engine.boundaries.hold(p, self.now + seconds)
            self.held[p] = self.now + seconds

    @precondition(lambda self: self.held and not self.copying)
    @rule(tokens=st.integers(0, 30), copied=st.booleans(), pick=picks)
    def count_copy(self, tokens: int, copied: bool, pick: int) -> None:
        """Ranks have copied a fragment, or not, and the last step is counted."""
        p = sorted(self.held)[pick % len(self.held)]
        del self.held[p]
        self.engine.boundaries.stepped(tokens, 1.0)
        if not copied:
            self.engine.outcomes.let_go(self.now, p)
        elif self.engine.outcomes.take_held(self.now, p):
            self.engine.boundaries.snapshot(p, None)
        self.drain()

    @precondition(lambda self: self.copying)
    @rule(finished=st.sampled_from([2, 2, 2, 1, 0]))
    def hand_over(self, finished: int) -> None:
        """All copies are made; or Ctrl-C comes after some of them."""
        boundaries, copying = self.engine.boundaries, self.copying
        self.copying = []
        if self.copying_all and finished:
            boundaries.found(tuple(copying))
        elif not self.copying_all:
            copied = copying if finished == 2 else copying[:finished]
            for p in copied:
                boundaries.snapshot(p, None)
            boundaries.release(copying[len(copied) :])
        else:
            boundaries.release(copying)
        self.copying_all = False
        self.drain()

    @precondition(lambda self: self.corrections and not self.copying)
    @rule(pick=picks)
    def apply(self, pick: int) -> None:
        p = sorted(self.corrections)[pick % len(self.corrections)]
        if not self.engine.boundaries.holds_back(p):
            self.engine.correction_applied(self.now, p, self.corrections.pop(p))
            self.drain()

    def add_group(self) -> None:
        self.groups += 1
        totals = self.state.totals
        groups = (*self.state.groups, b"group")
        self.jobs.append(Extend(None, None, (totals.step, totals.tokens, totals.rate), groups))

    # ── the worker ────────────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: self.jobs)
    @rule(faults=st.lists(st.sampled_from(["", "", "", "refused"]), min_size=1, max_size=4))
    def work(self, faults: list[str]) -> None:
        for fault in faults[: len(self.jobs)]:
            self.perform(fault)

    def perform(self, fault: str) -> None:
        job = self.jobs.pop(0)
        if isinstance(job, Extend):
            fault = ""
        if not fault:
            self.note_correction(job)
        done = Done(digest=b"" if fault else PAYLOAD, fault=fault)
        self.engine.finished(self.now, job, done)
        self.drain()

    def note_correction(self, job: Job) -> None:
        moved: list[int] = []
        if isinstance(job, Advance):
            moved = [job.seal.fragment]
        elif isinstance(job, Install):
            moved = [anchor.fragment for anchor in job.states]
        elif isinstance(job, Retake):
            moved = [job.fragment]
        for p in moved:
            replaces = not isinstance(job, Advance | Install) or job.replace
            self.corrections[p] = self.corrections.get(p, False) or replaces

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: self.count > 4 * self.rare + 4)
    @precondition(lambda self: self.state.joined and not self.copying)
    @rule(kind=st.sampled_from(["group", "group", "restart", "restart", "leave"]))
    def rarely(self, kind: str) -> None:
        self.rare += 1
        match kind:
            case "group" if not self.groups:
                self.add_group()
            case "restart":
                self.restart()
            case "leave":
                self.engine.leave(self.now)
        self.drain()

    def restart(self) -> None:
        """Another process goes on from a checkpoint of this one."""
        before = self.state
        standings = [] if before.alone else self.engine.standings()
        saved = Resumed(before.totals.copy(), standings, before.head_start)
        groups, genesis = before.groups, before.genesis
        self.incarnations["me"] += 1
        self.engine = self.new_engine()
        self.jobs, self.sent, self.was_joined = [], [], False
        self.held = {}
        if not standings:
            self.corrections = {}
        self.engine.begin(self.now, genesis, groups, saved)
        self.drain()

    # ── what holds always ─────────────────────────────────────────────────────────────────────────

    @invariant()
    def joined_never_goes_back(self) -> None:
        assert self.state.joined >= self.was_joined
        self.was_joined = self.state.joined

    @invariant()
    def a_learner_has_joined_unless_its_mode_is_before_that(self) -> None:
        if self.state.mode is not Mode.CLOSED:
            assert self.state.joined is (self.state.mode not in BEFORE_JOINED)

    @invariant()
    def a_model_is_on_its_way_just_while_the_mode_says_so(self) -> None:
        if self.state.mode is not Mode.CLOSED:
            assert (self.state.switch is not None) is self.state.mode.switching

    @invariant()
    def all_fragments_are_copied_just_while_the_mode_says_so(self) -> None:
        copied = self.copying_all or any(isinstance(job, Found) for job in self.jobs)
        if self.state.mode is not Mode.CLOSED:
            assert (self.state.mode is Mode.COPYING) is copied

    @invariant()
    def a_fragments_motion_is_what_the_training_thread_and_the_worker_are_doing_with_it(
        self,
    ) -> None:
        expected = dict.fromkeys(range(len(self.state.fragments)), Motion.STILL)
        expected |= dict.fromkeys(self.copying, Motion.SNAPSHOT)
        expected |= dict.fromkeys(self.held, Motion.HELD)
        for job in self.jobs:
            match job:
                case Prepare() | Reoffer():
                    expected[job.fragment] = Motion.SNAPSHOT
                case Found():
                    expected |= dict.fromkeys(range(len(job.tensors)), Motion.SNAPSHOT)
                case Advance():
                    expected[job.seal.fragment] = Motion.MOVING
                case Retake():
                    expected[job.fragment] = Motion.MOVING
                case Install():
                    expected |= {anchor.fragment: Motion.MOVING for anchor in job.states}
        assert {f.fragment: f.motion for f in self.state.fragments} == expected

    @invariant()
    def a_correction_is_pending_just_until_it_is_applied(self) -> None:
        pending = {f.fragment for f in self.state.fragments if f.correction_pending}
        assert pending == set(self.corrections)

    @invariant()
    def every_fragment_has_its_group_its_round_and_its_seal(self) -> None:
        state = self.state
        lists = (state.fragments, state.groups, state.rounds, state.seals)
        assert len({len(each) for each in lists}) == 1
        assert [f.fragment for f in state.fragments] == list(range(len(state.fragments)))

    @invariant()
    def nothing_is_copied_but_to_found_or_to_offer(self) -> None:
        if self.state.mode not in COPIED_IN:
            assert self.engine.boundaries.fragments_to_copy() == []

    @invariant()
    def what_is_unmerged_is_at_least_what_is_offered(self) -> None:
        for fragment in self.state.fragments:
            unmerged, pending = fragment.unmerged(self.state.totals), fragment.pending
            assert unmerged.step >= (pending.steps if pending else 0)
            assert unmerged.tokens >= (pending.tokens if pending else 0)

    @invariant()
    def all_fragments_have_one_genesis(self) -> None:
        assert {f.lineage.genesis for f in self.state.fragments} <= {self.state.genesis}

    @invariant()
    def the_last_seal_is_of_the_anchor_or_about_to_be(self) -> None:
        for fragment, chain in zip(self.state.fragments, self.state.seals, strict=True):
            seal = chain.last
            if seal and fragment.is_still and not fragment.deferred_news:
                assert seal.key == fragment.lineage.key


TestWalk = Walk.TestCase
TestWalk.settings = settings(max_examples=many(75, 250), stateful_step_count=80, deadline=None)
