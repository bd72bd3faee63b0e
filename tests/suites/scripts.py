"""Scripts in the manner of other libraries' examples, with one line swapped: bare, alone, and as
two learners with one address each.

    python -m tests.suites scripts            # all of them
    python -m tests.suites scripts ppo        # one

Alone, every figure must be the bare script's, to the last digit. Two learners must both end, and
have merged rounds. Ends with status 1 if they don't."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.suites.environment import ROOT, Place
from tests.suites.suites import SuiteSource
from tests.support.addresses import free_addresses

LIMIT_S = 600  # of one run of one script
#: The environment of most scripts.
NEEDS = SuiteSource(
    name="scripts",
    release=None,
    tests=(),
    needs=(
        "accelerate==1.15.0",
        "lightning==2.6.6",
        "scikit-learn==1.7.2",
        "skorch==1.4.0",
        "stable-baselines3==2.9.2",
        "transformers==5.23.0",
    ),
)
#: fastai brings a torchvision that may be of another torch. Other libraries import one if there is.
FASTAI = SuiteSource(name="scripts-fastai", release=None, tests=(), needs=("fastai==2.8.12",))
OWN = {"fastai_fit": FASTAI}
#: The modules of `mend_scripts`, with what their figures are.
SCRIPTS = {
    "char_gpt": "a small GPT on characters, as in nanoGPT, saved and resumed half-way",
    "clm_trainer": "a causal language model in transformers' `Trainer`, resumed half-way",
    "ppo": "PPO of stable-baselines3: learn, save, load, learn again",
    "grid_search": "`GridSearchCV` over a classifier of skorch: ten fits",
    "lightning_fit": "Lightning: `lr_find`, then `fit` twice",
    "fastai_fit": "fastai: `lr_find`, then `fit_one_cycle` twice, saved and loaded",
}


@dataclass(frozen=True)
class Report:
    """What one run of a script told."""

    figures: list[float]
    rounds: int
    warnings: list[str]


@dataclass(frozen=True)
class Trial:
    """A script, bare, alone, and as two learners. None: that run did not end well."""

    script: str
    bare: Report | None
    alone: Report | None
    live: list[Report | None]

    def faults(self) -> list[str]:
        """What is wrong, in words."""
        if self.bare is None:
            return ["the bare script failed"]
        if self.alone is None:
            return ["it failed alone"]
        found = []
        if self.alone.figures != self.bare.figures:
            found.append("other figures alone")
        if self.alone.warnings:
            found.append(f"warned alone: {self.alone.warnings}")
        for number, report in enumerate(self.live, 1):
            if report is None:
                found.append(f"learner {number} of 2 failed")
            elif not report.rounds:
                found.append(f"learner {number} of 2 merged no round")
        return found

    def row(self) -> str:
        """A row of the table of `docs/compatibility.md`."""
        figures = len(self.bare.figures) if self.bare else 0
        equal = "all" if self.bare and self.alone and not self._differing() else "not all"
        ended = [report for report in self.live if report]
        rounds = " + ".join(str(report.rounds) for report in ended)
        warned = sum(len(report.warnings) for report in ended)
        told = SCRIPTS[self.script]
        return f"| {told} | {figures} | {equal} | {len(ended)} of 2 | {rounds} | {warned} |"

    def _differing(self) -> int:
        assert self.bare is not None
        assert self.alone is not None
        same = [a == b for a, b in zip(self.bare.figures, self.alone.figures, strict=False)]
        return len(self.bare.figures) - sum(same)


HEAD = (
    "| script | figures | equal alone | learners that end | rounds | warnings |",
    "|---|---|---|---|---|---|",
)


class Stage:
    """Runs scripts in their environments.

    Args:
        folder: for all suites.
    """

    def __init__(self, folder: Path) -> None:
        self._place = Place(NEEDS, folder)
        self._own = {script: Place(needs, folder) for script, needs in OWN.items()}
        self._reports = folder / "reports" / "scripts"

    def prepare(self) -> None:
        for place in (self._place, *self._own.values()):
            place.prepare()

    def trial(self, script: str) -> Trial:
        (bare,) = self._run(script, "off", [[]])
        (alone,) = self._run(script, "alone", [[]])
        first, second = free_addresses(2)
        live = [
            ["--listen", first, "--peer", second],
            ["--listen", second, "--peer", first, "--seed", "1"],
        ]
        return Trial(script, bare, alone, self._run(script, "live", live))

    def _run(self, script: str, mode: str, each: Sequence[Sequence[str]]) -> list[Report | None]:
        """Run so many processes of a script at a time, each with these further options."""
        place = self._own.get(script, self._place)
        folders = [self._reports / f"{script}-{mode}-{number}" for number in range(len(each))]
        with ExitStack() as stack:
            running = []
            for folder, options in zip(folders, each, strict=True):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                log = stack.enter_context((folder / "log").open("w"))
                command = [str(place.python), "-m", "mend_scripts", script]
                command += ["--mend", mode, "--folder", str(folder), *options]
                running.append(
                    subprocess.Popen(
                        command,
                        cwd=folder,
                        env=place.surroundings(),
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                )
            for process in running:
                ended_in_time(process)
        return [read_report(folder / "report.json") for folder in folders]


def ended_in_time(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def read_report(path: Path) -> Report | None:
    """The report of a run; None if the run did not come to its end."""
    return Report(**json.loads(path.read_text())) if path.exists() else None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.suites scripts", description=__doc__)
    parser.add_argument("scripts", nargs="*", metavar="script", help=f"any of {', '.join(SCRIPTS)}")
    parser.add_argument("--folder", type=Path, default=ROOT / ".suites")
    told = parser.parse_args(arguments)
    if unknown := set(told.scripts) - set(SCRIPTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(SCRIPTS)}")
    stage = Stage(told.folder.resolve())
    stage.prepare()
    trials = []
    for script in told.scripts or SCRIPTS:
        trials.append(stage.trial(script))
        print(f"{script}: {trials[-1]}", flush=True)
    print(*HEAD, *(trial.row() for trial in trials), sep="\n")
    faults = [f"{trial.script}: {fault}" for trial in trials for fault in trial.faults()]
    print(*faults, sep="\n")
    return int(bool(faults))
