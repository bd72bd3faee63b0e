"""A process that has imported everything a learner needs, and forks a learner at every order.

It never starts a thread, so its forks are safe. It ends with its supervisor: the supervisor closes
the pipe, and if the supervisor dies first, the kernel kills this process. Orders come on stdin and
news go to stdout, one JSON object a line:

    ready  environment               the imports are done
    forked who, life, pid            a learner's process exists
    ended  pid, status               it is gone; a negative status is the signal that ended it
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import sys
from typing import Any

import torch

import mend_optim  # noqa: F401  before anything that imports grpc
from bench.result import environment
from bench.storm.learner import Learner
from bench.storm.task import read_corpus

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies."""
    _libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # the parent died before this call
        os.kill(os.getpid(), signal.SIGKILL)


def tell(event: str, **facts: Any) -> None:
    os.write(1, json.dumps({"event": event, **facts}).encode() + b"\n")


class Prefork:
    """Forks learners, and reaps them when they have ended."""

    def __init__(self) -> None:
        self.corpus = read_corpus()
        self._unread = b""
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        os.set_blocking(self._wake, False)

    def run(self) -> Learner | None:
        """Serve until there are no more orders. In a forked process: return its learner."""
        signal.set_wakeup_fd(self._waker)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        tell("ready", environment=environment())
        while True:
            ready = select.select([0, self._wake], [], [])[0]
            if self._wake in ready:
                os.read(self._wake, 4096)
                self._reap()
            if 0 not in ready:
                continue
            chunk = os.read(0, 65536)
            if not chunk:
                return None
            learner = self._obey(chunk)
            if learner:
                return learner

    def _obey(self, chunk: bytes) -> Learner | None:
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        for line in lines:
            learner = self._fork(json.loads(line))
            if learner:
                return learner
        return None

    def _fork(self, order: dict[str, Any]) -> Learner | None:
        parent, child = os.getpid(), os.fork()
        if child:
            tell("forked", who=order["who"], life=order["life"], pid=child)
            return None
        die_with(parent)
        self._become_ordinary(order["stderr"])
        return Learner(order, self.corpus)

    def _become_ordinary(self, stderr: str) -> None:
        """Become an ordinary process: Ctrl-C raises, stdin is empty, stderr goes to a file."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        nothing = os.open(os.devnull, os.O_RDONLY)
        complaints = os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(nothing, 0)
        os.dup2(complaints, 2)
        for file in (nothing, complaints, self._wake, self._waker):
            os.close(file)

    @staticmethod
    def _reap() -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            tell("ended", pid=pid, status=os.waitstatus_to_exitcode(status))


def main() -> None:
    die_with(int(sys.argv[1]))
    torch.set_num_threads(1)
    torch.optim.AdamW([torch.zeros(1)])  # torch imports much at the first optimizer
    prefork = Prefork()
    gc.collect()
    # Otherwise the garbage collector of every learner walks through all of torch, and so copies
    # its pages.
    gc.freeze()
    learner = prefork.run()
    if learner:
        learner.live()


if __name__ == "__main__":
    main()
