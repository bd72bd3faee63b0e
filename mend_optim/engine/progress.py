"""The activity of one fragment of one learner, between its boundary and its next anchor.

    motion     event             next       why
    ─────────  ────────────────  ─────────  ────────────────────────────────────────────────────────
    STILL      copy              SNAPSHOT   the training thread copies the fragment
    STILL      hold              HELD       several ranks will copy the fragment at the end of a
                                            later step
    HELD       copy              SNAPSHOT   they have copied it
    HELD       let go            STILL      the copy was not made, or not in time
    SNAPSHOT   copied, released  STILL      the worker has made Δ or an anchor of it; or no copy
                                        was made
    STILL      move              MOVING     the worker takes an outer step, or installs an anchor
    MOVING     moved, refused    STILL      the anchor is another one, or still the same

A snapshot and a moving anchor exclude each other, because Δ needs the anchor that its weights rest
on. So an anchor that is to be copied soon is held: it must not move in between. News of greater
anchors that comes in the meantime is deferred until the fragment is still.

After a move a correction awaits the training thread (`correction_pending`), and nothing is copied
until it is applied."""

from __future__ import annotations

from enum import Enum

from mend_optim.engine.accounts import Accounts, Totals
from mend_optim.engine.held import Held
from mend_optim.engine.pending import NEVER, Pending
from mend_optim.engine.schedule import Schedule
from mend_optim.protocol.lineage import Key, Lineage, PeerId
from mend_optim.protocol.messages import Seal, State

#: Rounds in a row that a learner may miss before it keeps its boundary. The sealer calls everybody
#: in every round, so more of them without an offer are of a learner that seals out of turn.
MISSES = 2
#: The anchors whose digests are remembered.
ANCHORS = 1024


class Motion(Enum):
    """The present activity of a fragment."""

    STILL = "still"
    HELD = "held"
    SNAPSHOT = "snapshot"
    MOVING = "moving"


MOTIONS: dict[tuple[Motion, str], Motion] = {
    (Motion.STILL, "copy"): Motion.SNAPSHOT,
    (Motion.STILL, "hold"): Motion.HELD,
    (Motion.HELD, "copy"): Motion.SNAPSHOT,
    (Motion.HELD, "let go"): Motion.STILL,
    (Motion.SNAPSHOT, "copied"): Motion.STILL,
    (Motion.SNAPSHOT, "released"): Motion.STILL,
    (Motion.STILL, "move"): Motion.MOVING,
    (Motion.MOVING, "moved"): Motion.STILL,
    (Motion.MOVING, "refused"): Motion.STILL,
}


class Progress(Accounts):
    """One fragment of one learner. Its own methods are the only writers of its fields."""

    def __init__(self, me: PeerId, fragment: int, lineage: Lineage, cycle_start: int) -> None:
        super().__init__(me, fragment, lineage)
        #: The inner step at which the current cycle began: see `Schedule`.
        self.cycle_start = cycle_start
        #: Written by `_on` alone, by the table above.
        self.motion = Motion.STILL
        #: When the anchor is let go if it is HELD and nobody has copied it by then.
        self.held_until = NEVER
        #: Rounds that went on without this learner since its last copy for an offer.
        self.misses = 0
        #: The greatest anchor that was heard of while the fragment was busy.
        self.deferred_news: Seal | State | None = None
        #: Whether the training thread has yet to apply a correction.
        self.correction_pending = False
        #: Whether that correction gives up the local progress, because it is ruined.
        self.retake_pending = False
        #: That correction gives up the local progress, and the cycle goes on.
        self.keeps_cycle = False
        #: Under `adopt_after`: the inner step at which the correction is applied.
        self.adopt_at: int | None = None
        #: Whether the weights hold a disagreement with former means: see `Adoption`.
        self.disagrees = False
        #: Whether an offer is to be made at the end of this inner step.
        self.offer_requested = False
        #: The sealer that asked for it. Invariant: None unless a request or a copy is open.
        self.requested_by: PeerId | None = None
        #: The anchor that was to replace ruined weights, and is not finite either.
        self.ruined_anchor: Key | None = None
        #: Since when some peer has shown a greater anchor, or bytes of it may have arrived; None if
        #: none has.
        self.behind_since: float | None = None
        #: Since when some peer has shown one. Invariant: it is no later than `behind_since`.
        self._behind_from = NEVER
        #: Whether a seal on the present anchor was refused. Its sealer would answer with it again.
        self.has_refused = False
        #: By order of moment: the last version whose mean includes this learner's moments.
        #: Invariant: at most the lineage's version.
        self.averaged: dict[str, int] = {}
        #: The digests of the last anchors.
        self.held = Held()
        #: The digests of the last anchors, oldest first.
        self._had: dict[bytes, None] = {lineage.digest: None}

    def _on(self, event: str) -> None:
        """Take the table's transition. An event that the table does not list is a bug and raises
        `KeyError`."""
        self.motion = MOTIONS[self.motion, event]

    @property
    def is_still(self) -> bool:
        return self.motion is Motion.STILL

    @property
    def is_held(self) -> bool:
        return self.motion is Motion.HELD

    @property
    def is_moving(self) -> bool:
        return self.motion is Motion.MOVING

    @property
    def is_about_to_move(self) -> bool:
        """Whether the anchor moves, or will once a copy is made."""
        return self.is_moving or (self.deferred_news is not None and not self.is_still)

    # ── copies ────────────────────────────────────────────────────────────────────────────────────

    def wants_snapshot(
        self, totals: Totals, schedule: Schedule, *, flush: bool = False, early: bool = False
    ) -> bool:
        """Whether the fragment is due or called, with something to offer, nothing pending, and
        weights that rest on the current anchor. With `flush`, an unsent residual counts, too.
        `early`: it is to be offered before its boundary."""
        if self.pending or self.correction_pending or not self.is_still:
            return False
        if not self.unmerged(totals).step:
            return flush and self.residual.unsent
        return early or self.offer_requested or schedule.due(totals.step, self.cycle_start)

    def hold(self, until: float) -> None:
        """The fragment is copied at the end of a later step, and its anchor stands still until
        then, but no longer than to that time."""
        self._on("hold")
        self.held_until = until

    def let_go(self) -> None:
        """The copy for which the anchor was held is not made, or is of no use any more."""
        self._on("let go")
        self.held_until = NEVER

    def request_offer(self, by: PeerId | None = None) -> None:
        """An offer is to be made at the end of this inner step, for the sealer that asks."""
        self.offer_requested = True
        self.requested_by = by or self.requested_by

    def withdraw_request(self) -> None:
        """In lockstep, the rest is over in which all work was to be offered: that of later steps
        waits for its boundary."""
        if self.offer_requested:
            self.offer_requested, self.requested_by = False, None

    def snapshot(self, totals: Totals, due: bool, flush: bool = False) -> Pending:
        """The training thread copies the fragment now, to offer it."""
        self._on("copy")
        self.held_until = NEVER
        self.offer_requested = False
        self.misses = 0
        return self.make_pending(totals, due, flush)

    def copy_for_anchor(self) -> None:
        """The training thread copies the fragment, to found an anchor."""
        self._on("copy")

    def reencode(self) -> Pending | None:
        """After a restart: the pending offer that came with a checkpoint, which the worker is to
        encode again."""
        if self.pending:
            self._on("copy")
        return self.pending

    def copied(self) -> PeerId | None:
        """The worker is done with the copy. Returns the sealer that asked for the offer."""
        self._on("copied")
        asked, self.requested_by = self.requested_by, None
        return asked

    def released(self) -> None:
        """The copy did not come about."""
        self._on("released")
        self.withdraw()

    def refused(self) -> None:
        """The worker could not make an offer of the copy: the next try is a cycle away."""
        if self.pending:
            self.cycle_start = self.pending.step
        self.withdraw()
        self.residual.forget()

    # ── the anchor moves ──────────────────────────────────────────────────────────────────────────

    def defer(self, news: Seal | State) -> None:
        """Keep the greatest anchor that arrives while the fragment is busy."""
        held = self.deferred_news
        if held is None or _key_of(news) > _key_of(held):
            self.deferred_news = news

    def take_deferred(self) -> Seal | State | None:
        """Return the deferred news once, and forget it."""
        news, self.deferred_news = self.deferred_news, None
        return news

    def seen_behind(self, now: float) -> float:
        """A peer shows a greater anchor. Returns since when one does."""
        if self.behind_since is None:
            self.behind_since = self._behind_from = now
        return self.behind_since

    def not_behind(self) -> None:
        """No peer shows a greater anchor any more. One that is shown later is waited for anew."""
        self.behind_since, self._behind_from = None, NEVER

    def heard_while_behind(self, now: float, longest_s: float) -> None:
        """Bytes of a greater anchor may be arriving: the wait begins anew, but not once it has
        lasted for so long."""
        if self.behind_since is not None and now < self._behind_from + longest_s:
            self.behind_since = now

    def slept(self, now: float, seconds: float) -> None:
        """This learner was stopped for so long, and waited for no anchor meanwhile."""
        if self.behind_since is not None:
            self.behind_since = min(now, self.behind_since + seconds)
            self._behind_from = min(now, self._behind_from + seconds)

    def has_had(self, digest: bytes) -> bool:
        """Whether that is one of this learner's last anchors."""
        return digest in self._had

    def _note(self, lineage: Lineage) -> None:
        self._had[lineage.digest] = None
        if len(self._had) > ANCHORS:
            del self._had[next(iter(self._had))]

    def move(self) -> None:
        """The worker begins to take an outer step, or to install an anchor."""
        self._on("move")

    def move_to(self, lineage: Lineage) -> None:
        """The worker begins to install an anchor. News waits only if that has the same lineage."""
        self.move()
        if lineage != self.lineage:
            self.take_deferred()

    def move_refused(self) -> None:
        """The anchor is still the same."""
        self._on("refused")

    def retake_refused(self) -> None:
        """The anchor is to replace ruined weights, and is not finite either."""
        self.move_refused()
        self.ruined_anchor = self.lineage.key

    @property
    def is_beyond_help(self) -> bool:
        """Whether neither the weights nor the anchor were finite when they were last looked at."""
        return self.ruined_anchor == self.lineage.key

    def seal_refused(self, sender: PeerId) -> None:
        """A seal is not taken, and no other will come for a pending offer that its sender has: the
        anchor is to be had as a whole."""
        self.has_refused = True
        if self.pending and self.pending.sent_to == sender:
            self.pending.lost()

    @property
    def has(self) -> bytes:
        """The digest of the anchor on which a seal would be of use; empty if none would."""
        return b"" if self.has_refused else self.lineage.digest

    def moved(
        self,
        lineage: Lineage,
        totals: Totals,
        schedule: Schedule,
        *,
        merged_own_offer: bool,
        replaced: bool = False,
        gain: float | None = None,
    ) -> None:
        """The anchor is now `lineage`, and a correction awaits the training thread.

        Args:
            lineage: the new anchor's.
            totals: steps and tokens trained by now.
            schedule: decides when the next offer is due.
            merged_own_offer: the pending offer is in the anchor.
            replaced: the weights become the anchor, and the work trained since is dropped.
            gain: of the correction by a seal that has the pending offer. None: the disagreement
                stays as it is, as with any other anchor.
        """
        self._on("moved")
        is_same = lineage.key == self.lineage.key
        self.correction_pending = True
        if replaced:
            self.disagrees = False
        elif gain is not None:
            self.disagrees = gain < 1
        self.behind_since = None
        self.has_refused = False
        # A branch that wins may have had fewer rounds.
        self.averaged = {
            order: min(version, lineage.version) for order, version in self.averaged.items()
        }
        self._note(lineage)
        settled = self.follow(lineage, totals, merged_own_offer=merged_own_offer, replaced=replaced)
        if settled:
            self._begin_cycle_after(settled, totals, schedule)
        elif lineage.version and not is_same:  # else no round was missed
            self._miss_round(totals, schedule)
        if replaced:
            self.adopt_at = None  # nothing is trained that could go on until then

    def _begin_cycle_after(self, settled: Pending, totals: Totals, schedule: Schedule) -> None:
        if schedule.lockstep and not (settled.due or settled.missed):
            return  # it was offered before its boundary, which stays
        self.cycle_start = totals.step if settled.missed else settled.step
        if settled.missed and not schedule.lockstep:
            self.offer_requested = True
        overlap = schedule.adopt_after
        self.adopt_at = None if overlap is None else settled.step + overlap

    def _miss_round(self, totals: Totals, schedule: Schedule) -> None:
        """A round went on without this learner. In lockstep no call brings an offer, so a learner
        that is slower than the rounds has to keep its boundary, or it would never reach one. So
        does a learner whose rounds call nobody: a peer that seals alone, again and again, must not
        keep the others from offering."""
        if self.unmerged(totals).step and not schedule.lockstep and self.misses < MISSES:
            self.cycle_start = totals.step
            self.misses += 1
        pending = self.pending
        if pending is None:
            return
        pending.missed = True
        pending.due = False
        self.rebase(pending)
        if self.pending is None and not schedule.lockstep:
            self.offer_requested = True

    def retaken(self, totals: Totals, schedule: Schedule) -> None:
        """The anchor is the same, and a correction awaits the training thread that puts it into the
        weights. All local progress is given up. Cycles go on as if the offer had been merged: in
        lockstep all learners offer at one step."""
        if self.pending:
            self.cycle_start = self.pending.step
        self.moved(self.lineage, totals, schedule, merged_own_offer=False, replaced=True)
        self.keeps_cycle = schedule.lockstep
        self.retake_pending = True
        self.residual.forget()
        self.ruined_anchor = None

    def agree(self) -> None:
        """At rest, the worker begins to give up the disagreement."""
        self._on("move")

    def agreed(self) -> None:
        """A correction that gives up the disagreement awaits the training thread."""
        self._on("moved")
        self.correction_pending = True
        self.disagrees = False

    def correction_applied(self, replace: bool, totals: Totals) -> int:
        """The training thread applied the correction. Returns the tokens that a replacement
        dropped."""
        keeps_cycle, self.keeps_cycle = self.keeps_cycle, False
        self.correction_pending = self.retake_pending = False
        self.adopt_at = None
        if not replace:
            return 0
        dropped = self.drop(totals)
        if dropped.step and not keeps_cycle:
            self.cycle_start = totals.step
        return dropped.tokens

    def begin_anew(self, totals: Totals) -> Totals:
        """The user has put other weights in the place of this learner's, and of what a correction
        would have made of them. All that they differ by is a disagreement. Returns the steps and
        tokens that are dropped."""
        self.correction_pending = self.retake_pending = False
        self.keeps_cycle = False
        self.adopt_at = None
        self.disagrees = True
        return super().begin_anew(totals)

    def averaged_moments(self, versions: dict[str, int]) -> None:
        """The means of these versions, by order of moment, include this learner's moments."""
        self.averaged |= versions

    def begin_period(self, schedule: Schedule, totals: Totals) -> None:
        """The period has changed: the fragment's turn comes within the new one."""
        self.cycle_start = schedule.first_cycle_start(self.fragment, totals.step)

    def became_anchor(self, lineage: Lineage, at: Totals) -> None:
        """Alone, the weights at `at` became the anchor."""
        self._note(lineage)
        self.founded(lineage, at)
        self.offer_requested = False

    def begin_after(self, totals: Totals) -> None:
        """Before the first step: cycles are counted from here."""
        self.cycle_start += totals.step


def _key_of(news: Seal | State) -> Key:
    """The order of the anchor that a message brings."""
    return news.key if isinstance(news, Seal) else news.lineage.key
