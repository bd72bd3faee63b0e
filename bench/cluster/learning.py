"""How much of the gap between training alone and per-step data parallel several learners close,
with equal steps and equal data.

    gap closed = (alone − x) / (alone − data parallel)

x is a held-out loss at the end of a run. 1 is as good as data parallel, which exchanges gradients
at every step. Below 0 is worse than not to communicate at all.

The learners are real ones, on loopback (`lockstep.py`). All arms of a seed begin with the same
weights, and learner i sees the same batches in all of them. Moments stay local.

    python -m bench learning                                            a selection of cells
    python -m bench.cluster.learning --full --jobs 2 --out grid.jsonl   every cell, for many hours
    python -m bench.cluster.learning --report grid.jsonl                tables and pictures

Each run appends a line to the file. A run that is in the file is not repeated, so a long series can
be stopped and continued."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.cluster.gaps import comparisons, report, results
from bench.cluster.lockstep import MERGING, measure
from bench.cluster.runs import (
    ALONE,
    APART,
    AUTO,
    FREE,
    PARALLEL,
    Cell,
    Outcome,
    Period,
    Record,
    Run,
    append,
    read,
    runs_freely,
)
from bench.cluster.tasks import ABSENT, RATE, RATES, TASKS
from bench.result import Result

ARMS = (ALONE, PARALLEL, *MERGING, APART)
COMPARED = ARMS[:5]
#: The τ of a correction that comes one step before the next snapshot.
LAST = "H-1"


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which runs to take: every combination. No rates: those of each task that are worth trying."""

    tasks: Sequence[str] = tuple(TASKS)
    arms: Sequence[str] = COMPARED
    cells: Sequence[Cell]
    steps: Sequence[int] = (800,)
    batches: Sequence[int] = (8,)
    rates: Sequence[float] = ()
    seeds: Sequence[int] = (0, 1, 2)


#: The cells of the issue's table; `python -m bench learning` measures them.
CELLS = tuple(
    Cell(members=2, period=period, late=late)
    for period, late in ((2, 0), (20, 0), (20, 5), (20, 19), (5, 5), (10, 10))
)


def plan(selection: Selection) -> list[Run]:
    """The runs of a selection, the baselines of a task before its other runs. Each is in it once,
    although all cells share the baselines."""
    runs: dict[Run, None] = {}
    for steps, batch, task in product(selection.steps, selection.batches, selection.tasks):
        for cell, arm in _arms(selection):
            for rate, seed in product(selection.rates or RATES[task], selection.seeds):
                run = Run(
                    task=task,
                    arm=arm,
                    members=cell.members,
                    period=cell.period,
                    late=cell.late,
                    steps=steps,
                    batch=batch,
                    rate=rate,
                    seed=seed,
                    slow=cell.slow,
                    small=cell.small,
                    skew=cell.skew,
                )
                runs[run] = None
    return list(runs)


def _arms(selection: Selection) -> Iterator[tuple[Cell, str]]:
    if ALONE in selection.arms:
        yield Cell(members=1, period=0, late=0), ALONE
    for cell in sorted({replace(c, period=0, late=0) for c in selection.cells if c.members > 1}):
        yield from ((cell, arm) for arm in (PARALLEL, APART) if arm in selection.arms)
    yield from product(selection.cells, [arm for arm in selection.arms if arm in MERGING])


def present(tasks: Sequence[str]) -> list[str]:
    """The tasks that can run here. The others are reported on stderr."""
    found = []
    for task in tasks:
        if reason := ABSENT[task]() if task in ABSENT else "":
            print(f"learning, {task}: skipped: {reason}", file=sys.stderr)
        else:
            found.append(task)
    return found


def run() -> Iterator[Result]:
    for task in present(tuple(TASKS)):
        chosen = Selection(tasks=(task,), cells=CELLS, rates=(RATE[task],))
        yield from results(list(measure_all(plan(chosen), os.cpu_count() or 1)))


# ── many runs ─────────────────────────────────────────────────────────────────────────────────────


def measure_all(runs: Sequence[Run], jobs: int, device: str = "cpu") -> Iterator[Record]:
    """The records of all runs, as they finish; `jobs` processes at a time, one for each run. A run
    that fails is reported on stderr, and the others go on."""
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(_in_process, run, device): run for run in runs}
        try:
            for future in as_completed(futures):
                outcome, fault = future.result()
                if outcome is None:
                    print(f"{futures[future]} failed:\n{fault}", file=sys.stderr)
                else:
                    yield Record(run=futures[future], outcome=outcome)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _in_process(run: Run, device: str) -> tuple[Outcome | None, str]:
    """The outcome of a run in a process of its own, or its fault."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(run, device, sender), daemon=True)
    process.start()
    sender.close()
    try:
        answer: tuple[Outcome | None, str] = receiver.recv()
    except EOFError:
        answer = None, "its process was killed"
    process.join()
    return answer


def _answer(run: Run, device: str, sender: Connection) -> None:
    try:
        sender.send((measure(run, device), ""))
    except BaseException:
        sender.send((None, traceback.format_exc()))


# ── the command ───────────────────────────────────────────────────────────────────────────────────

FULL: dict[str, list[Any]] = {
    "members": [1, 2, 4, 8],
    "periods": [2, 5, 20, 100],
    "late": [0, 1, 5, LAST],
    "steps": [500, 2000],
    "batches": [8, 64],
}


def cells(
    members: Sequence[int], periods: Sequence[Period], late: Sequence[int | str]
) -> list[Cell]:
    """Every combination with τ at most H. Where learners run freely, there is no last step."""
    found: dict[Cell, None] = {}
    for count, period, steps in product(members, periods, late):
        free = runs_freely(period)
        if free and steps == LAST:
            continue
        exact = int(period) - 1 if steps == LAST else int(steps)
        if free or exact <= int(period):
            found[Cell(members=count, period=period, late=exact)] = None
    return list(found)


def _number_or(word: str, text: str) -> int | str:
    return word if text == word else int(text)


def _period(text: str) -> Period:
    if text.endswith(FREE):
        return f"{int(text.removesuffix(FREE))}{FREE}"
    return _number_or(AUTO, text)


def _late(text: str) -> int | str:
    return _number_or(LAST, text)


def _cell(text: str) -> tuple[Period, int]:
    period, late = text.split(":")
    return _period(period), int(late)


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.cluster.learning", description="The gap that learners close."
    )
    add = parser.add_argument
    add("--full", action="store_true", help="every cell, step count, batch size and rate")
    add("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    add("--members", nargs="+", type=int, help="M, learners; default: 2")
    add(
        "--periods",
        nargs="+",
        type=_period,
        help="H, steps between snapshots, or auto; 5free: not in lockstep",
    )
    add("--late", nargs="+", type=_late, help=f"τ, steps from snapshot to adoption, or {LAST}")
    add("--cells", nargs="+", type=_cell, metavar="H:τ", help="instead of --periods and --late")
    add("--slow", type=int, default=1, help="all but the first learner are so many times slower")
    add("--small", type=int, default=1, help="their batches are so many times smaller")
    add(
        "--skew",
        type=int,
        default=0,
        choices=range(101),
        metavar="PERCENT",
        help="of a learner's samples are from a part of its own",
    )
    add("--steps", nargs="+", type=int, help="default: 800; of the first learner")
    add("--batches", nargs="+", type=int, help="of the first learner; default: 8")
    add("--rates", nargs="+", type=float, help="default: one of each task; --full: its grid")
    add("--seeds", nargs="+", type=int, default=[0, 1, 2])
    add("--arms", nargs="+", choices=ARMS, default=list(COMPARED))
    add("--jobs", type=int, default=1, help="runs at a time")
    add("--device", default="cpu", help="where the models are; a file has runs of one device")
    add("--out", type=Path, help="append each run to this file; runs that are in it are done")
    add("--report", type=Path, metavar="FILE", help="print tables of this file, and run nothing")
    add("--pictures", type=Path, metavar="FOLDER", help="with --report: the curves go there")
    return parser.parse_args(words)


def selections(arguments: argparse.Namespace) -> list[Selection]:
    """What the command line selects; one of each task, since their rates differ."""
    full = FULL if arguments.full else {}
    told: dict[str, list[Any]] = {
        name: getattr(arguments, name) or full.get(name, []) for name in FULL
    }
    members = told["members"] or [2]
    pairs = arguments.cells
    if pairs is None and not (told["periods"] or told["late"]):
        pairs = [(cell.period, cell.late) for cell in CELLS]
    if pairs is None:
        chosen = cells(members, told["periods"] or [20], told["late"] or [0])
    else:
        chosen = [Cell(members=m, period=h, late=late) for m, (h, late) in product(members, pairs)]
    if arguments.slow > 1:
        # In lockstep the slow ones would hold up the first.
        chosen = [replace(cell, slow=arguments.slow) for cell in chosen if runs_freely(cell.period)]
    chosen = [replace(cell, small=arguments.small, skew=arguments.skew) for cell in chosen]
    return [
        Selection(
            tasks=(task,),
            arms=arguments.arms,
            cells=chosen,
            steps=told["steps"] or (800,),
            batches=told["batches"] or (8,),
            rates=arguments.rates or (() if arguments.full else (RATE[task],)),
            seeds=arguments.seeds,
        )
        for task in present(arguments.tasks)
    ]


def main(words: Sequence[str] | None = None) -> int:
    """Measure what the file lacks, or report on a file. 1 if a run failed."""
    arguments = parse_arguments(words)
    if arguments.report:
        records = read(arguments.report)
        print(report(records))
        if arguments.pictures:
            _draw(records, arguments.pictures)
        return 0
    done = {record.run: record for record in read(arguments.out)}
    runs = [run for chosen in selections(arguments) for run in plan(chosen)]
    missing = sorted((run for run in runs if run not in done), key=lambda run: run.steps)
    print(f"{len(runs) - len(missing)} runs are done, {len(missing)} to go", file=sys.stderr)
    for count, record in enumerate(measure_all(missing, arguments.jobs, arguments.device), start=1):
        done[record.run] = record
        if arguments.out:
            append(arguments.out, record)
        loss, seconds = record.outcome.held_out[-1], record.outcome.seconds
        print(f"{count}/{len(missing)} {record.run}: {loss:.4f} in {seconds:g} s", file=sys.stderr)
    found = [done[run] for run in runs if run in done]
    print(report(found))
    return int(len(found) < len(runs))


def _draw(records: Sequence[Record], folder: Path) -> None:
    try:
        from bench.cluster.curves import draw
    except ImportError as error:
        print(f"no pictures: {error}; pip install '.[bench]'", file=sys.stderr)
    else:
        for path in draw(comparisons(records), folder):
            print(path, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
