"""A copy of all parameters and a correction of them, and the same of Adam's moments, beside a
Python thread that computes.

Python runs one thread at a time. In each call of torch the training thread lets others run, and
then waits for its turn, up to 5 ms. The floor is the same work with a call, or several, for each
tensor."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from bench.result import Result, compared
from bench.watch import time_of
from mend_optim.engine.moment_schedule import MomentSchedule
from mend_optim.model.copies import gather, scatter
from mend_optim.model.known_moments import known_moments
from mend_optim.model.layout import Layout
from mend_optim.model.moment_state import FragmentState, correct, read

TENSORS, SHAPE = 300, (100, 200)
REPEATS = 7
PAUSE_S = 0.01


@contextmanager
def beside_a_busy_thread() -> Iterator[None]:
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            sum(range(1000))

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _ms(work: Callable[[], object]) -> float:
    time.sleep(PAUSE_S)
    return 1e3 * time_of(work)


def _pairs(few: Callable[[], object], many: Callable[[], object], what: str) -> Iterator[Result]:
    """Few calls beside a busy thread, over many, and over the same without that thread."""
    alone = [_ms(few) for _ in range(REPEATS)]
    with beside_a_busy_thread():
        pairs = [(_ms(few), _ms(many)) for _ in range(REPEATS)]
    busy, floor = zip(*pairs, strict=True)
    notes = f"{TENSORS * math.prod(SHAPE) / 1e6:.0f} M float32 in {TENSORS} tensors"
    what = f"{what} beside a Python thread that computes"
    yield compared("busy", what, "ms", busy, floor, notes=f"{notes}; floor = tensor by tensor")
    yield compared("busy", what, "ms", busy, alone, notes=f"{notes}; floor = without the thread")


def run() -> Iterator[Result]:
    parameters = [torch.nn.Parameter(torch.randn(SHAPE)) for _ in range(TENSORS)]
    (fragment,) = Layout([str(i) for i in range(TENSORS)], parameters, 1).fragments
    flat = torch.zeros(fragment.numel)
    shares = [fragment.span(place) for place in range(TENSORS)]
    inner = torch.optim.AdamW(parameters, lr=1e-3)
    for parameter in parameters:
        parameter.grad = torch.randn(SHAPE)
    inner.step()
    moments = known_moments(inner, MomentSchedule())
    fragment_state = FragmentState(fragment, parameters, inner, 1)

    def sync() -> None:
        gather(fragment, parameters, flat)
        scatter(fragment, flat, parameters, replace=False)

    @torch.no_grad()
    def one_by_one() -> None:
        for parameter, here in zip(parameters, shares, strict=True):
            flat[here].view(SHAPE).copy_(parameter)
        for parameter, here in zip(parameters, shares, strict=True):
            parameter.add_(flat[here].view(SHAPE))

    def average() -> None:
        for moment in moments:
            then = read(moment, fragment_state, flat)
            correct(moment, fragment_state, flat, then)

    @torch.no_grad()
    def average_one_by_one() -> None:
        for name, factor in (("exp_avg", 0.1), ("exp_avg_sq", 0.001)):
            states = [inner.state[parameter] for parameter in parameters]
            for state, here in zip(states, shares, strict=True):
                int(state["step"])
                flat[here].view(SHAPE).copy_(state[name]).div_(factor)
            for state, here in zip(states, shares, strict=True):
                int(state["step"])
                state[name].add_(flat[here].view(SHAPE), alpha=factor)

    yield from _pairs(sync, one_by_one, "a copy and a correction")
    yield from _pairs(average, average_one_by_one, "a copy and a correction of both moments")
