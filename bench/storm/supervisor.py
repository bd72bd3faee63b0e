"""The learners of a run, as their supervisor has them: started, restarted when they die, and all
gone in the end."""

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
from bench.storm.relays import Lines, Road

PATIENCE_S = 90.0
FAREWELL_S = 15.0  # for a learner that was told to leave
FALLS_LIMIT = 5  # deaths of one learner that nobody meant: more are a defect, not weather
Facts = dict[str, Any]


@dataclass(eq=False)
class Seat:
    """A learner's place: its name and road stay; its process and port are those of its present
    life."""

    name: str
    road: Road
    life: int = 0
    pid: int = 0
    ready: bool = False
    falls: int = 0
    meant: bool = False  # to end
    stays: bool = True  # is started again when it dies
    how: str = "close"
    ended: asyncio.Future[int] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Crew:
    """`async with Crew(...)`: nothing of it outlives the block. `options` are MendOptimizer's,
    `timing` Timing's."""

    def __init__(
        self, names: str, out: Path, seed: int, pace_s: float, options: Facts, timing: Facts
    ) -> None:
        self.out, self.seed, self.pace_s, self.options, self.timing = (
            out,
            seed,
            pace_s,
            options,
            timing,
        )
        self.journal = Journal(out / "journal.jsonl")
        self.lines = Lines()
        self.seats = {name: Seat(name, Road(name, self.lines, self.pids)) for name in names}
        self.environment: Facts = {}
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._news = asyncio.Condition()
        self._by_pid: dict[int, Seat] = {}

    def pids(self) -> dict[int, str]:
        return {pid: seat.name for pid, seat in self._by_pid.items()}

    async def __aenter__(self) -> Crew:
        try:
            for seat in self.seats.values():
                await seat.road.open()
            await self._open_nursery()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def _open_nursery(self) -> None:
        pipe = asyncio.subprocess.PIPE
        env = {key: value for key, value in os.environ.items() if not key.startswith("MEND_")}
        self._nursery = await asyncio.create_subprocess_exec(
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
        await self.until(lambda: self.environment, "the nursery to import torch")

    async def __aexit__(self, *exception: object) -> None:
        """End every process, by its number, and see that it is gone."""
        nursery = getattr(self, "_nursery", None)
        if nursery:
            self._listening.cancel()
            for pid in [p for p in proc.session_members(nursery.pid) if p != nursery.pid]:
                _signal(pid, signal.SIGKILL)
            nursery.stdin.close()
            try:
                await asyncio.wait_for(nursery.wait(), FAREWELL_S)
            except (TimeoutError, asyncio.TimeoutError):
                nursery.kill()
                await nursery.wait()
            self.journal.say("orphans", pids=proc.session_members(nursery.pid))
        for seat in self.seats.values():
            if hasattr(seat.road, "address"):
                await seat.road.close()
        roads = [seat.road for seat in self.seats.values()]
        self.journal.say(
            "roads",
            strangers=sum(r.strangers for r in roads),
            refused=sum(r.refused for r in roads),
        )

    # ── what the nursery and the learners tell ────────────────────────────────────────────────────

    async def _listen(self) -> None:
        try:
            while line := await self._nursery.stdout.readline():  # type: ignore[union-attr]
                self._note(json.loads(line))
                async with self._news:
                    self._news.notify_all()
            raise RuntimeError("the nursery ended")
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
        seat.falls += not seat.meant
        if seat.falls > FALLS_LIMIT:
            raise RuntimeError(
                f"learner {seat.name} ended unbidden {seat.falls} times, the last time with {status}"
            )
        if not seat.ended.done():
            seat.ended.set_result(status)
        if seat.residual_in_weights:
            self.start(seat)

    # ── what the supervisor does ──────────────────────────────────────────────────────────────────

    def start(self, seat: Seat, **special: Any) -> None:
        """Begin the seat's next life. `special`: stays, how."""
        seat.life, seat.meant, seat.ready = seat.life + 1, False, False
        seat.residual_in_weights, seat.how = (
            special.get("stays", seat.residual_in_weights),
            special.get("how", seat.how),
        )
        seat.ended = asyncio.get_running_loop().create_future()
        seat.road.target = port = free_port()
        options = {
            **self.options,
            "listen": f"127.0.0.1:{port}",
            "advertise": seat.road.address,
            "peers": [other.road.address for other in self.seats.values() if other is not seat],
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
        self._nursery.stdin.write(json.dumps(order).encode() + b"\n")  # type: ignore[union-attr]

    async def kill(self, seat: Seat) -> int:
        """SIGKILL; the status it ends with. A seat that stays is occupied again at once."""
        ended, seat.meant = seat.ended, True
        _signal(seat.pid, signal.SIGKILL)
        return await ended

    async def leave(self, seat: Seat, number: int = signal.SIGUSR1) -> int | None:
        """Let it end as it was told at birth, or by another signal; its status, None if it had to
        be killed."""
        ended, seat.meant, seat.residual_in_weights = seat.ended, True, False
        _signal(seat.pid, number)
        with suppress(TimeoutError, asyncio.TimeoutError):
            return await asyncio.wait_for(asyncio.shield(ended), FAREWELL_S)
        self.journal.say("stuck", who=seat.name, life=seat.life)
        await self.kill(seat)
        return None

    async def leave_all(self) -> None:
        await asyncio.gather(*(self.leave(seat) for seat in self.seats.values() if seat.pid))

    async def until(self, condition: Any, what: str, patience_s: float = PATIENCE_S) -> None:
        """Wait for news that make the condition true. Raises if they do not come, or the nursery
        fails."""

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
            lambda: all(seat.ready for seat in self.seats.values() if seat.residual_in_weights),
            "all to be ready",
        )


def _signal(pid: int, number: int) -> None:
    if pid > 0:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def free_port() -> int:
    """A port that the system has free at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
