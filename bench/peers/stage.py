"""The processes of one scene: started, listened to, killed. None outlives the scene, however it
ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

PATIENCE_S = 60.0  # nothing that works takes half as long
# torchft's: the first its default, the others as in its README
HEARTBEAT_MS, JOIN_MS, TICK_MS = 5000, 10_000, 100

LIGHTHOUSE = f"""
import sys
from torchft._torchft import LighthouseServer
server = LighthouseServer(
    bind="127.0.0.1:0", min_replicas=1, join_timeout_ms={JOIN_MS}, quorum_tick_ms={TICK_MS},
    heartbeat_timeout_ms={HEARTBEAT_MS},
)
print(server.address(), flush=True)
sys.stdin.read()  # until its bench is gone
"""


class Event(NamedTuple):
    kind: str
    at: float
    facts: dict[str, Any]


class Process:
    """A child that prints lines."""

    def __init__(self, stage: Stage, name: str, command: list[str]) -> None:
        self.stage, self.name, self.complaints = stage, name, ""
        self.lines: list[str] = []
        self.started = time.monotonic()
        quiet = {
            "GLOO_SOCKET_IFNAME": "lo",
            "RUST_LOG": "off",
            "TOKIO_WORKER_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }
        pipe = subprocess.PIPE
        self.popen = subprocess.Popen(
            [sys.executable, *command],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            env={**os.environ, **quiet},
        )
        self._readers = [
            threading.Thread(target=read, daemon=True) for read in (self._listen, self._collect)
        ]
        for reader in self._readers:
            reader.start()

    def _listen(self) -> None:
        assert self.popen.stdout
        for line in self.popen.stdout:
            with self.stage.news:
                self.take(line)
                self.stage.news.notify_all()

    def _collect(self) -> None:
        assert self.popen.stderr
        for line in self.popen.stderr:
            self.complaints = (self.complaints + line)[-4000:]

    def take(self, line: str) -> None:
        """Something was said. Called with the stage's news held."""
        self.lines.append(line.strip())

    @property
    def ended(self) -> bool:
        return self.popen.poll() is not None

    def kill(self) -> float:
        """Send SIGKILL; returns when. Safe to repeat."""
        at = time.monotonic()
        if not self.ended:
            self.popen.send_signal(signal.SIGKILL)
        self.popen.wait()
        for reader in self._readers:
            reader.join(PATIENCE_S)
        return at


class Trainer(Process):
    """A training process; its output is events."""

    def __init__(self, stage: Stage, name: str, **facts: Any) -> None:
        self.events: list[Event] = []
        super().__init__(
            stage, name, ["-m", "bench.peers.trainer", json.dumps({"name": name, **facts})]
        )

    def take(self, line: str) -> None:
        facts = json.loads(line)
        self.events.append(Event(facts.pop("event"), facts.pop("at"), facts))

    def seen(
        self, kind: str, since: float = 0.0, until: float = float("inf"), **facts: Any
    ) -> list[Event]:
        """Its events of a kind, in a span of time, with these facts."""
        alike = [
            event
            for event in list(self.events)
            if event.kind == kind and since <= event.at <= until
        ]
        return [event for event in alike if facts.items() <= event.facts.items()]

    def await_event(self, kind: str, since: float = 0.0, count: int = 1, **facts: Any) -> Event:
        self.stage.until(
            lambda: len(self.seen(kind, since, **facts)) >= count, self, f"{count} × {kind} {facts}"
        )
        return self.seen(kind, since, **facts)[count - 1]


class Stage:
    """The processes of one scene."""

    def __init__(self) -> None:
        self.news = threading.Condition()
        self._processes: list[Process] = []

    def trainer(self, name: str, **facts: Any) -> Trainer:
        trainer = Trainer(self, name, **facts)
        self._processes.append(trainer)
        return trainer

    def lighthouse(self) -> tuple[Process, str]:
        """torchft's server, and its address."""
        process = Process(self, "lighthouse", ["-c", LIGHTHOUSE])
        self._processes.append(process)
        self.until(lambda: bool(process.lines), process, "its address")
        return process, f"http://localhost:{process.lines[0].rpartition(':')[2]}"

    def until(self, holds: Callable[[], bool], process: Process, what: str) -> None:
        """Wait for what a process says. Fails if it ends, or does not say it in time."""
        deadline = time.monotonic() + PATIENCE_S
        with self.news:
            while not holds():
                if process.ended or time.monotonic() > deadline:
                    why = (
                        f"ended with {process.popen.poll()}"
                        if process.ended
                        else f"not within {PATIENCE_S:g} s"
                    )
                    raise RuntimeError(
                        f"{process.name}, awaiting {what}: {why}\n{process.complaints}"
                    )
                self.news.wait(0.1)

    def watch(self, trainers: list[Trainer], seconds: float) -> None:
        """Let them run for so long, or until all have ended."""
        deadline = time.monotonic() + seconds
        with self.news:
            while time.monotonic() < deadline and not all(trainer.ended for trainer in trainers):
                self.news.wait(0.1)

    def clear(self) -> None:
        for process in self._processes:
            process.kill()


@contextmanager
def stage() -> Iterator[Stage]:
    """A stage whose processes end with the block."""
    empty = Stage()
    try:
        yield empty
    finally:
        empty.clear()


def free_addresses(count: int) -> list[str]:
    """Loopback addresses that the system has free; all are held until the last is known."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in sockets]
    for server in sockets:
        server.close()
    return addresses
