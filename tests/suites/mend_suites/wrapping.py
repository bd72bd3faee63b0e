"""`AdamW(...)` returns a `MendOptimizer` around an `AdamW`, for every optimizer class.

All optimizers inherit `Optimizer.__new__`. The one here constructs the real optimizer and returns
it wrapped. Python then does not initialize the result again, because it is no `AdamW`. A class
that was defined, imported or aliased before is covered as well, and stays the class that it is."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from torch.optim import Optimizer

from mend_optim import MendOptimizer

Wrap = Callable[[Optimizer], MendOptimizer]

#: Why an optimizer that a test constructed is bare.
INSIDE = "constructed by another optimizer's constructor"
AROUND = "constructed around an optimizer, which is wrapped itself"
ESCAPED = "its class has a __new__ of its own"


class Wrapping:
    """Wraps every optimizer that is constructed, once installed.

    Args:
        wrap: makes the wrapper of a new optimizer.
    """

    def __init__(self, wrap: Wrap) -> None:
        self._wrap = wrap
        self._nesting = threading.local()
        self._seen: WeakSet[Optimizer] = WeakSet()
        #: Optimizers wrapped so far, by class; and those left bare, by reason.
        self.wrapped: Counter[str] = Counter()
        self.bare: Counter[str] = Counter()

    @contextmanager
    def suspended(self, why: str = "") -> Iterator[None]:
        """Leave bare what this thread constructs meanwhile, and count it under the reason `why`,
        if there is one."""
        before = self._suspended()
        self._nesting.why = why
        try:
            yield
        finally:
            self._nesting.why = before

    def _suspended(self) -> str | None:
        why: str | None = getattr(self._nesting, "why", None)
        return why

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Wrap from here on, in all threads, until the block ends."""
        replaced = {
            (Optimizer, "__new__"): (self._replacement(), _bare),
            (Optimizer, "__init__"): (self._counting(Optimizer.__init__), Optimizer.__init__),
            (MendOptimizer, "__init__"): (_once(MendOptimizer.__init__), MendOptimizer.__init__),
        }
        for (kind, name), (now, _) in replaced.items():
            setattr(kind, name, now)
        try:
            yield
        finally:
            for (kind, name), (_, afterwards) in replaced.items():
                setattr(kind, name, afterwards)

    def _replacement(self) -> Callable[..., Any]:
        def __new__(cls: type[Optimizer], /, *args: Any, **kwargs: Any) -> Any:
            made = object.__new__(cls)
            self._seen.add(made)
            reason = self._reason(cls, args, kwargs)
            if reason is None:
                return self._construct(made, args, kwargs)
            self.bare.update(filter(None, [reason]))
            return made

        return __new__

    def _reason(
        self, cls: type[Optimizer], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str | None:
        """Why the new optimizer stays bare, or "" if nobody would expect it wrapped."""
        if issubclass(cls, MendOptimizer):
            return ""
        if not args and not kwargs:
            # copy and pickle make an optimizer without its constructor.
            return ""
        if self._suspended() is not None:
            return self._suspended()
        if any(isinstance(given, Optimizer) for given in (*args, *kwargs.values())):
            return AROUND
        return None

    def _construct(self, inner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self.suspended(INSIDE):
            inner.__init__(*args, **kwargs)
            wrapper = self._wrap(inner)
        self.wrapped[type(inner).__name__] += 1
        return wrapper

    def _counting(self, init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(init)
        def __init__(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            if optimizer not in self._seen:
                self.bare[ESCAPED] += 1
            init(optimizer, *args, **kwargs)

        return __init__


def _bare(cls: type[Optimizer], /, *args: Any, **kwargs: Any) -> Any:
    """What `Optimizer.__new__` is afterwards: Python does not forget that a class had one, and
    would refuse the arguments."""
    return object.__new__(cls)


def _once(init: Callable[..., None]) -> Callable[..., None]:
    """Python initializes what `AdamW.__new__` returned a second time if it is an `AdamW`, with the
    arguments of the `AdamW`. A wrapper that is one has been initialized already."""

    initialized: WeakSet[MendOptimizer] = WeakSet()

    @functools.wraps(init)
    def __init__(optimizer: MendOptimizer, *args: Any, **kwargs: Any) -> None:
        if optimizer not in initialized:
            init(optimizer, *args, **kwargs)
            initialized.add(optimizer)

    return __init__
