"""The learner's side of the rounds: send the pending offer, send it again, answer calls."""

from __future__ import annotations

from dataclasses import replace

from mend_optim.engine.effects import Send
from mend_optim.engine.progress import NEVER, Pending, Progress
from mend_optim.engine.state import EngineState
from mend_optim.engine.stragglers import Stragglers
from mend_optim.membership.roster import FANOUT
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Offer, nbytes


class Offers:
    """What a learner does about its own offers."""

    def __init__(self, state: EngineState, stragglers: Stragglers) -> None:
        self.state, self.stragglers = state, stragglers

    def send_offer(self, now: float, fragment: Progress, to: PeerId | None) -> None:
        """Send the pending offer to `to` if it is live, else to the fragment's sealer; nobody to
        send to: wait."""
        pending = fragment.pending
        if pending is None or pending.offer is None:
            return
        peer = self.state.roster.find(to) if to else None
        target = to if peer and not peer.suspected else self.state.roster.sealer(fragment.fragment)
        pending.sent_to, pending.sent_at, pending.delivered, pending.resend_at = (
            target,
            now,
            False,
            NEVER,
        )
        if target is not None:
            pending.delivered = target == self.state.me
            self.state.emit(
                Send(target, replace(pending.offer, key=fragment.lineage.key, due=pending.due))
            )

    def resend(self, now: float, fragment: Progress) -> None:
        """Offer again if whoever has the offer died, lost it, or runs the fragment's rounds no
        more."""
        pending = fragment.pending
        if pending is None or pending.offer is None or self.state.solo:
            return
        peer = self.state.roster.find(pending.sent_to) if pending.sent_to else None
        live = pending.sent_to == self.state.me or (peer is not None and not peer.suspected)
        moved = self.state.roster.sealer(fragment.fragment) != pending.sent_to and (
            pending.delivered or not live
        )
        if not live or moved or now >= pending.resend_at:
            self.send_offer(now, fragment, None)

    def delivered(self, now: float, pending: Pending) -> None:
        """All of the offer is where it was sent. What comes back may be as long as float32 is, and
        take as much longer."""
        assert pending.offer is not None
        packets, size, took = (
            pending.offer.sections.values(),
            nbytes(pending.offer.sections),
            now - pending.sent_at,
        )
        self.stragglers.delivered(took, size)
        longer = sum(4 * packet.numel for packet in packets) / max(1, size)
        pending.seal_s = min(took * max(1.0, longer), self.state.policies.timing.round_timeout_s)
        pending.delivered, pending.resend_at = True, now + self.patience(pending)

    def heard(self, now: float, id: PeerId) -> None:
        """Bytes came from a peer, perhaps the seal of an offer that it has: in the meantime nothing
        is sent or asked for again."""
        for fragment in self.state.fragments:
            pending = fragment.pending
            if pending and pending.sent_to == id:
                if pending.delivered:
                    pending.resend_at = max(pending.resend_at, now + self.patience(pending))
                if fragment.behind_since is not None:
                    fragment.behind_since = now

    def patience(self, pending: Pending) -> float:
        """How long a sealer's beats may not mention our offer before it counts as lost: the seal
        may be coming."""
        rare = 1 + self.state.roster.size // FANOUT
        return self.state.policies.timing.suspect_after_s * rare + pending.seal_s

    def on_call(self, now: float, p: int, requested_by: PeerId) -> None:
        """The sealer asks for our offer: send the pending one, or make one at the end of this step;
        at rest, take part with nothing."""
        fragment = self.state.fragments[p]
        if fragment.pending:
            if fragment.pending.offer and fragment.pending.sent_to != requested_by:
                self.send_offer(now, fragment, requested_by)
        elif self.state.resting and not self.state.has_unsent_work(fragment):
            key, again = (
                fragment.lineage.key,
                fragment.weight if self.state.policies.residual_in_weights else (0, 0),
            )
            empty = Offer(
                peer=self.state.me,
                fragment=p,
                seq=0,
                tokens=0,
                steps=0,
                genesis=self.state.genesis,
                key=key,
                due=False,
                again=again,
            )
            self.state.emit(Send(requested_by, empty))
        elif not self.state.policies.schedule.lockstep:
            fragment.offer_requested, fragment.requested_by = True, requested_by
