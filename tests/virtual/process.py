"""One process of the virtual cluster: a real engine, a worker on units instead of tensors, and a
training loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mend_optim.engine.absence import PRESENT
from mend_optim.engine.accounts import Totals
from mend_optim.engine.effects import EXCHANGE, Attest, Extend, Job, Merge, Send, Work
from mend_optim.engine.engine import Engine
from mend_optim.engine.joining import Resumed
from mend_optim.engine.progress import Motion
from mend_optim.engine.rollback import EarlierAnchor
from mend_optim.errors import UsageError
from mend_optim.protocol.lineage import PeerId, first_genesis
from mend_optim.protocol.messages import Call, Message, Offer, Seal
from mend_optim.protocol.transfer_fault import BROKEN
from mend_optim.worker.checkpoint import Checkpoint, Kept
from tests.virtual.units import Correction, Section, Units, Vector, add, stack

if TYPE_CHECKING:
    from tests.virtual.cluster import Cluster


@dataclass(frozen=True)
class Saved:
    """A checkpoint. `heirs`: the authors whose unmerged work may be in its weights."""

    resumed: Resumed
    weights: list[Vector]
    theta: list[Vector]
    progress: list[Vector]
    #: The disagreement that the weights hold, and that which they will hold after the mailbox.
    disagreement: list[Vector]
    next_disagreement: list[Vector]
    mailbox: dict[int, Correction]
    heirs: frozenset[PeerId]
    groups: tuple[bytes, ...]
    #: The processes that saved it, each as it was called then.
    history: tuple[PeerId, ...]

    @property
    def checkpoint(self) -> Checkpoint:
        """What a real checkpoint would tell of processes."""
        fragments = tuple(Kept(standing, {}) for standing in self.resumed.standings)
        return Checkpoint(history=tuple(map(str, self.history)), fragments=fragments)

    def beside_other_weights(self) -> Saved:
        """The same checkpoint, restored with other weights than it was saved with: these become the
        anchor. The saved ones stand for them, and hold their disagreement until then."""
        gone = {
            "pending": None,
            "correction_pending": True,
            "adopt_at": None,
            "has_unsent_residual": False,
            "disagrees": False,
            "absence": PRESENT,
        }
        standings = [replace(s, **gone) for s in self.resumed.standings]
        mailbox = {p: Correction(p, dict(theta), True, {}) for p, theta in enumerate(self.theta)}  # type: ignore[arg-type]
        resumed = self.resumed._replace(standings=standings, intact=False)
        nothing: list[Vector] = [{} for _ in self.theta]
        return replace(self, resumed=resumed, mailbox=mailbox, next_disagreement=nothing)


class Learner:
    """One incarnation of a learner. While it is `frozen`, its events are held until it thaws."""

    def __init__(
        self, cluster: Cluster, id: PeerId, address: str, saved: Saved | None = None
    ) -> None:
        self.cluster, self.id, self.name, self.address, self.saved = (
            cluster,
            id,
            id.name,
            address,
            saved,
        )
        self.heirs: frozenset[PeerId] = frozenset()
        self.ahead_s = 0.0  # how far its clock is ahead
        seeds = [n for n in cluster.names if n != self.name and cluster.dialable[n]]
        policies = replace(
            cluster.policies,
            zone=cluster.zones.get(self.name, ""),
            joins=bool(cluster.zones),
            clips=self.name == cluster.clipping,
        )
        self.engine = Engine(id, address, seeds, policies, self.now)
        fragments = cluster.policies.schedule.fragments + cluster.buffers
        start = {("init", cluster.random.getrandbits(40)): 1}
        self.weights: list[Vector] = [dict(start) for _ in range(fragments)]
        #: The disagreement that the weights hold: the worker may have the next one already.
        self.disagreement: list[Vector] = [{} for _ in self.weights]
        self.groups = (b"",) * fragments
        self.units = Units(self.weights, fragments - 1 if cluster.buffers else None)
        self.mailbox: dict[int, Correction] = {}
        self.queue: list[Any] = []
        self.working = self.dead = self.frozen = self.waiting = self.copying = False
        self.held: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.waits_until = 0.0
        self.step_s: float | None = None  # of the inner step under way
        self.woken_at = float("inf")
        self.paused_until = 0.0  # its training loop does something else until then

    @property
    def me(self) -> PeerId:
        """What it is called now. `id` is what it was called at its start: the oracle knows its work
        by that."""
        return self.engine.state.me

    @property
    def now(self) -> float:
        """The time on its own clock."""
        return self.cluster.now + self.ahead_s

    @property
    def trains(self) -> bool:
        """Whether its training loop takes inner steps now."""
        return self.cluster.training

    def awaited(self) -> set[int]:
        """The fragments with a correction that is not in the weights yet."""
        return set(self.mailbox)

    # the training thread

    def begin(self) -> None:
        saved = self.saved
        if saved:
            self.weights = [dict(w) for w in saved.weights]
            self.units.theta = [dict(t) for t in saved.theta]
            self.units.progress = [dict(d) for d in saved.progress]
            self.disagreement = [dict(d) for d in saved.disagreement]
            self.units.disagreement = [dict(d) for d in saved.next_disagreement]
            self.mailbox = dict(saved.mailbox)
            self.heirs, self.groups = saved.heirs, saved.groups
            self.cluster.heirs[self.id] = self.heirs
            self.engine.begin(self.now, b"", self.groups, saved.resumed)
        else:
            genesis = first_genesis(self.units.genesis(), self.name in self.cluster.pretrained)
            self.engine.begin(self.now, genesis, self.groups)
        self.pump()
        self.cluster.after(0.1, self, self.step)

    def extend(self) -> None:
        """Add a group with first weights of its own, between two steps; only once."""
        engine = self.engine
        if (
            self.dead
            or self.copying
            or not engine.state.joined
            or len(self.weights) > len(self.groups)
        ):
            return
        if self.groups[-1]:  # added already
            return
        self.cluster.seen["extended"] += 1
        self.groups = (*self.groups, b"added")
        self.disagreement.append({})
        self.weights.append({("init", self.cluster.random.getrandbits(40)): 1})
        at = (engine.state.totals.step, engine.state.totals.tokens, 0.0)
        engine.state.work(Extend(None, dict(self.weights[-1]), at, self.groups))  # type: ignore[arg-type]
        self.pump()

    def save(self) -> Saved | None:
        """A checkpoint, taken by the training thread between two steps; none while it copies."""
        if self.dead or self.frozen or self.copying or not self.engine.state.joined:
            return None
        if len(self.engine.state.fragments) < len(self.weights):
            # a real worker performs the job that adds a fragment before it copies for a checkpoint
            return None
        standings, totals = self.engine.standings(), self.engine.state.totals
        period = self.engine.state.schedule.sync_every if self.engine.state.policies.auto else 0
        resumed = Resumed(Totals(totals.step, totals.tokens), standings, period=period)
        copies = (
            [dict(v) for v in vectors]
            for vectors in (
                self.weights,
                self.units.theta,
                self.units.progress,
                self.disagreement,
                self.units.disagreement,
            )
        )
        history = (*(self.saved.history if self.saved else ()), self.me)
        heirs = self.heirs | {self.id}
        return Saved(resumed, *copies, dict(self.mailbox), heirs, self.groups, history)

    def roll_back(self, to: Saved) -> bool:
        """Go back to the anchors of a checkpoint. False if it cannot be done now, or is refused."""
        rollbacks = self.engine.rollbacks
        if self.dead or not rollbacks.may_begin(len(to.theta)):
            return False
        anchors = [
            EarlierAnchor(
                lineage=standing.lineage,
                content=b"",
                sections={"anchor": Section(theta)},  # type: ignore[dict-item]
            )
            for standing, theta in zip(to.resumed.standings, to.theta, strict=True)
        ]
        try:
            rollbacks.begin(anchors)
        except UsageError:  # a peer has a group that this learner has not
            return False
        self.pump()
        return True

    def reset_progress(self) -> bool:
        """The user puts other weights in the place of the learner's, and calls `reset_progress()`.
        False if there is nothing to reset now, or the real call would wait."""
        state, fragments = self.engine.state, self.engine.state.fragments
        copied = any(fragment.motion is Motion.SNAPSHOT for fragment in fragments)
        whole = len(fragments) == len(self.weights) and state.joined
        if self.dead or self.copying or copied or not whole or state.alone:
            return False
        held = [(self.agreed(p), fragments[p].dropped_tokens) for p in range(len(fragments))]
        self.mailbox.clear()
        self.units.ruined.clear()
        for p, keeps_offer in enumerate(self.engine.begin_anew(self.now)):
            loaded = {("loaded", self.cluster.random.getrandbits(40)): 1}
            self.weights[p] = dict(loaded)
            self.disagreement[p] = self.units.begin_anew(p, loaded, keeps_offer)
            before, dropped = held[p]
            dropped = fragments[p].dropped_tokens - dropped
            self.cluster.oracle.moved(self, p, before, self.agreed(p), dropped)
        self.pump()
        return True

    def step(self) -> None:
        """One inner step if joined: a new unit of work in every fragment."""
        if self.cluster.now < self.paused_until:
            self.cluster.after(0.3, self, self.step)
            return
        if self.waiting or self.copying or not self.engine.state.joined or self._adopts_late():
            self.cluster.after(0.3, self, self.step)
            self.hand_over()
            self.pump()
            return
        if not self.engine.state.totals.step:
            self.hand_over()  # apply the anchor that joining brought, before the first inner step
        if self.trains and not self.copying:
            self.engine.boundaries.stepped(1, self.step_s)
            self.cluster.trained += 1
            if self.cluster.oracle.counts:
                unit = (self.id, self.engine.state.totals.step)
                self.weights = [{**w, unit: 1} for w in self.weights]
                self.cluster.oracle.worked(self, unit)
        self.waits_until = self.cluster.now + self.cluster.policies.timing.round_timeout_s
        self.hand_over()
        self.pump()
        self.step_s = self.cluster.step_s(self.name)
        self.cluster.after(self.step_s, self, self.step)

    @property
    def is_synchronous(self) -> bool:
        """Whether training waits for each anchor at its boundary."""
        return self.cluster.policies.schedule.adopt_after == 0

    def _adopts_late(self) -> bool:
        """Under `adopt_after=0`, as `Handover.before_step`: whether what may replace the weights
        has to be applied before they are trained."""
        return self.is_synchronous and (self.engine.boundaries.steps_on() or bool(self.mailbox))

    def hand_over(self) -> None:
        """The part of `step()` after the inner step: apply corrections, then copy the fragments
        that the engine wants."""
        if self.copying or not self.engine.state.fragments:
            return
        boundaries = self.engine.boundaries
        for p in [p for p in self.mailbox if not boundaries.holds_back(p)]:
            self._apply(p, self.mailbox.pop(p))
        wanted = boundaries.fragments_to_copy()
        if wanted:
            self.copy(wanted)
        self.waiting = boundaries.must_wait() or (bool(wanted) and self.is_synchronous)
        if self.waiting and self.cluster.now >= self.waits_until:
            boundaries.waited_out()
            self.waiting = False

    def copy(self, wanted: list[int]) -> None:
        """Begin to copy these fragments: for an offer, or all of them to found an anchor."""
        self.copying = True
        copies = {p: dict(self.weights[p]) for p in wanted}
        if self.engine.boundaries.founding:
            self.engine.boundaries.reserve_all()
        else:
            for p in wanted:
                self.engine.boundaries.reserve(p)
        copied = self.copied_all if self.engine.state.mode.founding else self.copied
        self.cluster.after(self.cluster.random.random() * 0.2, self, copied, copies)

    def _apply(self, p: int, correction: Correction) -> None:
        before, dropped = self.agreed(p), self.engine.state.fragments[p].dropped_tokens
        self.engine.correction_applied(self.now, p, correction.replace)
        values: Vector = correction.values  # type: ignore[assignment]
        self.weights[p] = dict(values) if correction.replace else add(self.weights[p], values)
        self.disagreement[p] = correction.disagreement
        dropped = self.engine.state.fragments[p].dropped_tokens - dropped
        self.cluster.oracle.moved(self, p, before, self.agreed(p), dropped)

    def agreed(self, p: int) -> Vector:
        """The weights without the disagreement: the anchor and the learner's own work."""
        return add(self.weights[p], self.disagreement[p], -1)

    def copied(self, copies: dict[int, Vector]) -> None:
        self.copying = False
        for p, copy in copies.items():
            moments = dict.fromkeys(self.engine.boundaries.moments(p))
            self.engine.boundaries.snapshot(p, copy, moments)  # type: ignore[arg-type]
        self.pump()

    def copied_all(self, copies: dict[int, Vector]) -> None:
        self.copying = False
        self.engine.boundaries.found(tuple(copies[p] for p in sorted(copies)))  # type: ignore[misc]
        self.pump()

    # the worker and the network loop

    def pump(self) -> None:
        """Do what the engine asks for, then check the laws."""
        for effect in self.engine.drain(self.now):
            if self.dead:
                return
            if isinstance(effect, Send):
                self.send(effect)
            elif isinstance(effect, Work):
                self.take_on(effect.job)
            else:
                self.cluster.note(self, effect)
        if self.dead:
            return
        if self.queue and not self.working:
            self.working = True
            self.cluster.after(self.cluster.random.random() * self.cluster.work_s, self, self.work)
        self.set_timer()
        self.cluster.oracle.check(self)

    def set_timer(self) -> None:
        """Wake when the engine next wants it."""
        at = self.engine.wake_at()
        if at < self.woken_at:
            self.woken_at = at
            self.cluster.after(max(0.0, at - self.now), self, self.timer_ended, at)

    def timer_ended(self, at: float) -> None:
        """As in the network loop there is one timer. A timer that an earlier one replaced wakes
        nobody: each such call would start another timer beside those that run."""
        if at == self.woken_at:
            self.wake()

    def take_on(self, job: Job) -> None:
        """The worker is to perform this job. A digest takes no time and no turn here."""
        if isinstance(job, Attest):
            self.engine.finished(self.now, job, self.units.perform(job)[0])
        else:
            self.assign(job)

    def assign(self, job: Job) -> None:
        """The worker is to perform this job after those it has."""
        if isinstance(job, Merge):
            self.cluster.oracle.check_quorum(self, job)
        self.queue.append(job)

    def send(self, effect: Send) -> None:
        """A message leaves, unless the sender dies just before it, or just after."""
        publishes = isinstance(effect.message, Seal) and effect.reply == EXCHANGE
        if publishes and self.cluster.caught(self, "sealed"):
            self.cluster.oracle.unpublished(effect.message)
            return
        if isinstance(effect.message, Call) and self.cluster.caught(self, "collecting"):
            return
        self.cluster.send(self, effect)
        if publishes:
            self.cluster.caught(self, "told")

    def receive(self, message: Message, passed_on_by: PeerId | None = None) -> None:
        if passed_on_by:
            assert isinstance(message, Offer)
            self.engine.passed_on(self.now, message, passed_on_by)
        else:
            self.engine.receive(self.now, message)
        self.pump()

    def linked(self, there: PeerId, up: bool) -> None:
        # The word of a link that broke may come when the two have met again.
        if up == (frozenset((self.me, there)) in self.cluster.links):
            self.engine.linked(self.now, there, up)
        self.pump()

    def delivered(self, to: PeerId, message: Message) -> None:
        self.engine.delivered(self.now, to, message)
        self.pump()

    def undelivered(self, to: PeerId, message: Message) -> None:
        self.engine.undelivered(self.now, to, message, BROKEN)
        self.pump()

    def wake(self) -> None:
        self.woken_at = float("inf")
        self.engine.tick(self.now)
        self.pump()

    def work(self) -> None:
        self.working = False
        job = self.queue.pop(0)
        if isinstance(job, Merge) and self.cluster.caught(self, "merging"):
            return
        done, corrections = self.units.perform(job)
        for correction in corrections:
            self.mailbox[correction.fragment] = stack(
                self.mailbox.get(correction.fragment), correction
            )
        self.engine.finished(self.now, job, done)
        self.pump()
