"""The traffic between the ranks of a learner, with couriers that are as slow as a test likes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mend_optim import UsageError, rank_traffic
from mend_optim.rank_traffic import RankTraffic
from mend_optim.ranks.copies_check import Samples
from mend_optim.ranks.words import Call, Table, Word
from mend_optim.runtime.held_copies import NOTHING, Plan
from mend_optim.worker.correction import Correction, Reading
from tests import reference

MOMENTS = ("first", "second")


class SlowCourier:
    """Does errands when it is told to."""

    def __init__(self) -> None:
        self.errands: list[Callable[[], None]] = []
        self.fault: BaseException | None = None

    def put(self, work: Callable[[], None]) -> None:
        self.errands.append(work)

    def do(self, count: int) -> None:
        for _ in range(min(count, len(self.errands))):
            try:
                self.errands.pop(0)()
            except Exception as error:
                self.fault = self.fault or error

    def wait(self) -> None:
        self.do(len(self.errands))
        if self.fault:
            raise self.fault


class Engine:
    """In the place of `held_copies`: does what a script says, and writes down what it is told."""

    def __init__(self, *plans: Plan) -> None:
        self.plans = list(plans)
        self.told: list[tuple[Any, ...]] = []
        self.takes = True

    def plan(self, learner: Any, sent: dict[int, bool], hold_s: float, *, in_passing: bool) -> Plan:
        self.told.append(("plan", sent, in_passing))
        return self.plans.pop(0) if self.plans else NOTHING

    def counted(self, learner: Any, p: int) -> bool:
        self.told.append(("counted", p))
        return self.takes

    def adopted(self, learner: Any, p: int) -> None:
        self.told.append(("adopted", p))

    def let_go(self, learner: Any, p: int) -> None:
        self.told.append(("let go", p))

    def give_back(self, learner: Any, corrections: list[Correction]) -> None:
        self.told.append(("back", [correction.fragment for correction in corrections]))


class Rank:
    """One rank, and what it has done with its weights."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.courier = SlowCourier()
        self.added: list[tuple[int, int]] = []
        self.copied: list[int] = []
        self.collected: list[tuple[Any, ...]] = []
        self.same = True
        self.traffic = RankTraffic(
            self,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            self.courier,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            moments=MOMENTS,
            hold_s=60.0,
        )
        self.learner: Any = None
        if number == 0:
            self.offers: list[tuple[int, Any, dict[str, Reading]]] = []
            self.learner = SimpleNamespace(
                submit=lambda p, values, readings, ready: self.offers.append((p, values, readings))
            )

    # as `OwnTensors`

    @property
    def watch(self) -> Any:
        @contextmanager
        def moving() -> Iterator[None]:
            yield

        return SimpleNamespace(moving=moving)

    @property
    def pool(self) -> Any:
        return SimpleNamespace(take=torch.zeros)

    def bring(self, correction: Correction) -> Correction:
        return correction

    def apply(self, correction: Correction, steps: int) -> None:
        self.added.append((steps, correction.fragment))

    def copy(self, p: int) -> torch.Tensor:
        self.copied.append(p)
        return torch.full((2,), float(self.number))

    def read(self, p: int, names: list[str], steps: int) -> dict[str, Reading]:
        return {name: Reading(torch.ones(2), (steps,)) for name in names}

    def ready(self) -> Callable[[], None]:
        return lambda: None

    # as `Carrier`

    def names(self, p: int) -> frozenset[str]:
        return frozenset("w")

    def sends(self, p: int) -> bool:
        return True

    @property
    def own(self) -> Any:
        whole = SimpleNamespace(numel=2, tensors=(0,))
        return [SimpleNamespace(whole=whole) for _ in range(3)]

    def part(self, rank: int, p: int) -> Any:
        return SimpleNamespace(places=(0,), pieces=(SimpleNamespace(numel=2),))

    def collect(self, p: int, own: Any, out: Any) -> None:
        self.collected.append((p, own is not None, out is not None))
        if out is not None:
            out.copy_(own)

    def collect_counts(self, p: int, own: Any) -> list[list[int]]:
        return [list(own), [5]] if self.number == 0 else []

    def tell(self, data: bytes) -> list[bytes]:
        return [data]

    def tell_of(self, data: bytes, nbytes: int) -> list[bytes]:
        assert (len(data) == nbytes) if self.number == 0 else not data
        return [FACTS[self.traffic._staged]]

    # as `CopiesCheck`

    def has_copies(self, names: frozenset[str]) -> bool:
        return True

    def samples(self, names: frozenset[str]) -> Samples:
        return Samples([torch.ones(1)], [])

    def refuse_strange(self, names: frozenset[str], told: list[bytes]) -> None:
        assert told == [b"[[1.0]]"]
        if not self.same:
            raise UsageError("parameter w must be the same on ranks 0 and 1")


#: The facts that the lead has told of each correction, in the order in which they came.
FACTS: list[bytes] = []


class Ranks:
    """Ranks that step together."""

    def __init__(self, size: int, *plans: Plan) -> None:
        FACTS.clear()
        self.ranks = [Rank(number) for number in range(size)]
        self.engine = Engine(*plans)
        self.step = 0
        self.table: Table | None = None

    def steps(self, done: list[int] | None = None) -> Table:
        """One step of all ranks, before whose words each courier does so many errands. Returns
        their words."""
        self.step += 1
        told = self.table
        with patch.object(rank_traffic, "held_copies", self.engine):
            words = [self._step(rank, told, (done or [99] * 9)[rank.number]) for rank in self.ranks]
        self.table = Table(words)
        return self.table

    def _step(self, rank: Rank, told: Table | None, errands: int) -> Word:
        if told is not None:
            if rank.learner:
                rank.traffic.count(rank.learner)
            rank.traffic.check(told)
            rank.traffic.follow(told, self.step, rank.learner)
        plan: dict[str, Any] = rank.traffic.plan(rank.learner) if rank.learner else {}
        if plan.get("comes"):
            FACTS.append(list(rank.traffic._sent.values())[-1].facts)
        rank.courier.do(errands)
        return Word(call=Call.STEP, step=self.step, **rank.traffic.news(), **plan)

    def recall(self) -> None:
        with patch.object(rank_traffic, "held_copies", self.engine):
            for rank in self.ranks:
                rank.traffic.recall(rank.learner)
        del FACTS[self.ranks[0].traffic._staged :]


def comes(p: int, due: int = 0) -> Plan:
    return Plan(correction=Correction(p, torch.zeros(2), replace=False), due=due)


@pytest.fixture(autouse=True)
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    def own_part(carrier: Rank, order: Any, values: Any) -> Correction:
        assert len(values) == (carrier.number == 0)
        return Correction(order.fragment, torch.zeros(1), replace=order.facts["replace"])

    monkeypatch.setattr(rank_traffic, "own_part", own_part)


def copies(p: int, *moments: str) -> Plan:
    return Plan(copy=p, moments=moments)


def test_a_copy_is_made_a_step_after_it_was_told_and_offered_a_step_later() -> None:
    ranks = Ranks(2, copies(1, "second"))
    ranks.steps()
    assert [rank.copied for rank in ranks.ranks] == [[], []]
    ranks.steps()
    assert [rank.copied for rank in ranks.ranks] == [[1], [1]]
    lead = ranks.ranks[0]
    assert lead.offers == []
    ranks.steps()
    assert ("counted", 1) in ranks.engine.told
    ((p, values, readings),) = lead.offers
    assert (p, values.tolist()) == (1, [0.0, 0.0])
    # The fewest updates that any part has seen; the copy was made at the end of step 2.
    assert {name: reading.updates for name, reading in readings.items()} == {"second": (2,)}
    assert lead.collected == [(1, True, True)] * 2
    assert ranks.ranks[1].collected == [(1, True, False)] * 2


def test_a_copy_of_no_use_is_not_offered_and_the_ranks_meet_for_the_next() -> None:
    ranks = Ranks(2, copies(0))
    ranks.engine.takes = False
    for _ in range(3):
        ranks.steps()
    assert ranks.ranks[0].offers == []
    assert ranks.engine.told[-1] == ("plan", {}, False)
    ranks.recall()
    ranks.steps()
    assert ranks.engine.told[-1] == ("plan", {}, True)


def test_a_courier_that_is_late_delays_the_offer_and_nothing_else() -> None:
    ranks = Ranks(2, copies(0))
    for _ in range(4):
        ranks.steps([0, 0])
    assert ranks.ranks[0].offers == []
    ranks.steps()
    assert len(ranks.ranks[0].offers) == 1


@given(
    size=st.integers(1, 4),
    plans=st.lists(st.none() | st.just(0) | st.integers(1, 20), max_size=6),
    errands=st.lists(st.lists(st.integers(0, 2), min_size=4, max_size=4), max_size=12),
)
def test_all_ranks_add_a_correction_once_all_are_known_to_have_it_and_it_is_due(
    size: int, plans: list[int | None], errands: list[list[int]]
) -> None:
    told = [NOTHING if due is None else comes(n, due) for n, due in enumerate(plans)]
    numbers = [n for n, due in enumerate(plans) if due is not None]
    ranks = Ranks(size, *told)
    staged: list[list[int]] = [[] for _ in range(size)]
    for done in [*errands, *[[1] * 4] * 20]:
        table = ranks.steps(done)
        for word, seen in zip(table.words, staged, strict=True):
            seen += [ranks.step] * (word.staged - len(seen))
    steps = reference.added_at(staged, [due for due in plans if due is not None])
    expected = sorted(zip(steps, numbers, strict=True))
    for rank in ranks.ranks:
        assert rank.added == expected
    adopted = [p for kind, p, *_ in ranks.engine.told if kind == "adopted"]
    assert adopted == [number for _, number in expected]


def test_a_fragment_with_a_correction_on_its_way_is_busy() -> None:
    ranks = Ranks(2, comes(2))
    ranks.steps()
    ranks.steps([0, 0])
    assert ranks.engine.told[-1] == ("plan", {2: False}, True)
    ranks.steps()
    ranks.steps()
    assert ranks.engine.told[-1] == ("plan", {}, True)


def test_the_lead_knows_which_corrections_all_ranks_have() -> None:
    ranks = Ranks(2, comes(2, due=9), comes(0, due=9))
    for errands in ([0, 0], [0, 0], [2, 1], [1, 0]):
        ranks.steps(errands)
    assert ranks.engine.told[-1] == ("plan", {2: True, 0: False}, True)
    ranks.steps()
    ranks.steps()
    assert ranks.engine.told[-1] == ("plan", {2: True, 0: True}, True)
    assert all(rank.added == [] for rank in ranks.ranks)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_what_nobody_has_added_goes_back_when_the_ranks_meet(steps: int) -> None:
    ranks = Ranks(3, Plan(copy=1, correction=comes(2).correction), NOTHING, copies(0))
    for _ in range(steps):
        ranks.steps([0, 2, 1] if steps < 3 else [1, 1, 1])
    ranks.recall()
    back = [each for each in ranks.engine.told if each[0] in ("let go", "back")]
    assert (
        back
        == {
            1: [("let go", 1), ("back", [2])],
            2: [("back", [2])],
            3: [("let go", 0), ("back", [2])],
        }[steps]
    )
    for _ in range(4):
        ranks.table = None  # words of before are not followed any more
        ranks.steps()
    assert all(rank.added == [] for rank in ranks.ranks)


@pytest.mark.parametrize("steps", [1, 2])
def test_after_that_corrections_are_counted_as_before(steps: int) -> None:
    """After one step, the correction that was told of has not been sent."""
    ranks = Ranks(2, comes(2), *[NOTHING] * (steps - 1), comes(1))
    for _ in range(steps):
        ranks.steps([1, 0])
    ranks.recall()
    ranks.table = None
    for _ in range(5):
        ranks.steps()
    assert [rank.added for rank in ranks.ranks] == [[(steps + 3, 1)]] * 2


def test_copies_that_differ_are_told_at_one_step_on_all_ranks() -> None:
    ranks = Ranks(2, copies(0))
    for rank in ranks.ranks:
        rank.same = False
    ranks.steps()
    ranks.steps([1, 0])
    assert [word.differs for word in ranks.steps([0, 0]).words] == [True, False]
    assert ranks.steps().differs
    for rank in ranks.ranks:
        assert ranks.table is not None
        with pytest.raises(UsageError, match="parameter w must be the same"):
            rank.traffic.check(ranks.table)


def test_a_courier_that_fails_on_one_rank_is_told_there_at_once() -> None:
    ranks = Ranks(2)
    table = ranks.steps()
    ranks.ranks[1].courier.fault = ArithmeticError("no memory")
    ranks.ranks[0].traffic.check(table)
    with pytest.raises(ArithmeticError, match="no memory"):
        ranks.ranks[1].traffic.check(table)
