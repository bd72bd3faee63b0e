"""Supervises the learners of a run: starts them, restarts them when they die, and ends them all."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.storm import proc
from bench.storm.journal import Journal
from bench.storm.relays import Links, Relay

PATIENCE_S = 90.0
FAREWELL_S = 15.0  # for a learner that was told to leave
# More unexpected deaths of one learner than this are a defect, not the effect of a fault.
UNEXPECTED_LIMIT = 5
Facts = dict[str, Any]


@dataclass(eq=False)
class Seat:
    """A learner's place in the run. Its name and relay stay the same; process and port change with
    each life."""

    name: str
    relay: Relay
    life: int = 0
    pid: int = 0
    ready: bool = False
    unexpected_ends: int = 0
    meant: bool = False  # whether its end is intended
    restarts: bool = True  # whether it is started again when it dies
    how: str = "close"
    ended: asyncio.Future[int] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Supervisor:
    """`async with Supervisor(...)`: all its processes end with the block. `options` are
    MendOptimizer's, `timing` Timing's."""

    def __init__(
        self, names: str, out: Path, *, seed: int, pace_s: float, options: Facts, timing: Facts
    ) -> None:
        self.out, self.seed, self.pace_s, self.options, self.timing = (
            out,
            seed,
            pace_s,
            options,
            timing,
        )
        self.journal = Journal(out / "journal.jsonl")
        self.links = Links()
        self.seats = {name: Seat(name, Relay(name, self.links, self.pids)) for name in names}
        self.environment: Facts = {}
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._news = asyncio.Condition()
        self._by_pid: dict[int, Seat] = {}

    def pids(self) -> dict[int, str]:
        return {pid: seat.name for pid, seat in self._by_pid.items()}

    async def __aenter__(self) -> Supervisor:
        try:
            for seat in self.seats.values():
                await seat.relay.open()
            await self._open_prefork()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def _open_prefork(self) -> None:
        pipe = asyncio.subprocess.PIPE
        env = {key: value for key, value in os.environ.items() if not key.startswith("MEND_")}
        self._prefork = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "bench.storm.prefork",
            str(os.getpid()),
            stdin=pipe,
            stdout=pipe,
            env={**env, "OMP_NUM_THREADS": "1"},
            cwd=Path(__file__).parents[2],
            # Ctrl-C is for the supervisor, and all of this session can be found
            start_new_session=True,
        )
        self._listening = asyncio.create_task(self._listen())
        await self.until(lambda: self.environment, "the prefork process to import torch")

    async def __aexit__(self, *exception: object) -> None:
        """End every process, by its number, and check that it is gone."""
        prefork = getattr(self, "_prefork", None)
        if prefork:
            self._listening.cancel()
            for pid in [p for p in proc.session_members(prefork.pid) if p != prefork.pid]:
                _signal(pid, signal.SIGKILL)
            prefork.stdin.close()
            try:
                await asyncio.wait_for(prefork.wait(), FAREWELL_S)
            except (TimeoutError, asyncio.TimeoutError):
                prefork.kill()
                await prefork.wait()
            self.journal.say("orphans", pids=proc.session_members(prefork.pid))
        for seat in self.seats.values():
            if hasattr(seat.relay, "address"):
                await seat.relay.close()
        relays = [seat.relay for seat in self.seats.values()]
        self.journal.say(
            "relays",
            unknown_callers=sum(r.unknown_callers for r in relays),
            refused=sum(r.refused for r in relays),
        )

    # ── news from the prefork process and the learners ────────────────────────────────────────────

    async def _listen(self) -> None:
        try:
            while line := await self._prefork.stdout.readline():  # type: ignore[union-attr]
                self._note(json.loads(line))
                async with self._news:
                    self._news.notify_all()
            raise RuntimeError("the prefork process ended")
        except Exception as error:
            if not self.failed.done():
                self.failed.set_exception(error)

    def _note(self, news: Facts) -> None:
        if news["event"] == "forked":
            seat = self.seats[news["who"]]
            seat.pid = news["pid"]
            self._by_pid[seat.pid] = seat
            self.journal.say("forked", who=seat.name, life=seat.life, pid=seat.pid)
        elif news["event"] == "ended":
            self._ended(self._by_pid.pop(news["pid"]), news["status"])
        elif "pid" in news:
            if news["pid"] in self._by_pid:
                self._by_pid[news["pid"]].ready = True
        else:
            self.environment = news["environment"]

    def _ended(self, seat: Seat, status: int) -> None:
        self.journal.say("ended", who=seat.name, life=seat.life, status=status, meant=seat.meant)
        seat.ready, seat.pid = False, 0
        seat.unexpected_ends += not seat.meant
        if seat.unexpected_ends > UNEXPECTED_LIMIT:
            raise RuntimeError(
                f"learner {seat.name} ended unexpectedly {seat.unexpected_ends} times, "
                f"the last time with status {status}"
            )
        if not seat.ended.done():
            seat.ended.set_result(status)
        if seat.restarts:
            self.start(seat)

    # ── actions ───────────────────────────────────────────────────────────────────────────────────

    def start(self, seat: Seat, **special: Any) -> None:
        """Begin the seat's next life. `special` may set `restarts` and `how`."""
        seat.life, seat.meant, seat.ready = seat.life + 1, False, False
        seat.restarts, seat.how = (
            special.get("restarts", seat.restarts),
            special.get("how", seat.how),
        )
        seat.ended = asyncio.get_running_loop().create_future()
        seat.relay.target = port = free_port()
        options = {
            **self.options,
            "listen": f"127.0.0.1:{port}",
            "advertise": seat.relay.address,
            "peers": [other.relay.address for other in self.seats.values() if other is not seat],
            "ledger": str(self.out / f"ledger-{seat.name}.jsonl"),
        }
        order = {
            "who": seat.name,
            "life": seat.life,
            "seed": 1000 * self.seed + 100 * ord(seat.name) + seat.life,
            "journal": str(self.journal.path),
            "stderr": str(self.out / f"stderr-{seat.name}.txt"),
            "pace_s": self.pace_s,
            "how": seat.how,
            "options": options,
            "timing": self.timing,
        }
        self.journal.say("start", who=seat.name, life=seat.life)
        self._prefork.stdin.write(json.dumps(order).encode() + b"\n")  # type: ignore[union-attr]

    async def kill(self, seat: Seat) -> int:
        """Send SIGKILL; returns the exit status. A seat that `restarts` gets its next process at
        once."""
        ended, seat.meant = seat.ended, True
        _signal(seat.pid, signal.SIGKILL)
        return await ended

    async def leave(self, seat: Seat, number: int = signal.SIGUSR1) -> int | None:
        """Let the learner end, in the way that its order names or by another signal. Returns its
        exit status, or None if it had to be killed."""
        ended, seat.meant, seat.restarts = seat.ended, True, False
        _signal(seat.pid, number)
        with suppress(TimeoutError, asyncio.TimeoutError):
            return await asyncio.wait_for(asyncio.shield(ended), FAREWELL_S)
        self.journal.say("stuck", who=seat.name, life=seat.life)
        await self.kill(seat)
        return None

    async def leave_all(self) -> None:
        await asyncio.gather(*(self.leave(seat) for seat in self.seats.values() if seat.pid))

    async def until(self, condition: Any, what: str, patience_s: float = PATIENCE_S) -> None:
        """Wait for news that make the condition true. Raises if they do not come, or if the prefork
        process fails."""

        async def wait() -> None:
            async with self._news:
                await self._news.wait_for(condition)

        task = asyncio.ensure_future(wait())
        await asyncio.wait(
            {task, self.failed}, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED
        )
        if task.done():
            return task.result()
        task.cancel()
        if self.failed.done():
            self.failed.result()
        raise TimeoutError(f"waited {patience_s:g} s in vain for {what}")

    async def until_all_ready(self) -> None:
        await self.until(
            lambda: all(seat.ready for seat in self.seats.values() if seat.restarts),
            "all to be ready",
        )


def _signal(pid: int, number: int) -> None:
    if pid > 0:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def free_port() -> int:
    """A port that is free at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
