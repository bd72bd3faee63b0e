"""The cost of rounds for training on a GPU: what a sync takes from the training stream and from the
training thread, the throughput that is kept, and the memory.

A transformer trains on the GPU, in bf16 under autocast, with a fused AdamW. Its peer has the same
model on the host and does nothing at its steps. So the GPU is not shared, and rounds are real. The
floor of a sync is one copy of all parameters inside of the GPU and one addition."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import cycle
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import nn

from bench.cluster.learners import Seat, Still, run_learners
from bench.micro.memory import forget_peak, resident
from bench.result import Result, compared, plain
from bench.watch import Watch
from mend_optim import MendOptimizer
from mend_optim.own_tensors import OwnTensors

TOKENS, LENGTH, HEAD = 16_384, 512, 64
WARM, WARM_SYNCS, QUIET, SYNC_EVERY = 5, 2, 20, 64
PEER_STEP_S = 0.02
THREADS = 4
#: Steps that the host may be ahead of the GPU, as in a script that prints its loss now and then.
AHEAD = 2
LIMIT_S = 40.0


class Size(NamedTuple):
    """A model, and how many of its fragments' rounds are measured."""

    name: str
    width: int
    layers: int
    fragments: int
    syncs: int
    goal: str


SIZES = (
    Size("25 M", 512, 8, 1, 8, "<= 1.3"),
    Size("350 M", 1024, 28, 8, 16, "<= 1.1"),
    Size("1.3 B", 2048, 26, 8, 8, "<= 1.1"),
)


class Step(NamedTuple):
    """One step: milliseconds, and how many fragments were copied and corrected in it."""

    stream: float  # of the training stream, in `step()` alone
    host: float  # of the training thread, in `step()` alone
    whole: float  # of the training stream, from one step's begin to the next one's
    copies: int
    corrections: int


class Run(NamedTuple):
    """The measurements of one model."""

    alone: list[Step]
    together: list[Step]
    copy: list[float]  # the floor's milliseconds
    add: list[float]
    device: float  # bytes per parameter, beyond those of training alone
    host: float


def absent() -> str:
    """Why this cannot be measured here; empty if it can."""
    return "" if torch.cuda.is_available() else "needs a CUDA device"


def _model(size: Size, device: str) -> nn.Module:
    """Blocks of a transformer. On the host, where nobody computes with them, they are filled with
    copies of a few random numbers: to draw them all takes longer than a round."""
    with torch.device("meta" if device == "cpu" else device):
        layer = partial(
            nn.TransformerEncoderLayer,
            size.width,
            size.width // HEAD,
            4 * size.width,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        model = nn.Sequential(*(layer() for _ in range(size.layers)))
    if device == "cpu":
        model = model.to_empty(device="cpu")
        draws = 0.02 * torch.randn(1 << 20)
        for parameter in model.parameters():
            flat = parameter.detach().view(-1)
            flat.copy_(draws.repeat(-(-len(flat) // len(draws)))[: len(flat)])
    return model


class Trainer:
    """Steps of training on the GPU, timed by the GPU's own clock."""

    def __init__(self, model: nn.Module, width: int, watch: Watch) -> None:
        self._model = model
        self._watch = watch
        batch = TOKENS // LENGTH
        self._batches = cycle([torch.randn(batch, LENGTH, width, device="cuda") for _ in range(4)])

    def steps(self, optimizer: Any, enough: Callable[[list[tuple[int, int]]], bool]) -> list[Step]:
        """Train until it is enough, which the copies and corrections of all steps tell."""
        marks: list[list[torch.cuda.Event]] = []
        hosts: list[float] = []
        done: list[tuple[int, int]] = []
        while not enough(done):
            before = self._count()
            marks.append([_now()])
            self._backward()
            marks[-1].append(_now())
            started = time.perf_counter()
            optimizer.step()
            hosts.append(1e3 * (time.perf_counter() - started))
            marks[-1].append(_now())
            optimizer.zero_grad()
            done.append(tuple(now - then for now, then in zip(self._count(), before, strict=True)))  # type: ignore[arg-type]
            if len(marks) > AHEAD:
                marks[-1 - AHEAD][2].synchronize()
        marks.append([_now()])
        torch.cuda.synchronize()
        return [
            Step(step[1].elapsed_time(step[2]), host, step[0].elapsed_time(after[0]), *counts)
            for step, after, host, counts in zip(marks, marks[1:], hosts, done, strict=False)
        ]

    def _count(self) -> tuple[int, int]:
        return self._watch.count("copy"), self._watch.count("apply")

    def _backward(self) -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            x = next(self._batches)
            loss = (self._model(x).float() - x).pow(2).mean()
        loss.backward()


def _now() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


@torch.no_grad()
def _floor(parameters: list[nn.Parameter]) -> tuple[float, float]:
    """The milliseconds of one copy of all parameters, and of one addition, on the stream."""
    copies = [torch.zeros_like(p) for p in parameters]
    torch.cuda.synchronize()
    marks = [_now()]
    for copy, parameter in zip(copies, parameters, strict=True):
        copy.copy_(parameter)
    marks.append(_now())
    for parameter, copy in zip(parameters, copies, strict=True):
        parameter.add_(copy, alpha=0.0)
    marks.append(_now())
    torch.cuda.synchronize()
    return marks[0].elapsed_time(marks[1]), marks[1].elapsed_time(marks[2])


def _learn(size: Size, seat: Seat) -> Run | None:
    torch.set_num_threads(THREADS)
    return _train(size, seat) if seat.rank == 0 else _accompany(size, seat)


def _join(seat: Seat, inner: torch.optim.Optimizer, size: Size) -> MendOptimizer:
    options = {"codec": "bf16", "moments": None, "quorum": 2}
    return seat.join(inner, fragments=size.fragments, sync_every=SYNC_EVERY, **options)


def _accompany(size: Size, seat: Seat) -> None:
    """The peer: it steps until the other one has all that it measures."""
    parameters = list(_model(size, "cpu").parameters())
    with closing(_join(seat, Still(parameters), size)) as optimizer:
        optimizer.join()
        seat.meet()
        while optimizer.status().roster:
            optimizer.step()
            time.sleep(PEER_STEP_S)


def _train(size: Size, seat: Seat) -> Run:
    model = _model(size, "cuda")
    parameters = list(model.parameters())
    inner = torch.optim.AdamW(parameters, lr=1e-5, fused=True)
    watch = Watch()
    watch.on(OwnTensors, "copy", "copy")
    watch.on(OwnTensors, "apply", "apply")
    trainer = Trainer(model, size.width, watch)
    trainer.steps(inner, lambda done: len(done) >= WARM)
    torch.cuda.reset_peak_memory_stats()
    alone = trainer.steps(inner, lambda done: len(done) >= QUIET)
    device, host = torch.cuda.max_memory_allocated(), resident("VmRSS")
    floors = [_floor(parameters) for _ in range(QUIET)][WARM:]
    forget_peak()
    with closing(_join(seat, inner, size)) as optimizer:
        optimizer.join()
        seat.meet()
        trainer.steps(optimizer, lambda done: _corrections(done) >= WARM_SYNCS)
        torch.cuda.reset_peak_memory_stats()
        deadline = time.monotonic() + LIMIT_S
        together = trainer.steps(
            optimizer,
            lambda done: _corrections(done) >= size.syncs or time.monotonic() > deadline,
        )
        count = sum(p.numel() for p in parameters)
        per_device = (torch.cuda.max_memory_allocated() - device) / count
        per_host = (resident("VmHWM") - host) / count
    alone += trainer.steps(inner, lambda done: len(done) >= QUIET)
    copies, adds = zip(*floors, strict=True)
    return Run(alone, together, list(copies), list(adds), per_device, per_host)


def _corrections(done: list[tuple[int, int]]) -> int:
    return sum(corrections for _, corrections in done)


def _stalls(run: Run, size: Size, field: str) -> list[float]:
    """The milliseconds that each sync takes beyond quiet steps: those of its copies and of its
    correction, which may come in one step, times the number of fragments."""
    quiet = median(getattr(step, field) for step in run.together if step[3:] == (0, 0))
    stalls, beyond = [], 0.0
    for step in run.together:
        if step.copies or step.corrections:
            beyond += getattr(step, field) - quiet
        if step.corrections:
            stalls.append(size.fragments * beyond / step.corrections)
            beyond = 0.0
    return stalls


def _results(run: Run, size: Size) -> Iterator[Result]:
    name, floors = (
        f"{size.name} parameters",
        [c + a for c, a in zip(run.copy, run.add, strict=True)],
    )
    notes = f"{size.fragments} fragments; floor = one copy on the GPU + one in-place add"
    stream, host = _stalls(run, size, "stream"), _stalls(run, size, "host")
    usual = [median(floors)] * len(stream)
    what = f"training stream per outer sync, {name}"
    yield compared("gpu", what, "ms", stream, usual, goal=size.goal, notes=notes)
    yield plain("gpu", f"training thread per outer sync, {name}", "ms", host)
    alone, rounds = ([step.whole for step in steps] for steps in (run.alone, run.together))
    kept = median(alone) / (sum(rounds) / len(rounds))
    steps = len(rounds) * size.fragments / max(1, sum(step.corrections for step in run.together))
    text = f"a round of the whole model in {steps:.0f} steps of {median(alone):.0f} ms"
    yield plain("gpu", f"throughput kept with rounds, {name}", "", [kept], text, goal=">= 0.98")
    yield plain(
        "gpu", f"GPU memory beyond training alone, {name}", "B", [run.device], "per parameter"
    )
    yield plain("gpu", f"host memory, {name}", "B", [run.host], "per parameter")


def run() -> Iterator[Result]:
    for size in SIZES:
        found = run_learners(partial(_learn, size), 2)[0]
        assert isinstance(found, Run)
        yield from _results(found, size)
