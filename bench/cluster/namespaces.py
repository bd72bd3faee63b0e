"""Linux network namespaces: two that are joined by one wire, or several around a switch. The kernel
limits the speed of each wire, and counts its bytes.

The namespaces have no names: a namespace lives as long as a process is in it, and the wire as long
as its namespaces. The process that keeps one alive is a `cat`, which ends when its input does. So
nothing is left behind, however the bench ends, and two runs cannot meet."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

TOOLS = ("unshare", "nsenter", "ip", "tc")
WIRE = "wire"  # the interface, in either namespace
TRUNK = "trunk"  # the interface of the second switch, towards the first
# of an interface of a switch
PORT = ("gso_max_segs", "1", "addrgenmode", "none", "master", "bridge", "up")
NET = "192.0.2."  # no real net has these addresses (RFC 5737)
ADDRESSES = (f"{NET}1", f"{NET}2")
# what may pass at once, and how long a packet may stand in line before it is dropped
BURST, QUEUE = "16kb", "200ms"
PATIENCE_S = 10.0
CLONE_NEWNET = 0x40000000


class Counters(NamedTuple):
    """Bytes that an interface has received and sent, including Ethernet's headers."""

    received: int
    sent: int


class End(NamedTuple):
    """One end of a wire: the network namespace of process `keeper`, with `address`. Any process may
    use it. `port` is the other end, if that is one of a switch's: the process that keeps the
    switch, and the name of the interface."""

    keeper: int
    address: str
    port: tuple[int, str] | None = None

    def enter(self) -> None:
        """Move the calling thread into this namespace for good, with every thread and process that
        it starts."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/proc/{self.keeper}/ns/net") as namespace:
            if libc.setns(namespace.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")

    def limit(self, up: str, down: str | None = None) -> None:
        """From now on this end sends no faster than `up`, in tc's words ("10mbit"), and a switch
        sends to it no faster than `down`, or as fast as that if it is None; "": as fast as it
        can."""
        ways = [(self.keeper, WIRE, up)]
        if self.port:
            ways.append((*self.port, up if down is None else down))
        for keeper, wire, rate in ways:
            slow = ("tbf", "rate", rate, "burst", BURST, "latency", QUEUE)
            queue = slow if rate else ("pfifo",)
            run_in(keeper, "tc", "qdisc", "replace", "dev", wire, "root", *queue)

    def counters(self) -> Counters:
        """The kernel's counters, from /proc: /sys shows the namespace in which it was mounted."""
        for line in Path(f"/proc/{self.keeper}/net/dev").read_text().splitlines():
            name, _, figures = line.partition(":")
            if name.strip() == WIRE:
                received, sent = (int(figures.split()[i]) for i in (0, 8))
                return Counters(received, sent)
        raise RuntimeError(f"{WIRE!r} is gone")

    def run(self, *command: str) -> None:
        """Run a command in this namespace. Raises with its error output."""
        run_in(self.keeper, *command)

    def plug(self) -> None:
        """Set the wire up at this end."""
        # One segment a packet, or headers would be counted once for many; and no packets of the
        # kernel's own.
        self.run("ip", "link", "set", WIRE, "gso_max_segs", "1", "addrgenmode", "none")
        self.run("ip", "address", "add", f"{self.address}/24", "dev", WIRE)
        for interface in ("lo", WIRE):
            self.run("ip", "link", "set", interface, "up")


def run_in(keeper: int, *command: str) -> None:
    """Run a command in the namespace of that process. Raises with its error output."""
    there = ["nsenter", f"--net=/proc/{keeper}/ns/net", *command]
    ended = subprocess.run(there, capture_output=True, text=True, timeout=PATIENCE_S)
    if ended.returncode:
        raise RuntimeError(f"{' '.join(command)}: {ended.stderr.strip() or ended.returncode}")


def absent() -> str:
    """Why there can be no such wire on this machine; empty if there can."""
    if sys.platform != "linux":
        return f"network namespaces are Linux's, this is {sys.platform}"
    if os.geteuid():
        return "only root may make network namespaces"
    if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
        return f"{', '.join(missing)} not found; they are in util-linux and iproute2"
    try:
        with joined() as ends:
            for end in ends:
                end.limit("1mbit")
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return f"the kernel refuses: {error}"
    return ""


@contextmanager
def joined() -> Iterator[tuple[End, End]]:
    """Two ends that reach only each other, as fast as the machine can, until the block ends."""
    with ExitStack() as stack:
        one, other = (End(stack.enter_context(kept()), address) for address in ADDRESSES)
        lay_wire(one.keeper, WIRE, other.keeper)
        for end in (one, other):
            end.plug()
        yield one, other


@contextmanager
def switched(count: int) -> Iterator[tuple[End, ...]]:
    """So many ends around a switch, as fast as the machine can, until the block ends."""
    with ExitStack() as stack:
        yield tuple(_plugged(stack, _switch(stack), range(1, count + 1)))


@contextmanager
def far_switched(count: int) -> Iterator[tuple[tuple[End, ...], End]]:
    """Twice so many ends, of which either half is around a switch of its own, and an end of the
    wire between the switches, which counts what passes from half to half."""
    with ExitStack() as stack:
        switches = [_switch(stack), _switch(stack)]
        lay_wire(switches[0], TRUNK, switches[1])
        for switch, wire in zip(switches, (WIRE, TRUNK), strict=True):
            run_in(switch, "ip", "link", "set", wire, *PORT)
        ends = []
        for half, switch in enumerate(switches):
            ends += _plugged(stack, switch, range(1 + half * count, 1 + (1 + half) * count))
        yield tuple(ends), End(switches[0], "")


def _switch(stack: ExitStack) -> int:
    """A switch, for as long as the stack is open: the process that keeps it."""
    switch = stack.enter_context(kept())
    run_in(switch, "ip", "link", "add", "bridge", "type", "bridge")
    run_in(switch, "ip", "link", "set", "bridge", "up")
    return switch


def _plugged(stack: ExitStack, switch: int, numbers: Iterable[int]) -> Iterator[End]:
    """Ends of these numbers, around a switch."""
    for number in numbers:
        port = f"port{number}"
        end = End(stack.enter_context(kept()), f"{NET}{number}", (switch, port))
        lay_wire(end.keeper, port, switch)
        run_in(switch, "ip", "link", "set", port, *PORT)
        end.plug()
        yield end


def lay_wire(keeper: int, name: str, there: int) -> None:
    """Lay a wire from the namespace of process `keeper` to that of process `there`, whose end gets
    that name."""
    ends = (WIRE, "type", "veth", "peer", "name", name, "netns", str(there))
    run_in(keeper, "ip", "link", "add", *ends)


@contextmanager
def kept() -> Iterator[int]:
    """A process in a network namespace of its own. It prints a line once it is there."""
    pipe = subprocess.PIPE
    command = ["unshare", "--net", "sh", "-c", "echo there && exec cat"]
    keeper = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
    try:
        assert keeper.stdout
        if not keeper.stdout.readline():
            raise RuntimeError(keeper.communicate()[1].decode().strip())
        yield keeper.pid
    finally:
        keeper.kill()
        keeper.communicate()
