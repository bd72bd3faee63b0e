"""Learners that lie about what they have learned, among honest ones: the held-out loss of the
honest ones by merge and by lie.

A liar trains as the others do. Before each snapshot it replaces its weights, so its offers are well
formed and false. With Δ what it has learned since the last anchor, it offers

    flipped    −Δ
    scaled     10 Δ
    random     noise, tensor by tensor as long as Δ
    stale      the Δ of its first round, again and again
    colluding  minus the mean of all liars' Δ, the same for each

All learners are real ones, threads of this process in lockstep over loopback. "honest" is the run
of the honest ones alone."""

from __future__ import annotations

import argparse
import copy
import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.optim import Optimizer

from bench.cluster.tasks import TASKS, Task
from bench.result import Result, plain
from mend_optim import MendOptimizer, Timing

LIES = ("flipped", "scaled", "random", "stale", "colluding")
MERGES = ("norm_preserving", "trimmed_mean", "median", "centered_clip")
HONEST, LIARS, STEPS, SYNC_EVERY, BATCH, RATE = 3, 2, 300, 10, 8, 4e-3
LIMIT_S = 600.0
SCALE = 10.0


@dataclass(frozen=True, kw_only=True)
class Crew:
    """A run: so many honest learners and liars, and how their offers are merged."""

    honest: int = HONEST
    liars: int = 0
    lie: str = ""
    merge: str = "norm_preserving"
    steps: int = STEPS
    seed: int = 0


class Plot:
    """What the liars of a run know of one another: a meeting before each snapshot."""

    def __init__(self, liars: int) -> None:
        self.meeting = threading.Barrier(liars) if liars else None
        self.deltas: list[list[Tensor]] = [[] for _ in range(liars)]


class Lie:
    """A hook of the inner optimizer. After the last step before a snapshot, it moves the weights to
    where the lie wants them."""

    def __init__(self, kind: str, weights: Sequence[Tensor], number: int, plot: Plot) -> None:
        self.kind, self.number, self.plot = kind, number, plot
        self.weights = weights
        self.anchor = [weight.detach().clone() for weight in weights]
        self.first: list[Tensor] = []
        self.draws = Generator().manual_seed(number)
        self.steps = 0

    def before(self, *_: Any) -> None:
        """A new period begins at the anchor: each is adopted at once, and whole."""
        if self.steps % SYNC_EVERY == 0:
            self.anchor = [weight.detach().clone() for weight in self.weights]

    @torch.no_grad()
    def after(self, *_: Any) -> None:
        """The inner step is taken; at the end of a period the learner's snapshot follows."""
        self.steps += 1
        if self.steps % SYNC_EVERY:
            return
        learned = [a - w for a, w in zip(self.anchor, self.weights, strict=True)]
        for weight, anchor, told in zip(
            self.weights, self.anchor, self._told(learned), strict=True
        ):
            weight.copy_(anchor - told)

    def _told(self, learned: list[Tensor]) -> list[Tensor]:
        match self.kind:
            case "flipped":
                return [-delta for delta in learned]
            case "scaled":
                return [SCALE * delta for delta in learned]
            case "random":
                return [self._noise(delta) for delta in learned]
            case "stale":
                self.first = self.first or learned
                return self.first
            case _:
                return self._agreed(learned)

    def _noise(self, delta: Tensor) -> Tensor:
        noise = torch.randn(delta.shape, generator=self.draws)
        return noise * (delta.norm() / noise.norm())

    def _agreed(self, learned: list[Tensor]) -> list[Tensor]:
        assert self.plot.meeting
        self.plot.deltas[self.number] = learned
        self.plot.meeting.wait(LIMIT_S)
        told = [-torch.stack(column).mean(0) for column in zip(*self.plot.deltas, strict=True)]
        self.plot.meeting.wait(LIMIT_S)
        return told


def held_out_loss(crew: Crew, task: Task, rate: float = RATE, **options: Any) -> float:
    """The loss of the first honest learner's weights after a run. Raises what a learner raised."""
    torch.manual_seed(crew.seed)
    first = task.model()
    count = crew.honest + crew.liars
    models = [first, *(copy.deepcopy(first) for _ in range(count - 1))]
    plot = Plot(crew.liars)
    optimizers: list[MendOptimizer] = []
    for i, model in enumerate(models):
        inner = task.inner(model.parameters(), rate)
        if i >= crew.honest:
            _corrupt(inner, Lie(crew.lie, [*model.parameters()], i - crew.honest, plot))
        optimizers.append(_learner(i, inner, optimizers, crew, options))
    faults: list[BaseException] = []

    def work(i: int) -> None:
        try:
            _train(i, models[i], optimizers[i], crew, task)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(count)]
    for optimizer in optimizers:
        optimizer.join()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    loss = float("inf")
    if not faults:
        with optimizers[0].global_weights():
            loss = task.evaluate(models[0])
    for optimizer in optimizers:
        optimizer.close()
    if faults:
        raise faults[0]
    return loss


def _corrupt(inner: Optimizer, lie: Lie) -> None:
    inner.register_step_pre_hook(lie.before)
    inner.register_step_post_hook(lie.after)


def _learner(
    i: int, inner: Optimizer, others: Sequence[MendOptimizer], crew: Crew, options: dict[str, Any]
) -> MendOptimizer:
    return MendOptimizer(
        inner,
        name=f"learner{i}",
        listen="127.0.0.1:0",
        peers=[other.status().address for other in others],
        sync_every=SYNC_EVERY,
        adopt_after=0,
        quorum=crew.honest + crew.liars,  # most of fewer members may be liars
        grace=LIMIT_S,
        weighting="uniform",
        merge=crew.merge,
        moments=None,
        failslow=None,
        timing=Timing(round_timeout_s=LIMIT_S, evict_after_s=LIMIT_S),
        **options,
    )


def _train(i: int, model: nn.Module, optimizer: MendOptimizer, crew: Crew, task: Task) -> None:
    draws = Generator().manual_seed(1000 * crew.seed + i)
    for _ in range(crew.steps):
        optimizer.zero_grad()
        model(*task.draw(draws, BATCH)).backward()
        optimizer.step()
    # One that a busy machine held up may have a round to go, for which it needs the others.
    optimizer.finish(LIMIT_S)


def run() -> Iterator[Result]:
    """Rows of `python -m bench liars`."""
    yield from _rows(MERGES, LIES, seeds=(0, 1))


def _rows(merges: Sequence[str], lies: Sequence[str], seeds: Sequence[int]) -> Iterator[Result]:
    torch.set_num_threads(1)
    task = TASKS["text"]()
    notes = f"text, {STEPS} steps, {SYNC_EVERY} between rounds"
    losses = [held_out_loss(Crew(seed=seed), task) for seed in seeds]
    yield plain("liars", f"{HONEST} honest learners alone", "nats", losses, notes=notes)
    for merge, lie in itertools.product(merges, lies):
        crews = [Crew(liars=LIARS, lie=lie, merge=merge, seed=seed) for seed in seeds]
        losses = [held_out_loss(crew, task) for crew in crews]
        yield plain("liars", f"{merge}, {LIARS} {lie}", "nats", losses, notes=notes)
    for lie in lies:
        losses = [held_out_loss(Crew(liars=1, lie=lie, seed=seed), task) for seed in seeds]
        yield plain("liars", f"norm_preserving, 1 {lie}", "nats", losses, notes=notes)


def main() -> None:
    """Print a line for each run."""
    parser = argparse.ArgumentParser(description="Honest learners among liars.")
    parser.add_argument("--merges", nargs="+", default=MERGES)
    parser.add_argument("--lies", nargs="+", default=LIES, choices=LIES)
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1))
    given = parser.parse_args()
    for row in _rows(given.merges, given.lies, given.seeds):
        print(f"{row.what}: {row.median:.3f} ({row.min:.3f} to {row.max:.3f})", flush=True)


if __name__ == "__main__":
    main()
