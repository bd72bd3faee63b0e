"""Runs of real processes that end by `finish()`, at paces that differ.

    python -m tests.system.endings [--runs 20]

plays each of `RUNS` so many times and prints how many ended on one model, bit for bit, with an
account in which every token is. `test_endings.py` plays each once."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from tests.support.addresses import free_addresses
from tests.system.processes import Learner, Process, Supervisor

STEPS = 120
PACE_S = 0.004
#: A busy machine may stop a process for a second. If nobody suspects it, no other learner seals
#: meanwhile: of a sealer that stops right after a merge, that would cost a round's work.
TIMING = {"beat_s": 1.0, "evict_after_s": 60.0}
#: The paces of the learners, as multiples of a step.
RUNS: dict[str, tuple[float, ...]] = {
    "two, 5 % apart": (1.0, 1.05),
    "two, one half as fast": (1.0, 2.0),
    "three, 5 % apart": (1.0, 1.05, 1.1),
    "three, one half as fast": (1.0, 1.0, 2.0),
}


def play(supervisor: Supervisor, paces: Sequence[float]) -> list[str]:
    """Start learners, let each finish after its last step, and return what is wrong then."""
    addresses = free_addresses(len(paces))
    learners: list[Learner] = []
    for i, pace in enumerate(paces):
        peers = [address for address in addresses if address != addresses[i]]
        options: dict[str, Any] = {"seed": i, "pace_s": pace * PACE_S, "steps": 0, "sync_every": 8}
        options["timing"] = TIMING
        learners.append(supervisor.start(f"l{i}", listen=addresses[i], peers=peers, **options))
    for learner in learners:
        learner.await_event("open")
    for learner in learners:
        learner.order("run", steps=STEPS)
    waiting = list(learners)
    while waiting:
        supervisor.until(lambda: any(x.step >= STEPS for x in waiting), "a last step")
        done = [x for x in waiting if x.step >= STEPS]
        for learner in done:
            learner.order("finish")
            waiting.remove(learner)
    ends = [learner.await_event("finished") for learner in learners]
    for learner in learners:
        learner.leave()
    return wrong(ends, {learner.name: STEPS for learner in learners})


def wrong(ends: Sequence[dict[str, Any]], trained: dict[str, int]) -> list[str]:
    """What differs between these ends, or is missing in their accounts."""
    found = []
    for what in ("weights", "digest"):
        if len({end[what] for end in ends}) != 1:
            found.append(f"{what} differ: {[end[what] for end in ends]}")
    for end in ends:
        lost = end["unmerged_tokens"] + end["dropped_tokens"] + end["superseded_tokens"]
        if not end["agreed"] or end["tokens"] != trained or lost:
            found.append(f"account: {end}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.system.endings")
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    processes: list[Process] = []
    try:
        for name, paces in RUNS.items():
            failures = [found for _ in range(runs) if (found := play(Supervisor(processes), paces))]
            for found in failures:
                print(*found, sep="\n")
            print(f"{name}: {runs - len(failures)} of {runs} ended on one model", flush=True)
    finally:
        for process in processes:
            process.destroy()


if __name__ == "__main__":
    main()
