"""The end of the process waits for threads that are inside torch."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from mend_optim.runtime import last_work

#: A script that ends while a thread is inside torch, or inside something that takes as long.
SCRIPT = """
import asyncio, threading
import torch
from mend_optim import MendOptimizer
from mend_optim.runtime import learner, rendezvous

def work(*_):
    has_begun.set()
    threading.main_thread().join()
    threading.Event().wait(0.3)
    print("done", flush=True)
    return True

has_begun = threading.Event()
{begin}
has_begun.wait()
raise SystemExit(3)
"""
JOB = """
learner.CLOSE_S = 0.0  # as if the job took a minute
inner = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
optimizer = MendOptimizer(inner, listen="127.0.0.1:0")
optimizer._learner.worker.put(work)
"""
#: `TCPStore.check` gives up the interpreter's lock, and takes it again when the host has answered.
LOOK = """
class Store:
    check = work

    def multi_get(self, keys):
        return [b"127.0.0.1:1"] * len(keys)

rendezvous.Rendezvous._open = lambda self: Store()
world = rendezvous.World(
    host="127.0.0.1", port=1, size=2, ranks=(0,), is_local=True, agents_store=False, run="run"
)
listed = rendezvous.Rendezvous(world, 0, lambda *_: None)
threading.Thread(target=lambda: asyncio.run(listed.read("")), daemon=True).start()
"""


@pytest.mark.parametrize("begin", [JOB, LOOK], ids=["job", "look"])
def test_the_end_of_the_process_waits_for_a_thread_inside_of_torch(begin: str) -> None:
    """Python would stop the thread there, which ends the process with SIGABRT."""
    script = SCRIPT.format(begin=begin)
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=200, check=False
    )
    assert (ended.returncode, ended.stdout) == (3, "done\n"), ended.stderr


def test_a_thread_that_does_not_end_is_waited_for_no_longer_than_was_said() -> None:
    may_end = threading.Event()
    hung = threading.Thread(target=may_end.wait, daemon=True)
    hung.start()
    last_work.note(hung, 0.0)
    last_work.await_end()
    assert hung.is_alive()
    may_end.set()
    last_work.note(hung, 200.0)
    last_work.await_end()
    assert not hung.is_alive()


def test_threads_that_have_ended_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_work, "_patience_s", {})
    ended = threading.Thread(target=print, daemon=True)
    ended.start()
    ended.join()
    last_work.note(ended, 1.0)
    last_work.note(threading.main_thread(), 1.0)
    assert [*last_work._patience_s] == [threading.main_thread()]


def test_a_thread_that_was_never_started_is_not_waited_for() -> None:
    last_work.note(threading.Thread(target=print), 200.0)
    last_work.await_end()
