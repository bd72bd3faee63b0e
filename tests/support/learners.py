"""Several learners in one process: real optimizers that train together over loopback, on free
ports.

Each loop that calls `step()` runs in a thread, because in lockstep the steps of two learners wait
for one another. Nothing sleeps. A test waits for a condition of a learner, or for one of its
events, for at most `PATIENCE_S`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import SGD, Optimizer

from mend_optim import Event, MendOptimizer, Timing
from mend_optim.engine.state import EngineState

PATIENCE_S = 30.0
LOOPBACK = "127.0.0.1:0"
#: With shorter beats, a busy machine makes suspects, and rounds go on without them.
TIMING = Timing(
    beat_s=0.5, join_timeout_s=PATIENCE_S, round_timeout_s=PATIENCE_S, evict_after_s=PATIENCE_S
)
#: A round at every step: plain averaging, by tokens.
LOCKSTEP: dict[str, Any] = {
    "sync_every": 1,
    "adopt_after": 0,
    "merge": "mean",
    "weighting": "tokens",
}
NAMES = "abcdefghijklmnop"

T = TypeVar("T")
# Of (learner, step): the value of every element of every gradient. None: there are no gradients.
Grad = Callable[[int, int], "float | None"]


def weights(*values: float, dtype: torch.dtype = torch.float32) -> list[Parameter]:
    """Small parameters, each filled with one value."""
    return [Parameter(torch.full((3,), value, dtype=dtype)) for value in values]


def descent(*values: float, lr: float = 1.0, dtype: torch.dtype = torch.float32) -> SGD:
    """Plain gradient descent over such parameters."""
    return SGD(weights(*values, dtype=dtype), lr=lr)


def parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p.detach() for group in optimizer.param_groups for p in group["params"]]


def read(optimizer: Optimizer) -> list[float]:
    """The first element of every parameter."""
    return [p.flatten()[0].item() for p in parameters(optimizer)]


def same(these: Sequence[Tensor], those: Sequence[Tensor]) -> bool:
    """Whether two lists of tensors agree to the bit."""
    alike = [a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(these, those, strict=True)]
    return all(alike)


def until(optimizer: MendOptimizer, holds: Callable[[], Any]) -> None:
    """Wait until `holds()`, which is called with the learner's mutex held."""
    assert optimizer._learner is not None
    assert optimizer._learner.wait(holds, PATIENCE_S), optimizer.status()
    assert not optimizer._learner.closed


def together(*actions: Callable[[], T]) -> list[T]:
    """Run each action in a thread of its own. Returns their results, or raises the first error."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(i: int) -> None:
        try:
            results[i] = actions[i]()
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=run, args=(i,), name=f"trainer-{i}", daemon=True)
        for i in range(len(actions))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE_S)
    if errors:
        raise errors[0]
    assert len(results) == len(actions), "a training loop hangs"
    return [results[i] for i in range(len(actions))]


class Watch:
    """Collects a learner's events, as its `on_event`, and waits for them."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.kind == kind]

    def until(self, kind: str, count: int = 1) -> list[Event]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.of(kind)) >= count, PATIENCE_S), (
                self.events
            )
            return self.of(kind)


def start(optimizers: Sequence[MendOptimizer]) -> None:
    """Do what each first `step()` does before it steps, until every learner knows that all others
    train."""

    def others(state: EngineState) -> int:
        return (
            0
            if state.alone
            else sum(peer.training and peer.linked for peer in state.roster.peers.values())
        )

    learners = [o._learner for o in optimizers if o._learner]
    together(*(optimizer._run.ensure_joined for optimizer in optimizers))
    for optimizer, learner in zip(optimizers, learners, strict=True):
        until(optimizer, lambda state=learner.engine.state: others(state) == len(learners) - 1)


@contextmanager
def cluster(
    *inners: Optimizer, each: Sequence[Mapping[str, Any]] = (), started: bool = True, **options: Any
) -> Iterator[list[MendOptimizer]]:
    """A learner for each inner optimizer, named a, b, c …

    The first learner is the others' peer. `options` are those of all learners, and `each` has the
    options of one learner each."""
    with ExitStack() as stack:
        made: list[MendOptimizer] = []
        for i, inner in enumerate(inners):
            peers = [made[0].status().address] if made else []
            own = each[i] if each else {}
            common = {"name": NAMES[i], "listen": LOOPBACK, "peers": peers, "timing": TIMING}
            made.append(
                stack.enter_context(closing(MendOptimizer(inner, **{**common, **options, **own})))
            )
        if started:
            start(made)
        yield made


def step(optimizer: Optimizer, grad: float | None) -> None:
    """Take one inner step on gradients of this value."""
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        parameter.grad = None if grad is None else torch.full_like(parameter, grad)
    optimizer.step()


def drive(optimizers: Sequence[Optimizer], steps: int, grad: Grad) -> None:
    """Let all take `steps` steps, each in a thread of its own."""

    def loop(i: int) -> None:
        for s in range(steps):
            step(optimizers[i], grad(i, s))

    together(*(lambda i=i: loop(i) for i in range(len(optimizers))))


def wave(i: int, s: int) -> float:
    """Gradients for `drive`: up and down, and at no step the same for two learners."""
    return ((7 * i + 3 * s) % 11 - 4) / 3


def settle(optimizers: Sequence[MendOptimizer]) -> None:
    """Synchronize until everything is merged everywhere.

    It takes two turns: the first learner to be done has not heard of the last one's work."""
    for _ in range(2):
        assert all(together(*(lambda o=o: o.synchronize(PATIENCE_S) for o in optimizers)))
