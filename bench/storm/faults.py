"""The faults: when each one comes, how it is injected, and how it is proved to have happened."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from dataclasses import dataclass
from typing import Any

from bench.storm import proc
from bench.storm.relays import Direction, all_ways
from bench.storm.supervisor import Seat, Supervisor

# kinds of fault, and how often each one comes relative to the others
KINDS = {"kill": 2, "stop": 2, "cut both ways": 1, "cut outward": 0.5, "cut inward": 0.5}
SHORTEST_S, LONGEST_S = 2.0, 20.0
LOOK_S = 0.2  # after a signal was sent


@dataclass(frozen=True)
class Planned:
    """One fault: when, of what kind, how long (a kill takes no time), and which of the healthy
    learners it hits (0 to 1)."""

    at_s: float
    kind: str
    lasts_s: float
    pick: float


def plan(seed: int, minutes: float, per_hour: float) -> list[Planned]:
    """Draw faults as a Poisson process; the same seed gives the same faults."""
    chance, faults, at_s = random.Random(seed), list[Planned](), 0.0
    while per_hour > 0 and (at_s := at_s + chance.expovariate(per_hour / 3600)) < 60 * minutes:
        (kind,) = chance.choices(list(KINDS), list(KINDS.values()))
        faults.append(Planned(at_s, kind, chance.uniform(SHORTEST_S, LONGEST_S), chance.random()))
    return faults


class Weather:
    """Injects the planned faults into a supervisor's learners. Never more than `at_most` at a time:
    the others are a majority."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor, self.at_most = supervisor, (len(supervisor.seats) - 1) // 2
        self._count = 0
        self._under: set[str] = set()

    async def blow(self, faults: list[Planned]) -> None:
        """Inject all faults, each at its time; return when the last is over."""
        started, strikes = time.monotonic(), list[asyncio.Task[None]]()
        try:
            for fault in faults:
                await asyncio.sleep(max(0.0, started + fault.at_s - time.monotonic()))
                seat = self._victim(fault.pick)
                if seat is None:
                    self.supervisor.journal.say("spared", kind=fault.kind)
                    continue
                self._under.add(seat.name)
                strikes.append(asyncio.create_task(self._strike(fault, seat)))
            await asyncio.gather(*strikes)
        finally:
            for strike in strikes:
                strike.cancel()

    def _victim(self, pick: float) -> Seat | None:
        healthy = [
            s for s in self.supervisor.seats.values() if s.ready and s.name not in self._under
        ]
        down = len(self.supervisor.seats) - len(healthy)
        return healthy[int(pick * len(healthy))] if healthy and down < self.at_most else None

    async def _strike(self, fault: Planned, seat: Seat) -> None:
        self._count += 1
        about = {"id": self._count, "kind": fault.kind, "who": seat.name, "life": seat.life}
        do = {"kill": self._kill, "stop": self._stop}.get(fault.kind, self._cut)
        self.supervisor.journal.say("strike", **about, lasts_s=round(fault.lasts_s, 3))
        try:
            evidence = await do(seat, fault)
        finally:
            self._under.discard(seat.name)
        self.supervisor.journal.say("relief", **about, **evidence)

    async def _kill(self, seat: Seat, fault: Planned) -> dict[str, Any]:
        status = await self.supervisor.kill(seat)
        return {"seen": status == -signal.SIGKILL, "status": status}

    async def _stop(self, seat: Seat, fault: Planned) -> dict[str, Any]:
        pid = seat.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(LOOK_S)
            early = proc.state(pid)
            await asyncio.sleep(fault.lasts_s - LOOK_S)
            late = proc.state(pid)
        finally:
            if seat.pid == pid:
                os.kill(pid, signal.SIGCONT)
        return {"seen": early == late == "T", "states": [early, late]}

    async def _cut(self, seat: Seat, fault: Planned) -> dict[str, Any]:
        others = [name for name in self.supervisor.seats if name != seat.name]
        ways = {
            "cut both ways": all_ways([seat.name], others),
            "cut outward": [(seat.name, other) for other in others],
            "cut inward": [(other, seat.name) for other in others],
        }[fault.kind]
        held = await self.cut(ways, fault.lasts_s)
        return {"seen": held > 0, "held": held}

    async def cut(self, ways: list[Direction], seconds: float) -> int:
        """Cut these directions for so long; returns how many chunks were held back."""
        links = self.supervisor.links
        before = sum(links.held[way] for way in ways)
        links.cut(ways)
        try:
            await asyncio.sleep(seconds)
        finally:
            links.mend(ways)
        return sum(links.held[way] for way in ways) - before
