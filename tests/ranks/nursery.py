"""A process that has imported all that ranks need, and forks them: importing takes longest.

It reads orders from standard input, one line of JSON each: play a scenario of `scenarios.py` as a
learner with so many ranks, each a process of its own. All of them write their events to standard
output, one short line of JSON each."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # noqa: F401 - else the first learner that shards would do it in mid-run

from tests.ranks import scenarios
from tests.ranks.cast import Cast
from tests.ranks.faults import Mishap

Facts = dict[str, Any]


def say(order: int, who: str, event: str, **facts: Any) -> None:
    """Write one line at once: lines of several processes do not mix."""
    line = {"order": order, "who": who, "event": event, **facts}
    os.write(1, json.dumps(line).encode() + b"\n")


def play(order: Facts, rank: int) -> None:
    """Play one rank's part. It never returns."""
    who = f"{order['learner']}{rank}"
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # A shell has jobs in the background ignore Ctrl-C, and so do their children.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        folder = Path(order["folder"])
        log = os.open(folder / f"{who}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 2)
        cast = Cast(
            learner=order["learner"],
            rank=rank,
            ranks=order["ranks"],
            folder=folder,
            addresses=order["addresses"],
            say=lambda event, **facts: say(order["number"], who, event, **facts),
        )
        scenarios.meet(cast, order["store"], order["timeout_s"])
        scenarios.SCENARIOS[order["play"]](cast, **order["told"])
        status = 0
    except Mishap:
        raise
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(status)


def main() -> None:
    torch.set_num_threads(1)
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    living: dict[int, tuple[int, str]] = {}
    say(0, "nursery", "ready")
    while True:
        ready, _, _ = select.select([0, ended], [], [])
        if ended in ready:
            os.read(ended, 4096)
        while living:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            say(*living.pop(pid), "ended", status=os.waitstatus_to_exitcode(status))
        if 0 not in ready:
            continue
        line = os.read(0, 65536)  # an order at a time: the test waits for "born"
        if not line:
            return
        order = json.loads(line)
        for rank in range(order["ranks"]):
            who = f"{order['learner']}{rank}"
            pid = os.fork()
            if not pid:
                play(order, rank)
            living[pid] = order["number"], who
            say(*living[pid], "born", pid=pid)


if __name__ == "__main__":
    main()
