"""Before the first inner step: a learner begins, from scratch or a checkpoint, and joins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from mend_optim.engine.accounts import Totals
from mend_optim.engine.adoption import Adopter
from mend_optim.engine.effects import Reoffer
from mend_optim.engine.ledger import Event, whole_anchor_record
from mend_optim.engine.majority import Camps, OwnModel
from mend_optim.engine.mode import Change, Mode
from mend_optim.engine.pauses import Pauses
from mend_optim.engine.presence import Presence
from mend_optim.engine.progress import Progress
from mend_optim.engine.standing import Standing, resumed
from mend_optim.engine.state import EngineState
from mend_optim.engine.waiting import Waiting
from mend_optim.protocol.lineage import Lineage, PeerId
from mend_optim.protocol.messages import Beat

DROP = (
    "other weights than the saved ones: the anchor's are taken, and what no anchor has is dropped"
)
FOREIGN = (
    "a checkpoint of {0}, which alone may offer its work where offers are signed: the anchor's "
    "weights are taken, and what no anchor has is dropped"
)
ANEW = "other weights than the saved ones: they count as first weights"
UNKNOWN = (
    "which state of {} are moments is not known here, so none are averaged: name them in "
    "moments=MomentSchedule(states=(Moment(…),)), or pass moments=None to say that there are none"
)
UNFLUSHED = (
    "codec: part of what is learned stays in each learner's weights, and with merge={!r} "
    "synchronize() cannot merge it; merge='mean' and 'rda' can; or choose another codec, such as "
    "'int4'"
)
UNSHOWN = (
    ", alone: no weights have come from {}; it trains with them once they come; if they begin "
    "later, or the network is slow, pass a greater timing.join_timeout_s"
)
UNSENT = (
    ", alone: the weights of {} have not come in time: training may pause there, or the link be "
    "slow; this learner trains its own, and the model with fewer tokens is given up once both "
    "train; pass a greater timing.join_timeout_s"
)
#: A lone learner that takes no step is waited for so many times as long as a transfer may stand
#: still: it hands its weights over with its next step, and may evaluate before that.
PAUSE = 10
#: Beats in which a learner hears that its earlier process was evicted: it asks every other beat.
PROMPT_BEATS = 4


class Resumed(NamedTuple):
    """Where a checkpoint stood.

    `standings` is empty if it was saved by a learner without peers. `intact` says whether the
    weights are those that it was saved with, and may be offered; if not, the weights become the
    anchor."""

    totals: Totals
    standings: Sequence[Standing]
    head_start: int = 0
    intact: bool = True
    #: The period of the run, if it was automatic; else 0.
    period: int = 0
    #: The learner that alone may offer the work, if that is another one.
    author: str = ""


class Joining:
    """A learner between `begin` and `joined`."""

    def __init__(self, state: EngineState, adoption: Adopter, presence: Presence) -> None:
        self.state = state
        self.adoption = adoption
        self.presence = presence
        self.waiting = Waiting(state)
        self.first_weights = adoption.first_weights
        #: The position of each peer when we first heard of it.
        self._met_at: dict[PeerId, int] = {}
        #: The first beat of each live peer with the model that it has by now, or the first one in
        #: which anything of that was trained.
        self._first_shown: dict[PeerId, Beat] = {}
        self._pauses = Pauses(state.policies.timing.beat_s)
        #: Until when a lone learner is waited for that takes no step.
        self._pause_by = 0.0
        #: The seconds of this learner's stops by which the waits are longer already.
        self._stopped_s = 0.0

    # ── begin ─────────────────────────────────────────────────────────────────────────────────────

    def begin(
        self, now: float, genesis: bytes, groups: tuple[bytes, ...], saved: Resumed | None
    ) -> None:
        """Begin with first weights of this digest, or where a checkpoint stood. `groups`: see
        `Report`."""
        state = self.state
        fragments = self._fresh(genesis, len(groups))
        if saved and saved.standings:
            fragments = self._restored(saved)
        state.install(fragments, groups)
        state.change(Change.BEGUN)
        if saved:
            self._resume(saved)
        timing = state.policies.timing
        self.first_weights.join_by = now + timing.join_timeout_s
        self._pause_by = now + PAUSE * timing.round_timeout_s
        self._stopped_s = state.stops.sum_s(now)
        self.waiting.begin(now)
        for beat in state.beats():
            self.heard(now, beat)
        if state.policies.unknown_optimizer:
            state.emit(Event("unknown", UNKNOWN.format(state.policies.unknown_optimizer)))
        if state.policies.unflushed_merge:
            state.emit(Event("unclosed", UNFLUSHED.format(state.policies.unflushed_merge)))

    def _fresh(self, genesis: bytes, count: int) -> list[Progress]:
        """Fragments of first weights, whose first turns are staggered."""
        first_start, lineage = self.state.schedule.first_cycle_start, Lineage.fresh(genesis)
        return [Progress(self.state.me, p, lineage, first_start(p)) for p in range(count)]

    def _restored(self, saved: Resumed) -> list[Progress]:
        """Fragments that go on where a checkpoint stood."""
        standings = enumerate(saved.standings)
        return [resumed(self.state.me, p, standing, saved.totals) for p, standing in standings]

    def _resume(self, saved: Resumed) -> None:
        state = self.state
        state.totals = saved.totals.copy()
        state.restore_period(saved.period)
        state.head_start = saved.head_start
        for fragment in state.fragments:
            if saved.standings:
                self._reoffer(fragment, saved.intact)
            else:
                self._start_elsewhere(fragment, saved)
        self._tell_restored(saved)

    def _start_elsewhere(self, fragment: Progress, saved: Resumed) -> None:
        """Without peers, all that was trained is in the weights, and no offer of it on its way.
        Weights that nobody has trained are first weights."""
        lineage, tokens = fragment.lineage, saved.totals.tokens
        if saved.intact:
            lineage = Lineage(
                tokens=tokens,
                version=int(tokens > 0),
                digest=lineage.genesis,
                genesis=lineage.genesis,
            )
        fragment.started_elsewhere(lineage, saved.totals, 0 if saved.intact else tokens)
        fragment.begin_after(saved.totals)

    def _reoffer(self, fragment: Progress, intact: bool) -> None:
        """The worker encodes the pending offer again, which was not kept. Unless the weights are
        `intact`, the anchor replaces them."""
        p, lineage = fragment.fragment, fragment.lineage
        fresh = Lineage.fresh(lineage.genesis)
        dropped = 0 if intact else fragment.tell_dropped(self.state.totals)
        record = whole_anchor_record(p, fresh, lineage, "restored", dropped_tokens=dropped)
        self.state.record(record)
        pending = fragment.reencode()
        if pending:
            self.state.work(Reoffer(p, pending.seq, pending.flush, pending.share))

    def _tell_restored(self, saved: Resumed) -> None:
        state, totals = self.state, saved.totals
        unmerged = max(fragment.unmerged(totals).tokens for fragment in state.fragments)
        what = DROP if saved.standings else ANEW
        if saved.intact:
            what = f"{unmerged} tokens not merged yet"
        elif saved.author:
            what = FOREIGN.format(saved.author)
        facts = {
            "step": totals.step,
            "tokens": totals.tokens,
            "unmerged_tokens": unmerged,
            "intact": saved.intact,
            "dropped": bool(saved.standings) and not saved.intact,
        }
        state.emit(Event("restored", f"restored at step {totals.step}, {what}", facts))

    # ── join ──────────────────────────────────────────────────────────────────────────────────────

    def heard(self, now: float, beat: Beat) -> None:
        """Remember the position of a peer when we first heard of it. Its later steps, while it
        starts with us, don't count as our head start."""
        if beat.genesis and self.state.mode.before_joined:
            self._met_at.setdefault(beat.peer, beat.position)
            first = self._first_shown.setdefault(beat.peer, beat)
            if self._pauses.heard(now, beat):
                self._goes_on(beat.peer)
            if first.genesis != beat.genesis or _is_trained(beat) > _is_trained(first):
                self._first_shown[beat.peer] = beat

    def _goes_on(self, peer: PeerId) -> None:
        """If a peer's weights did not come because it paused, they do now."""
        if peer in self.waiting.pausing:
            self.waiting.pausing = frozenset()
            self.state.claims.kept(peer)

    def check_joined(self, now: float) -> bool:
        """Join, if it is time. Returns whether that is so since just now."""
        state = self.state
        if not state.mode.before_joined:
            return False
        self._excuse_stops(now)
        beats = list(self.state.live_beats())
        if not self._is_over(now, beats):
            self.waiting.tell(now, self._deadline())
            return False
        is_met = any(beat.genesis == state.genesis for beat in beats)
        state.change(Change.JOINED if is_met else Change.JOINED_ALONE)
        unsent = [] if is_met else sorted(beat.peer.name for beat in self._ahead(beats))
        self._first_shown.clear()
        self._tell_joined(any(beat.genesis for beat in beats), unsent)
        return True

    def _excuse_stops(self, now: float) -> None:
        """While this learner itself is stopped, nobody can come."""
        stopped_s = self.state.stops.sum_s(now)
        self.first_weights.join_by += stopped_s - self._stopped_s
        self._pause_by += stopped_s - self._stopped_s
        self._stopped_s = stopped_s

    def renewed(self, now: float) -> None:
        """This learner has another incarnation, so all will let it in: it waits as at first."""
        timing = self.state.policies.timing
        self.first_weights.join_by = max(self.first_weights.join_by, now + timing.join_timeout_s)
        self._pause_by = max(self._pause_by, now + PAUSE * timing.round_timeout_s)

    def _is_over(self, now: float, beats: Sequence[Beat]) -> bool:
        """Whether there is nothing left to wait for."""
        state = self.state
        # One that comes back after a while may be far ahead.
        here = {beat.peer for beat in beats}
        self._first_shown = {peer: b for peer, b in self._first_shown.items() if peer in here}
        outdone = self._ahead(beats)
        sizes = Counter(beat.genesis for beat in beats)
        pausing = {b.peer for b in outdone if sizes[b.genesis] == 1 and self._is_pausing(b)}
        is_still = state.mode is Mode.JOINING and all(f.is_still for f in state.fragments)
        if not is_still or (outdone and state.wants):
            self.waiting.pausing = pausing.intersection(self.waiting.pausing)
            return False
        self.waiting.pausing = pausing
        late = now >= self._deadline() or self.waiting.is_in_vain(now)
        return late or (self._is_complete(beats) and not outdone)

    def _deadline(self) -> float:
        """When it stops waiting: later, if a peer has yet to give up this learner's earlier
        process, or may hand over its weights with its next step."""
        timing = self.state.policies.timing
        patience_s = timing.evict_after_s + PROMPT_BEATS * timing.beat_s
        join_by = max(self.first_weights.join_by, self.state.seeds.held_until(patience_s))
        return max(join_by, self._pause_by) if self.waiting.pausing else join_by

    def _is_pausing(self, beat: Beat) -> bool:
        """Whether a lone learner has taken no step since it was asked for its weights, which are
        its model's only anchor. It copies them with its next one."""
        is_other = beat.training and beat.genesis != self.state.genesis
        return is_other and self._pauses.lasts(beat)

    def _ahead(self, beats: Sequence[Beat]) -> list[Beat]:
        """Those of the peers that have a greater anchor now, and have had one from the first. A
        peer that was caught up with may be ahead again by now, and so may another branch: a
        newcomer that waited to be ahead of all at once might wait for ever."""
        camps, own = self.adoption.majority.camps(), OwnModel(self.state)
        firsts = [self._first_shown.get(beat.peer, beat) for beat in beats]
        return [
            beat
            for beat, first in zip(beats, firsts, strict=True)
            if self._is_outdone_by(beat, camps, own) and self._is_outdone_by(first, camps, own)
        ]

    def _is_outdone_by(self, beat: Beat, camps: Camps, own: OwnModel) -> bool:
        """Whether a beat shows a greater model, or a greater anchor of ours."""
        if beat.genesis == self.state.genesis:
            pairs = zip(own.keys, beat.reports, strict=False)
            return any(report.key > key for key, report in pairs)
        if not beat.genesis or not self.adoption.majority.believes_model(beat, camps):
            return False
        theirs, ours = own.beside(beat)
        return theirs > ours

    def _is_complete(self, beats: Sequence[Beat]) -> bool:
        """Whether everybody that the user named is here, or somebody is training already."""
        state = self.state
        here = {beat.peer for beat in beats if beat.genesis}
        everyone = not state.seeds.missing and here.issuperset(state.seeds.peers())
        found = everyone or any(beat.training for beat in beats)
        # Learners that start with us must have our weights before anybody steps away from them.
        agreed = all(beat.training or beat.genesis in (b"", state.genesis) for beat in beats)
        return found and agreed

    def _tell_joined(self, anybody: bool, unsent: Sequence[str]) -> None:
        """Tell that it has joined; `unsent`: peers of a greater model that it has not got."""
        state, seeds = self.state, self.state.seeds
        sought = seeds.sought()
        step = state.catch_up_position(max(self._met_at.values(), default=0))
        facts = {"missing": sought, "step": step, "tokens": state.cluster_tokens()}
        if sought and not anybody:
            silent = [address for address in seeds.missing if address not in seeds.refused]
            remedies = dict.fromkeys(map(seeds.remedy, silent))
            text = f"nobody to train with at {seeds.causes(sought)}: training alone, still looking"
            self.presence.alone(Event("alone", "; ".join([text, *remedies]), facts))
            return
        text = f"joined at position {step}"
        # A list that is behind tells nothing: its learners may be here.
        absent = [address for address in sought if address in seeds.found]
        if absent:
            text += f", without {seeds.causes(absent)}"
        if seeds.only_itself and not anybody:
            text += "; peers has no address but this learner's own"
        if not anybody and self.waiting.causes():
            text += UNSHOWN.format(self.waiting.what())
        if unsent:
            text += UNSENT.format(", ".join(unsent))
        state.emit(Event("joined", text, facts, "waiting" if self.waiting.told else ""))


def _is_trained(beat: Beat) -> bool:
    """Whether a beat shows a model in which anything was trained."""
    return any(report.key.tokens for report in beat.reports)
