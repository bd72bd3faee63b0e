"""A whole cluster in virtual time: N engines and a faulty network. The oracle (`oracle.py`) checks
DESIGN's laws after every event.

Tests schedule the faults, or `storms.py` draws them from a seed. Nothing here sleeps or reads a
clock: `Cluster.at` puts an event on the heap, and `run` plays it. The same seed plays the same
events."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from mend_optim.engine.effects import EXCHANGE, PASS_ON, PULL, Send
from mend_optim.engine.ledger import Event, RoundRecord
from mend_optim.engine.policies import Policies
from mend_optim.engine.state import EngineState
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Message, Offer, Seal, State, Want
from mend_optim.worker.checkpoint import is_past, newest
from tests.virtual.oracle import Oracle
from tests.virtual.process import Learner, Saved

Pair = tuple[str, str]

# A message on its way stays slow even if its link recovers. This bound makes it arrive before the
# storm is over.
SLOWEST = 30.0


class Cluster:
    """N learners, and the network between them. `learners` holds the newest process of each name;
    `twins` are older processes that still run."""

    learner_type: type[Learner] = Learner
    #: Whether incarnations may grow in other ways than by starts.
    outranks = False

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
        buffers: bool = False,
        zones: int = 0,
        walls: Iterable[Pair] = (),
    ) -> None:
        self.random, self.policies, self.now = random.Random(seed), policies, 0.0
        self.loss, self.duplicates, self.delay_s, self.work_s = loss, duplicates, delay_s, work_s
        #: Whether learners merge buffers, too: one more fragment, after those of the schedule.
        self.buffers = buffers
        self.names = [f"learner-{i}" for i in range(n)]
        #: The zone of each learner, if there are zones.
        self.zones = {name: f"zone-{i % zones}" for i, name in enumerate(self.names) if zones}
        #: In some clusters: the learner whose guard clips, so that it takes no joint offer.
        self.clipping = random.Random(f"guards of {seed}").choice(["", "", "learner-0"])
        #: In a cluster with zones: by process and fragment, the one that its last offer went to,
        #: which alone can answer with a seal.
        self.streams: dict[tuple[PeerId, int], PeerId] = {}
        self.dialable = {name: i < n - hidden for i, name in enumerate(self.names)}
        self.speed = {name: self.random.choice([1.0, 1.0, 2.0, 3.0]) for name in self.names}
        self.heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.order, self.incarnations = itertools.count(), itertools.count(10**6, 10**6)
        # Of processes whose clock was set back: less than that of any other.
        self.early = itertools.count(10**5)
        self.processes: dict[PeerId, Learner] = {}
        self.learners: dict[str, Learner] = {}
        self.listening: dict[str, Learner] = {}
        self.cuts: Counter[Pair] = Counter()
        #: Pairs of learners that never reach each other, both ways, until the end.
        self.walls = {pair for a, b in walls for pair in ((a, b), (b, a))}
        self.slowness: defaultdict[Pair, float] = defaultdict(lambda: 1.0)
        self.links: set[frozenset[PeerId]] = set()
        self.heirs: dict[PeerId, frozenset[PeerId]] = {}  # authors of its checkpoint
        self.pretrained: set[str] = set()  # the names of learners whose first weights were trained
        # By the first identity of a process: its later ones.
        self.renamed: defaultdict[PeerId, set[PeerId]] = defaultdict(set)
        self.training, self.trained = True, 0
        # Faults injected and decisions taken; tests assert that they happened.
        self.seen: Counter[str] = Counter()
        # The processes that were told of another one of their name which is alive.
        self.refused: set[PeerId] = set()
        self.saved: list[Saved] = []
        self.traps: list[str] = []  # points of a round at which the sealer shall die
        # The records in the ledger of each process, and their times.
        self.ledger: list[tuple[PeerId, float, RoundRecord]] = []
        self.oracle = Oracle(self)

    def step_s(self, name: str) -> float:
        """The duration of the learner's next inner step."""
        return self.speed[name] * (0.8 + 0.4 * self.random.random())

    # virtual time

    def at(self, delay: float, action: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self.heap, (self.now + delay, next(self.order), action, args))

    def after(
        self, delay: float, learner: Learner, action: Callable[..., None], *args: Any
    ) -> None:
        """Schedule an action of a learner. It is dropped if the learner is dead by then, and waits
        while the learner is frozen."""
        self.at(delay, self.happen, learner, action, args)

    def happen(self, learner: Learner, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        if learner.frozen:
            learner.held.append((action, args))
        elif not learner.dead:
            action(*args)

    def run(self, duration: float) -> None:
        end = self.now + duration
        while self.heap and self.heap[0][0] <= end:
            self.now, _, action, args = heapq.heappop(self.heap)
            action(*args)
        self.now = end

    def until(self, condition: Callable[[], bool], limit: float) -> bool:
        """Play until the condition holds, checking it five times in a virtual second. False if it
        does not hold within `limit` seconds."""
        end = self.now + limit
        while not condition():
            if not self.heap or self.now >= end:
                return False
            self.run(0.2)
        return True

    # processes

    @property
    def twins(self) -> list[Learner]:
        return [
            learner
            for learner in self.processes.values()
            if self.learners.get(learner.name) is not learner
        ]

    def start_all(self) -> None:
        for name in self.names:
            self.start(name, 1.0)

    def start(self, name: str, begin_after: float = 0.5, saved: Saved | None = None) -> None:
        if name not in self.learners:
            self.launch(name, begin_after, saved)

    def launch(
        self,
        name: str,
        begin_after: float = 0.5,
        saved: Saved | None = None,
        early: bool = False,
    ) -> Learner:
        """Start a new process of that name, even if an older one still runs. `early`: its clock was
        set back."""
        id = PeerId(name, next(self.early if early else self.incarnations))
        if saved and is_past(id, saved.checkpoint):
            id = id.beyond(newest(name, saved.checkpoint))
        address = name if name not in self.listening else str(id)
        learner = self.make(id, address if self.dialable[name] else "", saved)
        self.processes[id] = self.learners[name] = learner
        if learner.address:
            self.listening[address] = learner
        self.after(0.05, learner, self.dial, learner)
        self.after(begin_after * self.random.random(), learner, learner.begin)
        learner.pump()
        return learner

    def make(self, id: PeerId, address: str, saved: Saved | None) -> Learner:
        return self.learner_type(self, id, address, saved)

    def start_early(self, name: str) -> None:
        """Start a learner whose clock was set back, perhaps from any of the checkpoints."""
        if name not in self.learners:
            self.seen["set back"] += 1
            saved = self.random.choice([None, *self.saved])
            self.launch(name, saved=saved, early=True)

    def duplicate(self, name: str, duration: float, younger: bool, early: bool = False) -> None:
        """A second process of the same name runs for a while; then one of the two dies."""
        older = self.learners.get(name)
        if older:
            self.seen["duplicated"] += 1
            newer = self.launch(name, early=early)
            self.at(duration, self._part_twins, older, newer, younger)

    def _part_twins(self, older: Learner, newer: Learner, younger: bool) -> None:
        if not older.dead and not newer.dead:
            self.kill(newer if younger else older)

    def crash(self, name: str) -> None:
        learner = self.learners.get(name)
        if learner:
            self.kill(learner)

    def kill(self, learner: Learner) -> None:
        """SIGKILL."""
        if learner.dead:
            return
        self.seen["crash"] += 1
        self.oracle.died(learner)
        learner.dead, learner.frozen = True, False
        del self.processes[learner.me]
        if self.learners.get(learner.name) is learner:
            del self.learners[learner.name]
        if self.listening.get(learner.address) is learner:
            del self.listening[learner.address]
        self.unlink(lambda link: learner.me in link)

    def leave(self, name: str) -> None:
        """A clean close: the learner says goodbye and ends."""
        learner = self.learners.get(name)
        if learner and not learner.frozen:
            learner.engine.leave(learner.now)
            learner.pump()
            self.kill(learner)

    def freeze(self, name: str, duration: float, breaks: bool) -> None:
        """SIGSTOP, and SIGCONT after a while: nothing happens to the learner, then everything at
        once. `breaks`: its links break meanwhile."""
        learner = self.learners.get(name)
        if learner and not learner.frozen:
            self.seen["frozen"] += 1
            learner.frozen = True
            self.at(duration, self.thaw, learner)
            if breaks:
                self.at(
                    duration / 2, self.unlink, lambda link: learner.frozen and learner.me in link
                )

    def thaw(self, learner: Learner) -> None:
        if learner.frozen:
            learner.frozen = False
            held, learner.held = learner.held, []
            self.seen["thawed"] += bool(held)
            for action, args in held:
                self.after(0.05 * self.random.random(), learner, action, *args)

    def pause(self, name: str, duration: float) -> None:
        """The learner's training loop does something else, or has ended; the rest of it lives."""
        learner = self.learners.get(name)
        if learner:
            self.seen["paused"] += 1
            learner.paused_until = self.now + duration

    def ruin(self, name: str, how: str) -> None:
        """An accident ruins the learner's weights: they are "outsized", or "not finite". No size of
        a buffer is refused."""
        learner = self.learners.get(name)
        if learner and not (learner.copying or learner.frozen) and learner.engine.state.joined:
            self.seen[f"ruined: {how}"] += 1
            ruined = set(range(len(learner.units.theta)))
            if how == "outsized":
                ruined.discard(learner.units.buffers)
            learner.units.ruined = dict.fromkeys(sorted(ruined), how)

    def reset_progress(self, name: str) -> None:
        """The learner's user loads other weights, and says that the jump is no progress."""
        learner = self.learners.get(name)
        if learner and not learner.frozen and learner.reset_progress():
            self.seen["reset"] += 1

    def rest(self, name: str) -> None:
        """The learner synchronizes, and trains on."""
        learner = self.learners.get(name)
        if learner and not (learner.frozen or learner.dead) and learner.engine.state.fragments:
            self.seen["rested"] += 1
            learner.engine.rest(learner.now)
            learner.pump()

    def jump(self, name: str, seconds: float) -> None:
        """The learner's clock jumps ahead, as after a suspended machine. A monotonic clock never
        goes back."""
        learner = self.learners.get(name)
        if learner and not learner.frozen:
            self.seen["jumped"] += 1
            learner.ahead_s += seconds
            learner.wake()

    def save(self, name: str) -> None:
        learner = self.learners.get(name)
        saved = learner.save() if learner else None
        if saved:
            self.saved.append(saved)
            self.seen["saved"] += 1

    def roll_back(self, name: str) -> None:
        """The learner's user goes back to the anchors of any of the checkpoints."""
        learner = self.learners.get(name)
        if not self.saved or learner is None or learner.copying or learner.frozen:
            return
        if learner.roll_back(self.random.choice(self.saved)):
            self.seen["began a rollback"] += 1

    def restore(self, name: str) -> None:
        """Start a learner from any of the checkpoints, its own or another's."""
        if name in self.learners or not self.saved:
            return
        saved = self.random.choice(self.saved)
        other_weights = self.random.random() < 0.2
        self.seen["other weights"] += other_weights
        self.start(name, saved=saved.beside_other_weights() if other_weights else saved)

    def extend(self, name: str) -> None:
        learner = self.learners.get(name)
        if learner and not learner.frozen:
            learner.extend()

    def trap(self, point: str) -> None:
        """The next sealer that reaches that point of a round dies there: "collecting", "merging",
        "sealed" (before any peer has the seal) or "told" (after one has it)."""
        self.traps.append(point)

    def caught(self, learner: Learner, point: str) -> bool:
        """Whether the learner died in a trap."""
        if point not in self.traps or learner.dead:
            return False
        self.traps.remove(point)
        self.seen[f"sealer died: {point}"] += 1
        self.kill(learner)
        return True

    # the network

    def cut(self, pairs: Iterable[Pair], duration: float) -> None:
        """No message from a to b, for each (a, b), until healed."""
        pairs = list(pairs)
        self.stall(pairs, duration)
        self.unlink(lambda link: any({i.name for i in link} == {a, b} for a, b in pairs))

    def stall(self, pairs: Iterable[Pair], duration: float) -> None:
        """A cut that breaks no link: the net drops all packets, and nobody is told."""
        pairs = sorted(pairs)
        self.seen["cut"] += 1
        self.cuts.update(pairs)
        self.at(duration, self.cuts.subtract, pairs)

    def partition(self, side: Iterable[str], duration: float) -> None:
        side = sorted(side)
        other = [n for n in self.names if n not in side]
        self.cut(
            [(a, b) for a in side for b in other] + [(b, a) for a in side for b in other], duration
        )

    def slow(self, a: str, b: str, factor: float, duration: float) -> None:
        """Everything from a to b takes that many times longer, for a while."""
        self.seen["slowed"] += 1
        self.slowness[a, b] *= factor

        def recover() -> None:
            self.slowness[a, b] /= factor

        self.at(duration, recover)

    def is_cut(self, a: str, b: str) -> bool:
        return self.cuts[a, b] > 0 or (a, b) in self.walls

    def parted(self, a: str, b: str) -> bool:
        return self.is_cut(a, b) or self.is_cut(b, a)

    def unlink(self, broken: Callable[[frozenset[PeerId]], bool]) -> None:
        for a, b in sorted(tuple(sorted(link)) for link in self.links if broken(link)):
            self.links.discard(frozenset((a, b)))
            for here, there in ((a, b), (b, a)):
                self.at(self.random.random(), self.linked, here, there, False)

    def linked(self, here: PeerId, there: PeerId, up: bool) -> None:
        learner = self.processes.get(here)
        if learner:
            self.happen(learner, learner.linked, (there, up))

    def dial(self, learner: Learner) -> None:
        """Dial every address that is known and not linked, once a second."""
        self.cut_outranked(learner)
        self.hang_up(learner)
        contacts = {p.address for p in learner.engine.state.roster.peers.values() if p.address}
        for address in sorted(contacts | set(learner.engine.state.seeds.found)):
            there = self.listening.get(address)
            if (
                there
                and there is not learner
                and frozenset((learner.me, there.me)) not in self.links
                and not self.parted(learner.name, there.name)
            ):
                self.after(self.random.random() * self.delay_s, learner, self.hello, learner, there)
        self.after(1.0, learner, self.dial, learner)

    def hello(self, caller: Learner, callee: Learner) -> None:
        if callee.dead or callee.frozen or self.parted(caller.name, callee.name):
            return
        if not callee.engine.met(callee.now, caller.me, caller.address):
            self.turn_away(callee, caller)
        elif not caller.engine.met(caller.now, callee.me, callee.address, callee.address):
            self.turn_away(caller, callee)
        else:
            self.links.add(frozenset((caller.me, callee.me)))
            for here, there in ((caller, callee), (callee, caller)):
                here.linked(there.me, True)

    def turn_away(self, by: Learner, other: Learner) -> None:
        """A learner refuses another, and tells it of a process of its name, if that is why."""
        self.seen["turned away"] += 1
        before, namesake = other.me, by.engine.state.roster.namesake(other.me)
        if namesake is None:
            other.engine.refused_at(other.now, by.address, "at its end")
        else:
            self.seen[f"namesake {namesake.life.value}"] += 1
            if other.engine.outranked(other.now, by.address, namesake):
                self.rename(other, before)
        other.pump()

    def rename(self, learner: Learner, before: PeerId) -> None:
        """The learner has another incarnation: its links break."""
        self.seen["renamed in training"] += bool(learner.engine.state.totals.step)
        assert learner.me not in self.processes
        self.renamed[learner.id].add(learner.me)
        self.processes[learner.me] = self.processes.pop(before)
        for link in sorted(tuple(sorted(link)) for link in self.links if before in link):
            self.links.discard(frozenset(link))
            (there,) = (id for id in link if id != before)
            self.at(self.random.random(), self.linked, there, before, False)
            learner.linked(there, False)

    def hang_up(self, learner: Learner) -> None:
        """Break the links with peers that this learner has evicted."""
        roster, me = learner.engine.state.roster, learner.me
        self.unlink(lambda link: me in link and any(map(roster.has_lost, link - {me})))

    def cut_outranked(self, learner: Learner) -> None:
        """Break the links with processes that this learner would turn away by now."""
        if self.outranks or self.seen["duplicated"] or self.seen["set back"]:
            roster, me = learner.engine.state.roster, learner.me
            self.unlink(lambda link: me in link and any(map(roster.namesake, link - {me})))

    def send(self, sender: Learner, effect: Send) -> None:
        to, _message = effect.to, effect.message
        if not (self.dialable[sender.name] or self.dialable[to.name]):
            return  # nobody can link two learners that cannot be dialled
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
            self.at(
                delay * min(SLOWEST, self.slowness[sender.name, to.name]),
                self.arrive,
                sender,
                effect,
            )

    def arrive(self, sender: Learner, effect: Send) -> None:
        to, message = effect.to, effect.message
        receiver = self.receiver(to)
        if receiver is None or self.is_cut(sender.name, to.name):
            self.fail(sender, effect)
            return
        if isinstance(message, Offer) and not receiver.address:
            self.fail(sender, effect)  # there is no address to send it to
            return
        if not self._is_on_stream(sender, effect):
            return
        by = sender.engine.state.me if effect.reply == PASS_ON else None
        if isinstance(message, Seal) and message.sealer.name != sender.name:
            self.seen["seal relayed"] += 1
            message = replace(message, passed_by=sender.me)
        if isinstance(message, Offer) and message.others:
            self.seen["joint offer"] += 1
            self.seen["joint offer in vain"] += receiver.name == self.clipping
        self.seen["offer relayed"] += by is not None and by.name != message.peer.name
        self.happen(receiver, receiver.receive, (message, by))
        if isinstance(message, Offer):
            self.after(0.05, sender, sender.delivered, to, message)

    def _is_on_stream(self, sender: Learner, effect: Send) -> bool:
        """Whether a seal that answers an offer has a stream to go down."""
        message = effect.message
        if self.zones and isinstance(message, Offer) and effect.reply != PASS_ON:
            self.streams[sender.id, message.fragment] = effect.to
        if not self.zones or effect.reply != EXCHANGE or not isinstance(message, Seal):
            return True
        asker = self.receiver(effect.to)
        return asker is None or self.streams.get((asker.id, message.fragment)) == sender.me

    def receiver(self, to: PeerId) -> Learner | None:
        """The process that takes a message to this peer."""
        return self.processes.get(to)

    def fail(self, sender: Learner, effect: Send) -> None:
        """Report what a real transport reports when a stream breaks: to the sender of an offer or
        want, and to the peer that waits for an answer."""
        message, later = effect.message, 0.5 + self.random.random()
        if isinstance(message, Offer | Want):
            self.after(later, sender, sender.undelivered, effect.to, message)
        elif isinstance(message, Seal | State):
            asker = self.processes.get(effect.to)
            question = self._question(asker, effect.reply, message) if asker else None
            if asker and question:
                self.after(later, asker, asker.undelivered, sender.me, question)

    def _question(self, asker: Learner, reply: str, answer: Seal | State) -> Message | None:
        fragments = asker.engine.state.fragments
        if answer.fragment >= len(fragments):
            return None
        if reply == PULL:
            return Want(asker.me, answer.fragment, b"")
        pending = fragments[answer.fragment].pending
        return pending.offer if pending else None

    # the end

    def note(self, learner: Learner, event: Event) -> None:
        self.seen[event.kind] += 1
        if event.kind in ("fault", "forked"):
            self.check_fault(learner, event)
        if event.kind == "refused" and learner.name in event.text:
            self.refused.add(learner.id)
        if event.kind == "outsized":
            self.oracle.refused(event.facts["fragment"], event.facts["peer"])
        record = event.facts.get("round")
        if record:
            self.ledger.append((learner.me, self.now, record))
            self.seen[record.reason] += 1
            self.seen["superseded"] += bool(record.superseded)
            self.oracle.recorded(learner, record)

    def check_fault(self, learner: Learner, event: Event) -> None:
        """Where all are honest, nobody has something else under a key, and nobody is refused
        anything, but for four cases. A relay may not get through to a sealer. A seal may be passed
        on when its receiver reaches the sealer. An offer may lie in another room which its author,
        another learner's heir, has given up itself. And rooms with branches of their own may stand
        still for so long that a go-between is doubted."""
        is_relay = self.zones and event.text.startswith("relaying of offer")
        is_late = " refused: it is one of " in event.text
        is_heirs = self.walls and " which is gone, given up: " in event.text
        is_apart = self.walls and " refused: no anchor has come for " in event.text
        assert is_relay or is_late or is_heirs or is_apart, (learner.name, event.text)

    def keys(self) -> set[Any]:
        return {
            tuple((f.lineage.genesis, f.lineage.key) for f in x.engine.state.fragments)
            for x in self.learners.values()
        }

    def heal(self) -> None:
        """End all faults: messages arrive, no learner is frozen, and there is one process of each
        name."""
        self.loss, self.training = 0.0, False
        self.cuts.clear()
        self.slowness.clear()
        self.traps.clear()
        for learner in list(self.processes.values()):
            self.thaw(learner)
            learner.paused_until = self.now
        for twin in self.twins:
            self.kill(twin)
        for learner in list(self.learners.values()):
            if learner.address not in ("", learner.name):  # no peer would dial that address
                self.kill(learner)
        for name in self.names:
            self.start(name)

    def settle(self, limit: float = 200.0) -> bool:
        """Stop faults and training, and let every learner offer the rest. True once all are on one
        lineage with nothing unmerged."""
        self.heal()
        self.until(lambda: all(x.engine.state.joined for x in self.learners.values()), 100)
        if self.walls:
            self.train_a_step()

        def rest() -> None:
            for x in self.learners.values():
                if self.seen["extended"]:
                    x.extend()
                if x.engine.state.fragments:
                    x.engine.rest(x.now)
                    x.pump()
            self.at(5.0, rest)

        rest()
        if not self.until(self.settled, limit):
            return False
        self.oracle.check_accounts()
        self.oracle.check_agreement()
        return True

    def train_a_step(self) -> None:
        """Let every learner train. Before there is any work, a learner between two others that have
        begun shows that it has not, and takes the model of the one after that of the other."""
        self.training = True
        self.until(lambda: all(x.engine.state.totals.step for x in self.learners.values()), 100)
        self.training = False

    def settled(self) -> bool:
        """Whether all learners are on one lineage, know each other, and have nothing left to merge
        or to apply."""
        state = [x.engine.state for x in self.learners.values()]
        together = len(self.keys()) == 1 and all(b.joined and not b.alone for b in state)
        done = (x.engine.boundaries.settled() and not x.awaited() for x in self.learners.values())
        moving = any(f.is_moving for b in state for f in b.fragments)  # a seal has news to tell
        held = (
            (b, r.fragment, offer)
            for b in state
            for r in b.rounds
            for offer in r.inbox.values()
            if offer.steps
        )
        return (
            together and all(done) and not moving and not any(self._awaits(*each) for each in held)
        )

    def _awaits(self, state: EngineState, p: int, offer: Offer) -> bool:
        """Whether a held offer will still be merged here or passed on. An offer at a learner that
        does not seal, whose living author has given it up, will not."""
        return state.roster.sealer(p) == state.me or offer.peer not in (
            state.me,
            *state.roster.alive(),
        )
