"""Asking peers for the anchors that they show, and waiting for them.

    ──want──▶ wanted ──the anchor comes──▶ taken, or held
                │
                └── it does not come ──▶ its peer is doubted, and another one asked

One peer at a time is asked for a fragment. Where several have the anchors, each sends its share
(`sources.py`). Where the seals that are lacking are fewer bytes, the sealer is asked for one after
the other (`seal_by_seal.py`).

A sealer whose anchor is not believed is asked for seals alone. If it has none on our anchor, it
hands over its whole one, which is held. That is no failure: the peer is asked for no seals for a
while, but its anchor is to be had as soon as it is believed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from mend_optim.engine.claims import Claims
from mend_optim.engine.effects import Send
from mend_optim.engine.majority import Majority
from mend_optim.engine.others import Others
from mend_optim.engine.passages import Passages, Way
from mend_optim.engine.pending import NEVER, Pending
from mend_optim.engine.progress import Progress
from mend_optim.engine.seal_by_seal import SealBySeal
from mend_optim.engine.sources import Sources
from mend_optim.engine.state import EngineState
from mend_optim.engine.wanted import Wanted
from mend_optim.membership.zones import are_neighbours
from mend_optim.protocol.lineage import NOWHERE, Key, PeerId
from mend_optim.protocol.messages import Report, Seal, State, Want
from mend_optim.protocol.transfer_fault import TransferFault

#: Rounds of a fragment wait for no more than so many times the patience until it is mended.
MENDING = 4
#: Of a peer without a beat, or without the fragment.
NO_REPORT = Report(NOWHERE)


class Pulling:
    """Pulls greater anchors, and remembers whose do not come."""

    def __init__(self, state: EngineState, majority: Majority, passages: Passages) -> None:
        self.state = state
        self.majority = majority
        self.passages = passages
        self.sources = Sources(state, majority)
        self.seal_by_seal = SealBySeal(state)
        #: The peers that have handed over whole anchors where only a seal was to be had.
        self._seal_less = Claims()

    def catch_up(
        self, now: float, fragment: Progress, key: Key, peer: PeerId, others: Others | None = None
    ) -> None:
        """Pull a greater anchor, unless its seal is about to come down the stream that our offer
        went up: a whole anchor is larger than a seal, and would come beside it.

        That is not for long if no bytes come: a sealer that died may have told the others of its
        anchor, and nobody else has the seal. An anchor that moves may be about to be that one."""
        state = self.state
        if state.switch:
            return  # another model is about to take the place of this one
        if key <= fragment.lineage.key:
            wanted = state.wants.get(fragment.fragment)
            kept = wanted and (wanted.gives_way or wanted.mends)
            if wanted and wanted.peer == peer and not kept:
                # The peer showed more a moment ago, but has nothing to answer with.
                del state.wants[fragment.fragment]
            return
        if fragment.is_about_to_move:
            return
        others = others or Others(state)
        believes = self.majority.believes
        is_believed = believes(fragment, key, peer, others)
        if not is_believed and not self._seals(fragment, peer, key, others):
            return
        since = fragment.seen_behind(now)
        coming = self._coming(fragment, key, peer)
        patience = state.policies.timing.suspect_after_s + (coming.seal_s if coming else 0.0)
        if coming and now - since < patience:
            return
        holder = self._holder(fragment, key, peer)
        if not holder and now - since < state.policies.timing.suspect_after_s:
            return
        asked, key = self.seal_by_seal.rather_than(now, fragment, holder or peer, key, others)
        if asked is None or self.seal_by_seal.is_coming(now, fragment.fragment, asked):
            return
        is_believed = is_believed if asked == peer else believes(fragment, key, asked, others)
        self.want(now, fragment, asked, key, seal_only=not is_believed)

    def _holder(self, fragment: Progress, key: Key, peer: PeerId) -> PeerId | None:
        """The learner to ask for the anchor that a peer shows: the former sealer, if its last seal
        leads to that; None while it may, as its last beat is older. That one has merged our offer.
        If we have none, or the present sealer holds it, its seal is another one."""
        state, p, own, pending = self.state, fragment.fragment, fragment.lineage, fragment.pending
        former = state.former_sealers.that_may_have_sealed(p, own.digest)
        shown = state.shown_by(former, p) if former else None
        if former is None or shown is None or key.version != own.version + 1:
            return peer
        if pending is None or self._is_left_out(pending, p, key):
            return peer
        doubted = state.claims.doubts(former) or self._seal_less.doubts(former)
        if doubted or are_neighbours(state.roster, state.me, peer):
            return peer  # what crosses between zones is dear
        return former if shown >= key else None

    def _coming(self, fragment: Progress, key: Key, peer: PeerId) -> Pending | None:
        """The pending offer, if a seal is about to come to it that leads to the anchor that a peer
        shows. The learner that has the offer may show that anchor itself, or later than others."""
        state, pending = self.state, fragment.pending
        if pending is None or not pending.delivered or pending.sent_to is None:
            return None
        holder = state.roster.find(pending.sent_to)
        is_next = key.version == fragment.lineage.version + 1
        if holder is None or not (is_next or holder.id == peer):
            return None
        return None if self._is_left_out(pending, fragment.fragment, key) else pending

    def _is_left_out(self, pending: Pending, p: int, key: Key) -> bool:
        """Whether an anchor was sealed without the pending offer: the learner that has the offer
        shows such an anchor, and still holds it."""
        holder = self.state.roster.find(pending.sent_to) if pending.sent_to else None
        beat = holder.beat if holder else None
        report = beat.reports[p] if beat and p < len(beat.reports) else NO_REPORT
        return report.key >= key and (self.state.me, pending.seq) in report.held

    def missed(self, now: float, fragment: Progress, seal: Seal) -> None:
        """A seal came that is not on our anchor: ask its sealer for what we lack, or the go-between
        that it came through."""
        through = is_between(self.state, fragment, seal.sender, seal.sealer)
        sealer = seal.sender if through else seal.sealer
        if self.state.is_me(sealer):
            return
        others = Others(self.state)
        is_believed = self.majority.believes(fragment, seal.key, sealer, others)
        if self.state.roster.may_seal(fragment.fragment, sealer):
            self.seal_by_seal.keep(seal)
        if is_believed or self._seals(fragment, sealer, seal.key, others):
            self.want(now, fragment, sealer, seal.key, seal_only=not is_believed)

    def _seals(self, fragment: Progress, peer: PeerId, key: Key, others: Others) -> bool:
        """Whether we expect the seals of a fragment of this peer, the last of which leads to that
        anchor: of the sealer, or the go-between that has our offer for it; or one more, of a former
        sealer."""
        state, p = self.state, fragment.fragment
        sealer = others.sealer(p)
        passes_on = sealer is not None and is_between(state, fragment, peer, sealer)
        former = state.former_sealers.may_have_sealed(p, peer, fragment.lineage.digest)
        is_next = key.version == fragment.lineage.version + 1
        return peer == sealer or passes_on or (former and is_next)

    def want(
        self,
        now: float,
        fragment: Progress,
        peer: PeerId,
        key: Key,
        *,
        whole: bool = False,
        gives_way: bool = False,
        seal_only: bool = False,
        mends: bool = False,
    ) -> None:
        """Ask a peer for the anchor that it shows: `whole`, or for the seal on ours. If it is
        believed, and more than a round ahead, it comes sooner as a whole, unless the seals on the
        way to it are fewer bytes."""
        state, p = self.state, fragment.fragment
        doubted = state.claims.doubts(peer) or (seal_only and self._seal_less.doubts(peer))
        if p in state.wants or doubted:
            return
        if key.version > fragment.lineage.version + 1 and not seal_only:
            others = Others(state)
            whole = whole or self.seal_by_seal.source(fragment, key, others) != peer
        wanted = Wanted(
            peer,
            key,
            since=now,
            until=now + state.policies.timing.round_timeout_s,
            whole=whole,
            gives_way=gives_way,
            seal_only=seal_only,
            mends=mends,
        )
        if not wanted.catches_up or self.sources.may_ask(now, fragment, peer, key):
            self._ask(fragment, wanted)

    def overtake(self, now: float, peer: PeerId) -> None:
        """Ask a peer that has nothing left to send for what a far slower one still sends. If that
        fails, the slower one is waited for again: what it has sent is not lost."""
        fragment = self.sources.overtaken(now, peer)
        if fragment:
            slow = self.state.wants[fragment.fragment]
            until = now + self.state.policies.timing.round_timeout_s
            fast = replace(slow, peer=peer, since=now, until=until, overtaken=slow)
            self._ask(fragment, fast)

    def _ask(self, fragment: Progress, wanted: Wanted) -> None:
        state, p = self.state, fragment.fragment
        state.wants[p] = wanted
        want = Want(state.me, p, b"" if wanted.whole else fragment.has)
        state.emit(Send(wanted.peer, want))

    def asks_anew(self, now: float, fragment: Progress, held: State) -> bool:
        """Ask for the greater anchor that the peer of a kept one shows by now, if it is believed,
        too. The kept one may be older than the last seals that the peer has: after it, this learner
        would be as far behind as before."""
        key = self.state.shown_by(held.peer, held.fragment)
        if key is None or key.version <= held.lineage.version:
            return False
        if self.state.claims.doubts(held.peer):
            return False
        if not self.majority.believes(fragment, key, held.peer):
            return False
        former = self.state.wants[held.fragment]
        if former.mends and held.lineage != fragment.lineage:
            return False  # seals bring what it lacks, once ours is right
        del self.state.wants[held.fragment]
        self.want(now, fragment, held.peer, key, whole=former.mends, mends=former.mends)
        wanted = self.state.wants.get(held.fragment)
        if wanted and wanted.mends:
            wanted.since = former.since
            self._prolong(now, wanted)
        return True

    def is_answer(self, seal: Seal, fragment: Progress) -> bool:
        """Whether a seal was passed on by the peer that was asked, and leads to what most learners
        have."""
        wanted = self.state.wants.get(seal.fragment)
        asked = wanted is not None and wanted.peer == seal.passed_by
        return asked and self.majority.believes(fragment, seal.key, seal.sender)

    def in_vain(self, now: float, peer: PeerId, p: int) -> None:
        """A peer's answer is not taken. Another one may be asked; it itself is, after a pause."""
        wanted = self.asked_of(peer, p)
        if wanted and wanted.held is None:
            self.give_up(p, wanted)
            self.doubt(now, peer, wanted.since)

    def asked_of(self, peer: PeerId, p: int) -> Wanted | None:
        """What a peer was asked for of fragment `p`, and has not handed over yet."""
        asked = self.state.wants.get(p, ())
        return next((wanted for wanted in asked if wanted.peer == peer), None)

    def give_up(self, p: int, wanted: Wanted) -> None:
        """Wait for one peer's anchor no longer. If another peer sends it, too, it may still come
        from that one."""
        other = next((each for each in self.state.wants.pop(p) if each is not wanted), None)
        if other:
            other.overtaken = None
            self.state.wants[p] = other

    def heard(self, now: float, peer: PeerId, p: int) -> None:
        """Bytes of fragment `p` arrived from a peer, so the anchors that we want of it are still
        coming."""
        self.seal_by_seal.heard(now, peer, p)
        for wanted in self._asked():
            if wanted.peer == peer:
                self._prolong(now, wanted)

    def _prolong(self, now: float, wanted: Wanted) -> None:
        patience_s = self.state.policies.timing.round_timeout_s
        latest = wanted.since + MENDING * patience_s if wanted.mends else NEVER
        wanted.until = min(now + patience_s, latest)

    def unreachable(self, now: float, peer: PeerId, p: int, fault: TransferFault) -> None:
        """That peer cannot give us the anchor of fragment `p` that we wanted."""
        wanted = self.asked_of(peer, p)
        began = wanted.since if wanted else now
        self.passages.failed(now, peer, Way.FROM, p, began=began, fault=fault)
        if wanted:
            self.give_up(p, wanted)
            self.doubt(now, peer, began)
        self._go_on_without(peer)

    def handed_over(self, now: float, peer: PeerId, *, kept: bool) -> None:
        """The worker has installed the whole anchors of a peer, or refused their bytes."""
        if kept:
            self.state.claims.kept(peer)
            self._seal_less.kept(peer)
        elif not self.state.is_me(peer):
            self.doubt(now, peer, now)

    def doubt(self, now: float, peer: PeerId, since: float) -> None:
        """An anchor that was asked for at `since` did not come. A peer that could hand over no
        seals before has used up some of the patience for it."""
        self.state.claims.count_in(peer, self._seal_less)
        self._wait(now, self.state.claims, peer, since)

    def _wait(self, now: float, claims: Claims, peer: PeerId, since: float) -> None:
        state = self.state
        until = claims.failed(now, peer, now - since, state.policies.timing.beat_s)
        state.wake_by(until)

    def expire(self, now: float) -> None:
        """Stop waiting for answers that did not come, or are of peers that may be gone: somebody
        else has them, too."""
        state = self.state
        self.passages.review()
        for claims in (state.claims, self._seal_less):
            claims.expire(now, state.roster.peers)
        alive = state.roster.alive()
        for p, asked in list(state.wants.items()):
            for wanted in list(asked):
                if now >= wanted.until:
                    self._was_late(now, wanted)
                if now >= wanted.until or wanted.peer not in alive:
                    self.give_up(p, wanted)
        if state.switch and state.switch.peer not in {wanted.peer for wanted in self._asked()}:
            self._go_on_without(state.switch.peer)

    def _was_late(self, now: float, wanted: Wanted) -> None:
        if wanted.seal_only and wanted.held:
            self._wait(now, self._seal_less, wanted.peer, wanted.since)
        else:
            self.doubt(now, wanted.peer, wanted.since)

    def _asked(self) -> Iterator[Wanted]:
        """All that was asked for, also of peers that were overtaken."""
        return chain.from_iterable(self.state.wants.values())

    def _go_on_without(self, peer: PeerId) -> None:
        """A peer sends no more of the model on its way. Others that were asked for parts of it may
        send theirs."""
        switch = self.state.switch
        if switch is None or switch.complete or switch.peer != peer:
            return
        others = {wanted.peer for wanted in self._asked()} - {peer}
        if others:
            switch.peer = min(others)
        else:
            self.state.end_switch()

    # ── hold rounds back ──────────────────────────────────────────────────────────────────────────

    def behind(self, fragment: Progress, *, believed: bool = False) -> bool:
        """Whether a live peer shows a greater anchor of this fragment. With `believed`, only those
        count that this learner would take."""
        state, own = self.state, self.state.key(fragment)
        return any(
            key > own and not (believed and self._holds(fragment, key, peer))
            for peer, key in state.shown(fragment.fragment)
        )

    def _holds(self, fragment: Progress, key: Key, peer: PeerId) -> bool:
        """Whether a greater anchor that a peer claims is not to be had now."""
        return self.state.claims.doubts(peer) or not self.majority.believes(fragment, key, peer)

    def behind_until(self, now: float, fragment: Progress) -> float:
        """Until when rounds wait for a greater anchor; in the past if they don't. A round on our
        anchor would cost the work in the greater one, so that one comes first. A peer may be unable
        to hand it over: it is waited for no longer than a transfer may stand, and not at all while
        the peer is doubted. It may have been shown while ours moved, when nothing is asked for.

        After a stop the others surely went on, and their links with this learner may break as it
        goes on: then they are waited for as long as for their answers, also if they are doubted or
        suspected."""
        timing = self.state.policies.timing
        if self.behind(fragment, believed=True):
            return fragment.seen_behind(now) + timing.round_timeout_s
        if not self.behind(fragment):
            fragment.not_behind()
        answers_by = self.state.stops.began_at(now) + timing.evict_after_s
        return answers_by if now < answers_by and self._was_shown_more(fragment) else -NEVER

    def _was_shown_more(self, fragment: Progress) -> bool:
        """Whether any peer, also one that is suspected or doubted, has shown a greater anchor of
        this fragment that this learner believes."""
        state, p, own = self.state, fragment.fragment, self.state.key(fragment)
        beats = [beat for beat in state.roster.beats(state.genesis) if p < len(beat.reports)]
        greater = [(b.peer, b.reports[p].key) for b in beats if b.reports[p].key > own]
        return any(self.majority.believes(fragment, key, peer) for peer, key in greater)


def is_between(state: EngineState, fragment: Progress, peer: PeerId | None, sealer: PeerId) -> bool:
    """Whether a peer passes the seals of a sealer on that we do not reach: it has our offer, or
    would get it if there were one. In the latter case that learner must be the sealer: anybody may
    say that it reaches a learner that nobody knows."""
    roster, known, pending = state.roster, state.roster.find(sealer), fragment.pending
    if peer is None or state.is_me(sealer) or (known is not None and known.linked):
        return False
    if pending is not None and pending.sent_to is not None:
        return pending.sent_to == peer
    between = roster.go_betweens.choose(fragment.fragment, sealer, zone=roster.zone)
    return peer == between and roster.may_seal(fragment.fragment, sealer)
