"""Ctrl-C at any line of a step, after which the script goes on: as in a notebook, whose cell is
stopped and run again. So may a script whose own handler of another signal raises: a timeout's, or
that of a warning before a preemption."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from operator import attrgetter
from types import FrameType
from typing import Any

import pytest
import torch

import mend_optim
from mend_optim import MendOptimizer
from mend_optim.runtime import interrupts
from mend_optim.runtime.network_side import NetworkSide
from tests.support.addresses import free_addresses
from tests.support.learners import (
    LOOPBACK,
    PATIENCE_S,
    TIMING,
    Watch,
    cluster,
    descent,
    read,
    settle,
    step,
    wave,
)

LIBRARY = os.path.dirname(mend_optim.__file__)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGALRM)
    former = [signal.signal(number, signal.default_int_handler) for number in numbers]
    yield
    sys.settrace(None)
    for number, before in zip(numbers, former, strict=True):
        signal.signal(number, before)


def interrupted(optimizer: MendOptimizer, grad: float, at: int, number: int, code: str) -> int:
    """Take a step, with a signal before the line number `at` that it runs of the code in this file
    or folder; 0: none. Returns how many of its lines it ran before."""
    lines = 0

    def line(_frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if event == "line":
            lines += 1
            if lines == at:
                signal.raise_signal(number)
        return line

    def call(frame: FrameType, _event: str, _: object) -> Any:
        return line if frame.f_code.co_filename.startswith(code) else None

    sys.settrace(call)
    try:
        step(optimizer, grad)
    except KeyboardInterrupt:
        assert 0 < at <= lines
    finally:
        sys.settrace(None)
    return lines


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, LIBRARY), (signal.SIGALRM, interrupts.__file__)],
    ids=["SIGINT", "SIGALRM"],
)
def test_a_signal_at_any_line_of_a_step_leaves_the_learner_whole(number: int, code: str) -> None:
    """One signal is tried everywhere. Another one, whose handler is replaced and put back at other
    lines, is tried where the library tells signals apart: all other lines run alike with both."""
    with cluster(descent(8.0), descent(8.0), sync_every=1) as (a, b):
        learner = a._learner
        assert learner is not None

        def turn(at: int) -> int:
            step(b, wave(1, at))
            # An anchor makes the coming step one that writes weights, and copies them.
            learner.wait(lambda: bool(learner.worker.mailbox), 0.25)
            return interrupted(a, wave(0, at), at, number, code)

        longest = max(turn(0) for _ in range(10))
        for at in range(1, longest + 1):
            turn(at)
            assert not learner.closed
        before = a.status().rounds_adopted
        turn(0)
        settle([a, b])
        assert a.status().rounds_adopted > before > 20
        assert longest > 100
        assert read(a) == read(b)
        status = a.status()
        (fragment,) = status.fragments
        assert fragment.tokens == status.tokens + b.status().tokens
        assert torch.is_grad_enabled()


def test_ctrl_c_while_it_waits_to_join_and_then_it_joins() -> None:
    here, there = free_addresses(2)
    told = Watch()
    options: dict[str, Any] = {"sync_every": 2, "timing": TIMING}
    a = MendOptimizer(descent(8.0), name="a", listen=here, peers=[there], on_event=told, **options)
    timer = threading.Timer(0.5, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        step(a, 1.0)
    timer.join()
    b = MendOptimizer(descent(2.0), name="b", listen=there, peers=[here], **options)
    try:
        for turn in range(20):
            for optimizer in (b, a):
                step(optimizer, wave(0, turn))
        told.until("joined")
        settle([a, b])
        assert read(a) == read(b)
    finally:
        a.close()
        b.close()


@pytest.mark.parametrize("is_early", [True, False])
def test_ctrl_c_while_a_learner_starts_takes_no_port_from_the_next_one(
    is_early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a cell of a notebook that was stopped could not run again until the kernel ends."""
    (here,) = free_addresses(1)
    present = NetworkSide.start

    def stopped(network: NetworkSide) -> None:
        if is_early:
            signal.raise_signal(signal.SIGINT)
        present(network)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(NetworkSide, "start", stopped)
    # A notebook keeps the exception, too, and with it the frames of the constructor.
    with pytest.raises(KeyboardInterrupt) as kept:
        MendOptimizer(descent(8.0), name="a", listen=here, timing=TIMING)
    monkeypatch.undo()
    with closing(MendOptimizer(descent(8.0), name="a", listen=here, timing=TIMING)) as again:
        assert again.status().address == here
    assert kept.tb


@pytest.mark.parametrize(
    "part", ["engine.leave", "worker.end", "network.stop", "worker.join", "_reporter.close"]
)
def test_ctrl_c_ends_no_part_of_the_end_and_leaves_nothing_open(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else no call could close the learner any more: in a notebook it would hold its port, and be
    waited for by its peers, until the kernel ends."""
    with closing(MendOptimizer(descent(0.0), name="a", listen=LOOPBACK, timing=TIMING)) as a:
        learner = a._learner
        assert learner is not None
        *owner, method = part.split(".")
        there = attrgetter(*owner)(learner)
        present = getattr(there, method)

        def stopped(*arguments: Any) -> Any:
            signal.raise_signal(signal.SIGINT)
            return present(*arguments)

        monkeypatch.setattr(there, method, stopped)
        with pytest.raises(KeyboardInterrupt):
            a.close()
        learner.network.loop.thread.join(PATIENCE_S)
        assert learner.closed
        assert learner._ended.is_set()
        assert not learner.network.loop.thread.is_alive()
        learner.worker.thread.join(PATIENCE_S)
        assert not learner.worker.thread.is_alive()
        with socket.create_server(("127.0.0.1", learner.port)):
            """The port is free."""
