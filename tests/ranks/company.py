"""The learners of one test, whose ranks are real processes that `nursery.py` forks.

Nothing here sleeps: every wait is for a line of output, until a deadline."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from select import select
from typing import Any

import torch
from torch import Tensor

from tests.support.addresses import free_addresses

NURSERY = Path(__file__).with_name("nursery.py")
PATIENCE_S = 120.0
Facts = dict[str, Any]
Weights = dict[str, Tensor]


class Nursery:
    """The process that forks all ranks of a test module."""

    def __init__(self) -> None:
        here = {key: value for key, value in os.environ.items() if not key.startswith("MEND_")}
        self._process = subprocess.Popen(
            [sys.executable, str(NURSERY)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**here, "PYTHONPATH": str(NURSERY.parents[2])},
            start_new_session=True,
        )
        self._rest = b""
        self._orders = 0
        assert self.heard(time.monotonic() + PATIENCE_S)[0]["event"] == "ready"

    def order(self, **order: Any) -> int:
        """Give an order. Returns its number, which all lines of its ranks have."""
        assert self._process.stdin is not None
        self._orders += 1
        told = {**order, "number": self._orders}
        self._process.stdin.write(json.dumps(told).encode() + b"\n")
        self._process.stdin.flush()
        return self._orders

    def heard(self, deadline: float) -> list[Facts]:
        """The next lines; none if the deadline passes."""
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        if not select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return []
        got = os.read(pipe, 65536)
        assert got, "the nursery has ended"
        *lines, self._rest = (self._rest + got).split(b"\n")
        return [json.loads(line) for line in lines] or self.heard(deadline)

    def close(self) -> None:
        """End it and all ranks, whatever they do."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


class Company:
    """The learners of one test.

    Args:
        nursery: forks their ranks.
        folder: for what they leave, and for what they complain about.
    """

    def __init__(self, nursery: Nursery, folder: Path) -> None:
        self._nursery = nursery
        self.folder = folder
        self.addresses = dict(zip("ab", free_addresses(2), strict=True))
        #: Of each rank ("a0", "a1", …, "b0"), its events by their names.
        self.events: dict[str, defaultdict[str, list[Facts]]] = {}
        self._started = 0
        # Of each rank, the order that has started it. Lines of an earlier process of that name may
        # still be on their way, also from an earlier test.
        self._orders: dict[str, int] = {}

    def start(
        self, learner: str, play: str, ranks: int = 1, *, timeout_s: float = 60.0, **told: Any
    ) -> list[str]:
        """Let the ranks of a learner play a scenario. Returns their names. A learner that was
        started before is forgotten."""
        names = [f"{learner}{rank}" for rank in range(ranks)]
        self.events |= {who: defaultdict(list) for who in names}
        self._started += 1
        number = self._nursery.order(
            learner=learner,
            ranks=ranks,
            play=play,
            folder=str(self.folder),
            store=str(self.folder / f"store-{self._started}"),
            addresses=self.addresses,
            timeout_s=timeout_s,
            told=told,
        )
        self._orders |= dict.fromkeys(names, number)
        self.until(lambda: all(self.events[who]["born"] for who in names), "births")
        return names

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for events that make the condition true."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            lines = self._nursery.heard(deadline)
            assert lines, f"waited in vain for {what}\n{self._described()}"
            for line in lines:
                if line["order"] == self._orders.get(line["who"]):
                    self.events[line["who"]][line["event"]].append(line)

    def _described(self) -> str:
        logs = [f"── {log.name}\n{log.read_text()[-3000:]}" for log in self.folder.glob("*.log")]
        said = {
            who: {kind: e[-1] for kind, e in all_.items() if e} for who, all_ in self.events.items()
        }
        return "\n".join([str(said), *logs])

    def await_event(self, who: str, event: str) -> Facts:
        """The last event of this name that a rank has said, once it has said one."""
        self.until(
            lambda: self.events[who][event] or self.events[who]["ended"], f"{event} of {who}"
        )
        assert self.events[who][event], f"{who} ended without {event}\n{self._described()}"
        return self.events[who][event][-1]

    def signal(self, who: str, number: int) -> None:
        os.kill(self.events[who]["born"][0]["pid"], number)

    def status_of(self, who: str) -> int:
        """How a rank has ended, once it has; negative: by which signal."""
        self.until(lambda: self.events[who]["ended"], f"the end of {who}")
        return int(self.events[who]["ended"][0]["status"])

    def await_end(self, names: list[str]) -> None:
        """Wait until all of them have ended well."""
        for who in names:
            assert self.status_of(who) == 0, self._described()

    def left(self, names: list[str]) -> list[dict[str, Any]]:
        """The results of each rank, once all have ended well."""
        self.await_end(names)
        return [torch.load(self.folder / f"{who}.pt") for who in names]
