"""The scenarios: a storm, a partition, a soak. Each writes its phases to the journal; the figures
are computed later."""

from __future__ import annotations

import argparse
import asyncio
import signal
import time
from collections.abc import Awaitable, Callable

from bench.storm import proc
from bench.storm.faults import Weather, plan
from bench.storm.relays import all_ways
from bench.storm.supervisor import Seat, Supervisor

CALM_S = 15.0  # after the storm, until all learners are back
SAMPLE_S = 5.0
GUEST_AWAY_S, GUEST_STAYS_S = 40.0, 20.0  # in a soak
ENDINGS: tuple[tuple[str, str, int], ...] = (
    ("Ctrl-C", "close", signal.SIGINT),
    ("SIGTERM", "close", signal.SIGTERM),
    ("an exception in training", "raise", signal.SIGUSR1),
    ("interpreter exit", "exit", signal.SIGUSR1),
)


async def _begin(supervisor: Supervisor, names: str, warm_up_s: float) -> None:
    """Start these learners together, and let them train undisturbed for a while."""
    for name in names:
        supervisor.start(supervisor.seats[name])
    await supervisor.until(
        lambda: all(supervisor.seats[name].ready for name in names), "all learners to join"
    )
    supervisor.journal.say("phase", phase="warm-up")
    await asyncio.sleep(warm_up_s)


async def storm(supervisor: Supervisor, options: argparse.Namespace) -> None:
    await _begin(supervisor, "".join(supervisor.seats), options.warm_up_s)
    supervisor.journal.say("phase", phase="storm")
    faults = plan(options.seed, options.minutes, options.faults_per_hour)
    ends_at = time.monotonic() + 60 * options.minutes
    await Weather(supervisor).blow(faults)
    await asyncio.sleep(max(0.0, ends_at - time.monotonic()))
    supervisor.journal.say("phase", phase="calm")
    await asyncio.sleep(CALM_S)
    await supervisor.until_all_ready()
    supervisor.journal.say("phase", phase="end")
    await supervisor.leave_all()


async def partition(supervisor: Supervisor, options: argparse.Namespace) -> None:
    """Half of the learners cannot reach the other half for a while."""
    names = list(supervisor.seats)
    sides = names[: len(names) // 2], names[len(names) // 2 :]
    await _begin(supervisor, "".join(names), options.warm_up_s)
    supervisor.journal.say("phase", phase="partition", sides=sides)
    held = await Weather(supervisor).cut(all_ways(*sides), options.partition_s)
    supervisor.journal.say("phase", phase="healed", held=held)
    await asyncio.sleep(options.settle_s)
    supervisor.journal.say("phase", phase="end")
    await supervisor.leave_all()


async def soak(supervisor: Supervisor, options: argparse.Namespace) -> None:
    """No learner is killed; the last one is a guest that comes and goes. At the end each of the
    others leaves in another way."""
    *staying, guest = supervisor.seats.values()
    for seat, (_, how, _) in zip(staying, ENDINGS, strict=False):
        seat.how = how
    await _begin(supervisor, "".join(seat.name for seat in staying), 0.0)
    supervisor.journal.say("phase", phase="soak")
    until = time.monotonic() + 60 * options.minutes
    tasks = [
        asyncio.create_task(work)
        for work in (_sample(supervisor, staying, until), _visit(supervisor, guest, until))
    ]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    supervisor.journal.say("phase", phase="end")
    for seat, (name, _, number) in zip(staying, ENDINGS, strict=False):
        await _watch_the_end(supervisor, seat, name, number)
    await supervisor.leave_all()


async def _sample(supervisor: Supervisor, seats: list[Seat], until: float) -> None:
    while time.monotonic() < until:
        for seat in seats:
            names = proc.thread_names(seat.pid)
            supervisor.journal.say(
                "sample", who=seat.name, life=seat.life, names=names, **proc.sample(seat.pid)
            )
        await asyncio.sleep(SAMPLE_S)


async def _visit(supervisor: Supervisor, guest: Seat, until: float) -> None:
    while time.monotonic() + GUEST_AWAY_S + GUEST_STAYS_S < until:
        await asyncio.sleep(GUEST_AWAY_S)
        supervisor.start(guest, restarts=True)
        await supervisor.until(lambda: guest.ready, "the guest to join")
        await asyncio.sleep(GUEST_STAYS_S)
        await supervisor.leave(guest)


async def _watch_the_end(supervisor: Supervisor, seat: Seat, name: str, number: int) -> None:
    pid, began = seat.pid, time.monotonic()
    status = await supervisor.leave(seat, number)
    took_s = round(time.monotonic() - began, 3)
    supervisor.journal.say(
        "ending", who=seat.name, by=name, status=status, took_s=took_s, left=proc.state(pid)
    )


SCENARIOS: dict[str, Callable[[Supervisor, argparse.Namespace], Awaitable[None]]] = {
    "storm": storm,
    "partition": partition,
    "soak": soak,
}
