"""Catching up by one seal after the other, where they are fewer bytes than the whole anchor.

    ──want──▶ sealer ──seal──▶ outer step ──want──▶ sealer ──seal──▶ outer step ...

A learner on a slow link may need minutes for a whole anchor. The others get on meanwhile, so that
it is as far behind as before, and asks for a whole one again. The seals that it missed may be far
fewer bytes. If one of them takes less time than a round does, it comes up with the others."""

from __future__ import annotations

from mend_optim.engine.others import Others
from mend_optim.engine.pending import NEVER
from mend_optim.engine.progress import Progress
from mend_optim.engine.seal_chain import MOST_SEALS, cost
from mend_optim.engine.state import EngineState
from mend_optim.membership.zones import are_neighbours
from mend_optim.protocol.lineage import Key, PeerId
from mend_optim.protocol.messages import Seal

#: A seal that may be on its way is waited for no more than so many times the patience.
LONGEST = 4


class SealBySeal:
    """Says whose seals bring what a learner lacks, and keeps one that came too early."""

    def __init__(self, state: EngineState) -> None:
        self.state = state
        #: By fragment, the cost of the last seal that this learner took.
        self._cost: dict[int, float] = {}
        #: By fragment, a seal on an anchor that this learner does not have yet. It merged our
        #: offer, and came down the stream of that.
        self._early: dict[int, Seal] = {}
        #: By fragment, the peer that bytes came from last, which are part of a message that has not
        #: come yet, since when it has sent some, and when the last ones came.
        self._heard: dict[int, tuple[PeerId, float, float]] = {}

    # ── what comes ────────────────────────────────────────────────────────────────────────────────

    def heard(self, now: float, peer: PeerId, p: int) -> None:
        """Bytes of fragment `p` came from a peer."""
        goes_on = self._is_sending(now, p, peer)
        self._heard[p] = peer, self._heard[p][1] if goes_on else now, now

    def came(self, p: int) -> None:
        """A seal or a whole anchor of fragment `p` has come."""
        self._heard.pop(p, None)

    def is_coming(self, now: float, p: int, peer: PeerId) -> bool:
        """Whether a peer is sending something of fragment `p`: perhaps the seal that we lack. If
        nothing comes for long, it may be an insider's way to keep us behind."""
        longest_s = LONGEST * self.state.policies.timing.round_timeout_s
        return self._is_sending(now, p, peer) and now - self._heard[p][1] < longest_s

    def _is_sending(self, now: float, p: int, peer: PeerId) -> bool:
        sender, _, at = self._heard.get(p, (None, now, -NEVER))
        return sender == peer and now - at < self.state.policies.timing.suspect_after_s

    def took(self, seal: Seal) -> None:
        """This learner has taken a seal."""
        self._cost[seal.fragment] = cost(seal)

    def keep(self, seal: Seal) -> None:
        """A seal came before those that lead to its base."""
        self._early[seal.fragment] = seal

    def next(self, fragment: Progress) -> Seal | None:
        """The kept seal, if it is on our anchor by now."""
        kept = self._early.get(fragment.fragment)
        if kept and kept.key <= fragment.lineage.key:
            del self._early[fragment.fragment]
        return kept if kept and kept.base == fragment.lineage.digest else None

    # ── whom to ask ───────────────────────────────────────────────────────────────────────────────

    def rather_than(
        self, now: float, fragment: Progress, peer: PeerId, key: Key, others: Others
    ) -> tuple[PeerId | None, Key]:
        """Whom to ask for an anchor that a peer shows, and the one that it shows itself: the
        sealer, if its seals are to be asked for, or else that peer. Nobody is asked while the
        sealer's last beat may be older; but if one seal is lacking, it may be of another sealer,
        where not all reach each other."""
        state, lacking = self.state, key.version - fragment.lineage.version
        sealer = self.source(fragment, key, others)
        if sealer is None or sealer == peer or (lacking == 1 and self._was_sealer(fragment, peer)):
            return peer, key
        shown = state.shown_by(sealer, fragment.fragment)
        if shown and shown > fragment.lineage.key:
            return sealer, shown
        waits = now - fragment.seen_behind(now) < state.policies.timing.beat_s
        return (None if waits and lacking > 1 else peer), key

    def _was_sealer(self, fragment: Progress, peer: PeerId) -> bool:
        """Whether a peer has sealed before the present sealer, and perhaps on our anchor."""
        former = self.state.former_sealers
        return former.may_have_sealed(fragment.fragment, peer, fragment.lineage.digest)

    def source(self, fragment: Progress, key: Key, others: Others) -> PeerId | None:
        """The sealer, if its seals are to be asked for that lead from our anchor to the one with
        this key. Where the size of a seal is not known yet, they are: a sealer that does not have
        them any more answers with the whole anchor."""
        state, p, own = self.state, fragment.fragment, fragment.lineage
        lacking = key.version - own.version
        if not 1 <= lacking <= MOST_SEALS or lacking * self._cost.get(p, 0.0) > 1:
            return None
        sealer = others.sealer(p)
        known = state.roster.find(sealer) if sealer else None
        if known is None or not known.linked or state.claims.doubts(known.id):
            return None
        return None if self._is_far(fragment, known.id) else known.id

    def _is_far(self, fragment: Progress, sealer: PeerId) -> bool:
        """Whether a learner of our zone shows more than we have, and the sealer is not of our zone:
        what crosses between zones is dear."""
        roster, own = self.state.roster, fragment.lineage.key
        if not roster.zone:
            return False
        shown = self.state.shown(fragment.fragment)
        near = [id for id, key in shown if key > own and are_neighbours(roster, roster.me, id)]
        return bool(near) and sealer not in near
