"""The collectives of the ranks, and what is done with their results, under a type checker: each
tensor is the same on all ranks, or each rank has its own.

Ranks that have copies of one parameter must all add the same correction to it. If each adds one of
its own, they drift apart without any error. `spmd_types` tells the two apart where they are added,
and one rank is enough for that: torch's fake backend stands for the others. Types:

    V  varying: each rank has its own
    R  replicated: all ranks have the same

The checker does not know that a lead gives the same to all. So `CertifiedCarrier` looks at the
transfer itself, and turns into R only what came from the lead alone, or was given to all others.
Numbers that Python reads out of a table have no type: `test_words.py` is about these."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import MagicMock, patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from mend_optim.model import copies
from mend_optim.model.layout import Layout
from mend_optim.own_tensors import OwnTensors
from mend_optim.rank_traffic import RankTraffic
from mend_optim.ranks import carrier, group
from mend_optim.ranks.carrier import Carrier
from mend_optim.ranks.copies_check import CopiesCheck
from mend_optim.ranks.courier import Courier, Errand, Work
from mend_optim.ranks.group import Group
from mend_optim.ranks.orders import Deed, Order, encode_order
from mend_optim.ranks.pieces import Division, Piece
from mend_optim.ranks.words import Call, Table, Word
from mend_optim.runtime import held_copies
from mend_optim.runtime.held_copies import Plan
from mend_optim.shared_tensors import RankDeeds, correction_facts
from mend_optim.worker.correction import Correction

spmd: Any = pytest.importorskip("spmd_types", reason="pip install '.[dev]'")
checker: Any = pytest.importorskip("spmd_types.checker")
RANKS = 4
WIDTH = 8
SHAPES = {"a": (WIDTH, 1), "b": (WIDTH, 3)}
R, V = spmd.R, spmd.V


class Typed:
    """torch, but what these functions make has a type: the checker cannot tell what becomes of new
    memory."""

    def __init__(self, **kinds: Any) -> None:
        self._kinds = kinds

    def __getattr__(self, name: str) -> Any:
        make = getattr(torch, name)
        if name not in self._kinds:
            return make
        return lambda *args, **options: typed(make, self._kinds[name], *args, **options)


def typed(make: Callable[..., Tensor], kind: Any, *args: Any, **options: Any) -> Tensor:
    """A new tensor of this type."""
    with spmd.no_typecheck():
        made = make(*args, **options)
    spmd.assert_type(made, {axis(): kind})
    return made


def axis() -> Any:
    return spmd.normalize_axis(dist.group.WORLD)


def type_of(tensor: Tensor) -> Any:
    return spmd.get_local_type(tensor)[axis()]


class PromptCourier(Courier):
    """Does every errand at once, on the thread that is checked."""

    def put(self, work: Work) -> Errand:
        errand = Errand(work)
        fault = errand.do()
        if fault is not None:
            raise fault
        return errand


class TypedGroup(Group):
    """A rank of a world in which nobody else is: words come back as zeros.

    The ranks know beforehand all that the lead told."""

    def __init__(self) -> None:
        super().__init__()
        # The rows are made once, and kept.
        for rows in self._rows:
            spmd.mutate_type(rows.all, axis(), src=V, dst=R)
        # torch's public function is the one that the checker knows.
        self._say = lambda rows, row: group._gathered(rows, row, self._words, later=True)
        self.transfers: list[tuple[Tensor, Sequence[int], Tensor, Sequence[int]]] = []
        self.told = b""

    def transfer(self, given: Tensor, to: Sequence[int], taken: Tensor, of: Sequence[int]) -> None:
        super().transfer(given, to, taken, of)
        self.transfers.append((given, to, taken, of))

    def tell_along(self, data: bytes, nbytes: int) -> list[bytes]:
        super().tell_along(data, nbytes)
        return [(self.told or data).ljust(nbytes, b"\0")] * self.size


class CertifiedCarrier(Carrier):
    """A carrier that turns the parts of a correction into R where the transfer shows that all ranks
    get the same."""

    def __init__(self, group: TypedGroup, division: Division, layout: Layout) -> None:
        super().__init__(group, division, layout.fragments)
        self._typed = group
        self._all_have = all(len(held) == RANKS for held in division.holders.values())

    def spread(self, p: int, values: Tensor | None) -> Tensor:
        before = len(self._typed.transfers)
        part = super().spread(p, values)
        made = self._typed.transfers[before:]
        if self._all_have and len(made) == 1 and self._is_common(part, *made[0]):
            spmd.mutate_type(part, axis(), src=V, dst=R)
        return part

    def _is_common(
        self, part: Tensor, given: Tensor, to: Sequence[int], taken: Tensor, of: Sequence[int]
    ) -> bool:
        if self._typed.rank:
            return part is taken and list(of) == [len(part), *[0] * (RANKS - 1)]
        with spmd.no_typecheck():
            parts = torch.split(given, list(to))
            return all(torch.equal(theirs, part) for theirs in parts[1:])


def weights(*shape: int) -> Tensor:
    return nn.Parameter(torch.ones(shape))


class Rank:
    """One rank of a learner whose ranks have copies of all parameters, or a part of each.

    Args:
        kind: the type of its parameters.
    """

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self.group = TypedGroup()
        rank, part = self.group.rank, WIDTH if kind is not V else WIDTH // RANKS
        starts = [0] * RANKS if kind is not V else [r * part for r in range(RANKS)]
        pieces = [
            [
                Piece(name, shape, "torch.float32", (((start, start + part),), ((0, shape[1]),)))
                for name, shape in SHAPES.items()
            ]
            for start in starts
        ]
        wholes = [torch.ones(shape) for shape in SHAPES.values()]
        self.parameters = [typed(weights, kind, part, shape[1]) for shape in SHAPES.values()]
        layout = Layout(list(SHAPES), wholes, 1)
        division = Division(pieces)
        self.carrier = CertifiedCarrier(self.group, division, layout)
        local = layout.divided([held.local for held in self.carrier.own])
        self.own = OwnTensors(local, self.parameters, MagicMock(), ())
        self.own.pool = MagicMock(take=lambda numel: typed(torch.empty, V, numel))
        named = dict(zip(SHAPES, self.parameters, strict=True))
        check = CopiesCheck(division, rank, named)
        crew = MagicMock(tell=lambda call, step, data=b"": [data] * RANKS)
        self.learner = MagicMock() if rank == 0 else None
        courier = PromptCourier()
        self.deeds = RankDeeds(self.own, self.carrier, courier, crew, check)
        self.traffic = RankTraffic(self.own, self.carrier, courier, check, moments=[], hold_s=1.0)
        whole = typed(torch.arange, V, float(layout.numel))
        #: The lead's correction of all.
        self.correction = Correction(0, whole, False)

    def correct_together(self) -> None:
        """As in a call that all ranks are in."""
        facts = correction_facts(Deed.APPLY, self.correction)
        order = Order(deed=Deed.APPLY, facts={**facts, "steps": 1})
        self.deeds.perform(order, [self.correction.values] if self.learner else [])

    def correct_in_passing(self) -> None:
        """As at the end of two steps."""
        facts = {**correction_facts(Deed.APPLY, self.correction), "due": 0}
        order = Order(deed=Deed.APPLY, facts=facts)
        told: dict[str, Any] = {"comes": len(encode_order(order))}
        self.group.told = encode_order(order)
        if self.learner:
            with patch.object(
                held_copies, "plan", lambda *_, **__: Plan(False, correction=self.correction)
            ):
                told = self.traffic.plan(self.learner)
        self.traffic.follow(table(step=1, **told), 1, self.learner)
        self.traffic.follow(table(step=2, **self.traffic.news()), 2, self.learner)

    def put_anchor(self) -> None:
        """As where the cluster's weights replace this learner's."""
        order = Order(deed=Deed.PUT, facts={"for_good": True})
        self.deeds.perform(order, [self.correction.values] if self.learner else [])

    def copy_together(self) -> None:
        self.deeds.perform(Order(deed=Deed.COPY), out=self._room())

    def copy_in_passing(self) -> None:
        self.traffic.follow(table(step=1, copy=0), 1, self.learner)

    def _room(self) -> Tensor | None:
        numel = self.carrier.own[0].whole.numel
        return typed(torch.empty, V, numel) if self.learner else None


DEEDS = [Rank.correct_together, Rank.correct_in_passing, Rank.put_anchor]


def table(**told: Any) -> Table:
    return Table([Word(call=Call.STEP, **told)] * RANKS)


@pytest.fixture(params=[0, 1], ids=["lead", "other"])
def checked(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Tensor]]:
    """This process is one rank of a world, and all that torch does is checked. Returns the tensors
    by which the library reads and writes parameters."""
    dist.init_process_group("fake", store=FakeStore(), rank=request.param, world_size=RANKS)
    new_group = dist.new_group
    monkeypatch.setattr(group, "_new_group", lambda members, *_: new_group(members, backend="fake"))
    monkeypatch.setattr(group, "_meet", lambda *_: (0, set()))
    monkeypatch.setattr(group, "_can_change", lambda: False)
    # The fake backend lets each rank receive what it gives itself, which may be less.
    for name in ("alltoall_base", "all_to_all_single"):  # the older name, and the newer one
        monkeypatch.setattr(dist.ProcessGroup, name, MagicMock(), raising=False)
    monkeypatch.setattr(group, "torch", Typed(zeros=V, frombuffer=V, empty=R))
    monkeypatch.setattr(carrier, "torch", Typed(empty=V, tensor=V))
    real, touched = copies.real, list[Tensor]()

    def watched(parameter: Tensor) -> Tensor:
        touched.append(real(parameter))
        return touched[-1]

    monkeypatch.setattr(copies, "real", watched)
    try:
        with spmd.set_current_mesh(frozenset({axis()})), checker.typecheck():
            yield touched
    finally:
        dist.destroy_process_group()


def test_words_are_each_ranks_own_and_their_table_is_the_same_on_all(checked: list[Tensor]) -> None:
    ranks = TypedGroup()
    ranks.say(Word(call=Call.STEP, step=1, tokens=3)).wait()
    rows = ranks._rows[-1]
    assert type_of(rows.own) is V
    assert type_of(rows.all) is R
    assert len(ranks.tell(b"abc", 5)) == RANKS


@pytest.mark.parametrize("kind", [R, V], ids=["copied", "split"])
@pytest.mark.parametrize("copy", [Rank.copy_together, Rank.copy_in_passing])
def test_each_rank_sends_its_own_copy(
    checked: list[Tensor], kind: Any, copy: Callable[[Rank], None]
) -> None:
    rank = Rank(kind)
    copy(rank)
    assert rank.group.transfers


@pytest.mark.parametrize("kind", [R, V], ids=["copied", "split"])
@pytest.mark.parametrize("deed", DEEDS)
def test_copies_stay_the_same_on_all_ranks(
    checked: list[Tensor], kind: Any, deed: Callable[[Rank], None]
) -> None:
    rank = Rank(kind)
    do(deed, rank, checked)


@pytest.mark.parametrize("deed", DEEDS)
def test_ranks_that_each_add_their_own_correction_are_found(
    checked: list[Tensor], monkeypatch: pytest.MonkeyPatch, deed: Callable[[Rank], None]
) -> None:
    """As replicas did that each were a learner: each had a correction of its own."""
    rank = Rank(R)

    def own(self: Carrier, p: int, values: Tensor | None) -> Tensor:
        return typed(torch.zeros, V, self.own[p].numel)

    monkeypatch.setattr(CertifiedCarrier, "spread", own)
    with pytest.raises(spmd.SpmdTypeError, match=r"V.*expected .*R|from .*R to .*V"):
        do(deed, rank, checked)


def do(deed: Callable[[Rank], None], rank: Rank, written: list[Tensor]) -> None:
    """Let a rank change its parameters, and check their types afterwards: without autograd, the
    checker lets a tensor of R become V when V is added to it."""
    deed(rank)
    assert len(written) == len(SHAPES)
    for parameter, tensor in zip(rank.parameters, written, strict=True):
        assert tensor.data_ptr() == parameter.data_ptr()
        spmd.assert_type(tensor, {axis(): rank.kind})
