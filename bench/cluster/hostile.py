"""The costs of a hostile peer to a learner: the longest gap between two steps, and lost rounds.

The attacks are those of `tests/hostile`, one after the other, on the learner "a" of two real ones.
Each is made several times. Before it, the same learner takes as many steps in peace, and the gaps
of both spans are compared. So the machine's own pauses are in both. The learner "b" trains beside
"a" and is not attacked. Its gaps in the same spans show what the attacker costs the machine, since
it runs on it, too.

A gap "with a core" is one without the time in which the training thread was ready to run and other
threads had all cores, as Linux counts it. Waiting for a lock, or for Python's, stays in it, even
where the thread that holds the lock has no core.

The rounds that an attack costs are those that the learner adopts in as many steps in peace, less
those that it adopted. A short span has a round more or less by chance, so what is usual is the mean
of all spans in peace."""

from __future__ import annotations

import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.result import Result, compared, plain
from tests.support.gaps import Longest

if TYPE_CHECKING:
    from tests.hostile.ground import Ground

PAIRS = 5
#: The budget of the audit for the longest gap.
BUDGET_MS = 50
#: The budget of the audit for the rounds that are lost.
BUDGET_ROUNDS = 1
#: The steps in peace before an attack that was not made yet.
FIRST_STEPS = 100


class Span(NamedTuple):
    """The longest gaps of both learners in the same span, and how many anchors "a" adopted."""

    a: Longest
    b: Longest
    rounds: int


class Pair(NamedTuple):
    """A span in peace, and the one with the attack that followed it."""

    peace: Span
    attack: Span


GAPS: dict[str, Callable[[Span], float]] = {
    "longest gap with a core": lambda span: span.a.gap_with_core_s,
    "longest gap": lambda span: span.a.gap_s,
    "longest gap with a core of the learner beside it": lambda span: span.b.gap_with_core_s,
}


def absent() -> str:
    """Why learners cannot be attacked here; empty if they can."""
    if sys.platform != "linux":
        return "the attacks read /proc"
    try:
        import pytest  # noqa: F401
    except ImportError:
        return "the attacks are tests, and need pytest; pip install 'mend-optim[dev]'"
    return ""


def run() -> Iterator[Result]:
    """Rows of `python -m bench hostile`."""
    from tests.hostile import test_calls_and_dials, test_false_work, test_raw_peers
    from tests.hostile.ground import Ground
    from tests.hostile.test_attacks import ATTACKS
    from tests.system.processes import Process, Supervisor

    assert all((test_raw_peers, test_false_work, test_calls_and_dials))  # theirs are among them
    processes: list[Process] = []
    supervisor = Supervisor(processes)
    try:
        # With few steps there would be few gaps.
        ground = Ground(supervisor, pace={"pace_s": 0.005, "sync_every": 10})
        yield from rows(measure(ground, ATTACKS, PAIRS))
        supervisor.end()
    finally:
        for process in processes:
            process.destroy()


def measure(
    ground: Ground, attacks: Mapping[str, Callable[[Ground], None]], pairs: int
) -> dict[str, list[Pair]]:
    """Make each attack so many times, and once more first, to know its steps."""
    measured: dict[str, list[Pair]] = defaultdict(list)
    steps = dict.fromkeys(attacks, FIRST_STEPS)
    for turn in range(pairs + 1):
        for name, attack in attacks.items():
            peace = _span(ground, partial(ground.a.await_steps, steps[name]))
            attacked = _span(ground, partial(make, ground, name, attack))
            steps[name] = attacked.a.steps
            if turn:
                measured[name].append(Pair(peace, attacked))
    return measured


def make(ground: Ground, name: str, attack: Callable[[Ground], None]) -> None:
    """Make an attack. The tests say whether it is held; some expect more of a busy machine than it
    can do in time. The gaps count all the same."""
    import pytest

    try:
        attack(ground)
    except (AssertionError, pytest.fail.Exception) as fault:  # the latter: nothing was raised
        print(f"{name}: {reason_of(fault)}", file=sys.stderr)


def reason_of(fault: BaseException) -> str:
    """The line that failed, and its words. Only pytest gives words to an assertion without any."""
    failed = traceback.extract_tb(fault.__traceback__)[-1]
    where = f"{Path(failed.filename).name}:{failed.lineno}: {failed.line}"
    return f"{where}: {fault}" if str(fault) else where


def _span(ground: Ground, happens: Callable[[], None]) -> Span:
    _take(ground)
    before = len(ground.a.rounds)
    happens()
    a, b = _take(ground)
    return Span(a, b, len(ground.a.rounds) - before)


def _take(ground: Ground) -> tuple[Longest, Longest]:
    """The longest gaps of both since the last call."""
    a, b = (Longest(**learner.ask("gaps", "gaps")) for learner in (ground.a, ground.b))
    return a, b


def rounds_lost(attack: Span, usual: float) -> float:
    """The rounds that "a" would have adopted with so many a step, and did not. Below 0, it adopted
    more of them."""
    return usual * attack.a.steps - attack.rounds


def rows(measured: Mapping[str, list[Pair]]) -> Iterator[Result]:
    """Five rows for each attack, and for all of them."""
    every = [pair for pairs in measured.values() for pair in pairs]
    usual = sum(pair.peace.rounds for pair in every) / sum(pair.peace.a.steps for pair in every)
    for name, pairs in {**measured, "all attacks": every}.items():
        steps = sorted(pair.attack.a.steps for pair in pairs)
        notes = f"spans of {steps[0]} to {steps[-1]} steps"
        with_core = [1e3 * pair.attack.a.gap_with_core_s for pair in pairs]
        what = f"{name}: longest gap with a core"
        yield plain("hostile", what, "ms", with_core, notes, goal=f"<= {BUDGET_MS}")
        lost = [rounds_lost(pair.attack, usual) for pair in pairs]
        what = f"{name}: rounds lost"
        yield plain("hostile", what, "rounds", lost, notes, goal=f"<= {BUDGET_ROUNDS}")
        for gaps, of_whom in GAPS.items():
            attacked = [1e3 * of_whom(pair.attack) for pair in pairs]
            peace = [1e3 * of_whom(pair.peace) for pair in pairs]
            what = f"{name}: {gaps}, over the same in peace"
            yield compared("hostile", what, "ms", attacked, peace, notes=notes)
