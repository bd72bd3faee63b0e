"""How a learner goes on after an accident: its weights are not finite, or a round has refused its
offer because of its size. It gives up its local progress and takes the anchor, in all fragments:
the gradients of one that is whole were as wrong as those of the ruined one, and would be again.

Nobody waits for it meanwhile. If it has nothing to offer, it takes part with an empty offer; and a
refused offer counts as an empty one.

After a rollback, a group of this learner that the other model lacks goes on from its anchor in the
same way."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mend_optim.engine.effects import Done, Outsize, Retake
from mend_optim.engine.ledger import Event, whole_anchor_record
from mend_optim.engine.offers import Offers
from mend_optim.engine.progress import Progress
from mend_optim.engine.state import EngineState
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Seal

TIMES = "{:,.0f} times the usual size"


def tell_outsized(
    state: EngineState, p: int, peer: PeerId, outsize: Outsize, *, refused: bool
) -> None:
    """A round has refused the offer of `peer` because of its size, or scaled it down: tell the
    user, and count it."""
    size = TIMES.format(outsize.times)
    state.outsized += 1
    whose = "own offer" if state.is_me(peer) else f"offer of {peer.name}"
    done = "refused" if refused else "scaled down"
    facts = {
        "peer": peer.name,
        "incarnation": peer.incarnation,
        "fragment": p,
        "times": outsize.times,
        "refused": refused,
    }
    state.emit(Event("outsized", f"{done} {whose} in fragment {p}: {size}", facts))


def tell_refused(
    state: EngineState,
    p: int,
    refused: Mapping[PeerId, Outsize],
    told: Collection[PeerId] = (),
) -> None:
    """The round has refused the offers of these. Of those that are `told`, all learners hear by the
    seal. Of the others no seal speaks: an author that lives offers its work again; of one that is
    gone, or whose later process has its place in the round, nobody else can tell."""
    for peer, outsize in refused.items():
        if peer not in told:
            tell_outsized(state, p, peer, outsize, refused=True)


class Healing:
    """Replaces ruined weights by the anchor, and tells of it."""

    def __init__(self, state: EngineState, offers: Offers) -> None:
        self.state = state
        self.offers = offers
        #: By fragment, why it is to be given up once it stands still.
        self._ruined: dict[int, str] = {}

    def is_ruined(self, p: int) -> bool:
        """Whether a copy of fragment `p` that was made by now is to be given up."""
        return p in self._ruined

    def go_on(self, fragment: Progress) -> bool:
        """The fragment stands still. Returns whether its local progress is given up now."""
        why = self._ruined.pop(fragment.fragment, "")
        # Several fragments may be found to be ruined, one after the other: each gives all up.
        if not why or fragment.retake_pending:
            return False
        fragment.move()
        self.state.work(Retake(fragment.fragment, why))
        return True

    def not_offered(self, fragment: Progress, asked: PeerId | None, why: str) -> None:
        """The worker could make no offer of the weights, which the training thread copied for the
        sealer that asked, if any did. No `why`: it could, but they are ruined."""
        fragment.refused()
        self.offers.send_nothing(fragment, asked)
        if self.state.is_buffers(fragment.fragment):
            # Parameters are no worse for buffers that are not finite.
            self._ruined.setdefault(fragment.fragment, why)
            self.go_on(fragment)
        elif why:
            self._give_up(why)

    def sealed(self, fragment: Progress, seal: Seal, done: Done) -> None:
        """This learner has the anchor of a seal, and its fragment stands still."""
        why = ""
        for i, outsize in sorted(done.outsized.items()):
            entry = seal.members[i]
            tell_outsized(
                self.state, fragment.fragment, entry.peer, outsize, refused=not entry.steps
            )
            self.state.rounds[fragment.fragment].drop(entry.peer)
            if self.state.is_me(entry.peer):
                why = f"its offer was {TIMES.format(outsize.times)}"
        if why:
            self._give_up(why)

    def _give_up(self, why: str) -> None:
        for fragment in self.state.fragments:
            self.give_up(fragment, why)

    def give_up(self, fragment: Progress, why: str) -> None:
        """Give up the local progress in a fragment as soon as it stands still."""
        self._ruined.setdefault(fragment.fragment, why)
        if fragment.is_still:
            self.go_on(fragment)

    def retaken(self, job: Retake, done: Done) -> None:
        """The worker has given up the local progress, unless the anchor is not finite either."""
        state, p = self.state, job.fragment
        fragment = state.fragments[p]
        if done.fault:
            was_known = fragment.is_beyond_help
            fragment.retake_refused()
            if not was_known:
                state.fault(
                    f"fragment {p} cannot be healed, although {job.reason}: its anchor is not "
                    "finite either; load a checkpoint, or start this learner again"
                )
            return
        dropped = fragment.unmerged(state.totals).tokens
        fragment.retaken(state.totals, state.schedule)
        lineage, told = fragment.lineage, fragment.tell_dropped(state.totals)
        state.record(whole_anchor_record(p, lineage, lineage, "healed", dropped_tokens=told))
        text = f"fragment {p} goes on from the anchor, because {job.reason}: {dropped:,} tokens"
        facts = {"fragment": p, "reason": job.reason, "dropped_tokens": dropped}
        state.emit(Event("healed", f"{text} are dropped", facts))
