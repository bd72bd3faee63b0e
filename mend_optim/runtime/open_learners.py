"""The open learners of this process: who holds a port, the end of them all, and what is left of
them in a forked child."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from mend_optim.errors import UsageError
from mend_optim.protocol.lineage import PeerId
from mend_optim.runtime import last_work
from mend_optim.runtime.farewell import Farewell
from mend_optim.runtime.guard import Guard
from mend_optim.transport.address import parse_address


class OpenLearner(Protocol):
    """The part of a `Learner` that this module needs."""

    guard: Guard
    #: The thread that closes it; None if none does.
    closer: int | None

    @property
    def me(self) -> PeerId: ...

    @property
    def port(self) -> int:
        """The port that it listens on; 0 if it does not listen."""

    @property
    def dropped(self) -> bool:
        """Whether its optimizer is gone."""

    def close(self, *, asked: bool = True) -> None:
        """Leave and stop, or do nothing if that has begun. `asked`: whether the script said so."""

    def await_end(self) -> None:
        """Wait until `close` has ended, on whichever thread."""

    def abandon(self) -> None:
        """In a forked child: be closed, and leave everything to the parent."""


# By `id`. Other threads add and discard learners, and a signal may come at any time: the values of
# a dictionary, unlike those of a weak set, can be listed meanwhile.
_open: weakref.WeakValueDictionary[int, OpenLearner] = weakref.WeakValueDictionary()
# In a forked child, the learners of the parent: gRPC's part of them must not be taken apart here.
_inherited: list[OpenLearner] = []


def _listed() -> list[OpenLearner]:
    return [learner for reference in _open.valuerefs() if (learner := reference()) is not None]


_farewell = Farewell(_listed)
await_farewell = _farewell.await_end


def add(learner: OpenLearner) -> None:
    """A learner takes part from now on."""
    _open[id(learner)] = learner
    _farewell.prepare()


def discard(learner: OpenLearner) -> None:
    """A learner has ended."""
    _open.pop(id(learner), None)
    if not _open:
        _farewell.give_back()


def close_all() -> None:
    """Close every learner of this process, as its `MendOptimizer.close()` does.

    A notebook cell that makes an optimizer with peers can call it first. So can a script that calls
    `fit` twice. Otherwise the learner of the first run still holds its port. Optimizers without
    peers have nothing to close.

    Example:
        >>> import torch
        >>> import mend_optim
        >>> mend_optim.close_all()
        >>> inner = torch.optim.SGD(torch.nn.Linear(4, 1).parameters())
        >>> optimizer = mend_optim.MendOptimizer(inner, listen="127.0.0.1:0")
        >>> mend_optim.close_all()
        >>> try:
        ...     optimizer.synchronize()
        ... except mend_optim.ClosedError as error:
        ...     print(error)
        this optimizer was closed; it still steps, but it has no peers to wait for
    """
    for learner in _listed():
        learner.close()


@atexit.register
def _close_at_exit() -> None:
    """The interpreter exits. If an exception ended the script, that stays the last word."""
    for learner in _listed():
        learner.close(asked=hasattr(sys, "last_type"))
        learner.await_end()  # it may be closing already, because its optimizer is gone
    last_work.await_end()


@contextmanager
def making_room(listen: str | None) -> Iterator[None]:
    """Surround the start of a learner that listens there.

    If the port is that of an earlier learner of this process that is leaving, or whose optimizer is
    gone, or garbage, wait until that learner has left. If it cannot be had because an earlier
    learner is still open, name that one."""
    port = parse_address("listen", listen)[1] if listen is not None else 0
    if _at(port):
        gc.collect()
    earlier = _at(port)
    if earlier and earlier.dropped:
        earlier.close(asked=False)
    if earlier and earlier.closer is not None:
        earlier.await_end()
    try:
        yield
    except UsageError:
        earlier = _at(port)
        if earlier is None:
            raise
        raise UsageError(
            f"listen must be an address of this machine with a free port, got {listen!r}; the "
            f"learner {earlier.me.name!r} of this process still listens there: if the new one "
            "takes its place, call close() of its MendOptimizer, or mend_optim.close_all(), "
            "before; if both train, pass a listen and peers of its own to each"
        ) from None


def _at(port: int) -> OpenLearner | None:
    """The open learner that listens on a port."""
    return next((learner for learner in _listed() if port and learner.port == port), None)


def _abandon_all() -> None:
    """In a forked child, such as a worker of a `DataLoader`."""
    global _open
    _inherited.extend(_listed())
    _open = weakref.WeakValueDictionary()
    for learner in _inherited:
        learner.abandon()
    # The child ends by SIGTERM as any process does.
    _farewell.give_back()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
