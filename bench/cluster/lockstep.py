"""One run of the bench "learning": a model alone, data parallel in one model, or learners in
lockstep.

The learners are threads of one process, on loopback. A correction is adopted exactly `late` steps
after its snapshot, so the end of a run depends on its settings alone, to the bit.

Where the cluster chooses H, a link has to be slow in seconds: steps take `PACE_S`, offers arrive
`late` such steps after they do, and corrections are adopted when they come. So it is where the
learners differ in speed."""

from __future__ import annotations

import copy
import hashlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean as mean
from typing import Any, NamedTuple

import torch
from torch import Generator, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from bench.cluster.learners import delay_offers
from bench.cluster.runs import AUTO, PARALLEL, QUARTERS, Outcome, Run, runs_freely, sync_every
from bench.cluster.tasks import TASKS, Part, Task, on_device
from mend_optim import Adoption, DiLoCoNesterov, MendOptimizer, Timing

WARMUP = 50  # steps
PARTS = 40  # of the curve of training losses
LIMIT_S = 600.0  # no round takes a tenth of that
POLL_S = 0.002
PACE_S = 0.06  # for a step of a run that chooses H; two learners on two cores need half of that

WHOLE = Adoption(gain=1.0)
#: How learners merge and adopt. Three take the new rules apart, two have them with another gain
#: however late an anchor comes, "in four" has them with four fragments, and "by tokens" and
#: "throughput" have them with other weights where batches differ.
MERGING: dict[str, Mapping[str, Any]] = {
    "whole correction": {"merge": "mean", "adoption": WHOLE, "weighting": "tokens"},
    "new": {"merge": "norm_preserving", "adoption": "auto"},
    "0.7/0.9": {"merge": "mean", "adoption": WHOLE, "outer": DiLoCoNesterov(lr=0.7, momentum=0.9)},
    "gain alone": {"merge": "mean", "adoption": "auto"},
    "norms alone": {"merge": "norm_preserving", "adoption": WHOLE},
    "rda": {"merge": "rda", "adoption": "auto"},
    "gain 0.1": {"merge": "norm_preserving", "adoption": Adoption(gain=0.1)},
    "gain 0.5": {"merge": "norm_preserving", "adoption": Adoption(gain=0.5)},
    "in four": {"merge": "norm_preserving", "adoption": "auto", "fragments": 4},
    "by tokens": {"merge": "norm_preserving", "adoption": "auto", "weighting": "tokens"},
    "throughput": {"merge": "norm_preserving", "adoption": "auto", "weighting": "throughput"},
}


class Trace(NamedTuple):
    """The losses of a run as it goes on, the digest of the weights at its end, and the H that the
    cluster chose, if it did."""

    held_out: list[float]
    own: list[float]
    training: list[float]
    digest: str
    chosen: int = 0
    #: Offers that rounds refused because of their size.
    outsized: int = 0


# ── a run ─────────────────────────────────────────────────────────────────────────────────────────


def measure(run: Run, device: str = "cpu") -> Outcome:
    """The outcome of a run, in this process. The models are on `device`."""
    torch.set_num_threads(1)
    task = on_device(TASKS[run.task](), device)
    started = time.monotonic()
    trace = _together(run, task) if run.arm in MERGING else _by_itself(run, task)
    return Outcome(
        held_out=tuple(trace.held_out),
        own=tuple(trace.own),
        training=tuple(_curve(trace.training)),
        digest=trace.digest,
        seconds=round(time.monotonic() - started, 2),
        chosen=trace.chosen,
        outsized=trace.outsized,
    )


def _by_itself(run: Run, task: Task) -> Trace:
    """One model, which takes the mean of the gradients over every member's batch; that is one batch
    where it trains alone or apart from the others. The batches of slower members are smaller: they
    see as much data as they would by themselves."""
    torch.manual_seed(run.seed)
    model = task.model()
    inner = task.inner(model.parameters(), run.rate)
    schedule = _schedule(inner, run.steps)
    held_out, losses = [], []
    members = run.members if run.arm == PARALLEL else 1
    for step in range(run.steps):
        inner.zero_grad()
        losses.append(sum(_backward(run, task, model, step, i) for i in range(members)))
        inner.step()
        schedule.step()
        if step + 1 in _quarters(run.steps):
            held_out.append(_finite(task.evaluate(model)))
    return Trace(held_out, held_out, [loss / members for loss in losses], _digest(model))


def _backward(run: Run, task: Task, model: nn.Module, step: int, member: int) -> float:
    """The gradients of a member's batch are added to the model's; in data parallel, by the batch's
    share of all samples. The loss of that batch."""
    draws = Generator().manual_seed(1_000_003 * run.seed + 64 * step + member)
    size, share = _batch(run, member)
    part = Part(index=member, of=run.members, share=run.skew / 100) if run.skew else None
    loss = model(*task.draw(draws, size, part))
    (loss * share).backward()
    return float(loss.item())


def _batch(run: Run, member: int) -> tuple[int, float]:
    """The samples of a member's batch, and their share of those that the model takes in a step."""
    if run.arm != PARALLEL:
        return run.cell.batch_of(member, run.batch), 1.0
    sizes = [run.cell.steps_of(i, run.cell.batch_of(i, run.batch)) for i in range(run.members)]
    return sizes[member], sizes[member] / sum(sizes)


def _schedule(optimizer: Optimizer, steps: int) -> LambdaLR:
    """Warm-up, then half a cosine."""

    def factor(done: int) -> float:
        return min(1.0, (done + 1) / WARMUP) * (1 + math.cos(math.pi * done / steps)) / 2

    return LambdaLR(optimizer, factor)


def _quarters(steps: int) -> list[int]:
    return [steps * (i + 1) // QUARTERS for i in range(QUARTERS)]


def _finite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf


def _curve(losses: Sequence[float]) -> Iterator[float]:
    parts = min(PARTS, len(losses))
    for i in range(parts):
        part = losses[i * len(losses) // parts : (i + 1) * len(losses) // parts]
        yield _finite(sum(part) / len(part))


def _digest(model: nn.Module) -> str:
    content = hashlib.sha256()
    for parameter in model.parameters():
        content.update(parameter.detach().cpu().numpy().tobytes())
    return content.hexdigest()


# ── learners in lockstep ──────────────────────────────────────────────────────────────────────────


class _Cluster:
    """The learners of a run: threads that meet before the first step, at every quarter, and at the
    end."""

    def __init__(self, run: Run, task: Task) -> None:
        self.run = run
        self.task = task
        self.runs_freely = runs_freely(run.period)
        torch.manual_seed(run.seed)
        first = task.model()
        #: Of a step, by learner.
        self.tokens = [run.cell.batch_of(i, run.batch) for i in range(run.members)]
        self.models = [first, *(copy.deepcopy(first) for _ in range(run.members - 1))]
        self.optimizers: list[MendOptimizer] = []
        for i, model in enumerate(self.models):
            self.optimizers.append(self._learner(i, model))
        self.meeting = threading.Barrier(run.members)
        self.steps = [run.cell.steps_of(i, run.steps) for i in range(run.members)]
        self.losses = [[0.0] * steps for steps in self.steps]
        self.held_out: list[float] = []
        self.own: list[float] = []
        self.digests = [""] * run.members
        self.chosen = 0
        self.outsized = 0
        self.faults: list[BaseException] = []

    def _learner(self, i: int, model: nn.Module) -> MendOptimizer:
        run = self.run
        options: dict[str, Any] = {
            "sync_every": sync_every(run.period),
            "adopt_after": None if self.runs_freely else run.late,
            "tokens_per_step": self.tokens[i],
            **MERGING[run.arm],
        }
        return MendOptimizer(
            self.task.inner(model.parameters(), run.rate),
            name=f"learner{i}",
            listen="127.0.0.1:0",
            peers=[optimizer.status().address for optimizer in self.optimizers],
            quorum=run.members,
            moments=None,
            failslow=None,
            # A busy machine may hold up a thread for long; a round must wait for it.
            timing=Timing(round_timeout_s=LIMIT_S, evict_after_s=LIMIT_S),
            **options,
        )

    def train(self) -> None:
        """Run all learners to the end. Raises what the first of them raised."""
        threads = [
            threading.Thread(target=self._guarded, args=(i,), daemon=True)
            for i in range(self.run.members)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for optimizer in self.optimizers:
            optimizer.close()
        if self.faults:
            raise self.faults[0]
        self._check()

    def _guarded(self, i: int) -> None:
        try:
            self._work(i)
        except threading.BrokenBarrierError:
            pass  # another learner failed, and has told why
        except BaseException as fault:
            self.faults.append(fault)
            self.meeting.abort()

    def _work(self, i: int) -> None:
        model, optimizer, run = self.models[i], self.optimizers[i], self.run
        steps = self.steps[i]
        optimizer.join()
        _wait(lambda: self._has_met_all(optimizer), "the other learners")
        self.meeting.wait(LIMIT_S)
        schedule = _schedule(optimizer, steps)
        if self.runs_freely:
            delay_offers(optimizer, run.late * PACE_S)
        pace_s = PACE_S * (run.slow if i else 1)
        for step in range(steps):
            began = time.monotonic()
            optimizer.zero_grad()
            self.losses[i][step] = _backward(run, self.task, model, step, i)
            optimizer.step()
            schedule.step()
            if self.runs_freely:
                time.sleep(max(0.0, began + pace_s - time.monotonic()))
            if step + 1 in _quarters(steps):
                self._pause(i, step + 1)
        if i == 0 and run.period == AUTO:
            self.chosen = optimizer.status().sync_every
        # Learners that run freely are at different steps, so they must agree on the end.
        if not optimizer.finish(LIMIT_S) and run.members > 1:
            raise TimeoutError(f"{run}: the learners did not end together")
        self._finish(i)
        self.meeting.wait(LIMIT_S)

    def _has_met_all(self, optimizer: MendOptimizer) -> bool:
        """Whether all learners are on the roster, and the learner no longer counts as alone: alone
        it would take its first steps without rounds."""
        learner = optimizer._learner
        assert learner is not None
        others = self.run.members - 1
        return len(optimizer.status().roster) == others and learner.is_alone() == (others == 0)

    def _pause(self, i: int, done: int) -> None:
        """All learners wait while the first of them evaluates."""
        self._settle(self.optimizers[i], done)
        self.meeting.wait(LIMIT_S)
        if i == 0:
            self._evaluate()
        self.meeting.wait(LIMIT_S)

    def _finish(self, i: int) -> None:
        """The last quarter ends with the weights that all learners share."""
        with self.optimizers[i].global_weights():
            self.digests[i] = _digest(self.models[i])
            if i == 0:
                self.held_out[-1] = _finite(self.task.evaluate(self.models[0]))

    def _settle(self, optimizer: MendOptimizer, done: int) -> None:
        """Wait until the last snapshot of all learners is in this learner's anchor, as that comes
        in the background. A token is a sample here."""
        run = self.run
        if run.members == 1 or not isinstance(run.period, int):
            return
        merged = sum(self.tokens) * (done - done % run.period)
        # Only the last fragment is due at the end of each period.
        _wait(lambda: optimizer.status().fragments[-1].tokens == merged, "a round")

    def _evaluate(self) -> None:
        model = self.models[0]
        self.own.append(_finite(self.task.evaluate(model)))
        with self.optimizers[0].global_weights():
            self.held_out.append(_finite(self.task.evaluate(model)))

    def _check(self) -> None:
        """Raise unless every sample of every learner counts once in weights that all share."""
        models = len(set(self.digests))
        if models != 1:
            raise RuntimeError(f"{self.run}: the learners end on {models} models")
        for status in (optimizer.status() for optimizer in self.optimizers):
            self.outsized = max(self.outsized, status.outsized_offers)
            lost = status.dropped_tokens + status.superseded_tokens + status.unmerged_tokens
            if lost and self.run.members > 1:
                raise RuntimeError(f"{self.run}: {lost} samples of {status.name} were not merged")


def _together(run: Run, task: Task) -> Trace:
    cluster = _Cluster(run, task)
    cluster.train()
    # Those of the first learner alone, if the others take fewer steps.
    steps = zip(*cluster.losses, strict=True) if run.slow == 1 else zip(cluster.losses[0])
    return Trace(
        cluster.held_out,
        cluster.own,
        [mean(losses) for losses in steps],
        cluster.digests[0],
        cluster.chosen,
        cluster.outsized,
    )


def _wait(ready: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + LIMIT_S
    while not ready():
        if time.monotonic() > limit:
            raise TimeoutError(f"{what} did not come within {LIMIT_S:g} s")
        time.sleep(POLL_S)
