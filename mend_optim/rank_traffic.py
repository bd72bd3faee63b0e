"""The copies and corrections of a learner of several ranks that are on their way while it trains.

    training threads of all ranks                 their couriers                        the lead
    ─────────────────────────────────────────────────────────────────────────────────────────────────
    end of step n: word: "copy p, C of q comes"                                         holds p
    end of step n+1: each copies its part of p ─▶ the parts go to the lead
                     each expects C            ─▶ each gets its part of C
    end of step n+2: word n+1 is heard                                                  counts n+1:
                                                                                        offers p
    once the words of all say that they have C:
                     each adds its part of C                                            q rests on
                                                                                        its anchor

Under `adopt_after`, they add C at the end of the step at which it is due.

So a training thread pays for the copy and for the addition of its own part, and waits for nothing.
Only the training thread calls this."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from mend_optim.errors import UsageError
from mend_optim.model.graph_capture import beside_captures
from mend_optim.model.plain_mode import in_plain_mode
from mend_optim.own_tensors import OwnTensors
from mend_optim.ranks.carrier import Carrier
from mend_optim.ranks.copies_check import NONE, CopiesCheck, said
from mend_optim.ranks.courier import Courier
from mend_optim.ranks.orders import Deed, Order, decode_order, encode_order
from mend_optim.ranks.words import Table
from mend_optim.runtime import held_copies
from mend_optim.runtime.interrupts import Uninterrupted
from mend_optim.runtime.learner import Learner
from mend_optim.shared_tensors import correction_facts, own_part, updates_of, values_of
from mend_optim.worker.correction import Correction, Reading


class Collected(NamedTuple):
    """A copy that comes to the lead, and is not counted yet."""

    fragment: int
    values: Tensor
    moments: dict[str, Tensor]
    #: How many updates each rank's tensors have seen, by moment. The courier fills it in.
    updates: dict[str, list[list[int]]]


class Arrived(NamedTuple):
    """This rank's part of a correction that came."""

    #: How many corrections came before it. It is the same on all ranks.
    number: int
    #: The first step at whose end it may be added.
    due: int
    part: Correction


class Sent(NamedTuple):
    """A correction that the lead has told the ranks of."""

    correction: Correction
    #: The facts that they have to know of it, besides its values.
    facts: bytes


class RankTraffic:
    """One rank's part of the traffic. All ranks follow the same words, in the same order.

    Args:
        own: this rank's tensors.
        carrier: the way of its parts to the lead and back.
        courier: carries them.
        copies: compares what several ranks have.
        moments: the names of all moments that are averaged, in the same order on all ranks.
        hold_s: for how many seconds an anchor stands still at most, until it is copied.
    """

    def __init__(
        self,
        own: OwnTensors,
        carrier: Carrier,
        courier: Courier,
        copies: CopiesCheck,
        *,
        moments: Sequence[str],
        hold_s: float,
    ) -> None:
        self._own = own
        self._carrier = carrier
        self._courier = courier
        self._copies = copies
        self._moments = tuple(moments)
        self._hold_s = hold_s
        # The parts of corrections that this rank has whole and has not added. The courier appends
        # to it.
        self._arrived: list[Arrived] = []
        # How many corrections this rank has got so far, and how many of them all ranks have.
        self._staged = 0
        self._with_all = 0
        # On the lead: whole corrections that the ranks have not added yet, by number, and how many
        # it has told of so far.
        self._sent: dict[int, Sent] = {}
        self._told = 0
        # On the lead: copies that are not counted yet.
        self._collected: deque[Collected] = deque()
        # On the lead: the fragment that the last word told to copy.
        self._held: int | None = None
        # On the lead: whether a copy in passing was of no use. Then the ranks meet for the next.
        self._failed = False
        #: Reports a moment that no tensor has; on the lead.
        self.report_missing: Callable[[int, str], None] = lambda p, name: None

    # ── words ─────────────────────────────────────────────────────────────────────────────────────

    def news(self) -> dict[str, Any]:
        """The part of this rank's word that is about the traffic."""
        return {
            "staged": self._staged,
            "differs": isinstance(self._courier.fault, UsageError),
        }

    def plan(self, learner: Learner) -> dict[str, Any]:
        """On the lead, what its word tells all ranks to do at the end of the next step."""
        sent = {each.correction.fragment: n < self._with_all for n, each in self._sent.items()}
        plan = held_copies.plan(learner, sent, self._hold_s, in_passing=not self._failed)
        self._held = plan.copy
        told: dict[str, Any] = {"answer": plan.meets}
        if plan.copy is not None:
            bits = (1 << self._moments.index(name) for name in plan.moments)
            told |= {"copy": plan.copy, "moments": sum(bits)}
        if plan.correction is not None:
            facts = {**correction_facts(Deed.APPLY, plan.correction), "due": plan.due}
            order = Order(deed=Deed.APPLY, fragment=plan.correction.fragment, facts=facts)
            encoded = encode_order(order)
            self._sent[self._told] = Sent(plan.correction, encoded)
            self._told += 1
            told["comes"] = len(encoded)
        return told

    def check(self, table: Table) -> None:
        """Raise the error that has ended the courier's work: at once if it is this rank's own; if
        all ranks have it, at the same step on all of them."""
        fault = self._courier.fault
        if fault is not None and (table.differs or not isinstance(fault, UsageError)):
            raise fault

    # ── what the words say ────────────────────────────────────────────────────────────────────────

    def follow(self, table: Table, step: int, learner: Learner | None) -> None:
        """Do what the words of an earlier step say.

        Args:
            table: these words.
            step: the last step that is in the weights.
            learner: the lead's; None elsewhere.
        """
        self._with_all = table.staged
        ready = [a for a in self._arrived if a.number < self._with_all and a.due <= step]
        if not ready and table.copy < 0 and not table.comes:
            return
        with Uninterrupted():
            self._add(ready, step, learner)
            if table.copy >= 0:
                bits = table.moments
                moments = [name for i, name in enumerate(self._moments) if bits >> i & 1]
                self._copy(table.copy, moments, step, learner is not None)
            if table.comes:
                self._expect(table.comes, learner is not None)

    @in_plain_mode
    def _add(self, ready: Sequence[Arrived], step: int, learner: Learner | None) -> None:
        """Add the corrections that all ranks have and that are due."""
        if not ready:
            return
        with self._own.watch.moving():
            for arrived in ready:
                self._arrived.remove(arrived)
                self._own.apply(arrived.part, step)
                if learner is not None:
                    held_copies.adopted(learner, self._sent.pop(arrived.number).correction.fragment)

    @in_plain_mode
    def _copy(self, p: int, moments: Sequence[str], step: int, leads: bool) -> None:
        """Copy this rank's part, which the courier takes to the lead."""
        names = self._carrier.names(p)
        compares = self._copies.has_copies(names)
        samples = self._copies.samples(names) if compares else NONE
        flat: Tensor | None = None
        readings: dict[str, Reading] = {}
        if self._carrier.sends(p):
            flat = self._own.copy(p)
            readings = self._own.read(p, moments, step)
        ready = self._own.ready()
        collected = self._room(p, moments) if leads else None
        for name, reading in readings.items():
            if leads and not any(reading.updates):
                self.report_missing(p, name)

        def carry() -> None:
            if compares:
                with beside_captures():
                    line = said(samples)
                self._copies.refuse_strange(names, self._carrier.tell(line))
            ready()
            self._carrier.collect(p, flat, collected and collected.values)
            for name in moments:
                own = readings.get(name)
                out = collected and collected.moments[name]
                self._carrier.collect(p, own and own.values, out)
                told = self._carrier.collect_counts(p, own.updates if own else ())
                if collected:
                    collected.updates[name] = told

        self._courier.put(carry)

    def _room(self, p: int, moments: Sequence[str]) -> Collected:
        """On the lead, memory for what all ranks have copied."""
        whole = self._carrier.own[p].whole
        out = {name: self._own.pool.take(whole.numel) for name in moments}
        collected = Collected(p, self._own.pool.take(whole.numel), out, {})
        self._collected.append(collected)
        self._held = None
        return collected

    def _expect(self, nbytes: int, leads: bool) -> None:
        """A correction comes, and so many bytes that tell about it."""
        sent = self._sent[self._told - 1] if leads else None
        values = values_of(Deed.APPLY, sent.correction) if sent else []

        def receive() -> None:
            told = self._carrier.tell_of(sent.facts if sent else b"", nbytes)[0]
            order = decode_order(told)
            part = self._own.bring(own_part(self._carrier, order, values))
            self._arrived.append(Arrived(self._staged, order.facts["due"], part))
            self._staged += 1

        self._courier.put(receive)

    # ── the lead's engine ─────────────────────────────────────────────────────────────────────────

    def count(self, learner: Learner) -> None:
        """On the lead: the last step is counted whose words have been heard. Copies follow words,
        and no words are heard between a copy and the words of the step that it was made in. So all
        steps that are in the copies so far are counted: offer them."""
        while self._collected:
            collected = self._collected.popleft()
            if held_copies.counted(learner, collected.fragment):
                self._courier.put(partial(self._offer, learner, collected))
            else:
                self._failed = True

    def _offer(self, learner: Learner, made: Collected) -> None:
        """The copy is whole."""
        readings = {
            name: Reading(values, updates_of(self._carrier, made.fragment, made.updates[name]))
            for name, values in made.moments.items()
        }
        learner.submit(made.fragment, made.values, readings, lambda: None)

    # ── calls ─────────────────────────────────────────────────────────────────────────────────────

    def recall(self, learner: Learner | None) -> None:
        """The ranks meet: what no rank has added yet is the lead's again, and what was told and
        not yet done is not done. Waits for the couriers, and on the lead for the worker's present
        job."""
        self._courier.wait()
        self._arrived.clear()
        self._failed = False
        if learner is None:
            return
        if self._held is not None:
            held_copies.let_go(learner, self._held)
            self._held = None
        if self._sent:
            held_copies.give_back(learner, [sent.correction for sent in self._sent.values()])
            self._sent.clear()
        self._told = self._staged  # the last one that was told of may not have been sent
