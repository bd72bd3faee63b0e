"""The engine's side of the training thread: what to count, what to copy, what to hold back, when to
wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from mend_optim.engine.adoption import Adoption
from mend_optim.engine.effects import Found, Prepare, Snapshot
from mend_optim.engine.progress import Motion, Totals
from mend_optim.engine.state import EngineState
from mend_optim.engine.stragglers import Stragglers

Readings = Mapping[str, Snapshot]


class Boundaries:
    """Called by the training thread, in `step()`, with the mutex held."""

    def __init__(self, state: EngineState, adoption: Adoption, stragglers: Stragglers) -> None:
        self.state, self.adoption, self.stragglers = state, adoption, stragglers
        self.founded_at = Totals()

    def stepped(self, tokens: int, seconds: float | None) -> None:
        """One inner step on `tokens` tokens was taken; `seconds` is how long after the one before,
        without what this library took of that; None for the first, and after a rest."""
        if seconds is not None:
            self.stragglers.stepped(seconds, tokens)
        self.state.resting = False
        self.state.totals.step += 1
        self.state.totals.tokens += tokens

    def fragments_to_copy(self) -> list[int]:
        """Fragments whose parameters the training thread should copy now; then call `snapshot` for
        each (or `found` for all)."""
        if not self.state.joined or self.state.switch:
            return []
        if self.state.founding == "due":
            if not any(f.unmerged(self.state.totals).step for f in self.state.fragments):
                self.state.founding = ""
                return []
            still = all(
                f.motion is Motion.STILL and not f.correction_pending for f in self.state.fragments
            )
            return list(range(len(self.state.fragments))) if still else []
        if self.state.solo or self.state.founding:
            return []
        return [
            f.fragment
            for f in self.state.fragments
            if f.wants_snapshot(self.state.totals, self.state.policies.schedule, self.state.flush)
        ]

    @property
    def founding(self) -> bool:
        """Whether the wanted snapshots are to found anchors, all at once."""
        return self.state.founding == "due"

    def reserve(self, p: int) -> None:
        """The training thread begins to copy fragment `p`: its anchor stands still until
        `snapshot`."""
        fragment = self.state.fragments[p]
        due = self.state.resting or self.state.policies.schedule.due(
            self.state.totals.step, fragment.cycle_start
        )
        fragment.snapshot(self.state.totals, due, self.state.flush)

    def moments(self, p: int) -> tuple[str, ...]:
        """Which moments go with the copy of fragment `p`."""
        policies, fragment = self.state.policies, self.state.fragments[p]
        if self.founding:
            return tuple(moment.name for moment in policies.moments)
        return policies.owed(fragment.averaged, fragment.lineage.version + 1)

    def snapshot(self, p: int, tensor: Snapshot, moments: Readings = MappingProxyType({})) -> None:
        """The copy of fragment `p` that was reserved is ready to become an offer."""
        pending = self.state.fragments[p].pending
        assert pending is not None
        self.state.work(
            Prepare(
                fragment=p, seq=pending.seq, tensor=tensor, moments=moments, flush=pending.flush
            )
        )

    def reserve_all(self) -> None:
        """The training thread begins to copy all fragments, to found anchors."""
        self.state.founding = "running"
        self.founded_at = Totals(self.state.totals.step, self.state.totals.tokens)
        for fragment in self.state.fragments:
            fragment.motion = Motion.SNAPSHOT

    def found(self, tensors: tuple[Snapshot, ...], moments: tuple[Readings, ...] = ()) -> None:
        """The copies of all fragments are ready to become the anchors."""
        self.state.work(Found(tensors, moments))

    def release(self, fragments: Iterable[int]) -> None:
        """The copies that were reserved did not come about (Ctrl-C, say): they are wanted again."""
        for fragment in (self.state.fragments[p] for p in fragments):
            if fragment.motion is Motion.SNAPSHOT:
                fragment.motion = Motion.STILL
                fragment.withdraw()
        if self.state.founding == "running":
            self.state.founding = "due"

    def holds_back(self, p: int) -> bool:
        """Under `adopt_after`: whether a correction of `p` that is ready must wait for its step."""
        if self.state.resting:
            return False
        adopt_at = self.state.fragments[p].adopt_at
        return adopt_at is not None and self.state.totals.step < adopt_at

    def must_wait(self) -> bool:
        """Under `adopt_after`: whether the training thread is at a step whose anchor has not come
        yet."""
        overlap = self.state.policies.schedule.adopt_after
        if overlap is None or self.state.solo or self.state.resting:
            return False
        return any(
            f.pending is not None
            and not f.pending.missed
            and self.state.totals.step >= f.pending.step + overlap
            and any(peer.has(f.fragment) for peer in self.state.roster.peers.values())
            for f in self.state.fragments
        )

    def settled(self) -> bool:
        """Whether nothing of ours is unmerged, and no live peer that answered since we came to rest
        has a greater anchor."""
        state = self.state
        # the others left, or nobody was ever expected; else whom we expected is still not here
        if state.solo:
            return state.adopted_rounds > 0 or not state.seeds.found
        near = (
            peer.id for peer in state.roster.peers.values() if peer.linked and not peer.suspected
        )
        answered = state.answered.issuperset(near)
        # a group that nobody else has added there is nobody to merge with
        peers = state.roster.peers.values()
        shared = [f for f in state.fragments if any(peer.has(f.fragment) for peer in peers)]
        clean = not any(state.has_unsent_work(f) or f.correction_pending for f in shared)
        return (
            answered
            and clean
            and not state.switch
            and not any(map(self.adoption.behind, state.fragments))
        )

    def waited_out(self) -> None:
        """Under `adopt_after`: the anchor did not come in time; go on, and adopt it whenever it
        comes."""
        for fragment in self.state.fragments:
            if fragment.pending:
                fragment.pending.missed = True
