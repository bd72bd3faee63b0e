"""A whole cluster in virtual time: N engines, a faulty network, a seeded schedule of faults, and DESIGN's laws checked
after every event.

Nothing here sleeps or reads a clock. `Cluster.at` puts an event on the heap, `run` plays it. The same seed plays the
same events."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from units import Units, Vector, add, stack

from mend_optim.anchor import Correction, Extend, Merge
from mend_optim.books import PULL, Policies, Send, Work
from mend_optim.ledger import Event
from mend_optim.lineage import PeerId
from mend_optim.progress import Motion, Totals
from mend_optim.protocol import Message, Offer, Seal, State, Want
from mend_optim.starting import Resumed
from mend_optim.syncer import Syncer


@dataclass(frozen=True)
class Groups:
    """All that the engine asks of a `Layout`."""

    of: tuple[bytes, ...]

    def groups(self) -> tuple[bytes, ...]:
        return self.of


@dataclass(frozen=True)
class Saved:
    """A checkpoint; `heirs`: whose unmerged work may be in its weights."""

    resumed: Resumed
    weights: list[Vector]
    theta: list[Vector]
    progress: list[Vector]
    mailbox: dict[int, Correction]
    heirs: frozenset[PeerId]
    groups: tuple[bytes, ...]

    def beside_other_weights(self) -> Saved:
        """The same, found to belong to other weights: they become the anchor."""
        standings = [
            replace(s, pending=None, untaken=True, adopt_at=None) for s in self.resumed.standings
        ]
        mailbox = {p: Correction(p, dict(theta), True) for p, theta in enumerate(self.theta)}  # type: ignore[arg-type]
        return replace(self, resumed=self.resumed._replace(standings=standings, intact=False), mailbox=mailbox)


class Learner:
    """One incarnation of a learner: its engine, its weights, its worker."""

    def __init__(
        self, cluster: Cluster, name: str, incarnation: int, dialable: bool, saved: Saved | None = None
    ) -> None:
        self.cluster, self.name, self.saved = cluster, name, saved
        self.heirs: frozenset[PeerId] = frozenset()
        self.id = PeerId(name, incarnation)
        seeds = [n for n in cluster.names if n != name and cluster.dialable[n]]
        self.engine = Syncer(self.id, name if dialable else "", seeds, cluster.policies, cluster.now)
        fragments = cluster.policies.schedule.fragments
        start = {("init", cluster.random.getrandbits(40)): 1}
        self.weights: list[Vector] = [dict(start) for _ in range(fragments)]
        self.groups = (b"",) * fragments
        self.units = Units(self.weights)
        self.mailbox: dict[int, Correction] = {}
        self.queue: list[Any] = []
        self.working = self.dead = self.waiting = self.copying = False
        self.waits_until = 0.0
        self.woken_at = float("inf")
        self.last_keys: dict[int, Any] = {}
        self.last_model: Any = None

    # the training thread

    def begin(self) -> None:
        saved = self.saved
        if saved:
            self.weights = [dict(w) for w in saved.weights]
            self.units.theta = [dict(t) for t in saved.theta]
            self.units.progress = [dict(d) for d in saved.progress]
            self.mailbox = dict(saved.mailbox)
            self.heirs, self.groups = saved.heirs, saved.groups
            self.engine.begin(self.cluster.now, b"", self.groups, saved.resumed)
        else:
            self.engine.begin(self.cluster.now, self.units.genesis(), self.groups)
        self.pump()

    def extend(self) -> None:
        """Add a group, with first weights of its own, between two steps; not twice."""
        engine = self.engine
        if self.dead or self.copying or not engine.books.joined or len(self.weights) > len(self.groups):
            return
        if self.groups[-1]:  # added already
            return
        self.cluster.seen["extended"] += 1
        self.groups = (*self.groups, b"added")
        self.weights.append({("init", self.cluster.random.getrandbits(40)): 1})
        at = (engine.books.totals.step, engine.books.totals.tokens)
        engine.books.work(Extend(Groups(self.groups), dict(self.weights[-1]), at))  # type: ignore[arg-type]
        self.pump()

    def save(self) -> Saved | None:
        """A checkpoint, as the training thread takes one between two steps; none while it copies."""
        if self.dead or self.copying or not self.engine.books.joined:
            return None
        if len(self.engine.books.fragments) < len(self.weights):
            return None  # a real worker performs the job that adds a fragment before it copies for a checkpoint
        standings, totals = self.engine.standings(), self.engine.books.totals
        resumed = Resumed(Totals(totals.step, totals.tokens), standings)
        copies = ([dict(v) for v in vectors] for vectors in (self.weights, self.units.theta, self.units.progress))
        return Saved(resumed, *copies, dict(self.mailbox), self.heirs | {self.id}, self.groups)

    def step(self) -> None:
        """One inner step if joined: a new unit of work in every fragment."""
        if self.dead:
            return
        if self.waiting or self.copying or not self.engine.books.joined:
            self.cluster.at(0.3, self.step)
            self.hand_over()
            self.pump()
            return
        if not self.engine.books.totals.step:
            self.hand_over()  # what joining brought, before the first inner step
        if self.cluster.training and not self.copying:
            self.engine.training.stepped(self.cluster.now, 1)
            self.cluster.trained += 1
            unit = (self.id, self.engine.books.totals.step)
            self.weights = [add(w, {unit: 1}) for w in self.weights]
        self.waits_until = self.cluster.now + self.cluster.policies.timing.round_timeout_s
        self.hand_over()
        self.pump()
        r = self.cluster.random
        self.cluster.at(self.cluster.speed[self.name] * (0.8 + 0.4 * r.random()), self.step)

    def hand_over(self) -> None:
        """What `step()` does after the inner step: apply corrections, then copy what is wanted."""
        if self.copying:
            return
        if not self.engine.books.fragments:
            return
        self.waiting = self.engine.training.must_wait() and self.cluster.now < self.waits_until
        for p in [p for p in self.mailbox if not self.engine.training.holds_back(p)]:
            correction = self.mailbox.pop(p)
            self.engine.taken(self.cluster.now, p, correction.replace)
            values: Vector = correction.values  # type: ignore[assignment]
            self.weights[p] = dict(values) if correction.replace else add(self.weights[p], values)
        wanted = self.engine.training.wanted()
        if not wanted:
            return
        self.copying = True
        copies = {p: dict(self.weights[p]) for p in wanted}
        if self.engine.training.founding:
            self.engine.training.reserve_all()
            self.cluster.at(self.cluster.random.random() * 0.2, self.copied_all, copies)
        else:
            for p in wanted:
                self.engine.training.reserve(p)
            self.cluster.at(self.cluster.random.random() * 0.2, self.copied, copies)

    def copied(self, copies: dict[int, Vector]) -> None:
        self.copying = False
        for p, copy in copies.items():
            self.engine.training.snapshot(p, copy)  # type: ignore[arg-type]
        self.pump()

    def copied_all(self, copies: dict[int, Vector]) -> None:
        self.copying = False
        self.engine.training.found(tuple(copies[p] for p in sorted(copies)))  # type: ignore[misc]
        self.pump()

    # the worker and the network loop

    def pump(self) -> None:
        """Do what the engine asks for, then check the laws."""
        if self.dead:
            return
        for effect in self.engine.drain(self.cluster.now):
            if isinstance(effect, Send):
                self.cluster.send(self, effect)
            elif isinstance(effect, Work):
                self.queue.append(effect.job)
            else:
                self.cluster.note(self, effect)
        if self.queue and not self.working:
            self.working = True
            self.cluster.at(self.cluster.random.random() * self.cluster.work_s, self.work)
        wake = self.engine.wake_at()
        if wake < self.woken_at:
            self.woken_at = wake
            self.cluster.at(max(0.0, wake - self.cluster.now), self.wake)
        self.cluster.check(self)

    def wake(self) -> None:
        self.woken_at = float("inf")
        if not self.dead:
            self.engine.tick(self.cluster.now)
            self.pump()

    def work(self) -> None:
        if self.dead:
            return
        self.working = False
        job = self.queue.pop(0)
        if isinstance(job, Merge):
            self.cluster.check_quorum(self, job)
        done = self.units.perform(job)
        for correction in done.corrections:
            self.mailbox[correction.fragment] = stack(self.mailbox.get(correction.fragment), correction)
        self.engine.finished(self.cluster.now, job, done)
        self.pump()


class Cluster:
    """N learners, the network between them, and the oracle."""

    def __init__(
        self,
        n: int,
        seed: int,
        policies: Policies,
        *,
        loss: float = 0.05,
        duplicates: float = 0.03,
        delay_s: float = 0.3,
        work_s: float = 0.2,
        hidden: int = 0,
    ) -> None:
        self.random, self.policies, self.now = random.Random(seed), policies, 0.0
        self.loss, self.duplicates, self.delay_s, self.work_s = loss, duplicates, delay_s, work_s
        self.names = [f"learner-{i}" for i in range(n)]
        self.dialable = {name: i < n - hidden for i, name in enumerate(self.names)}
        self.speed = {name: self.random.choice([1.0, 1.0, 2.0, 3.0]) for name in self.names}
        self.heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.order, self.incarnations = itertools.count(), itertools.count(10**6, 10**6)
        self.learners: dict[str, Learner] = {}
        self.cuts: Counter[tuple[str, str]] = Counter()
        self.links: set[frozenset[PeerId]] = set()
        self.contents: dict[tuple[int, bytes, bytes], frozenset[Any]] = {}
        self.training, self.trained = True, 0
        self.seen: Counter[str] = Counter()  # faults injected and decisions taken: a test asserts that they happened
        self.crashed_units = 0
        self.saved: list[Saved] = []

    # virtual time

    def at(self, delay: float, action: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self.heap, (self.now + delay, next(self.order), action, args))

    def run(self, duration: float) -> None:
        end = self.now + duration
        while self.heap and self.heap[0][0] <= end:
            self.now, _, action, args = heapq.heappop(self.heap)
            action(*args)
        self.now = end

    def until(self, condition: Callable[[], bool], limit: float) -> bool:
        """Play until the condition holds; False if it does not within `limit` virtual seconds."""
        end = self.now + limit
        while not condition():
            if not self.heap or self.heap[0][0] > end:
                return False
            self.now, _, action, args = heapq.heappop(self.heap)
            action(*args)
        return True

    # faults

    def save(self, name: str) -> None:
        learner = self.learners.get(name)
        saved = learner.save() if learner else None
        if saved:
            self.saved.append(saved)
            self.seen["saved"] += 1

    def extend(self, name: str) -> None:
        learner = self.learners.get(name)
        if learner:
            learner.extend()

    def restore(self, name: str) -> None:
        """Start a learner from any of the checkpoints, its own or another's."""
        if name in self.learners or not self.saved:
            return
        saved = self.random.choice(self.saved)
        other_weights = self.random.random() < 0.2
        self.seen["other weights"] += other_weights
        self.start(name, saved=saved.beside_other_weights() if other_weights else saved)

    def start(self, name: str, begin_after: float = 0.5, saved: Saved | None = None) -> None:
        if name in self.learners:
            return
        learner = self.learners[name] = Learner(self, name, next(self.incarnations), self.dialable[name], saved)
        self.at(0.05, self.dial, learner)
        self.at(begin_after * self.random.random(), self.begin, learner)
        learner.pump()

    def begin(self, learner: Learner) -> None:
        if not learner.dead:
            learner.begin()
            self.at(0.1, learner.step)

    def start_all(self) -> None:
        for name in self.names:
            self.start(name, 1.0)

    def crash(self, name: str) -> None:
        learner = self.learners.pop(name, None)
        if learner:
            learner.dead = True
            self.seen["crash"] += 1
            self.unlink(lambda link: learner.id in link)

    def leave(self, name: str) -> None:
        """A clean close: the goodbye goes out, then the learner is gone."""
        learner = self.learners.get(name)
        if learner:
            learner.engine.leave(self.now)
            learner.pump()
            self.crash(name)

    def cut(self, pairs: list[tuple[str, str]], duration: float) -> None:
        """No message from a to b, for each (a, b), until healed."""
        self.seen["cut"] += 1
        self.cuts.update(pairs)
        self.unlink(lambda link: any({i.name for i in link} == {a, b} for a, b in pairs))
        self.at(duration, self.heal, pairs)

    def heal(self, pairs: list[tuple[str, str]]) -> None:
        self.cuts.subtract(pairs)

    def partition(self, side: set[str], duration: float) -> None:
        other = [n for n in self.names if n not in side]
        self.cut([(a, b) for a in side for b in other] + [(b, a) for a in side for b in other], duration)

    def is_cut(self, a: str, b: str) -> bool:
        return self.cuts[a, b] > 0

    # links

    def unlink(self, broken: Callable[[frozenset[PeerId]], bool]) -> None:
        for link in sorted(tuple(sorted(link)) for link in self.links if broken(link)):
            self.links.discard(frozenset(link))
            a, b = link
            for here, there in ((a, b), (b, a)):
                self.at(self.random.random(), self.linked, here, there, False)

    def linked(self, here: PeerId, there: PeerId, up: bool) -> None:
        learner = self.find(here)
        if learner:
            learner.engine.linked(self.now, there, up)
            learner.pump()

    def find(self, id: PeerId) -> Learner | None:
        learner = self.learners.get(id.name)
        return learner if learner and learner.id == id else None

    def dial(self, learner: Learner) -> None:
        """Dial every address known and not linked, now and then."""
        if learner.dead:
            return
        contacts = {p.address for p in learner.engine.books.roster.peers.values() if p.address}
        for address in sorted(contacts | set(learner.engine.books.seeds.found)):
            there = self.learners.get(address)
            if (
                there
                and frozenset((learner.id, there.id)) not in self.links
                and not (self.is_cut(learner.name, address) or self.is_cut(address, learner.name))
            ):
                self.at(self.random.random() * self.delay_s, self.hello, learner, there)
        self.at(1.0, self.dial, learner)

    def hello(self, caller: Learner, callee: Learner) -> None:
        if caller.dead or callee.dead or self.is_cut(caller.name, callee.name) or self.is_cut(callee.name, caller.name):
            return
        if callee.engine.met(self.now, caller.id, caller.engine.books.roster.address) and caller.engine.met(
            self.now, callee.id, callee.name, callee.name
        ):
            self.links.add(frozenset((caller.id, callee.id)))
            for here, there in ((caller, callee), (callee, caller)):
                here.engine.linked(self.now, there.id, True)
                here.pump()

    # messages

    def send(self, sender: Learner, effect: Send) -> None:
        to, _message = effect.to, effect.message
        lost = self.random.random() < self.loss or self.is_cut(sender.name, to.name)
        if lost:
            self.seen["lost"] += 1
            self.fail(sender, effect)
            return
        copies = 1
        if self.random.random() < self.duplicates:
            self.seen["duplicate"] += 1
            copies = 2
        for _ in range(copies):
            delay = self.random.expovariate(1 / self.delay_s) + 0.02
            self.at(delay, self.arrive, sender, effect)

    def arrive(self, sender: Learner, effect: Send) -> None:
        to, message = effect.to, effect.message
        receiver = self.find(to)
        if receiver is None or self.is_cut(sender.name, to.name):
            self.fail(sender, effect)
            return
        receiver.engine.receive(self.now, message)
        receiver.pump()
        if isinstance(message, Offer) and not sender.dead:
            self.at(0.05, self.report, sender, "delivered", to, message)

    def fail(self, sender: Learner, effect: Send) -> None:
        """What a real transport reports when a stream breaks: to the sender of an offer or want, and to who waits for
        an answer."""
        message = effect.message
        if isinstance(message, (Offer, Want)):
            self.at(0.5 + self.random.random(), self.report, sender, "undelivered", effect.to, message)
        elif isinstance(message, (Seal, State)):
            asker = self.find(effect.to)
            if asker is None or not asker.engine.books.fragments:
                return
            if effect.reply == PULL:
                answer: Message = Want(asker.id, message.fragment, b"")
            else:
                pending = asker.engine.books.fragments[message.fragment].pending
                if pending is None or pending.offer is None:
                    return
                answer = pending.offer
            self.at(0.5 + self.random.random(), self.report, asker, "undelivered", sender.id, answer)

    def report(self, learner: Learner, what: str, to: PeerId, message: Message) -> None:
        if not learner.dead:
            getattr(learner.engine, what)(self.now, to, message)
            learner.pump()

    # the oracle

    def note(self, learner: Learner, event: Event) -> None:
        self.seen[event.kind] += 1
        assert event.kind != "fault", (learner.name, event.text)
        record = event.facts.get("round")
        if record:
            self.seen[record.reason] += 1
            self.seen["superseded"] += bool(record.superseded)

    def check_quorum(self, learner: Learner, job: Merge) -> None:
        """Law 6."""
        needed = self.policies.quorum.needed(1)
        assert len(job.offers) >= needed, "sealed below quorum"
        self.seen["merge"] += 1

    def check(self, learner: Learner) -> None:
        """Laws 3, 4 and 5 for the learner that something just happened to."""
        engine = learner.engine
        for p, fragment in enumerate(engine.books.fragments):
            theta, weights = learner.units.theta[p], learner.weights[p]
            assert all(count == 1 for count in theta.values()), ("merged twice", learner.id, p)
            assert all(count == 1 for count in weights.values()), ("wrong weights", learner.id, p, weights)
            if fragment.motion is Motion.STILL and not engine.books.founding:
                self.check_anchor(learner, p)

    def check_anchor(self, learner: Learner, p: int) -> None:
        engine, fragment, theta = learner.engine, learner.engine.books.fragments[p], learner.units.theta[p]
        lineage = fragment.lineage
        units = frozenset(theta)
        assert lineage.tokens == len(units) - 1, ("tokens of the lineage are not its units", learner.id)
        key = (p, lineage.genesis, lineage.digest)
        assert self.contents.setdefault(key, units) == units, ("one digest, two contents", learner.id)
        last = learner.last_keys.get(p)
        if last and last[0] == lineage.genesis:
            assert lineage.key >= last[1], (
                "adopted a smaller lineage",
                learner.id,
                p,
                last,
                lineage,
                list(engine.books.records)[-3:],
            )
        learner.last_keys[p] = (lineage.genesis, lineage.key)
        if p not in learner.mailbox:
            own = [u for u in learner.weights[p] if u not in theta]
            assert len(own) == fragment.unmerged(engine.books.totals).tokens, (
                "unmerged tokens are not the units",
                learner.id,
            )
            authors = {u[0] for u in own}
            assert authors <= learner.heirs | {learner.id}, ("somebody else's work in the weights", learner.id)

    def keys(self) -> set[Any]:
        return {
            tuple((f.lineage.genesis, f.lineage.key) for f in x.engine.books.fragments) for x in self.learners.values()
        }

    def settle(self, limit: float = 200.0) -> bool:
        """Stop faults and training, let everybody offer the rest; True once all are on one lineage with nothing
        unmerged."""
        self.loss, self.training = 0.0, False
        self.cuts.clear()
        for name in self.names:
            self.start(name)
        self.until(lambda: all(x.engine.books.joined for x in self.learners.values()), 100)

        def rest() -> None:
            for x in self.learners.values():
                if self.seen["extended"]:
                    x.extend()
                if x.engine.books.fragments:
                    x.engine.rest(self.now)
                    x.pump()
            self.at(5.0, rest)

        rest()
        return self.until(
            lambda: (
                len(self.keys()) == 1
                and all(
                    x.engine.training.settled() and x.engine.books.joined and not x.mailbox
                    for x in self.learners.values()
                )
            ),
            limit,
        )
