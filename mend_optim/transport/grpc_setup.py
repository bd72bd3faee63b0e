"""The first import of gRPC, with the variables that it reads only then, and gRPC in forked
processes. Every module that uses gRPC takes it from here."""

from __future__ import annotations

import logging
import os
import sys
from multiprocessing import current_process

from mend_optim.errors import UsageError

log = logging.getLogger("mend_optim.transport")

# With gRPC's fork handlers on, a `DataLoader(num_workers=2)` that forks beside live calls dies by a
# segmentation fault in its workers. With them off, the children leave gRPC alone. gRPC reads this
# variable once, when it is first imported; if another module imported gRPC earlier without it, a
# warning is all that is left.
_IMPORTED_EARLIER = (
    "grpc._cython.cygrpc" in sys.modules and "GRPC_ENABLE_FORK_SUPPORT" not in os.environ
)
FORKS_CRASH = (
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0").lower() in ("1", "true", "yes")
    or _IMPORTED_EARLIER
)
# A link that breaks is an event of the learner, not a line of gRPC's on the user's terminal.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import grpc as grpc  # noqa: E402 - others take it from here
import grpc.aio as _aio  # noqa: E402, F401 - `grpc.aio` is there from here on

#: The process that has used gRPC; 0: none has yet. A child that is forked later inherits it.
_used_in = 0


def begin_use() -> None:
    """This process uses gRPC from here on."""
    global _used_in
    _used_in = os.getpid()
    if FORKS_CRASH:
        log.warning(
            "gRPC's fork handlers are on, so forked worker processes, such as those of"
            " DataLoader(num_workers=2), may crash; import mend_optim before grpc, or set"
            " GRPC_ENABLE_FORK_SUPPORT=0, or start the workers by spawning"
        )


def refuse_after_fork() -> None:
    """gRPC's threads and locks do not survive a fork: its next call would hang, or abort."""
    if _used_in not in (0, os.getpid()):
        raise UsageError(
            "listen and peers must not be given in a process that was forked from a learner's, got "
            f"process {os.getpid()}, a child of {_used_in}: gRPC does not survive the fork; start "
            "it with multiprocessing.get_context('spawn'), or make the first MendOptimizer with "
            "peers after you have forked"
        )


def refuse_import_of_main() -> None:
    """A spawned process imports the script of the one that has started it, before it does its own
    work. A learner that is made there would be a second one."""
    # multiprocessing itself asks this when a process is about to start another one
    if getattr(current_process(), "_inheriting", False):
        raise UsageError(
            "listen and peers must not be given while a spawned process, such as a worker of a"
            f" DataLoader, imports the script, got process {os.getpid()}, a child of"
            f" {os.getppid()}; put what trains below if __name__ == '__main__':"
        )


def refuse_green_threads() -> None:
    """Where a library has put its own in place of Python's threads, the network loop is no thread
    beside training: each would wait for the other for ever."""
    gevent = sys.modules.get("gevent.monkey")
    eventlet = sys.modules.get("eventlet.patcher")
    if gevent and any(map(gevent.is_module_patched, ("threading", "select"))):
        _refuse_patches("gevent", "threading or select", "thread=False, select=False")
    if eventlet and eventlet.is_monkey_patched("thread"):
        _refuse_patches("eventlet", "threads", "thread=False")


def _refuse_patches(library: str, patched: str, instead: str) -> None:
    raise UsageError(
        "listen and peers must not be given where Python's own threads are replaced, got a process "
        f"in which {library} has patched {patched}; train in a process of its own, or patch with "
        f"{instead}"
    )
