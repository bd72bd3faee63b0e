"""A learner that takes part, and lies: a real engine, some of whose messages are changed, and
messages of any content beside them. They are all within the grammar, because they go through the
wire's own checks, and in the insider's own name, because credentials bind that.

It shows no anchor that it does not have, and hands over none but its own."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mend_optim.engine.effects import EXCHANGE, PASS_ON, Job, Outsize, Send, Work
from mend_optim.engine.policies import weights
from mend_optim.errors import PeerError
from mend_optim.membership.peer import MOST_HOPS
from mend_optim.protocol.lineage import INCARNATIONS, Claim, Entry, Key, Lineage, PeerId
from mend_optim.protocol.messages import (
    Beat,
    Bulk,
    Call,
    Content,
    Goodbye,
    Message,
    Offer,
    Report,
    Rumor,
    Seal,
    State,
    Want,
)
from mend_optim.protocol.peer_limits import COUNTER_LIMIT
from mend_optim.transport import wire
from mend_optim.transport.frames import to_frames
from tests.fuzz.wire_targets import assembled
from tests.virtual.joint_lies import lie_in_joint_offers, withheld
from tests.virtual.process import Learner
from tests.virtual.units import Section, Vector, add, digest

if TYPE_CHECKING:
    from mend_optim.engine.ledger import Event
    from tests.virtual.insiders import InsiderCluster

#: First parts of the units that an insider makes up.
MADE_UP = "made up"
FOISTED = "foisted"
PHANTOM = "phantom"
#: Of a model that is less than any other.
NO_MODEL = b"\0" * 16
ROOM = (1 << 12,) * 64


def in_grammar(message: Message) -> Message:
    """The message as it arrives. Raises `PeerError` where a transport would refuse it."""
    if not isinstance(message, Bulk):
        return wire.decode_control(wire.encode_control(message))
    # Units are no packets.
    frames = to_frames(replace(message, sections={}))
    (arrived,) = assembled(frames, ROOM)
    return replace(arrived, sections=message.sections)


class Insider(Learner):
    """A process that lies. `cluster.lies` names the kinds of its lies."""

    cluster: InsiderCluster

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.random = random.Random(f"insider of {self.cluster.seed}, {self.id}")
        self.made_up = itertools.count()
        #: As which process a peer knows it, where that is not `me`.
        self.known_as: dict[PeerId, PeerId] = {}
        #: The last offers that came from their authors.
        self.received: deque[Offer] = deque(maxlen=30)
        self.cluster.after(self.pause(), self, self.act)

    # the process

    def pump(self) -> None:
        """As any process, but nobody checks it."""
        for effect in self.engine.drain(self.now):
            if isinstance(effect, Send):
                self.send(effect)
            elif isinstance(effect, Work):
                self.take_on(effect.job)
            else:
                self.heed(effect)
        if self.queue and not self.working:
            self.working = True
            self.cluster.after(self.cluster.random.random() * self.cluster.work_s, self, self.work)
        self.set_timer()

    def receive(self, message: Message, passed_on_by: PeerId | None = None) -> None:
        """As any process; but who asks for an anchor gets what the insider claims to have."""
        if isinstance(message, Want) and self.now >= self.cluster.foists_from:
            p = message.fragment
            anchor = State(peer=self.me, fragment=p, lineage=self.lineage(p), content=b"")
            self.send(Send(message.peer, anchor))
            return
        if isinstance(message, Offer) and not passed_on_by and not message.others:
            self.received.append(message)
        super().receive(message, passed_on_by)

    def heed(self, event: Event) -> None:
        """An event that its own engine tells its user."""

    def assign(self, job: Job) -> None:
        self.queue.append(job)

    def pause(self) -> float:
        return self.random.expovariate(self.cluster.lies_per_s) + 0.01

    # lies

    def act(self) -> None:
        """Tell a lie, now and then."""
        self.cluster.after(self.pause(), self, self.act)
        kinds = [kind for kind in self.cluster.lies if kind in LIES]
        if not kinds or not self.engine.state.fragments or not self.peers:
            return
        kind = self.random.choice(kinds)
        self.cluster.seen[f"lie: {kind}"] += 1
        LIES[kind](self)

    def send(self, effect: Send) -> None:
        """A message of the engine, or a lie in its place."""
        message, lies = effect.message, self.cluster.lies
        if self.now >= self.cluster.foists_from:
            message = self.foisted(message)
        if "digest" in lies and isinstance(message, Beat):
            message = self.attesting_anything(message)
        if self.now >= self.cluster.swaps_from:
            message = self.swearing(message)
        if "silence" in lies and self.random.random() < 0.3 and not isinstance(message, Beat):
            self.cluster.seen["lie: silence"] += 1
            return
        if isinstance(message, Offer) and message.others and "joint" in lies:
            message = withheld(self, message)
        elif self.random.random() < 0.3:
            if isinstance(message, Beat) and "beat" in lies:
                message = self.other_beat(message)
            elif isinstance(message, Offer) and "offer" in lies and effect.reply != PASS_ON:
                # A joint offer that is false speaks for others, too: see `joint_lies`.
                message = message if message.others else self.other_offer(message)
            elif isinstance(message, Seal) and "seal" in lies and message.sealer == self.me:
                message = self.other_seal(message.fragment) or message
        self.tell(effect.to, message, effect.reply)

    def tell(self, to: PeerId, message: Message, reply: str = EXCHANGE) -> None:
        """Send a message in the name that the receiver knows, if the wire takes it."""
        me = max(self.known_as.get(to, self.me), self.me)
        if isinstance(message, Seal):
            message = replace(message, sealer=me)
        elif reply != PASS_ON:
            message = replace(message, peer=me)
        try:
            arrives = in_grammar(message)
        except (PeerError, ValueError):  # or no number of the wire is so large
            self.cluster.seen["out of grammar"] += 1
            return
        self.cluster.send(self, Send(to, arrives, reply))

    @property
    def peers(self) -> list[PeerId]:
        """The peers that have a link with it."""
        linked = {id for link in self.cluster.links if self.me in link for id in link}
        return sorted(linked - {self.me})

    def some(self, peers: Sequence[PeerId] | None = None) -> list[PeerId]:
        """Some of its peers, at least one."""
        there = self.peers if peers is None else peers
        return self.random.sample(there, self.random.randint(1, len(there)))

    def fragment(self) -> int:
        return self.random.randrange(len(self.engine.state.fragments))

    def count(self, *near: int) -> int:
        """A number: one of these or next to it, small, or the greatest of all."""
        small = [self.random.randint(0, 9), self.random.randint(0, 10**4)]
        huge = [10**9, COUNTER_LIMIT >> 1, COUNTER_LIMIT] if "huge" in self.cluster.lies else []
        beside = [max(0, n + self.random.choice([-1, 0, 0, 1, 2])) for n in near]
        return self.random.choice([*small, *huge, *beside, *beside])

    def lineage(self, p: int) -> Lineage:
        return self.engine.state.fragments[p].lineage

    def key(self, p: int) -> Key:
        """Of an anchor that it has, or has had, or a lesser one."""
        own = self.lineage(p).key
        lesser = Key(self.random.randint(0, own.tokens), own.version, self.random.randbytes(16))
        return self.random.choice([own, own, Key(0, 0, b""), lesser if lesser < own else own])

    def work_of_nobody(self) -> Section:
        """A vector of units that nobody trained."""
        count = self.random.randint(0, 4)
        delta = Section({(MADE_UP, next(self.made_up)): 1 for _ in range(count)})
        delta.outsized = "size" in self.cluster.lies and self.random.random() < 0.3
        return delta

    def anybody(self) -> PeerId:
        """A peer, an earlier or later process of one, a phantom, or itself."""
        known = self.random.choice([*self.peers, *self.peers, self.me])
        phantom = PeerId(f"{PHANTOM}-{self.random.randint(0, 5)}", self.random.randint(1, 10**7))
        return self.random.choice([known, known, phantom, self.next_of(known)])

    def next_of(self, id: PeerId) -> PeerId:
        by = self.random.choice([-1, 1, 10**6, INCARNATIONS - 1 - id.incarnation])
        return PeerId(id.name, max(0, id.incarnation + by))

    def some_address(self) -> str:
        return self.random.choice(["", self.name, "nowhere:1", *self.cluster.names])

    # anchors

    def foisted(self, message: Message) -> Message:
        """A beat or an anchor as if this learner had trained far more than anybody."""
        if isinstance(message, Beat) and message.reports:
            self.cluster.seen["lie: anchor"] += 1
            keys = (self.foisted_lineage(p).key for p in range(len(message.reports)))
            reports = tuple(Report(key) for key in keys)
            return replace(message, genesis=self.foisted_genesis, reports=reports, step=9)
        if isinstance(message, State):
            lineage = self.foisted_lineage(message.fragment)
            return replace(self.swapped(message), lineage=lineage)
        return message

    def attesting_anything(self, beat: Beat) -> Beat:
        """A beat by which something else is in its anchors, the same or another one each time."""
        reports = []
        for report in beat.reports:
            digest = self.random.choice([b"x" * 16, self.random.randbytes(16)])
            reports.append(replace(report, content=Content(report.key, digest)))
        return replace(beat, reports=tuple(reports))

    def swearing(self, message: Message) -> Message:
        """Something else under the keys of its anchors; and its beats attest just that."""
        if isinstance(message, State):
            return self.swapped(message)
        if isinstance(message, Beat):
            false = digest({(FOISTED, 0): 1})
            reports = [replace(r, content=Content(r.key, false)) for r in message.reports]
            return replace(message, reports=tuple(reports))
        return message

    def swapped(self, anchor: State) -> State:
        """Something else under the key of an anchor."""
        self.cluster.seen["foisted"] += 1
        return replace(anchor, sections={"anchor": Section({(FOISTED, 0): 1})})  # type: ignore[dict-item]

    @property
    def foisted_genesis(self) -> bytes:
        return NO_MODEL if "model" in self.cluster.lies else self.engine.state.genesis

    def foisted_lineage(self, p: int) -> Lineage:
        beyond = {"tokens": 10**6, "version": 10**3, "digest": b"%16d" % p}
        return replace(self.lineage(p), genesis=self.foisted_genesis, **beyond)

    # offers

    def other_offer(self, offer: Offer) -> Offer:
        """An offer that tells something else in some of its fields."""
        changes: dict[str, Callable[[], Any]] = {
            "seq": lambda: self.count(offer.seq, self.lineage(offer.fragment).last_merged(self.me)),
            "tokens": lambda: self.count(offer.tokens, 1000 * offer.tokens),
            "steps": lambda: self.count(offer.steps),
            "follows": lambda: self.count(offer.follows),
            "genesis": lambda: self.random.choice([offer.genesis, NO_MODEL, b""]),
            "key": lambda: self.key(offer.fragment),
            "due": lambda: not offer.due,
            "again": lambda: (self.count(), self.count()),
            "rate": self.random.random,
            "inherited": lambda: self.claim(offer.seq),
            "sections": lambda: self.random.choice([{}, {"delta": self.work_of_nobody()}]),
        }
        return replace(offer, **self.drawn(changes))

    def drawn(self, changes: dict[str, Callable[[], Any]]) -> dict[str, Any]:
        names = self.random.sample(sorted(changes), self.random.randint(1, 3))
        return {name: changes[name]() for name in names}

    def claim(self, seq: int) -> Claim | None:
        """A claim to its own work, or to that of anybody."""
        author = self.anybody() if "names" in self.cluster.lies else self.next_of(self.me)
        if author.name not in (self.name, self.me.name):
            self.cluster.impersonates(author)
        return self.random.choice([None, Claim(author, self.count(seq - 1))])

    def lie_in_offers(self) -> None:
        """An offer of work that nobody did; perhaps twice, with another content."""
        p = self.fragment()
        last = self.lineage(p).last_merged(self.me)
        offer = Offer(
            peer=self.me,
            fragment=p,
            seq=self.count(last + 1),
            tokens=self.count(4),
            steps=self.count(4),
            genesis=self.engine.state.genesis,
            key=self.lineage(p).key,
            due=self.random.random() < 0.5,
            follows=last,
            sections={"delta": self.work_of_nobody()},
        )
        for _ in range(self.random.randint(1, 2)):
            for to in self.some():
                self.tell(to, offer)
            offer = self.other_offer(offer)

    def lie_in_passing_on(self) -> None:
        """An offer that it holds is passed on, as it is or not, whether its author is gone or
        not."""
        p = self.fragment()
        held = [o for peer, o in self.engine.state.rounds[p].inbox.items() if peer != self.me]
        if held:
            offer = self.random.choice(held)
            if "names" in self.cluster.lies:
                self.cluster.impersonates(offer.claim.author)
                more = self.random.randint(1, 9)
                offer = replace(offer, tokens=offer.tokens + more, due=not offer.due)
            for to in self.some():
                self.tell(to, offer, PASS_ON)

    # seals

    def other_seal(self, p: int) -> Seal | None:
        """A seal on its own anchor: of any of the offers that it holds, and perhaps of members that
        it makes up. Its bytes are those of the members, where these are honest."""
        state, lineage = self.engine.state, self.lineage(p)
        held = list(state.rounds[p].inbox.values())
        chosen = sorted(
            self.random.sample(held, self.random.randint(0, len(held))), key=lambda o: o.peer
        )
        parts = [(o.entry, o.sections.get("delta", Section())) for o in chosen]
        parts += [
            (self.made_up_member(p), self.work_of_nobody())
            for _ in range(self.random.choice([0, 0, 1, 2]))
        ]
        refused = self.refused(len(parts)) if "size" in self.cluster.lies else {}
        merged: Vector = {}
        members = []
        for i, (entry, delta) in enumerate(parts):
            members.append(Entry(entry.peer, 0, 0, 0) if i in refused else entry)
            merged = merged if i in refused else add(merged, delta)  # type: ignore[arg-type]
        merged_section, sizes = Section(merged), Section()
        sizes.outsized = refused
        payload = digest(merged_section)
        seal = Seal(
            sealer=self.me,
            fragment=p,
            base=lineage.digest,
            key=lineage.seal(members, payload).key,
            members=tuple(members),
            weights=tuple(weights(state.policies.weighting, members)),
            absent=tuple(sorted({self.anybody().name for _ in range(self.random.randint(0, 2))})),
            reason=self.random.choice(["all_present", "grace_expired", "slow_left_out"]),
            payload=payload,
            period=self.random.choice([0, state.schedule.sync_every]),
            sections={"merged": merged_section, "sizes": sizes},  # type: ignore[dict-item]
        )
        return self.broken(seal) if self.random.random() < 0.4 else seal

    def broken(self, seal: Seal) -> Seal:
        """The seal with something that does not follow from the rest."""
        n = len(seal.members)
        changes: dict[str, Callable[[], Any]] = {
            "base": lambda: self.random.choice([b"", self.random.randbytes(16)]),
            "key": lambda: Key(self.count(seal.key.tokens), self.count(seal.key.version), b"k"),
            "weights": lambda: tuple(self.random.random() for _ in range(n)),
            "shares": lambda: tuple((self.count(), self.count()) for _ in range(n)),
            "members": lambda: seal.members[::-1],
            "payload": lambda: self.random.randbytes(16),
            "period": self.count,
            "sections": lambda: {},
        }
        return replace(seal, **self.drawn(changes))

    def made_up_member(self, p: int) -> Entry:
        """A member that did not offer that."""
        author = self.anybody()
        is_honest = author.name in self.cluster.names and author.name != self.name
        if is_honest and "names" not in self.cluster.lies:
            author = self.me
        elif is_honest:
            self.cluster.impersonates(author)
        last = self.lineage(p).last_merged(author)
        tokens, steps = self.random.choice([(0, 0), (self.count(4), self.count(4))])
        return Entry(author, self.count(last + 1, last + 1), tokens, steps)

    def refused(self, members: int) -> dict[int, Outsize]:
        """Some members, as if their offers had been too large."""
        too_large = Outsize(rms=100.0, times=100.0)
        return {i: too_large for i in range(members) if self.random.random() < 0.3}

    def lie_in_seals(self) -> None:
        """A seal out of turn or in turn, and perhaps another one for others."""
        p = self.fragment()
        for _ in range(self.random.randint(1, 2)):
            seal = self.other_seal(p)
            for to in self.some() if seal else ():
                self.tell(to, seal)  # type: ignore[arg-type]

    # beats

    def other_beat(self, beat: Beat) -> Beat:
        """A beat that tells something else in some of its fields, but shows no greater anchor."""
        changes: dict[str, Callable[[], Any]] = {
            "address": self.some_address,
            "count": lambda: self.count(beat.count),
            "tokens": self.count,
            "seconds_per_step": lambda: self.random.choice([0.0, 1e-9, 1e9]),
            "training": lambda: not beat.training,
            "reports": lambda: tuple(map(self.other_report, range(len(beat.reports)))),
            "roster": lambda: tuple(self.rumor() for _ in range(self.random.randint(0, 5))),
            "ping": self.count,
            "pong": self.count,
            "position": self.count,
            "latency": self.count,
            "finishes": lambda: True,
            "ready": lambda: self.random.randbytes(16),
            "ended": lambda: self.random.randbytes(16),
            "turned_away": lambda: (self.anybody(),),
        }
        if self.cluster.zones:
            changes["zone"] = lambda: self.random.choice(["", *self.cluster.zones.values()])
            changes["takes_joint"] = lambda: self.random.choice(range(4))
        told = self.drawn(changes)
        if self.random.random() < 0.1:  # of a model that is less than any other
            told |= {"genesis": NO_MODEL, "step": 0, "tokens": 0}
            told["reports"] = tuple(Report(Key(0, 0, b"")) for _ in beat.reports)
        return replace(beat, **told)

    def other_report(self, p: int) -> Report:
        held = tuple((self.anybody(), self.count()) for _ in range(self.random.randint(0, 3)))
        return Report(self.key(p), held)

    def rumor(self) -> Rumor:
        """News of a peer that lives or not, as if it had left, moved, or were ahead."""
        left = self.random.random() < 0.3
        about = self.anybody()
        address = "" if left else self.some_address()
        return Rumor(about, address, self.count(), left, self.random.random() < 0.2)

    def lie_in_beats(self) -> None:
        for to in self.some():
            self.tell(to, self.other_beat(self.engine.beats.make()))

    def lie_in_paces(self) -> None:
        """It tells how long the rounds of others take, and perhaps that it seals none itself."""
        for to in self.some():
            beat = self.engine.beats.make()
            told = [replace(r, latency=self.random.choice([0, 1, 2**40])) for r in beat.reports]
            declines = self.random.random() < 0.5
            self.tell(to, replace(beat, reports=tuple(told), declines=declines))

    def lie_in_rumors(self) -> None:
        for to in self.some():
            roster = tuple(self.rumor() for _ in range(self.random.randint(1, 20)))
            self.tell(to, replace(self.engine.beats.make(), roster=roster))

    def lie_in_ways(self) -> None:
        """It knows ways to all, also to those that are gone or made up; long ones, or none."""
        phantoms = [PeerId(f"{PHANTOM}-{i}", 1) for i in range(3)]
        others = [id for id in (*self.cluster.processes, *phantoms) if id.name != self.name]
        for to in self.some():
            beat = self.engine.beats.make()
            roster = tuple(map(self.way, others))
            self.tell(to, replace(beat, roster=roster))

    def way(self, to: PeerId) -> Rumor:
        hops = self.random.choice([0, 1, 2, MOST_HOPS, MOST_HOPS + 1, 2**40])
        reached = self.random.random() < 0.5
        known = self.engine.state.roster.find(to)
        count = known.count if known else self.count()
        return Rumor(to, to.name, count, reached=reached, hops=hops)

    # the rest

    def lie_in_calls(self) -> None:
        for to in self.some():
            for _ in range(self.random.choice([1, 1, 20])):
                self.tell(to, Call(self.me, self.random.randint(0, 4)))

    def lie_in_wants(self) -> None:
        for to in self.some():
            have = self.random.choice([b"", self.random.randbytes(16)])
            for _ in range(self.random.choice([1, 1, 20])):
                self.tell(to, Want(self.me, self.fragment(), have))

    def lie_in_goodbyes(self) -> None:
        for to in self.some():
            self.tell(to, Goodbye(self.me))

    def lie_in_hellos(self) -> None:
        """It says hello again, as an earlier or a later process of its name, from anywhere."""
        for to in self.some():
            there = self.cluster.processes[to]
            as_whom = self.random.choice([self.me, self.next_of(self.me), self.next_of(self.me)])
            if there.frozen or not there.engine.met(there.now, as_whom, self.some_address()):
                continue
            former = max(self.known_as.get(to, self.me), self.me)
            if as_whom > former:
                self.known_as[to] = as_whom
                there.linked(former, False)
            there.linked(as_whom, True)


LIES: dict[str, Callable[[Insider], None]] = {
    "offer": Insider.lie_in_offers,
    "pass on": Insider.lie_in_passing_on,
    "seal": Insider.lie_in_seals,
    "beat": Insider.lie_in_beats,
    "paces": Insider.lie_in_paces,
    "rumor": Insider.lie_in_rumors,
    "ways": Insider.lie_in_ways,
    "call": Insider.lie_in_calls,
    "want": Insider.lie_in_wants,
    "goodbye": Insider.lie_in_goodbyes,
    "hello": Insider.lie_in_hellos,
    "joint": lie_in_joint_offers,
}
#: Ways of all its lies: to send less than its engine does; to use huge numbers; to refuse sizes; to
#: lie in the names of others.
WAYS = ("silence", "huge", "size", "names")
