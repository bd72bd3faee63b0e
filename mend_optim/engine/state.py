"""The one state that the parts of the engine share: its knowledge, and the effects it emits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from mend_optim.engine.accounts import Totals
from mend_optim.engine.claims import Claims
from mend_optim.engine.effects import Attest, Effect, Job, SealResidual, Send, Work
from mend_optim.engine.former_sealers import FormerSealers
from mend_optim.engine.late_rounds import LateRounds
from mend_optim.engine.ledger import Event, RoundRecord
from mend_optim.engine.mode import MODES, Change, Mode
from mend_optim.engine.pending import NEVER
from mend_optim.engine.period import Latency
from mend_optim.engine.policies import Policies
from mend_optim.engine.progress import Progress
from mend_optim.engine.question import Question
from mend_optim.engine.round import Round
from mend_optim.engine.round_latencies import RoundLatencies
from mend_optim.engine.seal_chain import SealChain
from mend_optim.engine.wanted import Wanted
from mend_optim.membership.roster import Roster
from mend_optim.membership.seeds import Seeds
from mend_optim.membership.stops import Stops
from mend_optim.protocol.lineage import NOWHERE, Key, Lineage, PeerId, begun, content_digest
from mend_optim.protocol.messages import (
    JOINT_MOMENTS,
    NO_JOINT,
    Beat,
    Message,
    Seal,
    State,
    Want,
)
from mend_optim.protocol.refusals import Refusals

RECORDS = 64
#: Anchors of each fragment that a process adopts before it has much to lose, also after a rollback.
TRIAL = 4


@dataclass(slots=True)
class Switch:
    """Another model on its way, whole: the anchors of it that have come, from all peers that show
    it. The switch ends with `peer`: the first that showed it, or one that was asked after that.

    The other model may have fewer fragments than ours, or have had more. Anchors of other genesis
    are answers to what was asked before, and do not count."""

    peer: PeerId
    genesis: bytes
    fragments: int
    #: How far its learner had begun with it when this learner asked.
    begun: int
    #: Whether the other model is the lesser one, and this learner yields to it.
    gives_way: bool = False
    states: dict[int, State] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return len(self.states) == self.fragments


class EngineState:
    """The state of one learner's engine. The parts of the engine hold its rules.

    `change`, `begin_switch` and `end_switch` are the only writers of `mode`, `joined` and `switch`;
    `install` and `extend` of the lists by fragment."""

    def __init__(self, me: PeerId, address: str, seeds: Sequence[str], policies: Policies) -> None:
        #: This learner. Written by `rename` alone.
        self.me = me
        #: The incarnations that this process had before.
        self.former: set[PeerId] = set()
        #: Whether there may be a checkpoint of this process, from which others go on. Stays true.
        self.was_saved = False
        self.policies = policies
        #: When fragments are offered. Its period is the run's present one: see `set_period`.
        self.schedule = policies.schedule
        #: How many inner steps this learner's rounds take.
        self.latency = Latency()
        #: The same by fragment.
        self.round_latencies = RoundLatencies()
        self._late_rounds = LateRounds(policies.auto)
        self.roster = Roster(me, address, policies.timing, policies.limits, policies.zone)
        self.roster.go_betweens.believes_in = self._believes_in
        self.roster.trains_other = self._trains_other
        self.stops = Stops(policies.timing)
        self.seeds = Seeds(seeds)
        #: Written by `change` alone: see `mode.py`.
        self.mode = Mode.NEW
        self.roster.place.lacks_model = True
        #: Whether the first inner step may be taken. Once true, it stays so.
        self.joined = False
        #: From `synchronize()` or `finish()` until the next inner step.
        self.resting = False
        #: Whether the last rest was for `finish()`.
        self.finishing = False
        #: The digest that this learner is ready to end on; empty if it is not. Written by `Ending`
        #: alone, as is the next one.
        self.ready = b""
        #: The digest that this learner has ended on; empty if it has not.
        self.ended = b""
        #: Whether that is one model of all that ended with it. `Ending` writes it, too.
        self.agreed = False
        #: Inner steps and tokens that this process has trained. Invariant: neither ever shrinks.
        self.totals = Totals()
        #: The cluster's inner steps before this learner's first.
        self.head_start = 0
        #: The running median of an inner step, in seconds; 0 until there is one.
        self.step_s = 0.0
        #: What tells the first weights from others: see `first_genesis` in `protocol.lineage`.
        #: Invariant: that of every fragment's lineage, once begun.
        self.genesis = b""
        #: By fragment. Invariant: `fragments`, `groups`, `rounds`, `seals` and
        #: `passed_seals` are equally long.
        self.fragments: list[Progress] = []
        #: For every fragment that is an added group, a digest of what is in it: see `Report`.
        self.groups: tuple[bytes, ...] = ()
        self.rounds: list[Round] = []
        #: The last seals of ours, while they lead to our anchor.
        self.seals: list[SealChain] = []
        #: The last seals of others that this learner may pass on, while they lead to our anchor.
        self.passed_seals: list[SealChain] = []
        #: The last rounds, oldest first.
        self.records: deque[RoundRecord] = deque(maxlen=RECORDS)
        #: How many offers, of any learner, the rounds of these anchors refused or scaled down. Only
        #: `Healing` counts them.
        self.outsized = 0
        #: By fragment, the residual of this learner's seals. `Outcomes` alone writes it.
        self.seal_residuals: dict[int, SealResidual] = {}
        #: How many anchors were adopted. Only grows.
        self.adopted_rounds = 0
        #: How many were adopted since the last rollback. `Outcomes` alone writes it. It knows how
        #: each anchor came, and the reason in a record is a sealer's word.
        self.adopted_since_rollback = 0
        #: When the last of them was adopted; `-inf`: none was.
        self.adopted_at = float("-inf")
        #: Whether anybody has a greater anchor.
        self.question = Question(self.roster, self.stops)
        #: The other model on its way. Invariant: None unless the mode is a SWITCHING one.
        self.switch: Switch | None = None
        #: By fragment, the anchor that was asked for.
        self.wants: dict[int, Wanted] = {}
        #: Which peers are believed about their anchors.
        self.claims = Claims()
        #: By fragment, the sealer by the roster for which this learner stands in. `Standoffs` alone
        #: writes it.
        self.stands_in: dict[int, PeerId] = {}
        #: Those that had the places of the present sealers. `Standoffs` writes it.
        self.former_sealers = FormerSealers()
        #: Wants of peers that are answered once the anchor stands still.
        self.unanswered: list[Want] = []
        #: What was refused of peers' bulky messages.
        self.refusals = Refusals()
        #: When something is to be looked at again. Reset by every tick.
        self.wake_at = NEVER
        #: Messages of this learner to itself.
        self.loopback: deque[Message] = deque()
        #: Effects that nobody has taken yet, in order.
        self.out: list[Effect] = []

    def is_own(self, message: Message) -> bool:
        """Whether a message names this learner as its sender. None of those comes from a peer."""
        return self.is_me(message.sealer if isinstance(message, Seal) else message.peer)

    # ── modes ─────────────────────────────────────────────────────────────────────────────────────

    def change(self, change: Change) -> None:
        """Take the table's transition. A change that the table does not list is a bug and raises
        `KeyError`."""
        self.mode = MODES[self.mode, change]
        self.joined = self.joined or change in (Change.JOINED, Change.JOINED_ALONE)
        self.roster.place.lacks_model = self.mode.lacks_model

    def begin_switch(self, switch: Switch) -> None:
        """A greater model of another genesis is to be fetched whole."""
        self.change(Change.SWITCH_BEGUN)
        self.switch = switch

    def end_switch(self) -> None:
        """All of it is here, or no more of it will come."""
        self.change(Change.SWITCH_ENDED)
        self.switch = None

    @property
    def alone(self) -> bool:
        """Whether this learner's weights are the anchor: it has joined, and no peer has its
        genesis."""
        return self.mode.alone

    @property
    def begun(self) -> int:
        """How far this learner has begun with its model."""
        return begun(self.joined, self.totals.step)

    @property
    def finishes(self) -> bool:
        """Whether this learner has trained to its end, and ends as soon as all others do."""
        return self.finishing and self.resting

    # ── the period ────────────────────────────────────────────────────────────────────────────────

    def set_period(self, period: int) -> None:
        """The seal or the anchor of fragment 0 tells the period of the run; 0: it tells none. Every
        turn begins anew, staggered as at the start."""
        before = self.schedule.sync_every
        self.restore_period(period)
        now = self.schedule.sync_every
        if now == before:
            return
        latency = self.latency.median
        for fragment in self.fragments[: self.shared]:
            fragment.begin_period(self.schedule, self.totals)
        facts = {"sync_every": now, "before": before, "latency": latency}
        self.emit(Event("period", f"offers every {now} steps from here on, not {before}", facts))

    def restore_period(self, period: int) -> None:
        """Go on with the period of a checkpoint; 0: it has none."""
        if self.policies.auto and period:
            limits = self.policies.auto
            period = min(max(period, limits.least), limits.most)
            self.schedule = replace(self.schedule, sync_every=period)

    def measured(self, p: int, sealer: PeerId, began: int) -> None:
        """An anchor that has merged this learner's offer of step `began` is ready."""
        self.latency.add(self.totals.step - began)
        self.round_latencies.add(p, sealer, began, self.totals.step)
        late = self._late_rounds.look(self.latency, self.schedule)
        if late:
            self.emit(late)

    @property
    def _averages_moments(self) -> bool:
        return self.schedule.sync_every >= self.policies.least_period

    def moments_due(self, p: int, version: int) -> tuple[str, ...]:
        """The names of the moments that the round of fragment `p` averages which makes this
        version."""
        averages = self._averages_moments and not self.is_buffers(p)
        return self.policies.due(version) if averages else ()

    def moments_owed(self, fragment: Progress) -> tuple[str, ...]:
        """The names of the moments that an offer of this fragment brings now: see
        `Policies.owed`."""
        if not self._averages_moments or self.is_buffers(fragment.fragment):
            return ()
        return self.policies.owed(fragment.averaged, fragment.lineage.version + 1)

    # ── fragments ─────────────────────────────────────────────────────────────────────────────────

    def install(self, fragments: list[Progress], groups: tuple[bytes, ...]) -> None:
        """The fragments of the first weights, or of a checkpoint."""
        self.fragments = fragments
        self.groups = groups
        self.rounds = [Round(p) for p in range(len(fragments))]
        self.seals = [SealChain() for _ in fragments]
        self.passed_seals = [SealChain() for _ in fragments]
        self.genesis = fragments[0].lineage.genesis

    def extend(self, digest: bytes, at: Totals, groups: tuple[bytes, ...]) -> None:
        """One more fragment, of what is trained since `at`. The digest decides with whose first
        weights all learners begin."""
        p = len(self.fragments)
        lineage = Lineage(tokens=0, version=0, digest=digest, genesis=self.genesis)
        progress = Progress(self.me, p, lineage, cycle_start=at.step)
        progress.started_elsewhere(lineage, at, dropped_tokens=0)
        self.fragments.append(progress)
        self.groups = groups
        self.rounds.append(Round(p))
        self.seals.append(SealChain())
        self.passed_seals.append(SealChain())

    @property
    def shared(self) -> int:
        """The number of fragments that all learners have from the start: those of the parameters
        that were wrapped, and that of the buffers."""
        return self.schedule.fragments + self.has_buffers

    @property
    def has_buffers(self) -> bool:
        """Whether there is a fragment of buffers: one after the wrapped parameters that is no added
        group."""
        p = self.schedule.fragments
        return p < len(self.groups) and not self.groups[p]

    def is_buffers(self, p: int) -> bool:
        """Whether fragment `p` is that of the buffers."""
        return p == self.schedule.fragments and self.has_buffers

    def joins(self, p: int) -> bool:
        """Whether relays join the offers of fragment `p`. A signature is over one offer."""
        return self.policies.joins and not self.policies.signed and not self.is_buffers(p)

    def takes_joint(self, p: int) -> int:
        """Which joint offers of fragment `p` this learner takes as a sealer. In a mean of several
        offers, no single one can be scaled down."""
        return JOINT_MOMENTS if self.joins(p) and not self.policies.clips else NO_JOINT

    def joins_for(self, p: int, sealer: PeerId) -> int:
        """Which joint offers of fragment `p` this learner makes as a relay for this sealer: those
        that it takes by its own word."""
        peer = self.roster.find(sealer)
        takes = peer.beat.takes_joint if peer and peer.beat else NO_JOINT
        return takes if self.joins(p) else NO_JOINT

    @property
    def is_young(self) -> bool:
        """Whether this learner has little to lose."""
        return self.adopted_since_rollback < TRIAL * len(self.fragments)

    def _believes_in(self, id: PeerId) -> bool:
        """Whether one may seal that others reach: its work is in an anchor, or the run is new."""
        is_new = sum(f.lineage.version for f in self.fragments) < TRIAL * len(self.fragments)
        return is_new or any(id.name in f.lineage.names for f in self.fragments)

    def _trains_other(self, beat: Beat) -> bool:
        return beat.genesis != self.genesis

    def sealer(self, p: int) -> PeerId | None:
        """The learner that runs the rounds of fragment `p`: the sealer by the roster, or this
        learner if it stands in for that one; None if there is none."""
        return self._or_stand_in(p, self.roster.sealer(p))

    def sealers(self) -> list[PeerId | None]:
        """The same of each fragment."""
        by_roster = self.roster.sealers(len(self.fragments))
        return [self._or_stand_in(p, sealer) for p, sealer in enumerate(by_roster)]

    def _or_stand_in(self, p: int, sealer: PeerId | None) -> PeerId | None:
        stands_in = sealer is not None and self.stands_in.get(p) == sealer
        return self.me if stands_in else sealer

    def has_fragment(self, p: int) -> bool:
        return 0 <= p < len(self.fragments)

    def moved(self, p: int) -> None:
        """The anchor of `p` has a new lineage: forget our want, older seals and merged offers."""
        lineage = self.fragments[p].lineage
        self.wants.pop(p, None)
        self.seals[p].moved(lineage.key)
        self.passed_seals[p].moved(lineage.key)
        self.rounds[p].purge(lineage)

    def attest(self, now: float, p: int) -> None:
        """Fragment `p` stands still, perhaps at a new anchor: beats may tell what is in that."""
        fragment = self.fragments[p]
        if fragment.is_still and fragment.held.comes(
            now, fragment.lineage.key, self.policies.timing.beat_s
        ):
            self.work(Attest(p, fragment.lineage.key))

    def attest_what_stands(self) -> None:
        """A beat of this learner goes out: the next ones may tell what is in its anchors."""
        for p, fragment in enumerate(self.fragments):
            if fragment.is_still and fragment.held.stands(fragment.lineage.key):
                self.work(Attest(p, fragment.lineage.key))

    # ── effects ───────────────────────────────────────────────────────────────────────────────────

    def emit(self, effect: Effect) -> None:
        """Have something done. A message to this learner itself stays here.

        A learner that has left sends nothing more: peers would take it for one still at work."""
        if isinstance(effect, Send):
            if self.mode is Mode.CLOSED:
                return
            if self.is_me(effect.to):
                self.loopback.append(effect.message)
                return
        self.out.append(effect)

    def work(self, job: Job) -> None:
        """Have the worker do something."""
        self.emit(Work(job))

    def refuse(self, peer: PeerId, what: str, why: str) -> None:
        """Count something that was refused of a peer, and tell the user."""
        self.refusals.add(peer.name, f"{what.split()[0]} refused: {why}")
        self.fault(f"{what} of {peer.name} refused: {why}")

    def refuse_seal(self, seal: Seal, why: str) -> None:
        """A seal is refused, and the anchor is to be had as a whole. If it was the answer to a
        want, that is asked for anew."""
        self.fragments[seal.fragment].seal_refused(seal.sender)
        self.wants.pop(seal.fragment, None)
        self.refuse(seal.sender, "seal", why)

    def fault(self, text: str) -> None:
        """Tell the user of something that was refused, or could not be done."""
        self.emit(Event("fault", text))

    def record(self, record: RoundRecord) -> None:
        """Tell the user of an adopted anchor."""
        self.records.append(record)
        if record.reason not in ("restored", "reset", "healed", "rolled_back"):
            self.adopted_rounds += 1
        text = f"fragment {record.fragment} version {record.version}: {record.reason}"
        self.emit(Event("round", text, {"round": record}))

    def wake_by(self, at: float) -> None:
        """Something is to be looked at again then."""
        self.wake_at = min(self.wake_at, at)

    # ── this learner and the others ───────────────────────────────────────────────────────────────

    def rename(self, me: PeerId) -> None:
        """Go on under another incarnation."""
        self.former.add(self.me)
        self.me = self.roster.me = me
        self.seeds.held.clear()
        for fragment in self.fragments:
            fragment.renamed(me, self.totals)

    def is_me(self, id: PeerId) -> bool:
        """Whether that is this process, under any of its incarnations."""
        return id == self.me or id in self.former

    def flushes(self, p: int) -> bool:
        """Whether an offer of fragment `p` made now is to bring the residuals of earlier encodings,
        too."""
        return self.resting and self.policies.residual_in_weights and not self.is_buffers(p)

    def has_unsent_work(self, fragment: Progress) -> bool:
        """Whether, at rest, something of this learner is in no anchor."""
        residual = self.flushes(fragment.fragment) and fragment.residual.unsent
        return residual or fragment.pending is not None or fragment.unmerged(self.totals).step > 0

    def key(self, fragment: Progress) -> Key:
        """The key that others should compare with theirs. While we are alone, our weights are the
        anchor, with all the tokens that were trained so far."""
        key = fragment.lineage.key
        tokens = fragment.unmerged(self.totals).tokens if self.alone else 0
        if not tokens:
            return key
        return Key(key.tokens + tokens, key.version + 1, key.digest)

    def anchors_digest(self) -> bytes:
        """The digest of what `key` gives for all fragments that learners share."""
        keys = [self.key(fragment) for fragment in self.fragments[: self.shared]]
        return content_digest(repr(keys).encode())

    def beats(self) -> Iterator[Beat]:
        """The last beat of every peer that has sent one."""
        return (peer.beat for peer in self.roster.peers.values() if peer.beat)

    def live_beats(self) -> Iterator[Beat]:
        """The last beat of every live peer that has sent one."""
        for peer in self.roster.peers.values():
            if peer.beat and not peer.suspected:
                yield peer.beat

    def shown(self, p: int) -> Iterator[tuple[PeerId, Key]]:
        """The anchors of fragment `p` that live peers with our model show."""
        for beat in self.live_beats():
            if beat.genesis == self.genesis and p < len(beat.reports):
                yield beat.peer, beat.reports[p].key

    def shown_by(self, id: PeerId, p: int) -> Key | None:
        """The one of a single peer; None if it shows none."""
        peer = self.roster.find(id)
        return peer.shows(self.genesis, p) if peer and not peer.suspected else None

    def had(self, p: int) -> Iterator[Key]:
        """The anchors of fragment `p` that live peers have, as far as we know. A newcomer with
        other first weights may be about to have any of our anchors."""
        for beat in self.live_beats():
            ours = beat.genesis == self.genesis and p < len(beat.reports)
            yield beat.reports[p].key if ours else NOWHERE

    @property
    def position(self) -> int:
        """Inner steps on the way from the first weights to ours: those of the learners that trained
        before us, then our own."""
        return self.head_start + self.totals.step

    def cluster_step(self) -> int:
        """The position of the learner that is farthest on."""
        return max([self.position, *(beat.position for beat in self.beats())])

    def cluster_tokens(self) -> int:
        """The tokens in the anchor that holds the most."""
        same = (beat for beat in self.beats() if beat.genesis == self.genesis)
        theirs = [report.key.tokens for beat in same for report in beat.reports]
        ours = [self.key(fragment).tokens for fragment in self.fragments]
        return max([*ours, *theirs], default=self.totals.tokens)

    def catch_up_position(self, theirs: int) -> int:
        """Go on from where the others are, or we, if that is farther."""
        self.head_start = max(self.position, theirs) - self.totals.step
        return self.position
