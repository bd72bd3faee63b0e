"""The cost of a death for the trainers that are left, with mend_optim and with torchft: one of two
trainers is killed and started again, then the server is killed.

Scenes alternate between the libraries. In each, two trainers of the same small model step at the
same pace. When both have merged together, one dies by SIGKILL at some point of its cycle and is
started again `AWAY_S` later. With mend_optim it is always the sealer, whose loss costs most. At the
end the process that the others depend on dies: torchft's lighthouse. mend_optim has none, so the
learner dies that was there from the start, with its anchors and its role as sealer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.peers.stage import Event, Process, Stage, Trainer, free_addresses, stage
from bench.peers.trainer import QUORUM_S, STEP_S, SYNC_EVERY
from bench.result import Result, plain

TIMES, AWAY_S, AFTER_S = 3, 9.0, QUORUM_S + 5.0
PAUSE = 10  # a gap of more than so many steps' time is a pause
WARM = 8  # common merges before anybody dies
# Steps since the last merge when the victim dies, of SYNC_EVERY.
PHASES = (4, 16, 28)
OURS, THEIRS = "mend_optim", "torchft"
SETTING = f"2 trainers, 66 k float32, sync_every={SYNC_EVERY}, steps of {1e3 * STEP_S:g} ms"


@dataclass(frozen=True)
class Scene:
    """The results of one scene, in seconds and steps."""

    survivor_gap: float
    survivor_lost: float
    survivor_merge: float | None
    imports: float
    rejoin: float
    rejoin_gap: float
    rejoiner_thrown: float
    going_on: float
    left: int


def absent() -> str:
    """Why torchft cannot be measured; empty if it can."""
    try:
        import torchft.local_sgd  # noqa: F401
    except Exception as error:  # whatever a wheel for another machine may raise
        reason = f"{type(error).__name__}: {error}"
        return f"torchft cannot be imported ({reason}); pip install 'mend-optim[bench]'"
    return ""


# ── the two clusters ──────────────────────────────────────────────────────────────────────────────


def _ours(here: Stage) -> tuple[Callable[..., Trainer], None]:
    addresses = dict(zip("ab", free_addresses(2), strict=True))

    def start(name: str, seed: int) -> Trainer:
        others = [address for other, address in addresses.items() if other != name]
        return here.trainer(name, library=OURS, seed=seed, listen=addresses[name], peers=others)

    return start, None


def _theirs(here: Stage) -> tuple[Callable[..., Trainer], Process]:
    lighthouse, address = here.lighthouse()

    def start(name: str, seed: int) -> Trainer:
        return here.trainer(name, library=THEIRS, seed=seed, lighthouse=address)

    return start, lighthouse


CLUSTERS: dict[str, Callable[[Stage], tuple[Callable[..., Trainer], Any]]] = {
    OURS: _ours,
    THEIRS: _theirs,
}


# ── a scene ───────────────────────────────────────────────────────────────────────────────────────


def _play(library: str, phase: int) -> Scene:
    with stage() as here:
        start, server = CLUSTERS[library](here)
        pair = [start("a", 1), start("b", 2)]
        merge = [trainer.await_event("merge", count=WARM, parties=2) for trainer in pair][-1]
        sealer = merge.facts.get("sealer", "b")
        victim, survivor = sorted(pair, key=lambda trainer: trainer.name != sealer)
        last = survivor.seen("merge", parties=2)[-1].at
        survivor.await_event("step", since=last, count=phase)

        killed = victim.kill()
        here.watch([survivor], AWAY_S)
        again = start(victim.name, 3)
        common = again.await_event("merge", parties=2)
        survivor.await_event("step", since=common.at, count=2 * SYNC_EVERY)

        died = (server or survivor).kill()
        left = [again] if server is None else [survivor, again]
        here.watch(left, AFTER_S)
        going_on = [trainer for trainer in left if trainer.seen("step", since=died + AFTER_S - 1.0)]

        together = survivor.seen("merge", parties=2)[0].at
        before = survivor.seen("step", since=together, until=killed)
        own = survivor.seen("merge", since=killed, until=again.started, parties=1)
        return Scene(
            survivor_gap=_longest_gap(survivor, killed, killed + AWAY_S),
            survivor_lost=_lost(survivor, before, killed, killed + AWAY_S),
            survivor_merge=own[0].at - killed if own else None,
            imports=again.seen("imported")[0].at - again.started,
            rejoin=common.at - again.seen("imported")[0].at,
            rejoin_gap=_longest_gap(survivor, again.started, common.at + SYNC_EVERY * STEP_S),
            rejoiner_thrown=_thrown(again.seen("step", until=common.at + STEP_S)),
            going_on=len(going_on),
            left=len(left),
        )


def _longest_gap(trainer: Trainer, since: float, until: float) -> float:
    """The longest time between two of its steps, of the gaps that lie in the span or reach into
    it."""
    steps = trainer.seen("step")
    first = max(step.at for step in steps if step.at <= since)
    marks = [first, *(step.at for step in steps if since < step.at <= until)]
    later = [step.at for step in steps if step.at > until]
    return max(b - a for a, b in itertools.pairwise([*marks, *later[:1]]))


def _lost(trainer: Trainer, before: list[Event], since: float, until: float) -> float:
    """Steps that it threw away in the span, and steps that its pauses cost at its earlier pace.

    Shorter pauses do not count: there is a sync in every cycle."""
    pace = median(b.at - a.at for a, b in itertools.pairwise(before))
    steps = trainer.seen("step", since - pace, until)
    gaps = [b.at - a.at for a, b in itertools.pairwise(steps)]
    return sum(gap / pace - 1 for gap in gaps if gap > PAUSE * pace) + _thrown(steps)


def _thrown(steps: list[Event]) -> float:
    return sum(step.facts["thrown"] for step in steps)


# ── results ──────────────────────────────────────────────────────────────────────────────────

ROWS: list[tuple[str, str, Callable[[Scene], float | None], str]] = [
    (
        "survivor's longest gap between steps",
        "s",
        lambda s: s.survivor_gap,
        f"{AWAY_S:g} s after the kill",
    ),
    (
        "steps the survivor lost",
        "steps",
        lambda s: s.survivor_lost,
        f"thrown away, or in pauses of over {PAUSE} steps",
    ),
    ("survivor's next merge, alone", "s", lambda s: s.survivor_merge, "from the kill"),
    ("imports of the process started again", "s", lambda s: s.imports, "from its start"),
    (
        "from imports to the first common merge",
        "s",
        lambda s: s.rejoin,
        "the process started again",
    ),
    ("survivor's longest gap while the other comes back", "s", lambda s: s.rejoin_gap, ""),
    ("steps that who came back took in vain", "steps", lambda s: s.rejoiner_thrown, ""),
]


def _results(library: str, scenes: list[Scene]) -> Iterator[Result]:
    for what, unit, value, notes in ROWS:
        values = [v for v in map(value, scenes) if v is not None]
        # mend_optim merges nothing while it is alone, because its weights are the anchor.
        if values:
            yield plain(
                "torchft",
                f"{library}: {what}",
                unit,
                values,
                "; ".join(filter(None, [notes, SETTING])),
            )
    going_on = [scene.going_on / scene.left for scene in scenes]
    died = "the lighthouse" if library == THEIRS else "the other learner"
    notes = (
        f"share of those left, {AFTER_S:g} s after {died} was killed; "
        f"torchft's quorum_timeout {QUORUM_S:g} s"
    )
    yield plain(
        "torchft",
        f"{library}: learners still training after a process that all depend on dies",
        "share",
        going_on,
        notes,
    )


def run() -> Iterator[Result]:
    if reason := absent():
        raise SystemExit(reason)
    scenes: dict[str, list[Scene]] = {OURS: [], THEIRS: []}
    for i in range(TIMES):
        for library in (OURS, THEIRS):
            scenes[library].append(_play(library, PHASES[i % len(PHASES)]))
    for library, seen in scenes.items():
        yield from _results(library, seen)
