"""Real processes for the tests: start learners (`learner.py`), give them orders, wait for their
output, end them.

Nothing here sleeps: every wait is for a line of output, until a deadline."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.addresses import free_addresses
from tests.system import learner

SCRIPT = Path(learner.__file__)
PATIENCE_S = 90.0  # a wait that takes longer has failed; normal ones take a twentieth of this
NEWS = threading.Condition()  # notified at every line of output
TIMING = {"beat_s": 0.2, "join_timeout_s": 10.0, "round_timeout_s": 10.0, "evict_after_s": 3.0}
Facts = dict[str, Any]


class Process:
    """A Python process that runs learners, one after another. Its output goes to the present
    learner."""

    def __init__(self) -> None:
        here = {key: value for key, value in os.environ.items() if not key.startswith("MEND_")}
        pipe = subprocess.PIPE
        self.popen = subprocess.Popen(
            [sys.executable, str(SCRIPT)],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env={**here, "PYTHONPATH": str(SCRIPT.parents[2])},
            start_new_session=True,  # Ctrl-C at the test run does not reach the learners
        )
        self.learner: Learner | None = None
        for read in (self._listen, self._collect):
            threading.Thread(target=read, daemon=True).start()

    def _listen(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            with NEWS:
                if self.learner:
                    self.learner.note(json.loads(line))
                NEWS.notify_all()

    def _collect(self) -> None:
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            with NEWS:
                if self.learner:
                    self.learner.complain(line.decode(errors="replace"))
                NEWS.notify_all()

    def order(self, do: str, **facts: Any) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps({"do": do, **facts}).encode() + b"\n")
        self.popen.stdin.flush()

    def destroy(self) -> None:
        """End it and its learner, whatever they do. Safe to repeat."""
        if self.learner and not self.learner.ended:
            self.learner.signal(signal.SIGKILL)
        self.popen.kill()
        self.popen.wait(PATIENCE_S)


class Learner:
    """One learner, as the test sees it."""

    def __init__(self, name: str, process: Process, supervisor: Supervisor) -> None:
        self.name, self.process, self.supervisor = name, process, supervisor
        self.events: dict[str, list[Facts]] = defaultdict(list)
        self.order_of_events: list[str] = []
        #: When each of these was read, by this process's clock.
        self.told_at: list[float] = []
        self.losses: list[str] = []
        self.complaints = ""
        self.silent = self.may_end = False

    def complain(self, line: str) -> None:
        if line == learner.END_OF_COMPLAINTS:
            self.silent = True
        else:
            self.complaints += line

    def note(self, event: Facts) -> None:
        kind = event.pop("event")
        self.order_of_events.append(kind)
        self.told_at.append(time.monotonic())
        self.events[kind].append(event)
        if kind == "step":
            self.losses.append(event["loss"])

    @property
    def step(self) -> int:
        """Inner steps counted so far."""
        return len(self.losses)

    @property
    def rounds(self) -> list[Facts]:
        """The ledger: every adopted anchor."""
        return self.events["round"]

    @property
    def real_complaints(self) -> list[str]:
        """Its lines on standard error, but for the ordinary words of a learner whose peers took
        their time to start."""
        ordinary = (f"{self.name}: waiting", f"{self.name}: joined at position")
        return [line for line in self.complaints.splitlines() if not line.startswith(ordinary)]

    @property
    def address(self) -> str:
        return str(self.await_event("open")["address"])

    @property
    def ended(self) -> bool:
        """Whether its process has ended, and all its output has been read."""
        return self.silent and bool(self.events["ended"])

    @property
    def lost(self) -> bool:
        """Whether it ended although that was not intended."""
        return (self.ended and not self.may_end) or self.process.popen.poll() is not None

    def timeline(self) -> str:
        """When it told what, in seconds before now; of its steps, the first and the last."""
        now, told = time.monotonic(), list(zip(self.told_at, self.order_of_events, strict=True))
        steps = [at for at, kind in told if kind == "step"]
        ends = {*steps[:1], *steps[-1:]}
        return ", ".join(
            f"{now - at:.2f} {kind}" for at, kind in told if kind != "step" or at in ends
        )[-1500:]

    def seals_with(self, *names: str) -> int:
        """How many adopted seals have exactly these members."""
        return sum(members(round) == set(names) for round in self.rounds)

    # ── telling ───────────────────────────────────────────────────────────────────────────────────

    def order(self, do: str, **facts: Any) -> None:
        self.process.order(do, **facts)

    def ask(self, do: str, reply: str, **facts: Any) -> Facts:
        """Give an order, and wait for the event that answers it."""
        seen = len(self.events[reply])
        self.order(do, **facts)
        return self.await_event(reply, seen)

    def await_event(self, kind: str, index: int = 0) -> Facts:
        self.supervisor.until(
            lambda: len(self.events[kind]) > index, f"{self.name} to say {kind!r}"
        )
        return self.events[kind][index]

    def await_steps(self, more: int) -> None:
        goal = self.step + more
        self.supervisor.until(lambda: self.step >= goal, f"{self.name} to take step {goal}")

    def await_rounds(self, more: int) -> None:
        goal = len(self.rounds) + more
        self.supervisor.until(
            lambda: len(self.rounds) >= goal, f"{self.name} to adopt {goal} anchors"
        )

    def report(self) -> Facts:
        return self.ask("report", "report")

    # ── ending ────────────────────────────────────────────────────────────────────────────────────

    def signal(self, number: int) -> None:
        if self.events["born"]:
            os.kill(self.events["born"][0]["pid"], number)

    def await_end(self) -> int:
        """The exit status of its process, once it has ended."""
        self.may_end = True
        self.supervisor.until(lambda: self.ended, f"{self.name} to end")
        return int(self.events["ended"][0]["status"])

    def kill(self) -> None:
        """SIGKILL: no goodbye, nothing flushed."""
        self.may_end = True
        self.signal(signal.SIGKILL)
        assert self.await_end() == -signal.SIGKILL

    def interrupt(self) -> int:
        """Ctrl-C; returns the exit status of its process."""
        self.may_end = True
        self.signal(signal.SIGINT)
        return self.await_end()

    def leave(self, how: str = "close") -> int:
        """Tell it to leave; returns the exit status of its process."""
        self.may_end = True
        self.order("leave", how=how)
        return self.await_end()


def members(round: Facts) -> set[str]:
    return {member["name"] for member in round["members"]}


class Supervisor:
    """The learners of one test."""

    def __init__(self, processes: list[Process]) -> None:
        self._processes = processes
        self.learners: list[Learner] = []

    def start(
        self,
        name: str,
        *,
        seed: int = 0,
        data_seed: int | None = None,
        pace_s: float = 0.005,
        steps: int | None = None,
        width: int = 48,
        workers: int = 0,
        tokens: tuple[int, int] = (1, 1),
        managed: bool = False,
        clock_behind_s: float = 0.0,
        timing: Facts | None = None,
        restore: Path | None = None,
        on: Process | None = None,
        net: int = 0,
        **options: Any,
    ) -> Learner:
        """Start a learner, with any keyword of MendOptimizer that JSON can express. It pauses after
        `steps`. `on`: a process of the caller's own that runs it. `net`: a process in whose network
        namespace it lives."""
        process = on or self._free_process()
        process.learner = Learner(name, process, self)
        self.learners.append(process.learner)
        options = {"name": name, "listen": "127.0.0.1:0", "sync_every": 10, "grace": 2.0, **options}
        process.order(
            "learn",
            seed=seed,
            data_seed=seed if data_seed is None else data_seed,
            pace_s=pace_s,
            steps=steps,
            width=width,
            workers=workers,
            tokens=tokens,
            managed=managed,
            clock_behind_s=clock_behind_s,
            timing={**TIMING, **(timing or {})},
            restore=str(restore or ""),
            net=net,
            options=options,
        )
        return process.learner

    def _free_process(self) -> Process:
        free = [p for p in self._processes if not p.learner or p.learner.ended]
        if not free:
            self._processes.append(Process())
        return free[0] if free else self._processes[-1]

    def start_all(
        self, names: str, special: Mapping[str, Facts] | None = None, **options: Any
    ) -> list[Learner]:
        """Start learners that all listen and know each other's addresses; seeds count up from 0.
        On a busy machine one may come long after the others, which wait for it. `special`: options
        of single learners."""
        options["timing"] = {"join_timeout_s": PATIENCE_S, **options.get("timing", {})}
        addresses = free_addresses(len(names))
        own = [
            {"seed": i, "listen": a, "peers": [b for b in addresses if b != a]}
            for i, a in enumerate(addresses)
        ]
        return [
            self.start(name, **{**its, **options, **(special or {}).get(name, {})})
            for name, its in zip(names, own, strict=True)
        ]

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for output that makes the condition true. Fails if it does not come, or if a learner
        ends unexpectedly."""
        deadline = time.monotonic() + PATIENCE_S
        with NEWS:
            while not condition():
                lost = [x.name for x in self.learners if x.lost]
                left = deadline - time.monotonic()
                if lost or left <= 0:
                    why = f"{lost} ended" if lost else f"{PATIENCE_S:g} s went by"
                    raise AssertionError(f"waiting for {what}: {why}\n{self._describe()}")
                NEWS.wait(min(left, 1.0))

    def _describe(self) -> str:
        lines = []
        for x in self.learners:
            said = {kind: events[-2:] for kind, events in x.events.items()}
            lines += [f"── {x.name}: {x.timeline()}", f"{said}", x.complaints[-2000:]]
        return "\n".join(lines)

    def settle(self, *learners: Learner) -> list[Facts]:
        """Let them pause and synchronize; returns their reports once all hold the same anchors."""
        for x in learners:
            x.ask("pause", "paused")
        seen = {x: len(x.events["synchronized"]) for x in learners}
        for x in learners:
            x.order("synchronize", timeout=PATIENCE_S)
        for x in learners:
            assert x.await_event("synchronized", seen[x])["done"], f"{x.name} could not synchronize"
        return self.agree(*learners)

    def agree(self, *learners: Learner) -> list[Facts]:
        """Ask them until all hold the same anchors; returns their reports."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            reports = [x.report() for x in learners]
            if len({lineages(report) for report in reports}) == 1:
                return reports
        raise AssertionError(f"no common lineage: {[lineages(report) for report in reports]}")

    def end(self) -> None:
        """Close every learner that is still there. Each must end well and leave no thread
        behind."""
        staying = [x for x in self.learners if not x.may_end]
        try:
            for x in staying:
                x.may_end = True
                x.order("leave", how="close")
            for x in staying:
                assert x.await_end() == 0, x.complaints
                threads = x.events["left behind"][0]["threads"]
                assert not [name for name in threads if name.startswith("mend-")]
        finally:
            for process in [x.process for x in self.learners if not x.ended]:
                process.destroy()
                if process in self._processes:
                    self._processes.remove(process)


def lineages(report: Facts) -> tuple[tuple[int, int, str], ...]:
    """(tokens, version, digest) of every fragment's anchor."""
    return tuple((f["tokens"], f["version"], f["digest"]) for f in report["fragments"])


class Relay:
    """A relay on loopback that delays everything that passes, in both directions, by `delay_s`."""

    def __init__(self, target: str, delay_s: float = 0.0) -> None:
        host, _, port = target.rpartition(":")
        self.target, self.delay_s, self.held = (host, int(port)), delay_s, 0
        self._ends: list[asyncio.StreamWriter] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        opening = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(opening, self._loop).result(PATIENCE_S)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection(*self.target)
        except OSError:  # the learner does not listen yet
            writer.close()
            return
        self._ends += [writer, there_writer]
        await asyncio.gather(self._relay(reader, there_writer), self._relay(there_reader, writer))

    async def _relay(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while chunk := await source.read(65536):
                self.held += 1
                self._loop.call_later(self.delay_s, sink.write, self.passed_on(chunk))
        self._loop.call_later(self.delay_s, sink.close)

    def passed_on(self, chunk: bytes) -> bytes:
        """The bytes that go on in the place of these."""
        return chunk

    async def _stop(self) -> None:
        self._server.close()
        for end in self._ends:
            end.transport.abort()
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()
