"""One life of a learner, in a process of its own."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import AdamW

from bench.storm.journal import Journal
from bench.storm.task import BATCH, Task
from mend_optim import Event, MendOptimizer, Timing

LEARNING_RATE = 3e-4
LEAVE = signal.SIGUSR1  # leave in the way that the order names
Order = dict[str, Any]


class PlannedFailure(Exception):
    """The exception that the training loop raises on order."""


class Learner:
    """Trains until told to leave. An order has: who, life, seed, journal, pace_s, how, options,
    timing."""

    def __init__(self, order: Order, corpus: Tensor) -> None:
        self.journal = Journal(Path(order["journal"]), who=order["who"], life=order["life"])
        self.journal.say("born", pid=os.getpid(), step_tokens=BATCH)
        self.order, self.leaving = order, False
        signal.signal(LEAVE, self._leave)
        self.task = Task(corpus, order["seed"])
        self.optimizer = MendOptimizer(
            AdamW(self.task.model.parameters(), lr=LEARNING_RATE),
            name=order["who"],
            tokens_per_step=BATCH,
            timing=Timing(**order["timing"]),
            on_event=self._tell,
            **order["options"],
        )
        self.journal.say("open")

    def _leave(self, number: int, frame: object) -> None:
        self.leaving = True

    def _tell(self, event: Event) -> None:
        facts = {
            k: asdict(v) if k == "round" else v
            for k, v in event.facts.items()
            if k not in ("step", "tokens")
        }
        self.journal.say(event.kind, text=event.text, **facts.pop("round", {}), **facts)

    def live(self) -> None:
        """Join, tell the supervisor, train; then leave as ordered: "close", "exit" or "raise"."""
        status = self.optimizer.join()
        self.journal.say("ready", position=status.position, tokens=status.cluster_tokens)
        os.write(1, b'{"event":"ready","pid":%d}\n' % os.getpid())
        while not self.leaving:
            self._train()
        self._report()
        if self.order["how"] == "raise":
            raise PlannedFailure("the training loop failed, as planned")
        if self.order["how"] == "close":
            self.optimizer.close()
            names = [
                thread.name for thread in threading.enumerate() if thread.name.startswith("mend-")
            ]
            self.journal.say("closed", threads=names)

    def _train(self) -> None:
        time.sleep(self.order["pace_s"])
        loss = self.task.loss()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.journal.say("step", loss=round(loss.item(), 5))

    def _report(self) -> None:
        status = self.optimizer.status()
        facts = {
            key: getattr(status, key)
            for key in ("step", "tokens", "unmerged_tokens", "dropped_tokens")
        }
        self.journal.say(
            "report", **facts, seconds_in_mend=status.seconds_in_mend, rounds=status.rounds_adopted
        )
