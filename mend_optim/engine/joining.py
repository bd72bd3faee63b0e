"""Before the first inner step: with what a learner begins, and when it has joined the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mend_optim.engine.adoption import Adoption
from mend_optim.engine.effects import Reoffer
from mend_optim.engine.ledger import Event, whole_anchor_record
from mend_optim.engine.progress import NEVER, Motion, Progress, Standing, Totals
from mend_optim.engine.round import Round
from mend_optim.engine.state import EngineState
from mend_optim.protocol.lineage import Lineage, PeerId
from mend_optim.protocol.messages import Beat

DROP = "other weights than the saved ones: the anchor's are taken, what no anchor has is dropped"
UNKNOWN = (
    "which state of {} are moments is not known here, so none are averaged: name them in "
    "moments=MomentSchedule(states=(Moment(…),)), or pass moments=None to say that there are none"
)
UNCLOSED = (
    "codec: part of what is learned stays in each learner's weights, and with merge={!r} synchronize() cannot merge "
    "it; merge='mean' and 'rda' can; or choose another codec, such as 'int4'"
)
ANEW = "other weights than the saved ones: they count as first weights"


class Resumed(NamedTuple):
    """Where a checkpoint stood; without standings it was saved by a learner without peers.
    `intact`: whether the weights are those that it was saved with; else they become the anchor."""

    totals: Totals
    standings: Sequence[Standing]
    head_start: int = 0
    intact: bool = True


class Joining:
    """A learner between `begin` and `joined`."""

    def __init__(self, state: EngineState, adoption: Adoption) -> None:
        self.state, self.adoption = state, adoption
        self._join_by = NEVER
        self._met_at: dict[PeerId, int] = {}  # the position of each when we first heard of it

    def begin(
        self, now: float, genesis: bytes, groups: tuple[bytes, ...], resumed: Resumed | None
    ) -> None:
        """With first weights of this digest, or where a checkpoint stood. `groups`: see
        `Report`."""
        state, schedule = self.state, self.state.policies.schedule
        me, lineage, turns = state.me, Lineage.fresh(genesis), schedule.fragments
        cycle_starts = [
            schedule.first_cycle_start(p) if p < turns else 0 for p in range(len(groups))
        ]
        state.fragments, state.groups = (
            [Progress(me, p, lineage, cycle_start) for p, cycle_start in enumerate(cycle_starts)],
            groups,
        )
        if resumed:
            self._resume(resumed)
        state.rounds = [Round(p) for p in range(len(state.fragments))]
        state.seals = [None] * len(state.fragments)
        state.genesis = state.fragments[0].lineage.genesis
        self._join_by = now + state.policies.timing.join_timeout_s
        for peer in state.roster.peers.values():
            if peer.beat:
                self.heard(peer.beat)
        if state.policies.unknown_optimizer:
            state.emit(Event("unknown", UNKNOWN.format(state.policies.unknown_optimizer)))
        if state.policies.unflushed_merge:
            state.emit(Event("unclosed", UNCLOSED.format(state.policies.unflushed_merge)))

    def _resume(self, resumed: Resumed) -> None:
        state, totals = self.state, Totals(resumed.totals.step, resumed.totals.tokens)
        state.totals, state.head_start = totals, resumed.head_start
        # else the anchor is what it was, whatever was trained since
        state.solo = not resumed.standings
        # all that was trained is in the weights, and no offer of it on its way
        if not resumed.standings:
            for fragment in state.fragments:
                genesis = fragment.lineage.genesis
                if resumed.intact:
                    fragment.lineage = Lineage(
                        tokens=totals.tokens,
                        version=int(totals.tokens > 0),
                        digest=genesis,
                        genesis=genesis,
                    )
                else:  # weights that nobody trained: first weights
                    fragment.dropped_tokens = totals.tokens
                fragment.settled, fragment.cycle_start = (
                    Totals(totals.step, totals.tokens),
                    totals.step + fragment.cycle_start,
                )
        for p, standing in enumerate(resumed.standings):
            fragment = state.fragments[p] = Progress.resumed(state.me, p, standing, totals)
            state.record(
                whole_anchor_record(
                    p, Lineage.fresh(standing.lineage.genesis), standing.lineage, "restored"
                )
            )
            if fragment.pending:
                fragment.motion = Motion.SNAPSHOT
                state.work(Reoffer(p, fragment.pending.seq, fragment.pending.flush))
        unmerged = max(f.unmerged(totals).tokens for f in state.fragments)
        what = DROP if resumed.standings else ANEW
        what = f"{unmerged} tokens not merged yet" if resumed.intact else what
        facts = {
            "step": totals.step,
            "tokens": totals.tokens,
            "unmerged_tokens": unmerged,
            "intact": resumed.intact,
        }
        state.emit(Event("restored", f"restored at step {totals.step}, {what}", facts))

    def heard(self, beat: Beat) -> None:
        """Where a peer was when we began: what those that start with us have stepped since is no
        head start."""
        if beat.genesis and self.state.fragments and not self.state.joined:
            self._met_at.setdefault(beat.peer, beat.position)

    def check_joined(self, now: float) -> bool:
        """Joined: everyone the user named is here (or somebody is training already, or nobody came
        in time), and nobody has a greater anchor. Whether that is so since just now."""
        if self.state.joined or not self.state.fragments:
            return False
        beats = [p.beat for p in self.state.roster.peers.values() if p.beat and not p.suspected]
        here = {beat.peer for beat in beats if beat.genesis}
        everyone = not self.state.seeds.missing and all(
            peer in here for peer in self.state.seeds.peers()
        )
        found = everyone or any(beat.training for beat in beats)
        moving = any(f.motion is not Motion.STILL for f in self.state.fragments)
        fetching = bool(self.state.wants) or self.state.switch is not None or moving
        # Those that start with us must have our weights before anybody steps away from them.
        agreed = all(beat.training or beat.genesis in (b"", self.state.genesis) for beat in beats)
        if fetching or not (
            now >= self._join_by or (found and agreed and not self.adoption.outdone(beats))
        ):
            return False
        self.state.joined = True
        self.state.solo = not any(beat.genesis == self.state.genesis for beat in beats)
        missing, refused = self.state.seeds.missing, sorted(self.state.seeds.refused)
        sought = [*missing, *refused]
        step = self.state.catch_up_position(max(self._met_at.values(), default=0))
        tokens = self.state.cluster_tokens()
        facts = {"missing": sought, "step": step, "tokens": tokens}
        without = ", ".join([*missing, *(f"{address} (refused)" for address in refused)])
        if sought and not here:
            text = f"nobody to train with at {without}: training alone, still looking"
            self.state.emit(Event("alone", text, facts))
        else:
            text = f"joined at position {step}" + (f", without {without}" if sought else "")
            self.state.emit(Event("joined", text, facts))
        return True
