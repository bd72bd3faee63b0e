"""The pairs of gloo groups that the learners of some ranks have used, one learner after another.

A group has threads and sockets until the world ends. To destroy it alone would not be safe: torch
names groups after how many there are, so the next one could get the name of a group that is still
there. So the next learner of the same ranks takes over a pair that is free on all of them."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class Pair(NamedTuple):
    """The groups of one learner."""

    #: Of the training threads, for words.
    words: Any
    #: Of the couriers, for tensors and for what is told of them.
    tensors: Any


class Use:
    """The collectives of one learner in its pair, as this rank knows them."""

    def __init__(self) -> None:
        #: Words that may be on their way. Those before have been heard.
        self.said: deque[Any] = deque(maxlen=2)
        self._has_failed = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within, this rank calls a collective, or waits for one. If that raises, other ranks may
        be at another one."""
        try:
            yield
        except BaseException:
            self._has_failed = True
            raise

    def is_over(self) -> bool:
        """Whether all collectives that this rank began have ended well."""
        return not self._has_failed and all(map(_has_ended_well, self.said))


def _has_ended_well(work: Any) -> bool:
    """Whether a collective has; None: it was over as soon as it began."""
    if work is None:
        return True
    if not work.is_completed():
        return False
    try:
        work.wait()
    except RuntimeError:
        return False
    return True


class _Made:
    """A pair that was made. torch keeps its groups until the world ends, and this does not."""

    def __init__(self, pair: Pair) -> None:
        self._groups = [weakref.ref(group) for group in pair]
        #: The last use, once its learner is gone.
        self.last: Use | None = None

    def pair(self) -> Pair | None:
        """The pair; None: its world has ended."""
        words, tensors = (group() for group in self._groups)
        return None if words is None or tensors is None else Pair(words, tensors)

    def is_free(self) -> bool:
        return self.last is not None and self.pair() is not None and self.last.is_over()


class Pairs:
    """The pairs that some ranks have made. They have the same numbers on all of these."""

    def __init__(self) -> None:
        self._made: dict[int, _Made] = {}

    def free(self) -> list[int]:
        """The numbers of the pairs that this rank does not use any more."""
        return [number for number, made in self._made.items() if made.is_free()]

    def add(self, number: int, pair: Pair) -> None:
        """Keep a new pair under this number."""
        self._made[number] = _Made(pair)

    def lend(self, number: int, learner: object, use: Use) -> Pair:
        """The pair with this number. `learner` uses it as long as it lives.

        Raises:
            LookupError: there is no such pair, or its world has ended.
        """
        made = self._made[number]
        pair = made.pair()
        if pair is None:
            raise LookupError(f"the world of pair {number} has ended")
        made.last = None
        weakref.finalize(learner, setattr, made, "last", use)
        return pair
