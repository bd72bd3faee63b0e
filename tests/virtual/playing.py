"""Play a storm, of whatever kind; make one that fails smaller, and say how to replay that."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar


class Playable(Protocol):
    """A cluster and its faults, as plain data."""

    def play(self) -> Any:
        """Play it. Raises `AssertionError` if a law is broken."""

    def smaller(self) -> Iterator[Any]:
        """Storms of this kind that have a little less in them."""

    @property
    def module(self) -> str:
        """The module that replays it."""


S = TypeVar("S", bound=Playable)


def failure(storm: Playable) -> str:
    """The traceback of what went wrong in this storm; empty if nothing did."""
    try:
        storm.play()
    except Exception:
        return traceback.format_exc()
    return ""


def shrunk(storm: S) -> S:
    """The smallest storm that still fails: without all that is not needed for that."""
    smaller: S | None = storm
    while smaller:
        storm = smaller
        smaller = next((s for s in storm.smaller() if failure(s)), None)
    return storm


def check(storm: Playable) -> Any:
    """Play a storm. If it fails, make it smaller and raise an error that says how to replay
    that."""
    try:
        return storm.play()
    except Exception:
        least = shrunk(storm)
        again = f"python -m {storm.module} --replay '{least!r}'"
        raise AssertionError(f"{failure(least)}\nto play it again: {again}") from None


def seen_in(
    seeds: Iterable[int], draw: Callable[[int], Playable]
) -> tuple[Counter[str], list[str]]:
    """Counts of the events in the storms of these seeds, and the failure of each that failed."""
    seen: Counter[str] = Counter()
    failed = []
    for seed in seeds:
        try:
            seen.update(check(draw(seed)).seen)
        except AssertionError as fault:
            failed.append(f"seed {seed}: {fault}")
    return seen, failed
