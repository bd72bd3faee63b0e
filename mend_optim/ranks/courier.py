"""The background thread of one rank, which carries tensors while training goes on.

It does its errands one after another, in the order in which they were given. All ranks give them in
one order, as the table of words says (R3), so that the transfers of all couriers meet. No other
thread uses the group of the tensors (R1)."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import weakref
from collections.abc import Callable

Work = Callable[[], None]
#: Seconds that the end of the process waits for an errand. One of ranks that have parted may take
#: for ever.
LAST_ERRAND_S = 1.0
_couriers: weakref.WeakSet[Courier] = weakref.WeakSet()


class Errand:
    """Something that the courier does."""

    def __init__(self, work: Work) -> None:
        self._work: Work | None = work
        self._over = threading.Event()
        self._fault: BaseException | None = None

    @property
    def is_over(self) -> bool:
        """Whether it is done, or has failed."""
        return self._over.is_set()

    def do(self) -> BaseException | None:
        """Do it. Returns the error that ended it, if one did."""
        assert self._work is not None
        try:
            self._work()
        except BaseException as fault:
            self._fault = fault
        return self._end()

    def refuse(self, fault: BaseException) -> None:
        """It will not be done, because of what happened before."""
        self._fault = fault
        self._end()

    def _end(self) -> BaseException | None:
        self._work = None  # it may hold large tensors
        self._over.set()
        return self._fault

    def await_end(self, patience_s: float) -> None:
        """Wait, at most so long, until it is done or has failed. Raises nothing."""
        self._over.wait(patience_s)

    def wait(self) -> None:
        """Wait until it is done. Raises the error that ended it, or an earlier errand."""
        self._over.wait()
        if self._fault is not None:
            raise self._fault


class Courier:
    """Does errands in the background. After one that failed, it does no more."""

    def __init__(self) -> None:
        self._errands: queue.SimpleQueue[Errand | None] = queue.SimpleQueue()
        # Only the thread writes to it.
        self._faults: list[BaseException] = []
        self._last: Errand | None = None
        self._thread = threading.Thread(
            target=_work, args=(self._errands, self._faults), name="mend-courier", daemon=True
        )
        self._thread.start()
        _couriers.add(self)
        # The thread has nothing that leads here, so that it ends with the last user.
        weakref.finalize(self, self._errands.put, None)

    @property
    def fault(self) -> BaseException | None:
        """The error of the errand that failed; None if none has."""
        return self._faults[0] if self._faults else None

    def put(self, work: Work) -> Errand:
        """Let this be done after all that was put before."""
        errand = Errand(work)
        self._last = errand
        self._errands.put(errand)
        return errand

    def waiting(self) -> Callable[[], None]:
        """A function that waits until all that was put so far is done, and raises the error that
        ended it."""
        last = self._last
        return last.wait if last else _return

    def wait(self) -> None:
        """Wait until all is done. Raises the error that ended an errand."""
        self.waiting()()

    def await_idle(self, patience_s: float) -> None:
        """Wait, at most so long, until nothing is left to do. Raises nothing. As in `end`, a script
        may exit next."""
        if self._last is not None:
            self._last.await_end(patience_s)

    def end(self, patience_s: float) -> None:
        """Do what was put, and then no more. Waits so long for the thread to end: a script may exit
        next, and a thread that Python stops inside of torch ends the process with SIGABRT."""
        self._errands.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(patience_s)


@atexit.register
def _await_last_errands() -> None:
    """An exception may have ended the script in mid-transfer, and closed nothing. See `end`."""
    for courier in list(_couriers):
        courier.await_idle(LAST_ERRAND_S)


if hasattr(os, "register_at_fork"):
    # A forked child has no such threads, so nothing would end its wait.
    os.register_at_fork(after_in_child=_couriers.clear)


def _return() -> None:
    """There is nothing to wait for."""


def _work(errands: queue.SimpleQueue[Errand | None], faults: list[BaseException]) -> None:
    while (errand := errands.get()) is not None:
        if faults:
            errand.refuse(faults[0])
            continue
        fault = errand.do()
        if fault is not None:
            faults.append(fault)
        del errand
