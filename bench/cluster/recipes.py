"""Ways to learn that were tried beside the library's rules, on the runs of the bench "learning".

A *recipe* is an experiment. One changes what a learner does between two steps, and others replace a
function of the library for the length of a run. Only "rda" is an option of the library. Each is
compared, seed by seed, with the library's rules (the arm "new") in the same cell:

    average        each offer is the average of the weights after the last steps; the learner trains
                   on from its own weights
    signal         f is nearer to 1 the more of a tensor's mean is noise
    greatest       f is its upper bound for every tensor
    tensor gains   α of a late anchor is smaller for tensors on which the learners agree
    rda            merge="rda"

An *inner* replaces the inner optimizer of a task. It has baselines of its own, alone and data
parallel:

    Muon           for the hidden matrices; AdamW for the other parameters
    GPA            the task's optimizer with primal averaging

    python -m bench.cluster.recipes --out recipes.jsonl     everything, for an hour and more
    python -m bench.cluster.recipes --report recipes.jsonl  the tables, and no runs

Each run appends a line to the file. A run that is in the file is not repeated."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer

from bench.cluster import lockstep
from bench.cluster.gaps import NEW, Comparison, Tuned, comparisons
from bench.cluster.learning import Selection, plan, present
from bench.cluster.runs import ALONE, PARALLEL, Cell, Outcome, Record, Run, append, read
from bench.cluster.tasks import RATE, TASKS, Task
from mend_optim import MendOptimizer
from mend_optim.worker import scale
from mend_optim.worker.fragment_anchor import FragmentAnchor

CELLS = ((2, 0), (20, 0), (20, 19))
STEPS, BATCH, MEMBERS, SEEDS = 400, 8, 2, (0, 1, 2)
#: How many steps "average" averages over, or H where that is less.
LAST_STEPS = 5
#: α of "tensor gains" where learners agree, and where their steps are orthogonal.
AGREED_GAIN, ORTHOGONAL_GAIN = 0.15, 0.45
#: GPA: the average keeps this much of itself at each step. Gradients are taken at a mixture that
#: has this much of the average.
KEPT, MIXED = 0.95, 0.8
#: The learning rate of each task with Muon: the best of 0.001, 0.002, 0.004 and 0.008 alone.
MUON_RATE = {"text": 8e-3, "images": 8e-3}

Inner = Callable[[Iterable[nn.Parameter], float], Optimizer]
Patch = AbstractContextManager[Any]


# ── what learners do between two steps ────────────────────────────────────────────────────────────


class Average:
    """Hooks of the inner optimizer. After the last step before a snapshot, the weights become their
    average over the last steps, so that the offer has it.

    Only training counts: a correction that came in between moves all of the average."""

    def __init__(self, inner: Optimizer, period: int) -> None:
        self.weights = _weights(inner)
        self.period = period
        self.steps = 0
        self.before: list[Tensor] = []
        self.moved: list[list[Tensor]] = []
        self.shift: list[Tensor] = []
        inner.register_step_pre_hook(self._begin)
        inner.register_step_post_hook(self._end)

    def _begin(self, *_: Any) -> None:
        self.before = [weight.detach().clone() for weight in self.weights]

    @torch.no_grad()
    def _end(self, *_: Any) -> None:
        self.steps += 1
        self.moved.append([w - b for w, b in zip(self.weights, self.before, strict=True)])
        self.moved = self.moved[-min(LAST_STEPS, self.period) :]
        if self.steps % self.period == 0:
            count = len(self.moved)
            columns = zip(*self.moved, strict=True)
            self.shift = [sum(i / count * m for i, m in enumerate(column)) for column in columns]
            for weight, shift in zip(self.weights, self.shift, strict=True):
                weight.sub_(shift)

    @torch.no_grad()
    def put_back(self) -> None:
        """The snapshot is taken: train on from the learner's own weights. The next offer has the
        difference."""
        for weight, shift in zip(self.weights, self.shift, strict=bool(self.shift)):
            weight.add_(shift)
        self.shift = []


class Averaging(MendOptimizer):
    """A learner that offers averages."""

    def __init__(self, inner: Optimizer, **options: Any) -> None:
        average = Average(inner, options["sync_every"])
        super().__init__(inner, **options)
        self.average = average

    def step(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().step(*args, **kwargs)
        self.average.put_back()
        return loss


def _weights(inner: Optimizer) -> list[Tensor]:
    return [weight for group in inner.param_groups for weight in group["params"]]


# ── experiments inside the library ────────────────────────────────────────────────────────────────

Norms = Sequence[Sequence[float]]
_factors = scale.factors
_adopt_late = FragmentAnchor._adopt_late


def signal_factors(
    members: Norms, mean: Sequence[float], w: Sequence[float], headway: float = 1.0
) -> list[float]:
    """1 + (f − 1) s: s is the share of ‖Δ̄‖² that is no noise, if members differ by noise alone."""
    found = []
    for k, f in enumerate(_factors(members, mean, w, headway)):
        squares = sum(weight * norms[k] ** 2 for weight, norms in zip(w, members, strict=True))
        noise = sum(weight**2 for weight in w)
        own = (mean[k] ** 2 - noise * squares) / (1 - noise) if noise < 1 else mean[k] ** 2
        share = own / mean[k] ** 2 if mean[k] else 1.0
        found.append(1 + (f - 1) * min(1.0, max(0.0, share)))
    return found


def greatest_factors(
    members: Norms, mean: Sequence[float], w: Sequence[float], headway: float = 1.0
) -> list[float]:
    """The bound, as if the members' steps were orthogonal."""
    most = scale.bound(w) / headway
    return [most if any(norms[k] for norms in members) else 1.0 for k in range(len(mean))]


def adopt_late_by_tensor(self: FragmentAnchor, gain: float, own: Tensor, values: Tensor) -> None:
    """`FragmentAnchor._adopt_late` with a gain for each tensor, for two members."""
    _adopt_late(self, gain, own, values)
    if gain == 1 or self.disagreement is None:
        return
    offsets = itertools.pairwise(self.fragment.offsets)
    factors = self.scale.factors or itertools.repeat(1.0)
    for (start, stop), f in zip(offsets, factors, strict=False):
        apart = (f - 1) / (MEMBERS**0.5 - 1)
        own_gain = AGREED_GAIN + (ORTHOGONAL_GAIN - AGREED_GAIN) * apart
        rest = self.disagreement[start:stop]
        kept = rest * ((1 - own_gain) / (1 - gain))
        values[start:stop].add_(rest - kept)
        rest.copy_(kept)


RECIPES: dict[str, Callable[[], Patch]] = {
    "average": lambda: patch.object(lockstep, "MendOptimizer", Averaging),
    "signal": lambda: patch.object(scale, "factors", signal_factors),
    "greatest": lambda: patch.object(scale, "factors", greatest_factors),
    "tensor gains": lambda: patch.object(FragmentAnchor, "_adopt_late", adopt_late_by_tensor),
}
#: One more merge of the library's own.
RDA = "rda"
#: Recipes that change nothing where anchors come in time.
LATE_ONLY = {"tensor gains"}


# ── inner optimizers ──────────────────────────────────────────────────────────────────────────────


class MuonAndAdamW(Optimizer):
    """Muon for some matrices, AdamW for the other parameters. Muon's steps have the size of
    AdamW's, so both have one rate."""

    def __init__(self, matrices: list[Tensor], others: list[Tensor], rate: float) -> None:
        super().__init__([{"params": matrices}, {"params": others}], {"lr": rate})
        decay = 0.01
        self.parts = (
            Muon(matrices, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw"),
            AdamW(others, lr=rate, weight_decay=decay, betas=(0.9, 0.95)),
        )

    def step(self, closure: Any = None) -> None:
        for part, group in zip(self.parts, self.param_groups, strict=True):
            part.param_groups[0]["lr"] = group["lr"]
            part.step()


def muon(name: str, task: Task) -> Task:
    """Muon for the matrices between the embeddings and the last layer."""
    hidden = slice(2, -1) if name == "text" else slice(0, -1)

    def inner(parameters: Iterable[nn.Parameter], rate: float) -> Optimizer:
        weights = list(parameters)
        matrices = [weight for weight in weights if weight.ndim == 2][hidden]
        chosen = {*map(id, matrices)}
        others = [weight for weight in weights if id(weight) not in chosen]
        return MuonAndAdamW(matrices, others, rate)

    return replace(task, inner=inner)


class PrimalAverage:
    """Hooks of an inner optimizer, whose own iterate z they keep beside its running average x. The
    weights are y, a mixture of both, at which gradients are taken. (GPA, arXiv:2512.17131.)

    A correction that moves the weights between two steps moves x and z as well."""

    def __init__(self, inner: Optimizer) -> None:
        self.y = _weights(inner)
        self.x = self._copies()
        self.z = self._copies()
        self.left = self._copies()
        inner.register_step_pre_hook(self._begin)
        inner.register_step_post_hook(self._end)

    def _copies(self) -> list[Tensor]:
        return [weight.detach().clone() for weight in self.y]

    @torch.no_grad()
    def _begin(self, *_: Any) -> None:
        for x, z, y, left in zip(self.x, self.z, self.y, self.left, strict=True):
            x.add_(y - left)
            z.add_(y - left)
            y.copy_(z)

    @torch.no_grad()
    def _end(self, *_: Any) -> None:
        for x, z, y, left in zip(self.x, self.z, self.y, self.left, strict=True):
            z.copy_(y)
            x.lerp_(z, 1 - KEPT)
            left.copy_(torch.lerp(z, x, MIXED))
            y.copy_(left)


def gpa(_: str, task: Task) -> Task:
    """The task's own inner optimizer, with primal averaging."""

    def inner(parameters: Iterable[nn.Parameter], rate: float) -> Optimizer:
        made = task.inner(parameters, rate)
        PrimalAverage(made)
        return made

    return replace(task, inner=inner)


INNERS: dict[str, Callable[[str, Task], Task]] = {"Muon": muon, "GPA": gpa}


# ── runs ──────────────────────────────────────────────────────────────────────────────────────────


def with_inner(task: str, inner: str) -> str:
    """The name of a task whose inner optimizer is replaced."""
    return f"{task} with {inner}"


def measure(run: Run) -> Outcome:
    """The outcome of a run, in this process; not while another run is measured in it."""
    name, _, inner = run.task.partition(" with ")
    with ExitStack() as stack:
        if inner:
            task = INNERS[inner](name, TASKS[name]())
            stack.enter_context(patch.dict(TASKS, {run.task: lambda: task}))
        if run.arm in RECIPES:
            rules = {run.arm: lockstep.MERGING[NEW]}
            stack.enter_context(patch.dict(lockstep.MERGING, rules))
        stack.enter_context(RECIPES.get(run.arm, nullcontext)())
        return lockstep.measure(run)


@dataclass(frozen=True, kw_only=True)
class Tried:
    """The runs to take."""

    tasks: Sequence[str]
    recipes: Sequence[str] = (*RECIPES, RDA)
    inners: Sequence[str] = tuple(INNERS)
    cells: Sequence[tuple[int, int]] = CELLS
    steps: int = STEPS
    seeds: Sequence[int] = SEEDS
    #: Learning rates, as multiples of the task's. Each arm is shown at its best.
    times: Sequence[float] = (1.0,)


def runs_of(tried: Tried) -> list[Run]:
    """All runs, seed by seed."""
    return [run for seed in tried.seeds for task in tried.tasks for run in _of(tried, task, seed)]


def _of(tried: Tried, task: str, seed: int) -> Iterator[Run]:
    cells = [Cell(members=MEMBERS, period=period, late=late) for period, late in tried.cells]
    chosen = Selection(
        tasks=(task,),
        arms=(ALONE, PARALLEL, NEW),
        cells=cells,
        steps=(tried.steps,),
        batches=(BATCH,),
        rates=[times * RATE[task] for times in tried.times],
        seeds=(seed,),
    )
    basis = plan(chosen)
    yield from basis
    for recipe in tried.recipes:
        for run in basis:
            if run.arm == NEW and (run.late or recipe not in LATE_ONLY):
                yield replace(run, arm=recipe)
    for inner in tried.inners:
        times = MUON_RATE[task] / RATE[task] if inner == "Muon" else 1.0
        for run in basis:
            yield replace(run, task=with_inner(task, inner), rate=times * run.rate)


# ── the report ────────────────────────────────────────────────────────────────────────────────────


def report(records: Sequence[Record]) -> str:
    """Markdown: each recipe beside the library's rules, and the losses with each inner
    optimizer."""
    found = comparisons(records)
    return "\n".join([*_shares(found), "", *_losses(found)])


def _shares(found: Sequence[Comparison]) -> Iterator[str]:
    """The share of the gap that each arm closes and, paired by seed, what it adds to the rules'."""
    rules = {(c.setting, c.cell): c for c in found if c.arm == NEW}
    yield "| task | H, τ | arm | share of the gap | less the rules' share, in points |"
    yield "|---|---|---|---|---|"
    for comparison in sorted(found, key=lambda c: (c.setting.task, c.cell)):
        shares = dict(zip(comparison.seeds, comparison.closed, strict=False))
        usual = rules[comparison.setting, comparison.cell]
        known = dict(zip(usual.seeds, usual.closed, strict=False))
        added = [shares[seed] - known[seed] for seed in shares if seed in known]
        paired = _percent(added) if comparison.arm != NEW else ""
        cell = f"{comparison.cell.period}, {comparison.cell.late}"
        what = f"{comparison.setting.task} | {cell} | {comparison.arm}"
        yield f"| {what} | {_percent([*shares.values()])} | {paired} |"


def _percent(shares: Sequence[float]) -> str:
    if not shares:
        return ""
    told = [100 * share for share in shares]
    return f"{mean(told):.0f} ({min(told):.0f} to {max(told):.0f}, {len(told)})"


def _losses(found: Sequence[Comparison]) -> Iterator[str]:
    """Held-out nats at the end, averaged over the seeds, at the best rate that was tried."""
    yield "| task | arm | rate | held-out nats |"
    yield "|---|---|---|---|"
    rows: dict[str, None] = {}
    for c in found:
        arms = {ALONE: c.alone, PARALLEL: c.parallel}
        arms[f"{c.arm}, H {c.cell.period}, τ {c.cell.late}"] = c.own
        for arm, tuned in arms.items():
            if tuned:
                rows[f"| {c.setting.task} | {arm} | {tuned.rate:g} | {_nats(tuned)} |"] = None
    yield from rows


def _nats(tuned: Tuned) -> str:
    ends = [outcome.held_out[-1] for outcome in tuned.outcomes.values()]
    return f"{tuned.loss:.4f} ({min(ends):.4f} to {max(ends):.4f}, {len(ends)})"


# ── the command ───────────────────────────────────────────────────────────────────────────────────


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.cluster.recipes", description="Recipes beside the library's rules."
    )
    add = parser.add_argument
    add("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    add("--recipes", nargs="*", choices=[*RECIPES, RDA], default=[*RECIPES, RDA])
    add("--inners", nargs="*", choices=list(INNERS), default=list(INNERS))
    add("--steps", type=int, default=STEPS)
    add("--seeds", nargs="+", type=int, default=SEEDS)
    add("--times", nargs="+", type=float, default=(1.0,), help="the task's rate, so many times")
    add("--out", type=Path, help="append each run to this file; runs that are in it are done")
    add("--report", type=Path, metavar="FILE", help="print tables of this file, and run nothing")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Measure what the file lacks, one run at a time, or report on a file."""
    arguments = parse_arguments(words)
    if arguments.report:
        print(report(read(arguments.report)))
        return
    done = {record.run: record for record in read(arguments.out)}
    tasks = present(arguments.tasks)
    tried = Tried(
        tasks=tasks,
        recipes=arguments.recipes,
        inners=arguments.inners,
        steps=arguments.steps,
        seeds=arguments.seeds,
        times=arguments.times,
    )
    runs = runs_of(tried)
    with patch.dict(TASKS, {task: cache(TASKS[task]) for task in tasks}):
        for run in (run for run in runs if run not in done):
            done[run] = Record(run=run, outcome=measure(run))
            if arguments.out:
                append(arguments.out, done[run])
            outcome = done[run].outcome
            print(f"{run}: {outcome.held_out[-1]:.4f} in {outcome.seconds:g} s", file=sys.stderr)
    print(report([done[run] for run in runs]))


if __name__ == "__main__":
    main()
