"""Two runs of a suite, test by test: what ended otherwise, and whether the numbers are the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

COLLECTION = "(collection)"
MISSING = "no outcome"


@dataclass(frozen=True, kw_only=True)
class TestEnd:
    """How one test ended.

    `digest` covers the parameters after every step of every optimizer of the test."""

    __test__ = False

    outcome: str = MISSING
    message: str = ""
    digest: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    partner_errors: Sequence[str] = ()

    @property
    def wrapped(self) -> int:
        return self.counts.get("wrapped", 0)


Run = dict[str, TestEnd]


def read_run(path: Path) -> Run:
    """The tests of a run, from the plugin's report. A run that crashed has told less."""
    run: Run = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        told: dict[str, Any] = json.loads(line)
        test = told.pop("test")
        run[test] = TestEnd(**told)
    return run


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A test that ended otherwise, or trained with other numbers."""

    test: str
    before: str
    after: str
    message: str
    reason: str = ""

    def __str__(self) -> str:
        told = self.reason or " ".join(self.message.split())[:200]
        return f"{self.test}: {self.before} → {self.after}: {told}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A baseline and a wrapped run of one suite.

    `numbers` says whether digests were compared: with a live peer, merges round. They are not
    compared in tests that are `unsteady`: these draw other numbers every time."""

    suite: str
    mode: str
    baseline: Run
    wrapped: Run
    by_design: Mapping[str, str] = field(default_factory=dict)
    numbers: bool = True
    unsteady: frozenset[str] = frozenset()

    def tests(self) -> list[str]:
        return sorted((self.baseline.keys() | self.wrapped.keys()) - {COLLECTION})

    def with_wrapped(self) -> list[str]:
        """The tests that constructed at least one wrapped optimizer."""
        return [test for test in self.tests() if self.end(test).wrapped]

    def total(self, count: str) -> int:
        """The sum of a count over the wrapped run."""
        return sum(end.counts.get(count, 0) for end in self.wrapped.values())

    def end(self, test: str) -> TestEnd:
        return self.wrapped.get(test, TestEnd())

    def differences(self) -> list[Difference]:
        found = []
        for test in self.tests():
            before = self.baseline.get(test, TestEnd())
            after = self.end(test)
            reason = next((r for t, r in self.by_design.items() if t in test), "")
            told = {"test": test, "message": after.message, "reason": reason}
            if before.outcome != after.outcome:
                found.append(Difference(before=before.outcome, after=after.outcome, **told))
            elif self._has_numbers(test) and before.digest != after.digest:
                found.append(Difference(before="these numbers", after="other numbers", **told))
        return found

    def _has_numbers(self, test: str) -> bool:
        return self.numbers and test not in self.unsteady

    def repeats(self, test: str, baseline: Run) -> bool:
        """Whether the test ended as in another run of the baseline."""
        once, twice = self.baseline.get(test, TestEnd()), baseline.get(test, TestEnd())
        return once.outcome == twice.outcome and (once.digest == twice.digest or not self.numbers)

    def unexplained(self) -> list[Difference]:
        return [difference for difference in self.differences() if not difference.reason]

    def partner_errors(self) -> list[str]:
        return [error for end in self.wrapped.values() for error in end.partner_errors]

    def proves_nothing(self) -> str:
        """Why this run shows nothing, or "" if it shows something."""
        if not self.with_wrapped():
            return "no test constructed an optimizer that was wrapped"
        if not self.total("steps"):
            return "no wrapped optimizer took a step"
        if self.mode == "live" and not self.total("rounds"):
            return "no round was merged"
        return ""


def settled(first: Comparison, baseline: Run, wrapped: Run) -> tuple[Comparison, list[str]]:
    """The comparison after its differing tests ran once more on both sides.

    A test says nothing about the wrapper if it agreed the second time, or if its baseline did not
    end twice the same. If these were other numbers, the test is unsteady. If they were other
    outcomes, it is returned by name, and left out. What did not run again on both sides stays
    different."""
    again = replace(first, baseline=baseline, wrapped=wrapped)
    still = {difference.test for difference in again.differences()}
    restless, unsteady = set(), set()
    for test in (difference.test for difference in first.differences()):
        ran_again = test in baseline and test in wrapped
        if not ran_again or (test in still and first.repeats(test, baseline)):
            continue
        if first.baseline.get(test, TestEnd()).outcome != first.end(test).outcome:
            restless.add(test)
        elif baseline[test].outcome == wrapped[test].outcome:
            unsteady.add(test)
    kept = {test: end for test, end in first.baseline.items() if test not in restless}
    seen = {test: end for test, end in first.wrapped.items() if test not in restless}
    steady = replace(first, baseline=kept, wrapped=seen, unsteady=frozenset(unsteady))
    return steady, sorted(restless)


def table(comparisons: Sequence[Comparison]) -> str:
    """A row for each comparison, in Markdown."""
    head = (
        "| suite | with | tests | wrapped an optimizer | steps | rounds | same | differ |",
        "|---|---|---|---|---|---|---|---|",
    )
    rows = [
        f"| {c.suite} | {c.mode} | {len(c.tests())} | {len(c.with_wrapped())} | "
        f"{c.total('steps')} | {c.total('rounds')} | "
        f"{len(c.tests()) - len(c.differences())} | {len(c.differences())} |"
        for c in comparisons
    ]
    return "\n".join([*head, *rows])
