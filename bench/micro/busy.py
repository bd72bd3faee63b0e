"""A copy of all parameters and a correction of them, beside a Python thread that computes.

Python runs one thread at a time. In each call of torch the training thread lets others run, and
then waits for its turn, up to 5 ms. The floor is the same work with a call, or several, for each
tensor."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from bench.result import Result, compared
from bench.watch import time_of
from mend_optim.model.copies import gather, scatter
from mend_optim.model.layout import Layout

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


def run() -> Iterator[Result]:
    parameters = [torch.nn.Parameter(torch.randn(SHAPE)) for _ in range(TENSORS)]
    names = [str(i) for i in range(TENSORS)]
    (fragment,) = Layout(names, parameters, 1).fragments
    flat = torch.zeros(fragment.numel)

    def sync() -> None:
        gather(fragment, parameters, flat)
        scatter(fragment, flat, parameters, replace=False)

    @torch.no_grad()
    def one_by_one() -> None:
        for place, parameter in enumerate(parameters):
            flat[fragment.span(place)].view(SHAPE).copy_(parameter)
        for place, parameter in enumerate(parameters):
            parameter.add_(flat[fragment.span(place)].view(SHAPE))

    alone = [_ms(sync) for _ in range(REPEATS)]
    with beside_a_busy_thread():
        pairs = [(_ms(sync), _ms(one_by_one)) for _ in range(REPEATS)]
    busy, floor = zip(*pairs, strict=True)
    notes = f"{fragment.numel / 1e6:.0f} M float32 in {TENSORS} tensors"
    what = "a copy and a correction beside a Python thread that computes"
    yield compared("busy", what, "ms", busy, floor, notes=f"{notes}; floor = tensor by tensor")
    yield compared("busy", what, "ms", busy, alone, notes=f"{notes}; floor = without the thread")
