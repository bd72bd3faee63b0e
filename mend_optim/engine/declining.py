"""Whether this learner declines to seal, because its link is too weak.

    rounds of fragment    0    1    2    3    4    5
    sealed by             a    b    c    a    b    c
    a and b tell         12   14  150   13   13  140        steps that their rounds of each take

The sealer of a fragment gets the offers of all, and sends the merged delta to all, so all wait for
its link. It does not notice that itself, as it has each anchor first. So every learner tells in its
beats how long its rounds of each fragment take. A learner declines if by the word of most others
the rounds that it seals take much longer than the others'. Its beats say so, and others seal its
fragments: see `sealers.py`. It tries again later, and after each time that it fails it waits twice
as long.

A learner that joins, or that fetches another model, declines, too, and so does one that is so far
behind most others that it fetches whole anchors, and then the seals after them
(`membership/own_place.py`). It has none yet to seal on, and may need minutes until it has them.

A minority that lies can make no learner decline. One that answers a sealer late, but not so late
that the sealer waits for it no more, makes that sealer's rounds long for all. So at most half of
the learners decline."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import median_low
from typing import NamedTuple

from mend_optim.engine.ledger import Event
from mend_optim.engine.round import Phase
from mend_optim.engine.state import EngineState
from mend_optim.engine.stragglers import Stragglers
from mend_optim.membership.peer import Peer
from mend_optim.protocol.messages import nbytes

#: How many times longer the rounds of a weak sealer take, and by how many steps at least.
RATIO, STEPS_MORE = 3, 4
#: A learner declines if that holds for as long as so many of its rounds take: a sealer waits twice
#: for the late offers of another weak link (see `lateness.py`), and that takes as long.
WEAK_ROUNDS = 3
#: Seconds until a sealer that has declined tries again; at first, and at most.
FIRST_S, LAST_S = 600.0, 6 * 3600.0


class PeerLatencies(NamedTuple):
    """What a peer tells of its rounds."""

    #: How many of its steps those of each fragment take; 0 where it does not know.
    steps: Sequence[int]
    #: How long a step takes.
    step_s: float


def weak_s(
    own: Collection[int], told: Sequence[PeerLatencies], sizes: Sequence[int], period: int = 0
) -> float | None:
    """Return how many seconds the rounds of a sealer take, if it should decline; else None.

    Args:
        own: the fragments that it seals.
        told: by each peer that takes part. Two learners share one link, so nobody declines for a
            single peer.
        sizes: the bytes of an offer of each fragment; 0 where they are not known. The rounds of a
            greater fragment may take as much longer.
        period: rounds that take no more steps than this hold nobody up.
    """
    found = [s for s in (_found_s(own, each, sizes, period) for each in told) if s is not None]
    return median_low(found) if 2 * len(found) > len(told) > 1 else None


def _found_s(
    own: Collection[int], told: PeerLatencies, sizes: Sequence[int], period: int
) -> float | None:
    known = [(p, steps) for p, steps in enumerate(told.steps[: len(sizes)]) if steps]
    others = [p for p, _ in known if p not in own]
    if not others or len(others) == len(known):
        return None
    usual = median_low(told.steps[p] for p in others)
    size = median_low(sizes[p] for p in others) or float("inf")
    slow = median_low(steps for p, steps in known if p in own)
    even = median_low(steps / max(1.0, sizes[p] / size) for p, steps in known if p in own)
    is_weak = even >= max(RATIO * usual, usual + STEPS_MORE) and slow > period
    return slow * told.step_s if is_weak else None


class Declining:
    """Decides whether this learner declines, and tells the user."""

    def __init__(self, state: EngineState, stragglers: Stragglers) -> None:
        self.state = state
        self.stragglers = stragglers
        self._until = float("-inf")
        self._for_s = FIRST_S
        #: The bytes of this learner's last offer of each fragment.
        self._sizes: dict[int, int] = {}
        #: Since when it looks weak, and as the sealer of which fragments. None: it does not.
        self._since: tuple[float, frozenset[int]] | None = None
        #: When it declines although seals of its own are still on their way.
        self._latest_at = float("inf")
        self._reviewed_at = float("-inf")
        #: Since when it has fetched whole anchors; None: it does not. `-inf`: since it joined.
        self._fetches_since: float | None = None
        #: Whether the last beat has said that it declines.
        self._declined = False

    def review(self, now: float) -> bool:
        """At every beat: look again, by the last beats of all. Return whether it declines now, for
        any reason, and did not at the last beat, or the other way round."""
        roster = self.state.roster
        if now > self._reviewed_at + self.state.policies.timing.evict_after_s:
            self._since = None  # a process that was stopped has heard nothing meanwhile
        self._reviewed_at = now
        roster.place.hands_over = False
        if roster.place.is_weak and now >= self._until:
            self._seal_again("to see whether its rounds still take longer than others'")
        elif roster.place.is_weak and self._is_one_too_many():
            self._seal_again("because more than half of the learners decline")
        elif not roster.place.is_weak and self.stragglers.judges and self._is_weak_for_long(now):
            if self._all_have_its_seals() or now >= self._latest_at:
                self._decline(now)
            else:
                roster.place.hands_over = True
        roster.place.is_behind = self._is_behind(now)
        before, self._declined = self._declined, roster.declines_to_seal(roster.me)
        if before and not self._declined:
            roster.resumed.add(now, roster.me)
        return self._declined is not before

    def _is_behind(self, now: float) -> bool:
        """Whether it has fetched whole anchors for long, or since it joined, or fetches the seals
        after them."""
        state, timing = self.state, self.state.policies.timing
        fetched = [p for p, wanted in state.wants.items() if wanted.catches_up]
        # All may ask an insider for an anchor that nobody has, and would leave it to seal alone.
        fetches = any(state.mode.lacks_model or self._most_have_more(p) for p in fetched)
        if not (fetches or self._fetches_on()):
            self._fetches_since = None
        elif state.mode.lacks_model:
            self._fetches_since = float("-inf")
        elif self._fetches_since is None:
            self._fetches_since = now
        since = self._fetches_since
        return since is not None and now - since >= timing.suspect_after_s

    def _fetches_on(self) -> bool:
        """Whether it lacks more than one seal of a fragment after the whole anchors that came."""
        if self._fetches_since is None or self.state.mode.lacks_model:
            return False
        return any(self._most_have_more(f.fragment, rounds=2) for f in self.state.fragments)

    def _most_have_more(self, p: int, rounds: int = 1) -> bool:
        """Whether most of the others show a greater anchor of a fragment than this learner has, of
        at least so many rounds more."""
        own = self.state.fragments[p].lineage.key
        ahead = [
            key > own and key.version >= own.version + rounds for _, key in self.state.shown(p)
        ]
        return 2 * sum(ahead) > len(ahead)

    def _seal_again(self, why: str) -> None:
        self.state.roster.place.is_weak = False
        self.state.emit(Event("seals_again", f"seals again, {why}", lifts="declines"))

    def _decline(self, now: float) -> None:
        has_recovered = now >= self._until + self._for_s  # it has sealed for as long again
        self._for_s = FIRST_S if has_recovered else min(2 * self._for_s, LAST_S)
        self.state.roster.place.is_weak = True
        self._until, self._since = now + self._for_s, None
        text = (
            f"seals no round for {self._for_s / 60:.0f} min: the rounds that it seals take "
            f"{RATIO} times as long as others' or longer, most learners find, so its link may be "
            "weak; others seal them"
        )
        self.state.emit(Event("declines", text, {"for_s": self._for_s}))

    def _may_decline(self) -> bool:
        """Whether at least half of the learners that can be dialled would still seal."""
        peers = self._others()
        return 2 * sum(not peer.is_weak for peer in peers) >= len(peers) + 1

    def _is_one_too_many(self) -> bool:
        """Whether several have declined at one time, too many together, and this is the one that
        seals again."""
        names = [peer.id.name for peer in self._others() if peer.is_weak]
        return not self._may_decline() and self.state.me.name > max(names, default="")

    def _others(self) -> list[Peer]:
        return [peer for peer in self.state.roster if peer.address and not peer.suspected]

    def _is_weak_for_long(self, now: float) -> bool:
        state, roster, timing = self.state, self.state.roster, self.state.policies.timing
        sealers = roster.sealers(len(state.fragments))
        own = frozenset(p for p, sealer in enumerate(sealers) if sealer == state.me)
        period = 0 if state.policies.auto else state.schedule.sync_every
        round_s = weak_s(own, self._told(), self._look_at_sizes(), period)
        if round_s is None or state.resting or not self._may_decline():
            self._since = None
            return False
        if self._since is None or self._since[1] != own:
            self._since = now, own
        # In a big roster the word of some is as old as `evict_after_s`, and of a former sealer.
        patience_s = max(WEAK_ROUNDS * round_s, timing.evict_after_s)
        self._latest_at = self._since[0] + 2 * patience_s
        return now >= self._since[0] + patience_s

    def _all_have_its_seals(self) -> bool:
        """Whether it merges nothing, and no seal of its own is on its way to a learner that trains.
        The learner that seals next may not have that one yet. It would seal another on the same
        anchor, and one of the two would be given up."""
        state = self.state
        training = {beat.peer for beat in state.live_beats() if beat.training}
        sealers = state.roster.sealers(len(state.fragments))
        own = [f for f in state.fragments if sealers[f.fragment] == state.me]
        return not any(
            state.rounds[f.fragment].phase is Phase.MERGING
            or f.is_moving
            or any(key < f.lineage.key for id, key in state.shown(f.fragment) if id in training)
            for f in own
        )

    def _told(self) -> list[PeerLatencies]:
        genesis = self.state.genesis
        beats = [b for b in self.state.live_beats() if b.training and b.genesis == genesis]
        return [PeerLatencies([r.latency for r in b.reports], b.seconds_per_step) for b in beats]

    def _look_at_sizes(self) -> list[int]:
        for fragment in self.state.fragments:
            if fragment.pending and fragment.pending.offer:
                self._sizes[fragment.fragment] = nbytes(fragment.pending.offer.sections)
        return [self._sizes.get(p, 0) for p in range(len(self.state.fragments))]
