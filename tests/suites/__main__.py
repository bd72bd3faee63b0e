"""Suites that others wrote, run twice: as they are, and with `MendOptimizer` around every optimizer
that a test constructs.

    python -m tests.suites                   # all suites, alone and with a live peer
    python -m tests.suites skorch torch --mode alone
    python -m tests.suites scripts           # training scripts, in place of suites

Ends with status 1 if a test ends otherwise and no decision explains it, or if a run shows
nothing."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.suites import scripts
from tests.suites.compare import Comparison, Run, read_run, settled, table
from tests.suites.environment import ROOT, Place
from tests.suites.suites import SUITES, SuiteSource

WRAPPED = ("alone", "live")
LIMIT_S = 1800  # of one run of one suite
TEST_LIMIT_S = 120
MOST_AGAIN = 300  # names of tests on one command line


class Runner:
    """Runs one suite, as often as it takes.

    Args:
        suite: the suite.
        folder: where environments and reports are.
        every: of how many tests one is run.
    """

    def __init__(self, suite: SuiteSource, folder: Path, every: int = 1) -> None:
        self._suite = suite
        self._every = every
        self._place = Place(suite, folder)
        self._reports = folder / "reports"

    def prepare(self) -> None:
        self._reports.mkdir(parents=True, exist_ok=True)
        self._place.prepare()

    def run(self, mode: str, only: Sequence[str] = ()) -> Run:
        """Run the suite, or only these tests of it, and read the report."""
        name = f"{self._suite.name}-{mode}" + ("-again" if only else "")
        report = self._reports / f"{name}.jsonl"
        report.unlink(missing_ok=True)
        with (self._reports / f"{name}.log").open("w") as log:
            try:
                subprocess.run(
                    [*self._command(mode, report), *self._chosen(only)],
                    cwd=self._place.source(),
                    env=self._place.surroundings(),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    timeout=LIMIT_S,
                )
            except subprocess.TimeoutExpired:
                print(f"{name}: stopped after {LIMIT_S} s", file=sys.stderr)
        return read_run(report) if report.exists() else {}

    def compare(self, mode: str, baseline: Run) -> tuple[Comparison, list[str]]:
        """Compare a run in this mode with the baseline. What differs runs again on both sides."""
        first = Comparison(
            suite=self._suite.name,
            mode=mode,
            baseline=baseline,
            wrapped=self.run(mode),
            by_design=self._suite.by_design if mode == "live" else {},
            numbers=mode == "alone",
        )
        differing = [d.test for d in first.unexplained() if d.test in first.wrapped]
        if not differing or len(differing) > MOST_AGAIN:
            return first, []
        return settled(first, self.run("off", differing), self.run(mode, differing))

    def _chosen(self, only: Sequence[str]) -> list[str]:
        """The names of tests or files for the command line."""
        return [*only] if only else [f"--mend-every={self._every}", *self._suite.tests]

    def _command(self, mode: str, report: Path) -> list[str]:
        return [
            *(str(self._place.python), "-m", "pytest", "-q"),
            # The suite's own options ask for plugins such as coverage.
            *("-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:randomly"),
            *("--rootdir", ".", f"--timeout={TEST_LIMIT_S}"),
            *("-p", "mend_suites.plugin", f"--mend={mode}", f"--mend-report={report}"),
            *(
                ("-c", "/dev/null", "--import-mode=importlib")
                if self._suite.release is None
                else ()
            ),
            *self._suite.options,
        ]


def run_suite(
    suite: SuiteSource, folder: Path, modes: Sequence[str], every: int = 1
) -> list[Comparison]:
    runner = Runner(suite, folder, every)
    runner.prepare()
    baseline = runner.run("off")
    done = []
    for mode in modes:
        comparison, restless = runner.compare(mode, baseline)
        done.append(comparison)
        print(table([comparison]).splitlines()[-1], flush=True)
        for test in restless:
            print(f"  left out, it does not end the same twice: {test}")
        if comparison.unsteady:
            print(f"  draw other numbers every time: {len(comparison.unsteady)} tests")
        for difference in comparison.differences():
            print(f"  {difference}")
        for error in comparison.partner_errors():
            print(f"  the partner stopped: {error}")
    return done


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["scripts"]:
        return scripts.main(given[1:])
    names = [suite.name for suite in SUITES]
    parser = argparse.ArgumentParser(prog="python -m tests.suites", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="suite", help=f"any of {', '.join(names)}")
    parser.add_argument("--mode", choices=[*WRAPPED, "both"], default="both")
    parser.add_argument("--folder", type=Path, default=ROOT / ".suites")
    parser.add_argument("--jobs", type=int, default=2, help="suites at a time")
    parser.add_argument("--every", type=int, default=1, help="run one test in so many")
    told = parser.parse_args(given)
    if unknown := set(told.suites) - set(names):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    modes = WRAPPED if told.mode == "both" else (told.mode,)
    chosen = [suite for suite in SUITES if not told.suites or suite.name in told.suites]
    folder = told.folder.resolve()
    with ThreadPoolExecutor(told.jobs) as pool:
        each = pool.map(lambda suite: run_suite(suite, folder, modes, told.every), chosen)
        comparisons = [comparison for comparisons in each for comparison in comparisons]
    print(table(comparisons))
    nothing = [
        f"{c.suite}, {c.mode}: {c.proves_nothing()}" for c in comparisons if c.proves_nothing()
    ]
    print(*nothing, sep="\n")
    differing = sum(len(c.unexplained()) for c in comparisons)
    return int(bool(nothing) or differing > 0)


if __name__ == "__main__":
    raise SystemExit(main())
