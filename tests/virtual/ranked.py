"""Learners of several ranks in the virtual cluster. Their copies are decided on one step before
they are made and counted one step after, and their corrections are added steps after they were
taken. The decisions are those of `runtime/held_copies.py`.

    python -m tests.virtual.ranked --replay STORM"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple
from unittest.mock import patch

from mend_optim.protocol.lineage import PeerId
from mend_optim.runtime import held_copies
from mend_optim.runtime.held_copies import NOTHING, Plan
from tests.virtual.cluster import Cluster
from tests.virtual.process import Learner, Saved
from tests.virtual.storms import Fault, Storm, draw
from tests.virtual.units import Correction, Vector, add, stack

#: A correction is with all ranks after at most so many seconds; some steps last as long.
CARRY_S = 4.0
HOLD_S = 5.0


class Copied(NamedTuple):
    """A copy that is not counted yet."""

    fragment: int
    values: Vector


@dataclass
class Sent:
    """A correction on its way to the ranks."""

    correction: Correction
    is_staged: bool = False


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
        with patch.object(held_copies, "time", SimpleNamespace(monotonic=lambda: self.now)):
            return function(self.learner, *args, **named)

    def awaited(self) -> set[int]:
        return super().awaited() | {sent.correction.fragment for sent in self.sent}

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────

    def step(self) -> None:
        state = self.engine.state
        lockstep = self.cluster.policies.schedule.lockstep
        is_busy = self.copying or self.waiting or self.cluster.now < self.paused_until
        if is_busy or lockstep or not (self.trains and state.joined and state.totals.step):
            if not is_busy:
                self.recall()
            super().step()
            return
        self.count()
        self.cluster.trained += 1
        unit: Vector = {(self.id, state.totals.step + 1): 1}
        self.ahead = unit, self.step_s
        told, self.told = self.told, NOTHING
        self.follow(told)
        if told.meets:
            self.cluster.seen["met in a step"] += 1
            self.recall()
            self.hand_over()
        else:
            busy = {sent.correction.fragment for sent in self.sent}
            passing = not self.failed
            self.told = self.decide(held_copies.plan, busy, HOLD_S, in_passing=passing)
            if self.told.correction:
                self.sent.append(Sent(self.told.correction))  # type: ignore[arg-type]
        self.pump()
        self.step_s = self.cluster.step_s(self.name)
        self.cluster.after(self.step_s, self, self.step)

    def count(self) -> None:
        """The words of the last step are heard."""
        if self.ahead is None:
            return
        (unit, seconds), self.ahead = self.ahead, None
        self.engine.boundaries.stepped(1, seconds)
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

    def follow(self, told: Plan) -> None:
        """Do what the words of the last step said."""
        while self.sent and self.sent[0].is_staged:
            correction = self.sent.pop(0).correction
            self.cluster.seen["added in passing"] += 1
            self.put(correction)
        if told.copy is not None:
            assert self.ahead is not None
            self.cluster.seen["copied in passing"] += 1
            self.copies.append(Copied(told.copy, add(self.weights[told.copy], self.ahead[0])))
        if told.correction:
            carry_s = CARRY_S * self.cluster.random.random()
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

    def recall(self) -> None:
        """All ranks meet in a call."""
        self.count()
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
        return super().save()

    def roll_back(self, to: Saved) -> bool:
        self.recall()
        return super().roll_back(to)

    def reset_progress(self) -> bool:
        self.recall()
        return super().reset_progress()

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


def ranked(seed: int, wide: bool = False) -> RankedStorm:
    """The storm of that seed, over such learners. Buffers and groups that are added are refused
    there."""
    storm = draw(seed, wide)
    told = {field.name: getattr(storm, field.name) for field in fields(Storm)}
    faults = tuple(fault for fault in storm.faults if fault.kind != "extend")
    return RankedStorm(**{**told, "buffers": False, "faults": faults})


def main() -> None:
    parser = argparse.ArgumentParser(description="Play a storm again that was printed.")
    parser.add_argument("--replay", metavar="STORM", required=True)
    storm = eval(parser.parse_args().replay, {"RankedStorm": RankedStorm, "Fault": Fault})
    print(f"nothing went wrong: {dict(storm.play().seen)}")


if __name__ == "__main__":
    main()
