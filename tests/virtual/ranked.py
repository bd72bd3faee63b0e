"""Learners of several ranks in the virtual cluster. Their copies are decided on one step before
they are made and counted one step after, and their corrections are added steps after they were
taken. In lockstep, each is made or added at exactly its step, and the ranks meet there if it cannot
be done in passing. The decisions are those of `runtime/held_copies.py`.

    python -m tests.virtual.ranked --replay STORM"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from types import MappingProxyType, SimpleNamespace
from typing import Any, ClassVar, NamedTuple
from unittest.mock import patch

from mend_optim.engine.mode import Mode
from mend_optim.engine.progress import Progress
from mend_optim.protocol.lineage import PeerId
from mend_optim.runtime import clock, held_copies
from mend_optim.runtime.held_copies import NOTHING, Plan
from tests.virtual.cluster import Cluster
from tests.virtual.process import Learner, Saved
from tests.virtual.storms import Fault, Storm, draw
from tests.virtual.units import Correction, Vector, add, stack

#: A correction is with all ranks after at most so many seconds; some steps last as long. In
#: lockstep, it is of use only if they have it before its step.
CARRY_S, CARRY_IN_LOCKSTEP_S = 4.0, 1.0
HOLD_S = 5.0


class Copied(NamedTuple):
    """A copy that is not counted yet."""

    fragment: int
    values: Vector


@dataclass
class Sent:
    """A correction on its way to the ranks."""

    correction: Correction
    due: int
    #: Whether all ranks have it, whether all have said so, and whether that was heard.
    is_staged: bool = False
    is_said: bool = False
    is_with_all: bool = False


class Standing(NamedTuple):
    """All that tells what is due in lockstep."""

    #: The mode, and where each fragment is in its cycle.
    copies: object = None
    #: The steps at which corrections are to be applied, by fragment, and whether they are sent.
    corrections: Mapping[tuple[int, bool], int | None] = MappingProxyType({})


class Ranked(Learner):
    """The lead of a learner of several ranks. The network and the courier are as slow as they
    like."""

    def __init__(
        self, cluster: Cluster, id: PeerId, address: str, saved: Saved | None = None
    ) -> None:
        super().__init__(cluster, id, address, saved)
        # The unit of the step whose words nobody has heard yet, and the step's duration.
        self.ahead: tuple[Vector, float | None] | None = None
        self.told: Plan = NOTHING
        # In lockstep: whether the ranks have agreed in their last call to meet at the next step.
        # Also the standing on which they have decided about that step, and about the one before.
        self.meets_next = False
        self.decided_on = self.decided_before = Standing()
        self.copies: list[Copied] = []
        self.offering: list[Copied] = []
        self.sent: list[Sent] = []
        self.failed = False

    @property
    def learner(self) -> Any:
        """The questions that `held_copies` asks of a learner."""
        return SimpleNamespace(
            mutex=nullcontext(),
            closed=False,
            engine=self.engine,
            worker=SimpleNamespace(mailbox=self.mailbox),
            dispatch_effects=lambda: None,
        )

    def decide(self, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Call a function of `held_copies` at this learner's time."""
        with patch.object(clock, "now", lambda: self.now):
            return function(self.learner, *args, **named)

    def awaited(self) -> set[int]:
        return super().awaited() | {sent.correction.fragment for sent in self.sent}

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def in_lockstep(self) -> bool:
        """Whether the ranks meet at the steps at which something is due, and at no others."""
        return bool(self.cluster.policies.schedule.adopt_after)

    def step(self) -> None:
        state = self.engine.state
        meets_always = self.cluster.policies.schedule.adopt_after == 0
        is_busy = self.copying or self.waiting or self.cluster.now < self.paused_until
        if is_busy or meets_always or not (self.trains and state.joined and state.totals.step):
            if not is_busy:
                self.recall()
            super().step()
            self.appoint()
            return
        self.count()
        self.cluster.trained += 1
        unit: Vector = {(self.id, state.totals.step + 1): 1}
        self.ahead = unit, self.step_s
        told, self.told = self.told, NOTHING
        self.decided_before = self.decided_on
        self.follow(told)
        if told.meets or self.meets_next:
            self.meet()
        else:
            self.plan()
            if self.in_lockstep:
                self.cluster.seen["went on in lockstep"] += 1
                self.decided_on = self.standing()
        for sent in self.sent:
            sent.is_said = sent.is_staged
        self.pump()
        self.step_s = self.cluster.step_s(self.name)
        self.cluster.after(self.step_s, self, self.step)

    def meet(self) -> None:
        """All ranks meet at the end of a step."""
        self.cluster.seen["met in a step"] += 1
        self.recall(meets=True)
        self.waits_until = self.cluster.now + self.cluster.policies.timing.round_timeout_s
        self.hand_over()
        self.appoint()

    def plan(self) -> None:
        """The lead's word says what all do at the end of the next step."""
        sent = {each.correction.fragment: each.is_with_all for each in self.sent}
        self.told = self.decide(held_copies.plan, sent, HOLD_S, in_passing=not self.failed)
        if self.told.correction:
            self.sent.append(Sent(self.told.correction, self.told.due))  # type: ignore[arg-type]

    def appoint(self) -> None:
        """A call of all ranks is over."""
        if self.in_lockstep and not self.waiting:
            self.meets_next = self.decide(held_copies.falls_due, 1)
            self.decided_on = self.standing()

    def standing(self) -> Standing:
        state = self.engine.state
        cycles = [(f.pending, f.cycle_start) for f in state.fragments]
        ready = [(p, False) for p in self.mailbox]
        ready += [(each.correction.fragment, True) for each in self.sent]
        due = {each: state.fragments[each[0]].adopt_at for each in ready}
        return Standing((state.mode, cycles), due)

    def hand_over(self) -> None:
        super().hand_over()
        boundaries = self.engine.boundaries
        if self.in_lockstep and not self.waiting and boundaries.must_wait():
            # Training does not wait for this anchor any longer.
            self.cluster.seen["waited in vain"] += 1
            boundaries.waited_out()

    def count(self, meets: bool = False) -> None:
        """The words of the last step are heard. `meets`: all ranks meet at the end of that step."""
        if self.ahead is None:
            return
        (unit, seconds), self.ahead = self.ahead, None
        self.engine.boundaries.stepped(1, seconds)
        if self.in_lockstep and not meets:
            self.check_lockstep()
        self.weights = [add(weights, unit) for weights in self.weights]
        self.cluster.oracle.worked(self, *unit)
        copies, self.copies = self.copies, []
        for copy in copies:
            if self.decide(held_copies.counted, copy.fragment):
                self.offering.append(copy)
                self.cluster.after(self.cluster.random.random(), self, self.offer, copy)
            else:
                self.failed = True
                self.cluster.seen["copied in vain"] += 1

    def check_lockstep(self) -> None:
        """The ranks have not met at the end of the last step. No anchor was due then, and what was
        copied is what was due, unless that could not be foreseen."""
        boundaries, before, now = self.engine.boundaries, self.decided_before, self.standing()
        fragments = self.engine.state.fragments
        in_vain = any(not fragments[copy.fragment].is_held for copy in self.copies)
        assert in_vain or not boundaries.must_wait(), "the ranks went on where an anchor was due"
        if before.copies == self.decided_on.copies == now.copies:
            due = [f.fragment for f in fragments if self.is_due(f)]
            in_time = due == [copy.fragment for copy in self.copies]
            assert in_time or self.failed, "a copy was not made in time"
            assert not boundaries.founding, "the ranks went on where all is copied"
        for each, adopt_at in before.corrections.items():
            stays = now.corrections.get(each, -1) == adopt_at
            assert not stays or boundaries.holds_back(each[0]), "the ranks left what came late"

    def is_due(self, fragment: Progress) -> bool:
        state = self.engine.state
        is_free = state.mode is Mode.TRAINING and fragment.pending is None
        return is_free and state.schedule.due(state.totals.step, fragment.cycle_start)

    def follow(self, told: Plan) -> None:
        """Do what the words of the last step said."""
        step = self.engine.state.totals.step + 1
        for sent in list(self.sent):
            sent.is_with_all = sent.is_said
            if sent.is_with_all and sent.due <= step:
                self.cluster.seen["added in passing"] += 1
                adopt_at = self.engine.state.fragments[sent.correction.fragment].adopt_at
                assert step >= (adopt_at or 0), "a correction was added too early"
                self.sent.remove(sent)
                self.put(sent.correction)
        if told.copy is not None:
            assert self.ahead is not None
            self.cluster.seen["copied in passing"] += 1
            self.copies.append(Copied(told.copy, add(self.weights[told.copy], self.ahead[0])))
        if told.correction:
            longest_s = CARRY_IN_LOCKSTEP_S if self.in_lockstep else CARRY_S
            carry_s = longest_s * self.cluster.random.random()
            self.cluster.after(carry_s, self, self.stage, self.sent[-1])

    def put(self, correction: Correction) -> None:
        p, oracle = correction.fragment, self.cluster.oracle
        before, key = self.agreed(p), (self.id, p)
        former, superseded = set(oracle.former[key]), set(oracle.superseded[key])
        assert not correction.replace
        self.weights[p] = add(self.weights[p], correction.values)
        self.disagreement[p] = correction.disagreement
        self.decide(held_copies.adopted, p)
        oracle.moved(self, p, before, self.agreed(p), 0)
        if p in self.mailbox:
            # The anchor has moved on: the ledger's words are about what is still to be added.
            oracle.former[key] |= former
            oracle.superseded[key] |= superseded

    def stage(self, sent: Sent) -> None:
        sent.is_staged = True

    def offer(self, copy: Copied) -> None:
        """The copy is whole at the lead."""
        if copy in self.offering:
            self.offering.remove(copy)
            self.engine.boundaries.snapshot(copy.fragment, copy.values)  # type: ignore[arg-type]
            self.pump()

    # ── calls ─────────────────────────────────────────────────────────────────────────────────────

    def recall(self, meets: bool = False) -> None:
        """All ranks meet in a call. `meets`: it is the end of a step."""
        self.count(meets)
        for copy in list(self.offering):
            self.offer(copy)
        self.failed = False
        if self.told.copy is not None:
            self.decide(held_copies.let_go, self.told.copy)
        self.told = NOTHING
        for sent in self.sent:
            p = sent.correction.fragment
            newer = self.mailbox.pop(p, None)
            self.mailbox[p] = stack(sent.correction, newer) if newer else sent.correction
            self.cluster.seen["recalled"] += 1
        self.sent.clear()

    def save(self) -> Saved | None:
        self.recall()
        saved = super().save()
        self.appoint()
        return saved

    def roll_back(self, to: Saved) -> bool:
        self.recall()
        taken = super().roll_back(to)
        self.appoint()
        return taken

    def reset_progress(self) -> bool:
        self.recall()
        done = super().reset_progress()
        self.appoint()
        return done

    def extend(self) -> None:
        """`add_param_group()` is refused."""


class Fleet(Cluster):
    """Every second learner has several ranks."""

    def make(self, id: PeerId, address: str, saved: Saved | None) -> Learner:
        is_ranked = self.names.index(id.name) % 2 == 0
        return (Ranked if is_ranked else Learner)(self, id, address, saved)


@dataclass(frozen=True)
class RankedStorm(Storm):
    """A storm over learners of which every second one has several ranks."""

    module: ClassVar[str] = "tests.virtual.ranked"
    cluster_type: ClassVar[type[Cluster]] = Fleet
    #: The period is so many steps longer.
    longer: int = 0

    @property
    def sync_every(self) -> int:
        return super().sync_every + self.longer


def ranked(seed: int, wide: bool = False) -> RankedStorm:
    """The storm of that seed, over such learners. Buffers and groups that are added are refused
    there."""
    storm = draw(seed, wide)
    told = {field.name: getattr(storm, field.name) for field in fields(Storm)}
    faults = tuple(fault for fault in storm.faults if fault.kind != "extend")
    return RankedStorm(**{**told, "buffers": False, "faults": faults})


def ranked_in_lockstep(seed: int) -> RankedStorm:
    """The same where corrections are due at exact steps."""
    draws = random.Random(f"overlap of {seed}")
    storm, longer = ranked(seed), draws.choice([0, 4, 8])
    overlap = draws.choice([1, 2, 3, *[3 + longer] * 3])
    return replace(storm, longer=longer, adopt_after=overlap, seconds=storm.seconds + longer)


def main() -> None:
    parser = argparse.ArgumentParser(description="Play a storm again that was printed.")
    parser.add_argument("--replay", metavar="STORM", required=True)
    storm = eval(parser.parse_args().replay, {"RankedStorm": RankedStorm, "Fault": Fault})
    print(f"nothing went wrong: {dict(storm.play().seen)}")


if __name__ == "__main__":
    main()
