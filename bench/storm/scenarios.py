"""What is done to a crew: a storm, a partition, a soak. Each notes its phases in the journal;
nothing is computed."""

from __future__ import annotations

import argparse
import asyncio
import signal
import time
from collections.abc import Awaitable, Callable

from bench.storm import proc
from bench.storm.faults import Weather, plan
from bench.storm.relays import all_ways
from bench.storm.supervisor import Crew, Seat

CALM_S = 15.0  # after the storm, for the last ones to come back
SAMPLE_S = 5.0
GUEST_AWAY_S, GUEST_STAYS_S = 40.0, 20.0  # in a soak
ENDINGS: tuple[tuple[str, str, int], ...] = (
    ("Ctrl-C", "close", signal.SIGINT),
    ("SIGTERM", "close", signal.SIGTERM),
    ("an exception in training", "raise", signal.SIGUSR1),
    ("interpreter exit", "exit", signal.SIGUSR1),
)


async def _begin(crew: Crew, names: str, warm_up_s: float) -> None:
    """These learners start together, and train undisturbed for a while."""
    for name in names:
        crew.start(crew.seats[name])
    await crew.until(lambda: all(crew.seats[name].ready for name in names), "all learners to join")
    crew.journal.say("phase", phase="warm-up")
    await asyncio.sleep(warm_up_s)


async def storm(crew: Crew, options: argparse.Namespace) -> None:
    await _begin(crew, "".join(crew.seats), options.warm_up_s)
    crew.journal.say("phase", phase="storm")
    faults = plan(options.seed, options.minutes, options.faults_per_hour)
    ends_at = time.monotonic() + 60 * options.minutes
    await Weather(crew).blow(faults)
    await asyncio.sleep(max(0.0, ends_at - time.monotonic()))
    crew.journal.say("phase", phase="calm")
    await asyncio.sleep(CALM_S)
    await crew.until_all_ready()
    crew.journal.say("phase", phase="end")
    await crew.leave_all()


async def partition(crew: Crew, options: argparse.Namespace) -> None:
    """Half of them cannot reach the other half for a while."""
    names = list(crew.seats)
    sides = names[: len(names) // 2], names[len(names) // 2 :]
    await _begin(crew, "".join(names), options.warm_up_s)
    crew.journal.say("phase", phase="partition", sides=sides)
    held = await Weather(crew).cut(all_ways(*sides), options.partition_s)
    crew.journal.say("phase", phase="healed", held=held)
    await asyncio.sleep(options.settle_s)
    crew.journal.say("phase", phase="end")
    await crew.leave_all()


async def soak(crew: Crew, options: argparse.Namespace) -> None:
    """Nothing is killed; the last learner is a guest that comes and goes. The others leave in one
    way each."""
    *staying, guest = crew.seats.values()
    for seat, (_, how, _) in zip(staying, ENDINGS, strict=False):
        seat.how = how
    await _begin(crew, "".join(seat.name for seat in staying), 0.0)
    crew.journal.say("phase", phase="soak")
    until = time.monotonic() + 60 * options.minutes
    tasks = [
        asyncio.create_task(work)
        for work in (_sample(crew, staying, until), _visit(crew, guest, until))
    ]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    crew.journal.say("phase", phase="end")
    for seat, (name, _, number) in zip(staying, ENDINGS, strict=False):
        await _watch_the_end(crew, seat, name, number)
    await crew.leave_all()


async def _sample(crew: Crew, seats: list[Seat], until: float) -> None:
    while time.monotonic() < until:
        for seat in seats:
            names = proc.thread_names(seat.pid)
            crew.journal.say(
                "sample", who=seat.name, life=seat.life, names=names, **proc.sample(seat.pid)
            )
        await asyncio.sleep(SAMPLE_S)


async def _visit(crew: Crew, guest: Seat, until: float) -> None:
    while time.monotonic() + GUEST_AWAY_S + GUEST_STAYS_S < until:
        await asyncio.sleep(GUEST_AWAY_S)
        crew.start(guest, residual_in_weights=True)
        await crew.until(lambda: guest.ready, "the guest to join")
        await asyncio.sleep(GUEST_STAYS_S)
        await crew.leave(guest)


async def _watch_the_end(crew: Crew, seat: Seat, name: str, number: int) -> None:
    pid, began = seat.pid, time.monotonic()
    status = await crew.leave(seat, number)
    took_s = round(time.monotonic() - began, 3)
    crew.journal.say(
        "ending", who=seat.name, by=name, status=status, took_s=took_s, left=proc.state(pid)
    )


SCENARIOS: dict[str, Callable[[Crew, argparse.Namespace], Awaitable[None]]] = {
    "storm": storm,
    "partition": partition,
    "soak": soak,
}
