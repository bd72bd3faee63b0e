"""How long work takes: the spans in which functions of mend_optim ran in this process, which are
recorded without changing them, and single calls."""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

Span = tuple[float, float]
Spans = dict[str, list[Span]]


class Watch:
    """Spans by label, on the clock that all processes of a machine share."""

    def __init__(self) -> None:
        self._spans: defaultdict[str, list[Span]] = defaultdict(list)

    def on(self, owner: Any, name: str, label: Callable[..., str] | str) -> None:
        """From now on record every call of `owner.name`; `label` may depend on the call's
        arguments."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def watched(*args: Any, **named: Any) -> Any:
            began = time.monotonic()
            try:
                return function(*args, **named)
            finally:
                key = label if isinstance(label, str) else label(*args)
                self._spans[key].append((began, time.monotonic()))

        setattr(owner, name, watched)

    def count(self, label: str) -> int:
        return len(self._spans[label])

    def take(self) -> Spans:
        """The spans since the last call; an empty list where there were none."""
        spans, self._spans = self._spans, defaultdict(list)
        return spans


def seconds(spans: list[Span]) -> float:
    """How long they took together."""
    return sum(end - start for start, end in spans)


def time_of(work: Callable[[], object]) -> float:
    """The seconds that one call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def processor_time_of(work: Callable[[], object]) -> float:
    """The seconds for which this thread computes in one call."""
    started = time.thread_time()
    work()
    return time.thread_time() - started
