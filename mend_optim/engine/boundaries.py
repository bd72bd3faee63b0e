"""The engine's side of the training thread: what to count, what to copy, what to hold back, when to
wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from mend_optim.engine.adoption import Adopting
from mend_optim.engine.effects import Found, Prepare, Snapshot
from mend_optim.engine.progress import Motion, Totals
from mend_optim.engine.state import Books
from mend_optim.engine.stragglers import Watching

Readings = Mapping[str, Snapshot]


class Training:
    """Called by the training thread, in `step()`, with the mutex held."""

    def __init__(self, books: Books, adopting: Adopting, watching: Watching) -> None:
        self.books, self.adopting, self.watching = books, adopting, watching
        self.founded_at = Totals()

    def stepped(self, tokens: int, seconds: float | None) -> None:
        """One inner step on `tokens` tokens was taken; `seconds` is how long after the one before,
        without what this library took of that; None for the first, and after a rest."""
        if seconds is not None:
            self.watching.stepped(seconds, tokens)
        self.books.resting = False
        self.books.totals.step += 1
        self.books.totals.tokens += tokens

    def wanted(self) -> list[int]:
        """Fragments whose parameters the training thread should copy now; then call `snapshot` for
        each (or `found` for all)."""
        if not self.books.joined or self.books.switch:
            return []
        if self.books.founding == "due":
            if not any(f.unmerged(self.books.totals).step for f in self.books.fragments):
                self.books.founding = ""
                return []
            still = all(f.motion is Motion.STILL and not f.untaken for f in self.books.fragments)
            return list(range(len(self.books.fragments))) if still else []
        if self.books.solo or self.books.founding:
            return []
        return [
            f.fragment
            for f in self.books.fragments
            if f.wants_snapshot(self.books.totals, self.books.policies.schedule, self.books.closing)
        ]

    @property
    def founding(self) -> bool:
        """Whether the wanted snapshots are to found anchors, all at once."""
        return self.books.founding == "due"

    def reserve(self, p: int) -> None:
        """The training thread begins to copy fragment `p`: its anchor stands still until
        `snapshot`."""
        fragment = self.books.fragments[p]
        due = self.books.resting or self.books.policies.schedule.due(
            self.books.totals.step, fragment.mark
        )
        fragment.snapshot(self.books.totals, due, self.books.closing)

    def moments(self, p: int) -> tuple[str, ...]:
        """Which moments go with the copy of fragment `p`."""
        policies, fragment = self.books.policies, self.books.fragments[p]
        if self.founding:
            return tuple(moment.name for moment in policies.moments)
        return policies.owed(fragment.averaged, fragment.lineage.version + 1)

    def snapshot(self, p: int, tensor: Snapshot, moments: Readings = MappingProxyType({})) -> None:
        """The copy of fragment `p` that was reserved is ready to become an offer."""
        pending = self.books.fragments[p].pending
        assert pending is not None
        self.books.work(Prepare(p, pending.seq, tensor, moments, pending.closing))

    def reserve_all(self) -> None:
        """The training thread begins to copy all fragments, to found anchors."""
        self.books.founding = "running"
        self.founded_at = Totals(self.books.totals.step, self.books.totals.tokens)
        for fragment in self.books.fragments:
            fragment.motion = Motion.SNAPSHOT

    def found(self, tensors: tuple[Snapshot, ...], moments: tuple[Readings, ...] = ()) -> None:
        """The copies of all fragments are ready to become the anchors."""
        self.books.work(Found(tensors, moments))

    def release(self, fragments: Iterable[int]) -> None:
        """The copies that were reserved did not come about (Ctrl-C, say): they are wanted again."""
        for fragment in (self.books.fragments[p] for p in fragments):
            if fragment.motion is Motion.SNAPSHOT:
                fragment.motion = Motion.STILL
                fragment.withdraw()
        if self.books.founding == "running":
            self.books.founding = "due"

    def holds_back(self, p: int) -> bool:
        """Under `adopt_after`: whether a correction of `p` that is ready must wait for its step."""
        if self.books.resting:
            return False
        adopt_at = self.books.fragments[p].adopt_at
        return adopt_at is not None and self.books.totals.step < adopt_at

    def must_wait(self) -> bool:
        """Under `adopt_after`: whether the training thread is at a step whose anchor has not come
        yet."""
        overlap = self.books.policies.schedule.adopt_after
        if overlap is None or self.books.solo or self.books.resting:
            return False
        return any(
            f.pending is not None
            and not f.pending.missed
            and self.books.totals.step >= f.pending.step + overlap
            and any(peer.has(f.fragment) for peer in self.books.roster.peers.values())
            for f in self.books.fragments
        )

    def settled(self) -> bool:
        """Whether nothing of ours is unmerged, and no live peer that answered since we came to rest
        has a greater anchor."""
        books = self.books
        # the others left, or nobody was ever expected; else whom we expected is still not here
        if books.solo:
            return books.adopted_rounds > 0 or not books.seeds.found
        near = (
            peer.id for peer in books.roster.peers.values() if peer.linked and not peer.suspected
        )
        answered = books.answered.issuperset(near)
        # a group that nobody else has added there is nobody to merge with
        peers = books.roster.peers.values()
        shared = [f for f in books.fragments if any(peer.has(f.fragment) for peer in peers)]
        clean = not any(books.owing(f) or f.untaken for f in shared)
        return (
            answered
            and clean
            and not books.switch
            and not any(map(self.adopting.behind, books.fragments))
        )

    def waited_out(self) -> None:
        """Under `adopt_after`: the anchor did not come in time; go on, and adopt it whenever it
        comes."""
        for fragment in self.books.fragments:
            if fragment.pending:
                fragment.pending.missed = True
