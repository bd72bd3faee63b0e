"""The thread that carries tensors while training goes on."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref

import pytest

from mend_optim.ranks.courier import Courier

PATIENCE_S = 20.0


def test_errands_are_done_in_their_order_and_nobody_waits_unasked() -> None:
    courier = Courier()
    may_go, done = threading.Event(), list[int]()
    first = courier.put(lambda: done.append(may_go.wait(PATIENCE_S)))
    waits = courier.waiting()
    for number in (2, 3):
        courier.put(lambda number=number: done.append(number))  # type: ignore[misc]
    assert not first.is_over
    assert done == []
    may_go.set()
    waits()
    assert done[0] == 1
    courier.wait()
    assert done == [1, 2, 3]
    assert courier.fault is None
    courier.end(PATIENCE_S)


def test_an_idle_courier_has_done_all_and_can_do_more() -> None:
    courier = Courier()
    courier.await_idle(PATIENCE_S)
    may_go, done = threading.Event(), list[int]()

    def work() -> None:
        may_go.wait(PATIENCE_S)
        done.append(1)
        raise ArithmeticError("not raised by await_idle()")

    courier.put(lambda: done.append(0))
    courier.put(work)
    courier.await_idle(0)
    assert 1 not in done
    may_go.set()
    courier.await_idle(PATIENCE_S)
    assert done == [0, 1]
    courier.end(PATIENCE_S)


def test_a_courier_without_errands_is_not_waited_for() -> None:
    courier = Courier()
    courier.waiting()()
    courier.wait()
    courier.end(PATIENCE_S)


def test_at_the_end_nothing_is_left_to_do() -> None:
    courier, done = Courier(), list[int]()
    for number in range(3):
        courier.put(lambda number=number: done.append(number))  # type: ignore[misc]
    courier.end(PATIENCE_S)
    assert done == [0, 1, 2]
    assert not courier._thread.is_alive()
    courier.end(PATIENCE_S)


def test_an_errand_that_waits_for_others_does_not_hold_up_the_end() -> None:
    courier, may_go = Courier(), threading.Event()
    errand = courier.put(lambda: may_go.wait(PATIENCE_S) or None)  # type: ignore[func-returns-value]
    courier.end(0.0)
    assert not errand.is_over
    may_go.set()
    courier.end(PATIENCE_S)
    assert errand.is_over


def test_the_courier_may_end_itself() -> None:
    """The thread that drops the last reference to an optimizer closes it."""
    courier = Courier()
    courier.put(lambda: courier.end(PATIENCE_S)).wait()
    courier.end(PATIENCE_S)


def test_after_an_errand_that_failed_no_other_is_done() -> None:
    courier, done = Courier(), list[int]()

    def fail() -> None:
        raise ArithmeticError("no carrying")

    first = courier.put(lambda: done.append(1))
    courier.put(fail)
    last = courier.put(lambda: done.append(2))
    for waits in (last.wait, courier.wait):
        with pytest.raises(ArithmeticError, match="no carrying"):
            waits()
    first.wait()
    assert done == [1]
    assert isinstance(courier.fault, ArithmeticError)
    courier.end(PATIENCE_S)


def test_what_an_errand_holds_is_let_go_when_it_is_done() -> None:
    class Large:
        """Something that can be referred to weakly."""

    courier, large = Courier(), Large()
    seen = weakref.ref(large)
    errand = courier.put(lambda large=large: None)  # type: ignore[misc]
    del large
    errand.wait()
    courier.put(lambda: None).wait()
    gc.collect()
    assert seen() is None
    courier.end(PATIENCE_S)


def test_the_thread_ends_with_the_last_user() -> None:
    courier = Courier()
    courier.put(lambda: None).wait()
    thread = courier._thread
    del courier
    gc.collect()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


#: An errand that takes a while longer than the script, which nothing ends in good order.
CUT_SHORT = """
import threading
from mend_optim.ranks.courier import Courier

def work():
    has_begun.set()
    threading.main_thread().join()
    threading.Event().wait(0.3)
    print("done", flush=True)

has_begun = threading.Event()
courier = Courier()
courier.put(work)
has_begun.wait()
raise SystemExit(3)
"""


def test_the_end_of_the_process_waits_for_an_errand_under_way() -> None:
    """Python would stop the thread inside of torch, which ends the process with SIGABRT."""
    ended = subprocess.run(
        [sys.executable, "-c", CUT_SHORT], capture_output=True, text=True, timeout=200, check=False
    )
    assert (ended.returncode, ended.stdout) == (3, "done\n"), ended.stderr


FORKED = """
import os, threading
from mend_optim.ranks import courier
has_begun = threading.Event()
last = threading.Event()

def work():
    has_begun.set()
    last.wait()

busy = courier.Courier()
busy.put(work)
has_begun.wait()
courier.LAST_ERRAND_S = 3600.0
if child := os.fork():
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    last.set()
    raise SystemExit(status)
raise SystemExit(4)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system forks no processes")
def test_a_forked_child_waits_for_no_errand_of_its_parent() -> None:
    ended = subprocess.run([sys.executable, "-c", FORKED], timeout=200, check=False)
    assert ended.returncode == 4
