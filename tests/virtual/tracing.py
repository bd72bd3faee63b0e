"""A virtual cluster that writes down what happens in it: one line per event, for a person to read.

A trace shows the messages, the jobs that decide something, and what the engine reports. It leaves
out beats, unless a beat is the reason for the next line. It reads nothing from the engine but its
effects, the lineages and the unmerged tokens, so a change inside the engine changes no trace.

    1.450  learner-1 -> learner-0    seal of version 1 of fragment 0
    time   sender and receiver       what the message is"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import count
from textwrap import wrap
from typing import Any

from mend_optim.engine.effects import PASS_ON, Advance, Job, Merge, Send
from mend_optim.engine.engine import Engine
from mend_optim.engine.ledger import Event, RoundRecord
from mend_optim.engine.policies import Policies
from mend_optim.protocol.lineage import Entry, Key, PeerId
from mend_optim.protocol.messages import (
    Beat,
    Call,
    Goodbye,
    Message,
    Offer,
    Seal,
    State,
    Want,
)
from tests.virtual.cluster import Cluster
from tests.virtual.process import Learner, Saved
from tests.virtual.units import Correction

WIDTH = 100


def mode_of(engine: Engine) -> str:
    """The name of the learner's mode."""
    return engine.state.mode.name


class Steady(random.Random):
    """Draws the same middle value every time, so that only the script decides what happens when.
    Bits are numbered through: every learner needs first weights of its own."""

    def __init__(self) -> None:
        super().__init__(0)
        self._drawn = count(1)

    def random(self) -> float:
        return 0.5

    def expovariate(self, lambd: float = 1.0) -> float:
        return 1 / lambd

    def choice(self, seq: Any) -> Any:
        return seq[0]

    def getrandbits(self, k: int, /) -> int:
        return next(self._drawn)


class TracedLearner(Learner):
    """A learner that says what it does."""

    cluster: TracedCluster

    def __init__(
        self, cluster: Cluster, id: PeerId, address: str, saved: Saved | None = None
    ) -> None:
        super().__init__(cluster, id, address, saved)
        # the beat that is being handled, and when the last beat with another model came
        self.beat: Beat | None = None
        self.other_model: tuple[float, Beat] | None = None
        self.mode = ""
        self.paused = self.pausing = False

    @property
    def trains(self) -> bool:
        return super().trains and not self.paused

    def say(self, text: str) -> None:
        self.cluster.line(self.cluster.name_of(self.id), text)

    def show_beat(self) -> None:
        """Write down the beat that is being handled: the next line happens because of it."""
        if self.beat:
            self._show(self.cluster.now, self.beat)
            self.beat = None

    def _show(self, at: float, beat: Beat) -> None:
        names = f"{self.cluster.name_of(beat.peer)} -> {self.cluster.name_of(self.id)}"
        self.cluster.line(names, _beat(beat), at)

    def begin(self) -> None:
        if self.saved is None:
            self.say(f"begins with first weights: model {_model(self.units.genesis())}")
        super().begin()

    def copy(self, wanted: list[int]) -> None:
        totals = self.engine.state.totals
        if self.engine.boundaries.founding:
            if self.other_model:
                self._show(*self.other_model)
            self.say(f"step {totals.step}: copies all its weights, to found an anchor")
        else:
            for p in wanted:
                work = self.engine.state.fragments[p].unmerged(totals)
                self.say(f"step {totals.step}: copies fragment {p} ({_work(work.tokens)} unmerged)")
        super().copy(wanted)

    def hand_over(self) -> None:
        waited = self.waiting
        super().hand_over()
        if self.waiting and not waited:
            self.say(f"step {self.engine.state.totals.step}: waits for the anchor")

    def _apply(self, p: int, correction: Correction) -> None:
        fragment, totals = self.engine.state.fragments[p], self.engine.state.totals
        dropped = fragment.dropped_tokens
        super()._apply(p, correction)
        text = f"step {totals.step}: adopts version {fragment.lineage.version} of fragment {p}"
        text += " whole" if correction.replace else ""
        dropped = fragment.dropped_tokens - dropped
        rest = f"{_work(fragment.unmerged(totals).tokens)} unmerged"
        self.say(f"{text}, drops {_work(dropped)}" if dropped else f"{text}, {rest}")

    def assign(self, job: Job) -> None:
        super().assign(job)
        if isinstance(job, Merge):
            on = f"on version {job.base.version} of fragment {job.fragment}"
            self.say(f"merges {_count(len(job.offers), 'offer')} {on}")
        elif isinstance(job, Advance) and job.sealed_here:
            self.cluster.announce(self, job.seal)

    def pump(self) -> None:
        super().pump()
        mode = mode_of(self.engine)
        if mode != self.mode:
            self.say(f"mode: {self.mode or '-'} -> {mode}")
            self.mode = mode
        if self.pausing and self.engine.boundaries.settled() and not self.mailbox:
            self.pausing = False
            self.say("synchronize() returns: nothing of its work is unmerged")

    def receive(self, message: Message, passed_on_by: PeerId | None = None) -> None:
        if isinstance(message, Beat):
            self.beat = message
            if message.genesis not in (b"", self.engine.state.genesis):
                self.other_model = self.cluster.now, message
        super().receive(message, passed_on_by)
        self.beat = None

    def linked(self, there: PeerId, up: bool) -> None:
        if not up and self.engine.state.roster.find(there):
            self.say(f"loses its link with {self.cluster.name_of(there)}")
        super().linked(there, up)


class TracedCluster(Cluster):
    """A cluster without chance: every message takes 0.05 s, every job 0.1 s, every inner step 1 s
    of one token. `trace()` is what was written down."""

    learner_type = TracedLearner

    def __init__(self, n: int, policies: Policies, speeds: Sequence[float] = ()) -> None:
        super().__init__(n, 0, policies, loss=0.0, duplicates=0.0, delay_s=0.03)
        self.random = Steady()
        self.speed = dict.fromkeys(self.names, 1.0)
        self.speed.update(zip(self.names, speeds, strict=False))
        self._lines: list[tuple[float, str, str]] = []  # when, who, and what; "": a remark
        self.drops: list[tuple[type[Message], str]] = []  # the next such message to that learner
        self._first: dict[str, PeerId] = {}
        self._numbers: dict[PeerId, int] = {}  # of the processes of one name, from 1
        self._said: set[Any] = set()
        self._leaving: set[str] = set()

    # what is written down

    def line(self, who: str, text: str, at: float | None = None) -> None:
        self._lines.append((self.now if at is None else at, who, text))

    def remark(self, text: str) -> None:
        """An action of the script on the cluster, or a note for the reader."""
        self.line("", f"--- {text} ---")

    def trace(self) -> list[str]:
        column = max(len(who) for _, who, _ in self._lines)
        lines = []
        for at, who, text in sorted(self._lines, key=lambda line: line[0]):
            first = f"{at:7.3f}  {who:<{column}}  " if who else f"{at:7.3f}  "
            lines += wrap(text, WIDTH, initial_indent=first, subsequent_indent=" " * len(first))
        return lines

    def name_of(self, id: PeerId) -> str:
        """The learner's name; of its second process, "name/2"."""
        if id not in self._numbers:
            self._numbers[id] = 1 + sum(other.name == id.name for other in self._numbers)
        number = self._numbers[id]
        return id.name if number == 1 else f"{id.name}/{number}"

    def once(self, *key: Any) -> bool:
        """Whether this is the first call with such a key."""
        first = key not in self._said
        self._said.add(key)
        return first

    def members(self, entries: Iterable[Entry]) -> Iterator[str]:
        for entry in entries:
            number = f"#{entry.seq}" if entry.steps else "(nothing)"
            yield f"{self.name_of(entry.peer)} {number}"

    def announce(self, sealer: TracedLearner, seal: Seal) -> None:
        if not self.once("seal", seal.fragment, seal.key):
            return
        weighed = zip(self.members(seal.members), seal.weights, strict=True)
        members = ", ".join(f"{member} w={weight:.2f}" for member, weight in weighed)
        absent = f", absent: {', '.join(seal.absent)}" if seal.absent else ""
        version, p = seal.key.version, seal.fragment
        sealer.say(f"seals version {version} of fragment {p}: {members} ({seal.reason}{absent})")

    def message(self, message: Message, reply: str) -> str:
        """A message in words; "" for one that is left out."""
        match message:
            case Offer():
                return self._offer(message, reply)
            case Call():
                return f"call for fragment {message.fragment}"
            case Seal():
                return f"seal of version {message.key.version} of fragment {message.fragment}"
            case Want(have=b""):
                return f"asks for fragment {message.fragment} of its model"
            case Want():
                return f"asks for a newer anchor of fragment {message.fragment}"
            case State():
                return f"anchor of fragment {message.fragment}: {_version(message.lineage.key)}"
            case Goodbye():
                return "goodbye"
            case _:
                return ""

    def _is_repeated(self, sender: Learner, effect: Send) -> bool:
        """Whether a call is made for the same round again: the sealer does so with every beat."""
        if not isinstance(effect.message, Call):
            return False
        p = effect.message.fragment
        digest = sender.engine.state.fragments[p].lineage.digest
        return not self.once("call", sender.id, effect.to, p, digest)

    def _offer(self, offer: Offer, reply: str) -> str:
        where = f"of fragment {offer.fragment}"
        if not offer.steps:
            return f"offer of nothing, {where}"
        author, work = offer.claim.author, _work(offer.tokens)
        if reply == PASS_ON:
            return f"passes on {self.name_of(offer.peer)}'s offer #{offer.seq} {where} ({work})"
        if author != offer.peer:
            work += f", work of {self.name_of(author)}"
        return f"offer #{offer.seq} {where} ({work}) on version {offer.key.version}"

    def header(self, text: str) -> None:
        """The trace begins here, with this remark."""
        self._lines.clear()
        self.remark(text)

    # what happens

    def launch(
        self,
        name: str,
        begin_after: float = 0.5,
        saved: Saved | None = None,
        early: bool = False,
    ) -> Learner:
        learner = super().launch(name, begin_after, saved, early)
        self.line(self.name_of(learner.id), "starts")
        return learner

    def add(self, name: str) -> None:
        """A learner that the others were not told about."""
        self.names.append(name)
        self.dialable[name], self.speed[name] = True, 1.0

    def kill(self, learner: Learner) -> None:
        if not learner.dead:
            closes = learner.name in self._leaving
            self.line(self.name_of(learner.id), "ends" if closes else "is killed")
        super().kill(learner)

    def leave(self, name: str) -> None:
        self._leaving.add(name)
        super().leave(name)

    def partition(self, side: Iterable[str], duration: float) -> None:
        side = sorted(side)
        other = [name for name in self.names if name not in side]
        self.remark(f"the network is cut: {_and(side)} | {_and(other)}")
        self.at(duration, self.remark, "the network is whole again")
        super().partition(side, duration)

    def pause(self, name: str) -> None:
        """The learner synchronizes, and takes no step until `resume`."""
        learner = self.learners[name]
        assert isinstance(learner, TracedLearner)
        learner.paused = learner.pausing = True
        learner.say("synchronize() begins")
        self.rest(name)

    def resume(self, name: str) -> None:
        learner = self.learners[name]
        assert isinstance(learner, TracedLearner)
        learner.paused = False
        learner.say("trains on")

    def save(self, name: str) -> None:
        super().save(name)
        self.line(self.name_of(self.learners[name].id), "saves a checkpoint")

    def extend(self, name: str) -> None:
        self.line(self.name_of(self.learners[name].id), "adds a parameter group: fragment 1")
        super().extend(name)

    def send(self, sender: Learner, effect: Send) -> None:
        assert isinstance(sender, TracedLearner)
        kind, to = type(effect.message), effect.to
        if isinstance(effect.message, Seal) and effect.message.sealer == sender.id:
            self.announce(sender, effect.message)
        text = self.message(effect.message, effect.reply)
        if isinstance(effect.message, Want):
            sender.show_beat()
        if text and not self._is_repeated(sender, effect):
            self.line(f"{self.name_of(sender.id)} -> {self.name_of(to)}", text)
        if (kind, to.name) in self.drops:
            self.drops.remove((kind, to.name))
            self.fail(sender, effect)
            return
        super().send(sender, effect)

    def fail(self, sender: Learner, effect: Send) -> None:
        if isinstance(effect.message, Offer | Seal | State | Want):
            names = f"{self.name_of(sender.id)} -> {self.name_of(effect.to)}"
            self.line(names, f"the {type(effect.message).__name__.lower()} is lost")
        super().fail(sender, effect)

    def note(self, learner: Learner, event: Event) -> None:
        assert isinstance(learner, TracedLearner)
        text = self._event(event)
        if text:
            learner.say(text)
        super().note(learner, event)

    def _event(self, event: Event) -> str:
        facts = event.facts
        match event.kind:
            case "round":
                return _round(facts["round"])
            case "met" | "left" | "evicted" | "suspected" | "returned":
                peer = self.name_of(PeerId(facts["peer"], facts["incarnation"]))
                return PRESENCE[event.kind].format(peer)
            case "waiting":
                whom = _and(facts["causes"]) or "the others' weights"
                return f"waits for {whom}"
            case "together":
                return f"is no longer alone: {_and(facts['peers'])}"
            case "joined":
                without = f", without {_and(facts['missing'])}" if facts["missing"] else ""
                return f"has joined, at position {facts['step']}{without}"
            case "alone":
                return f"trains alone, still looking for {_and(facts['missing'])}"
            case "restored":
                unmerged = _work(facts["unmerged_tokens"])
                return f"begins from a checkpoint of step {facts['step']}, {unmerged} unmerged"
            case "switched":
                lost = facts["dropped_tokens"] + facts["superseded_tokens"]
                return f"tells its user of {_work(lost)} that are given up"
            case _:
                return event.kind


PRESENCE = {
    "met": "meets {}",
    "left": "hears that {} left",
    "evicted": "evicts {}",
    "suspected": "suspects {}",
    "returned": "hears from {} again",
}


def _model(genesis: bytes) -> str:
    return genesis.hex()[:4]


def _work(tokens: int) -> str:
    return _count(tokens, "token")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _version(key: Key) -> str:
    return f"version {key.version} ({_work(key.tokens)})"


def _and(names: Collection[str]) -> str:
    return ", ".join(sorted(names))


def _beat(beat: Beat) -> str:
    anchors = (f"fragment {p} at {_version(r.key)}" for p, r in enumerate(beat.reports))
    return f"beat: model {_model(beat.genesis)}, {', '.join(anchors)}"


def _round(record: RoundRecord) -> str:
    """An anchor, as the learner's ledger records it."""
    anchor = f"version {record.version} of fragment {record.fragment} ({_work(record.tokens)})"
    came = {"founded": "founds", "restored": "restores", "pulled": "installs"}
    text = f"{came.get(record.reason, 'moves to')} {anchor}"
    if record.mine and record.reason != "founded":
        text += ", own offer in it"
    if record.superseded:
        text += f"; superseded: {_and(record.superseded)}"
    if record.superseded_tokens:
        text += f", {_work(record.superseded_tokens)} of its own"
    return text
