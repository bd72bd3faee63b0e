"""The ways beside the training stream of a GPU, with a stand-in for the GPU: its copies to the host
happen as late as a stream may make them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam

from mend_optim.engine.moment_schedule import Moment
from mend_optim.model import side_copies
from mend_optim.model.copies import Ready, _are_together, gather, scatter
from mend_optim.model.layout import Layout
from mend_optim.model.module_buffers import ModuleBuffers
from mend_optim.own_tensors import OwnTensors
from mend_optim.worker.correction import BufferCorrection, Correction, MomentCorrection

MOMENTS = (
    Moment(name="exp_avg", order="first", decay="betas.0", corrected=True),
    Moment(name="exp_avg_sq", order="second", decay="betas.1", corrected=True, nonnegative=True),
)


class LateSide:
    """Fulfils the interface of `SideCopies`. Nothing goes to the host before somebody waits for it.
    `memory` is how many more elements fit on the GPU."""

    def __init__(self, memory: float = float("inf")) -> None:
        self.memory = memory
        self.snapshots: list[tuple[Tensor, Tensor]] = []
        self.beside: list[tuple[Tensor, Tensor]] = []
        self.used: list[Tensor] = []
        self.rooms = 0

    def room(self, numel: int, dtype: torch.dtype = torch.float32) -> Tensor | None:
        if numel > self.memory:
            return None
        self.rooms += 1
        return torch.full((numel,), 77, dtype=dtype)

    def take_out(self, room: Tensor, out: Tensor, plus: Tensor | None = None) -> None:
        if plus is not None:
            self.join()
            room.add_(plus)
        self.snapshots.append((room, out))

    def ready(self) -> Ready:
        snapshots, self.snapshots = self.snapshots, []

        def make() -> None:
            for room, out in snapshots:
                out.copy_(room)

        return make

    def bring(self, tensors: Iterable[Tensor]) -> list[Tensor] | None:
        there = [tensor.clone() for tensor in tensors]
        return there if sum(map(len, there)) <= self.memory else None

    def use(self, brought: Iterable[Tensor]) -> None:
        self.used.extend(brought)

    def take_in(self, lost: Tensor) -> Tensor | None:
        self.join()
        return lost.clone() if len(lost) <= self.memory else None

    def put_back(self, there: Tensor, lost: Tensor) -> None:
        self.beside.append((there, lost))

    def join(self) -> None:
        for there, lost in self.beside:
            lost.copy_(there)
        self.beside.clear()

    settle = join


def trained(dtype: torch.dtype = torch.float32) -> tuple[list[nn.Parameter], OwnTensors]:
    """A model whose moments have seen two updates, always the same."""
    draws = torch.Generator().manual_seed(0)
    shapes = ((3, 2), (4,), (2, 2))
    parameters = [
        nn.Parameter(torch.randn(shape, generator=draws).to(dtype if i else torch.float32))
        for i, shape in enumerate(shapes)
    ]
    inner = Adam(parameters, lr=0.1)
    for _ in range(2):
        for parameter in parameters:
            gradient = torch.randn(parameter.shape, generator=draws)
            parameter.grad = gradient.to(parameter.dtype)
        inner.step()
    layout = Layout([f"w{i}" for i in range(len(shapes))], parameters, 2)
    return parameters, OwnTensors(layout, parameters, inner, MOMENTS)


def beside(own: OwnTensors, memory: float = float("inf")) -> LateSide:
    side = LateSide(memory)
    own._side = side  # type: ignore[assignment]
    return side


def correction(p: int, numel: int, tensors: int, scale: float, replaces: bool) -> Correction:
    draws = torch.Generator().manual_seed(p)
    values = scale * torch.randn(numel, generator=draws)
    moved = MomentCorrection("exp_avg", values.clone() / 8, (2,) * tensors, newcomer=False)
    return Correction(p, values, replaces, (moved,))


def whole(own: OwnTensors) -> list[Tensor]:
    """All that the learner could see of the model, complete."""
    seen: list[Tensor] = []
    for p in range(len(own.layout.fragments)):
        copy = own.copy(p)
        readings = own.read(p, [moment.name for moment in MOMENTS], 2)
        own.ready()()
        lost = own.rounded_off(p)
        seen += [copy, *(reading.values for reading in readings.values())]
        seen += [] if lost is None else [lost]
    return [tensor.clone() for tensor in seen]


def assert_equal(some: list[Tensor], others: list[Tensor]) -> None:
    assert len(some) == len(others)
    for one, other in zip(some, others, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("memory", [float("inf"), 3], ids=["roomy", "too little memory"])
@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_is_as_on_the_training_stream(
    dtype: torch.dtype, replaces: bool, memory: float
) -> None:
    def play(own: OwnTensors) -> list[Tensor]:
        seen = whole(own)
        for scale in (0.3, 2.0**-11, 2.0**-12):
            for p, fragment in enumerate(own.layout.fragments):
                made = correction(p, fragment.numel, len(fragment.tensors), scale, replaces)
                own.apply(own.bring(made), 2)
            seen += whole(own)
        return seen

    (parameters, there), (twins, here) = trained(dtype), trained(dtype)
    side = beside(there, memory)
    assert_equal(play(there), play(here))
    assert_equal(list(parameters), list(twins))
    assert bool(side.rooms) == bool(side.used) == (memory > 3)
    # Of each of six corrections the values, and those of its moment.
    assert len(side.used) == (12 if side.used else 0)


def test_a_copy_is_of_the_weights_as_they_were_then() -> None:
    parameters, own = trained()
    beside(own)
    before = [parameter.detach().clone() for parameter in parameters]
    copies = [own.copy(p) for p in range(2)]
    ready = own.ready()
    for parameter in parameters:
        parameter.detach().zero_()
    ready()
    assert_equal([torch.cat([p.flatten() for p in before])], [torch.cat(copies)])


def test_each_copy_is_made_by_the_next_that_waits() -> None:
    _, own = trained()
    beside(own)
    first, ready = own.copy(0), own.ready()
    second, later = own.copy(1), own.ready()
    first.fill_(torch.nan)
    second.fill_(torch.nan)
    ready()
    assert not first.isnan().any()
    assert second.isnan().all()
    later()
    assert not second.isnan().any()


def test_buffers_are_copied_as_they_were_then() -> None:
    batches = nn.BatchNorm1d(2)
    batches(torch.randn(4, 2))
    parameters, own = trained()
    buffers = ModuleBuffers([batches])
    names = [f"w{i}" for i in range(len(parameters))]
    layout = Layout(names, parameters, 2, buffers=buffers.named())
    own = OwnTensors(layout, parameters, own.inner, MOMENTS, module_buffers=buffers)
    expected = own.copy(2).clone()
    beside(own)
    copy, ready = own.copy(2), own.ready()
    batches(torch.randn(4, 2))
    ready()
    assert torch.equal(copy, expected)
    later = own.copy(2)
    own.ready()()
    assert not torch.equal(copy, later)


@pytest.mark.parametrize("act", ["load", "forget", "put", "read"])
def test_what_was_rounded_away_is_whole_before_the_host_reads_or_writes_it(act: str) -> None:
    _, own = trained(torch.bfloat16)
    side = beside(own)
    numel = own.layout.fragments[1].numel
    own.apply(own.bring(correction(1, numel, len(own.layout.fragments[1].tensors), 0.3, False)), 2)
    acts = {
        "load": partial(own.load_rounded_off, 1, torch.zeros(numel)),
        "forget": own.forget_rounded_off,
        "put": partial(own.put, 1, torch.zeros(numel), for_good=True),
        "read": partial(own.rounded_off, 1),
    }
    assert side.beside
    acts[act]()
    assert bool(side.beside) == (act == "put")
    lost = own.rounded_off(1)
    assert lost is not None
    assert bool(lost.any()) == (act == "read")


def test_buffers_stay_on_the_host() -> None:
    _, own = trained()
    side = beside(own)
    made = BufferCorrection(0, torch.zeros(3, dtype=torch.uint8), False)
    assert own.bring(made) is made
    assert not side.rooms


def test_a_correction_that_was_brought_is_the_same_one() -> None:
    _, own = trained()
    beside(own)
    made = correction(0, own.layout.fragments[0].numel, 2, 0.3, True)
    brought = own.bring(made)
    assert brought == made
    assert brought.values is made.values
    assert brought.there is not None
    assert brought.there.replace
    assert_equal([brought.there.values], [made.values])


# ── in pieces ─────────────────────────────────────────────────────────────────────────────────────


class HostEvent:
    """Of a stream that does everything at once. The host waits for it all the same."""

    waits = 0

    def synchronize(self) -> None:
        HostEvent.waits += 1


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host stands for the GPU, and eight bytes are a piece."""
    stream = SimpleNamespace(
        device=torch.device("cpu"),
        wait_event=lambda event: None,
        wait_stream=lambda stream: None,
        synchronize=lambda: None,
    )
    monkeypatch.setattr(side_copies, "PIECE", 8)
    monkeypatch.setattr(side_copies, "_stream", lambda device: stream)
    monkeypatch.setattr(side_copies, "_mark", lambda stream: HostEvent())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(Tensor, "record_stream", lambda tensor, stream: None)
    empty = torch.empty
    monkeypatch.setattr(
        torch, "empty", lambda *size, pin_memory=False, **options: empty(*size, **options)
    )


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("numel", [0, 1, 2, 3, 4, 5, 7, 12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_copies_are_whole_however_many_pieces_they_take(numel: int, dtype: torch.dtype) -> None:
    values = torch.arange(numel).to(dtype)
    out, before = torch.full((numel,), 99).to(dtype), HostEvent.waits
    snapshot = side_copies._Snapshot(values, out, HostEvent())  # type: ignore[arg-type]
    side_copies._carry_out(snapshot, side_copies._stream(torch.device("cpu")))
    assert torch.equal(out, values)
    # Each piece is waited for once before it is read.
    assert HostEvent.waits - before == -(-numel * dtype.itemsize // 8)
    there = side_copies._carried_in(values, side_copies._stream(torch.device("cpu")))
    assert torch.equal(there, values)
    assert there.data_ptr() != values.data_ptr() or not numel


@pytest.mark.usefixtures("no_gpu")
def test_memory_that_was_too_little_is_not_asked_for_at_every_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    side, asked = side_copies.SideCopies(torch.device("cpu")), 0

    def scarce(*size: int, **options: Any) -> Tensor:
        nonlocal asked
        asked += 1
        raise torch.cuda.OutOfMemoryError("no room")

    monkeypatch.setattr(torch, "empty", scarce)
    assert [side.room(4) for _ in range(2 * side_copies.PATIENCE + 2)] == [None] * 130
    assert asked == 2


@pytest.mark.usefixtures("no_gpu")
def test_few_copies_are_on_their_way_at_a_time() -> None:
    side, made = side_copies.SideCopies(torch.device("cpu")), []
    for value in range(2 * side_copies.ROOMS):
        room, out = side.room(1), torch.zeros(1)
        if room is not None:
            side.take_out(room.fill_(value + 1), out)
            made.append(out)
    assert len(made) == side_copies.ROOMS
    side.ready()()
    assert [out.item() for out in made] == [1, 2, 3, 4]
    assert side.room(1) is not None


@pytest.mark.parametrize("replaces", [False, True])
def test_a_rank_may_have_nothing_of_a_fragment(replaces: bool) -> None:
    """On a GPU many tensors are copied by one launch. There are none here."""
    fragment = Layout(["w"], [torch.ones(1)], 1).fragments[0]
    nothing = dataclasses.replace(fragment, tensors=(), shapes=(), offsets=(0,))
    assert not _are_together(torch.empty(0), [])
    gather(nothing, [], torch.empty(0))
    scatter(nothing, torch.empty(0), [], replaces)
