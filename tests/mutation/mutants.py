"""Mutation check: break the engine on purpose, one rule at a time; a test must fail each time.

    python -m tests.mutation.mutants [NAME...] [--law 5] [--jobs 2] [--timeout 180]

The mutants are in `mutant_list.py` and in the files that end in `_mutants.py`. Each is made in a
copy of the sources and runs its own small selection of tests. The unchanged copy must pass that
selection first, because otherwise a failure would prove nothing. A mutant is caught if a test
fails or hangs. If the tests cannot be collected, the mutant is not caught but broken. The exit
status is 1 if a mutant survives or is broken."""

from __future__ import annotations

import argparse
import compileall
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from py_compile import PycInvalidationMode

from tests.mutation import (
    absence_mutants,
    attestation_mutants,
    bounds_mutants,
    checksum_mutants,
    cli_mutants,
    declining_mutants,
    departure_mutants,
    field_mutants,
    go_between_mutants,
    gpu_mutants,
    headway_mutants,
    joint_mutants,
    lateness_mutants,
    launch_mutants,
    log_mutants,
    majority_mutants,
    memory_mutants,
    mutant_list,
    order_mutants,
    parting_mutants,
    passage_mutants,
    peer_mutants,
    rank_mutants,
    repair_mutants,
    residual_mutants,
    rollback_mutants,
    script_mutants,
    seal_mutants,
    security_mutants,
    sign_mutants,
    signal_mutants,
    source_mutants,
    standoff_mutants,
    survey_mutants,
    terminal_mutants,
    turn_mutants,
    zone_mutants,
)
from tests.mutation.mutant_list import Mutant
from tests.mutation.runs import prepare, pytest_in

MUTANTS = (
    *mutant_list.MUTANTS,
    *bounds_mutants.BOUNDS_MUTANTS,
    *checksum_mutants.CHECKSUM_MUTANTS,
    *cli_mutants.CLI_MUTANTS,
    *absence_mutants.ABSENCE_MUTANTS,
    *headway_mutants.HEADWAY_MUTANTS,
    *declining_mutants.DECLINING_MUTANTS,
    *departure_mutants.DEPARTURE_MUTANTS,
    *field_mutants.FIELD_MUTANTS,
    *go_between_mutants.GO_BETWEEN_MUTANTS,
    *gpu_mutants.GPU_MUTANTS,
    *lateness_mutants.LATENESS_MUTANTS,
    *launch_mutants.LAUNCH_MUTANTS,
    *log_mutants.LOG_MUTANTS,
    *majority_mutants.MAJORITY_MUTANTS,
    *attestation_mutants.ATTESTATION_MUTANTS,
    *repair_mutants.REPAIR_MUTANTS,
    *memory_mutants.MEMORY_MUTANTS,
    *order_mutants.ORDER_MUTANTS,
    *parting_mutants.PARTING_MUTANTS,
    *passage_mutants.PASSAGE_MUTANTS,
    *peer_mutants.PEER_MUTANTS,
    *rank_mutants.RANK_MUTANTS,
    *residual_mutants.RESIDUAL_MUTANTS,
    *rollback_mutants.ROLLBACK_MUTANTS,
    *security_mutants.SECURITY_MUTANTS,
    *script_mutants.SCRIPT_MUTANTS,
    *seal_mutants.SEAL_MUTANTS,
    *sign_mutants.SIGN_MUTANTS,
    *survey_mutants.SURVEY_MUTANTS,
    *source_mutants.SOURCE_MUTANTS,
    *standoff_mutants.STANDOFF_MUTANTS,
    *signal_mutants.SIGNAL_MUTANTS,
    *terminal_mutants.TERMINAL_MUTANTS,
    *turn_mutants.TURN_MUTANTS,
    *zone_mutants.ZONE_MUTANTS,
    *joint_mutants.JOINT_MUTANTS,
)
ROOT = Path(__file__).parents[2]
# What pytest has compiled for another folder.
OWN_CACHES = shutil.ignore_patterns("*-pytest-*.pyc")
COPIED = ("mend_optim", "tests", "pyproject.toml")
TESTS_FAILED = 1  # pytest's exit status; others say that no test ran, or not all

# A `conftest.py` above the copied tests: a run that imports another mend_optim than the copy's ends
# with status 4.
CONFTEST = """
from pathlib import Path

import pytest

import mend_optim

if Path(mend_optim.__file__).parent.parent != Path(__file__).parent:
    raise pytest.UsageError(f"not the copy: {mend_optim.__file__}")
"""


@dataclass(frozen=True)
class Outcome:
    """The result of one run of a selection: `status` is "passed", "caught", "hung" or "broken"."""

    status: str
    by: str
    seconds: float

    @property
    def caught(self) -> bool:
        return self.status in ("caught", "hung")


def mutated(source: str, mutant: Mutant) -> str:
    """The source with the mutant's text replaced. Raises `ValueError` unless it occurs exactly
    once."""
    times = source.count(mutant.old)
    if times != 1:
        raise ValueError(
            f"{mutant.name}: its text must occur once in {mutant.room}.py, got {times} times"
        )
    return source.replace(mutant.old, mutant.new)


def copy(source: Path, target: Path, way: Callable[[str, str], object] = shutil.copy) -> Path:
    """Copy the parts of the tree at `source` that the tests need, each file in this way."""
    for name in COPIED:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, ignore=OWN_CACHES, copy_function=way)
        else:
            way(str(source / name), str(target / name))
    (target / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    return target


def compiled(target: Path) -> Path:
    """The copy, with bytecode that counts as long as a source is what it was."""
    how = PycInvalidationMode.CHECKED_HASH
    compileall.compile_dir(target / "mend_optim", quiet=2, force=True, invalidation_mode=how)
    return target


@contextmanager
def tree(source: Path, mutant: Mutant | None = None) -> Iterator[Path]:
    """A copy for one run, with the mutant in it. All else are links: thousands of runs copy it."""
    with tempfile.TemporaryDirectory(prefix="mutant-", dir=source.parent) as folder:
        target = copy(source, Path(folder), os.link)
        if mutant:
            room = target / "mend_optim" / f"{mutant.room}.py"
            text = mutated(room.read_text(encoding="utf-8"), mutant)
            room.unlink()
            room.write_text(text, encoding="utf-8")
        yield target


def verdict(status: int, output: str) -> tuple[str, str]:
    """The result of a run, from pytest's exit status and report, and the first test that failed."""
    if status == 0:
        return "passed", ""
    failed = re.search(r"^FAILED tests/(.+?)( - .*)?$", output, re.MULTILINE)
    if status == TESTS_FAILED and failed:
        return "caught", failed[1]
    return "broken", f"pytest ended with status {status}:\n{output[-2000:]}"


def attempt(
    source: Path,
    selection: Sequence[str],
    mutant: Mutant | None = None,
    *,
    timeout_s: float,
) -> Outcome:
    with tree(source, mutant) as folder:
        status, output, seconds = pytest_in(folder, selection, timeout_s)
    if status is None:
        return Outcome("hung", f"hung for {timeout_s:.0f} s", seconds)
    return Outcome(*verdict(status, output), seconds)


def chosen(names: Sequence[str], law: int | None) -> list[Mutant]:
    """The mutants of these names, or all; of one law, or of all."""
    unknown = set(names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        raise SystemExit(f"no such mutant: {', '.join(sorted(unknown))}")
    return [m for m in MUTANTS if (not names or m.name in names) and law in (None, m.law)]


@contextmanager
def workers(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that fork the runs. If this process is interrupted, or told to end, no further run
    begins."""
    os.environ["PYTHONHASHSEED"] = "0"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with ProcessPoolExecutor(jobs, get_context("spawn"), prepare) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description="break the engine on purpose; see that tests notice"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="of mutants; all if none is given")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--law", type=int, help="only mutants that break this law")
    parser.add_argument(
        "--timeout", type=float, default=180.0, help="seconds until a run counts as hung"
    )
    given = parser.parse_args(arguments)
    mutants = chosen(given.names, given.law)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, workers(given.jobs) as pool:
        # A copy, so that edits during the run do not change the results.
        source = compiled(copy(ROOT, Path(folder) / "unchanged"))
        selections = list(dict.fromkeys(mutant.tests for mutant in mutants))
        for selection, outcome in zip(
            selections,
            pool.map(partial(attempt, source, timeout_s=given.timeout), selections),
            strict=True,
        ):
            if outcome.status != "passed":
                pool.shutdown(cancel_futures=True)
                print(
                    f"the unchanged sources fail {' '.join(selection)}: "
                    f"{outcome.status}, {outcome.by}"
                )
                return 1
        print(
            f"the unchanged sources pass {len(selections)} selections\n\n"
            f"{'mutant':44} law  seconds  caught by"
        )
        tests = [mutant.tests for mutant in mutants]
        outcomes = pool.map(partial(attempt, source, timeout_s=given.timeout), tests, mutants)
        survivors = [
            m.name
            for m, outcome in zip(mutants, outcomes, strict=True)
            if not printed(m, outcome).caught
        ]
    print(
        f"\n{len(mutants) - len(survivors)} of {len(mutants)} caught; "
        f"not caught: {', '.join(survivors) or 'none'}"
    )
    return 1 if survivors else 0


def printed(mutant: Mutant, outcome: Outcome) -> Outcome:
    """The same outcome, printed as one line of the table."""
    by = {"passed": "SURVIVED", "broken": f"BROKEN: {outcome.by}"}.get(outcome.status, outcome.by)
    print(f"{mutant.name:44} {mutant.law:3}  {outcome.seconds:7.1f}  {by}", flush=True)
    return outcome


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
