"""Mutation check: break the engine on purpose, one rule at a time; a test must fail each time.

    python -m tests.mutation.mutants [NAME...] [--law 5] [--jobs 2] [--timeout 180]

The mutants are in `mutant_list.py` and in the files that end in `_mutants.py`. Each is made in a
copy of the sources and runs its own small selection of tests. The unchanged copy must pass that
selection first, because otherwise a failure would prove nothing. A mutant is caught if a test
fails or hangs. If the tests cannot be collected, the mutant is not caught but broken. The exit
status is 1 if a mutant survives or is broken."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.mutation import (
    attestation_mutants,
    bounds_mutants,
    cli_mutants,
    departure_mutants,
    field_mutants,
    go_between_mutants,
    gpu_mutants,
    joint_mutants,
    launch_mutants,
    log_mutants,
    majority_mutants,
    memory_mutants,
    mutant_list,
    order_mutants,
    parting_mutants,
    peer_mutants,
    rank_mutants,
    residual_mutants,
    rollback_mutants,
    seal_mutants,
    security_mutants,
    sign_mutants,
    signal_mutants,
    standoff_mutants,
    survey_mutants,
    terminal_mutants,
    zone_mutants,
)
from tests.mutation.mutant_list import Mutant

MUTANTS = (
    *mutant_list.MUTANTS,
    *bounds_mutants.BOUNDS_MUTANTS,
    *cli_mutants.CLI_MUTANTS,
    *departure_mutants.DEPARTURE_MUTANTS,
    *field_mutants.FIELD_MUTANTS,
    *go_between_mutants.GO_BETWEEN_MUTANTS,
    *gpu_mutants.GPU_MUTANTS,
    *launch_mutants.LAUNCH_MUTANTS,
    *log_mutants.LOG_MUTANTS,
    *majority_mutants.MAJORITY_MUTANTS,
    *attestation_mutants.ATTESTATION_MUTANTS,
    *memory_mutants.MEMORY_MUTANTS,
    *order_mutants.ORDER_MUTANTS,
    *parting_mutants.PARTING_MUTANTS,
    *peer_mutants.PEER_MUTANTS,
    *rank_mutants.RANK_MUTANTS,
    *residual_mutants.RESIDUAL_MUTANTS,
    *rollback_mutants.ROLLBACK_MUTANTS,
    *security_mutants.SECURITY_MUTANTS,
    *seal_mutants.SEAL_MUTANTS,
    *sign_mutants.SIGN_MUTANTS,
    *survey_mutants.SURVEY_MUTANTS,
    *standoff_mutants.STANDOFF_MUTANTS,
    *signal_mutants.SIGNAL_MUTANTS,
    *terminal_mutants.TERMINAL_MUTANTS,
    *zone_mutants.ZONE_MUTANTS,
    *joint_mutants.JOINT_MUTANTS,
)
ROOT = Path(__file__).parents[2]
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


def copy(source: Path, target: Path) -> Path:
    """Copy the parts of the tree at `source` that the tests need."""
    for name in COPIED:
        if (source / name).is_dir():
            shutil.copytree(
                source / name, target / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(source / name, target / name)
    (target / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    return target


@contextmanager
def tree(source: Path, mutant: Mutant | None = None) -> Iterator[Path]:
    """A copy for one run, with the mutant in it."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        target = copy(source, Path(folder))
        if mutant:
            room = target / "mend_optim" / f"{mutant.room}.py"
            room.write_text(mutated(room.read_text(encoding="utf-8"), mutant), encoding="utf-8")
        yield target


def pytest_in(folder: Path, selection: Sequence[str], timeout_s: float) -> Outcome:
    """Run the selection on the copy in `folder`, until the first failure."""
    options = ["-x", "-q", "--tb=no", "-rf", "-p", "no:cacheprovider", "-W", "ignore"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "COLUMNS": "300",
    }
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *selection],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its own children too: some tests start processes
        process.communicate()
        return Outcome("hung", f"hung for {timeout_s:.0f} s", time.monotonic() - started)
    return Outcome(*verdict(process.returncode, output), time.monotonic() - started)


def verdict(status: int, output: str) -> tuple[str, str]:
    """The result of a run, from pytest's exit status and report, and the first test that failed."""
    if status == 0:
        return "passed", ""
    failed = re.search(r"^FAILED tests/(.+?)( - .*)?$", output, re.MULTILINE)
    if status == TESTS_FAILED and failed:
        return "caught", failed[1]
    return "broken", f"pytest ended with status {status}:\n{output[-2000:]}"


def attempt(
    source: Path, selection: Sequence[str], timeout_s: float, mutant: Mutant | None = None
) -> Outcome:
    with tree(source, mutant) as folder:
        return pytest_in(folder, selection, timeout_s)


def chosen(names: Sequence[str], law: int | None) -> list[Mutant]:
    """The mutants of these names, or all; of one law, or of all."""
    unknown = set(names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        raise SystemExit(f"no such mutant: {', '.join(sorted(unknown))}")
    return [m for m in MUTANTS if (not names or m.name in names) and law in (None, m.law)]


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
    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as folder,
        ThreadPoolExecutor(given.jobs) as pool,
    ):
        # A copy, so that edits during the run do not change the results.
        source = copy(ROOT, Path(folder))
        selections = list(dict.fromkeys(mutant.tests for mutant in mutants))
        for selection, outcome in zip(
            selections,
            pool.map(lambda s: attempt(source, s, given.timeout), selections),
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
        outcomes = pool.map(lambda m: attempt(source, m.tests, given.timeout, m), mutants)
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
