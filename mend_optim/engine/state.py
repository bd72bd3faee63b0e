"""What the engine knows, and what it wants done: the one state that its parts share."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from mend_optim.engine.effects import Effect, Job, Send, Work
from mend_optim.engine.ledger import Event, RoundRecord
from mend_optim.engine.policies import Policies
from mend_optim.engine.progress import NEVER, Progress, Totals
from mend_optim.engine.round import Round
from mend_optim.membership.roster import Roster, Seeds
from mend_optim.protocol.lineage import Key, Lineage, PeerId
from mend_optim.protocol.messages import Message, Seal, State, Want

RECORDS = 64


class EngineState:
    """State of one learner's engine; rules live in `syncer`, `adoption`, `offers` and
    `sealer`."""

    def __init__(self, me: PeerId, address: str, seeds: Sequence[str], policies: Policies) -> None:
        self.me, self.policies = me, policies
        self.roster = Roster(me, address, policies.timing)
        self.seeds = Seeds(seeds)
        self.totals = Totals()
        self.head_start = 0  # the cluster's steps before our first
        self.step_s = 0.0  # running median of an inner step's seconds
        self.genesis = b""
        self.fragments: list[Progress] = []
        self.groups: tuple[bytes, ...] = ()  # of each fragment: see `Report`
        self.rounds: list[Round] = []
        # the last seal of ours per fragment, while it is the newest
        self.seals: list[Seal | None] = []
        self.records: deque[RoundRecord] = deque(maxlen=RECORDS)
        self.adopted_rounds = 0
        self.joined = self.resting = self.closed = False
        self.ping = 0  # the last one we sent
        self.answered: set[PeerId] = set()  # who has answered it
        self.solo = True  # no peer of our genesis heard of since we were last alone
        self.founding = ""  # "", "due" or "running"
        self.switch: Switch | None = None
        # fragment: whom we asked, until when we wait
        self.wants: dict[int, tuple[PeerId, float]] = {}
        self.deferred: list[Want] = []  # asked of us, to be answered when the anchor stands still
        self.wake_at = NEVER
        self.loopback: deque[Message] = deque()  # messages to ourselves
        self.out: list[Effect] = []

    def extend(self, digest: bytes, at: Totals, groups: tuple[bytes, ...]) -> None:
        """One more fragment, of what is trained since `at`; the digest decides whose first weights
        all begin with."""
        p, lineage = (
            len(self.fragments),
            Lineage(tokens=0, version=0, digest=digest, genesis=self.genesis),
        )
        progress = Progress(self.me, p, lineage, cycle_start=at.step)
        progress.settled = Totals(at.step, at.tokens)
        self.fragments.append(progress)
        self.groups = groups
        self.rounds.append(Round(p))
        self.seals.append(None)

    def emit(self, effect: Effect) -> None:
        if isinstance(effect, Send) and effect.to == self.me:
            self.loopback.append(effect.message)
        else:
            self.out.append(effect)

    def work(self, job: Job) -> None:
        self.emit(Work(job))

    def fault(self, text: str) -> None:
        self.emit(Event("fault", text))

    def record(self, record: RoundRecord) -> None:
        self.records.append(record)
        self.adopted_rounds += record.reason != "restored"
        text = f"fragment {record.fragment} version {record.version}: {record.reason}"
        self.emit(Event("round", text, {"round": record}))

    @property
    def flush(self) -> bool:
        """Whether what we copy now is to carry what our encodings have lost, too."""
        return self.resting and self.policies.residual_in_weights

    def has_unsent_work(self, fragment: Progress) -> bool:
        """Whether, at rest, something of ours is in no anchor."""
        lost = self.flush and fragment.has_unsent_residual
        return lost or fragment.pending is not None or fragment.unmerged(self.totals).step > 0

    def key(self, fragment: Progress) -> Key:
        """What others should compare with: while solo, our weights are the anchor, with all tokens
        trained so far."""
        key = fragment.lineage.key
        tokens = fragment.unmerged(self.totals).tokens
        return (
            Key(key.tokens + tokens, key.version + 1, key.digest) if self.solo and tokens else key
        )

    @property
    def position(self) -> int:
        """Inner steps on the way from the first weights to ours: those of who trained before us,
        then our own."""
        return self.head_start + self.totals.step

    def cluster_step(self) -> int:
        """The position of the learner that is farthest on."""
        return max(
            [self.position, *(p.beat.position for p in self.roster.peers.values() if p.beat)]
        )

    def cluster_tokens(self) -> int:
        """The tokens in the anchor that holds the most."""
        beats = (
            p.beat for p in self.roster.peers.values() if p.beat and p.beat.genesis == self.genesis
        )
        held = [report.key.tokens for beat in beats for report in beat.reports]
        return max(
            [*(self.key(f).tokens for f in self.fragments), *held], default=self.totals.tokens
        )

    def catch_up_position(self, theirs: int) -> int:
        """Go on from where the others are, or we, if that is farther."""
        self.head_start = max(self.position, theirs) - self.totals.step
        return self.position

    def moved(self, p: int) -> None:
        """The anchor of `p` has a new lineage: what it merged need not be kept."""
        lineage = self.fragments[p].lineage
        self.wants.pop(p, None)
        seal = self.seals[p]
        if seal and seal.key != lineage.key:
            self.seals[p] = None
        self.rounds[p].purge(lineage)


@dataclass(slots=True)
class Switch:
    """Taking another model whole: the anchors that have arrived from `peer`, until those of all its
    fragments have. It may have fewer than we have, or have had more: answers to what was asked
    before do not count."""

    peer: PeerId
    genesis: bytes
    fragments: int
    states: dict[int, State] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return len(self.states) == self.fragments
