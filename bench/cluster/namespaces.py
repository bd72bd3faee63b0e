"""Two Linux network namespaces, joined by one wire. The kernel limits its speed, and counts its
bytes.

The namespaces have no names: a namespace lives as long as a process is in it, and the wire as long
as its namespaces. The process that keeps one alive is a `cat`, which ends when its input does. So
nothing is left behind, however the bench ends, and two runs cannot meet."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

TOOLS = ("unshare", "nsenter", "ip", "tc")
WIRE = "wire"  # the interface, in either namespace
ADDRESSES = ("192.0.2.1", "192.0.2.2")  # of a net that no real one uses (RFC 5737)
# what may pass at once, and how long a packet may stand in line before it is dropped
BURST, QUEUE = "16kb", "200ms"
PATIENCE_S = 10.0
CLONE_NEWNET = 0x40000000


class Counters(NamedTuple):
    """Bytes that an interface has received and sent, including Ethernet's headers."""

    received: int
    sent: int


class End(NamedTuple):
    """One end of the wire: the network namespace of process `keeper`, with `address`. Any process
    may use it."""

    keeper: int
    address: str

    def enter(self) -> None:
        """Move the calling thread into this namespace for good, with every thread and process that
        it starts."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/proc/{self.keeper}/ns/net") as namespace:
            if libc.setns(namespace.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")

    def limit(self, rate: str) -> None:
        """From now on this end sends no faster than `rate`, in tc's words ("10mbit"); "": as fast
        as it can."""
        slow = ("tbf", "rate", rate, "burst", BURST, "latency", QUEUE)
        self.run("tc", "qdisc", "replace", "dev", WIRE, "root", *(slow if rate else ("pfifo",)))

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
        there = ["nsenter", f"--net=/proc/{self.keeper}/ns/net", *command]
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
        one, other = (End(stack.enter_context(_kept()), address) for address in ADDRESSES)
        one.run(
            "ip",
            "link",
            "add",
            WIRE,
            "type",
            "veth",
            "peer",
            "name",
            WIRE,
            "netns",
            str(other.keeper),
        )
        for end in (one, other):
            # One segment a packet, or headers would be counted once for many; and no packets of the
            # kernel's own.
            end.run("ip", "link", "set", WIRE, "gso_max_segs", "1", "addrgenmode", "none")
            end.run("ip", "address", "add", f"{end.address}/24", "dev", WIRE)
            for interface in ("lo", WIRE):
                end.run("ip", "link", "set", interface, "up")
        yield one, other


@contextmanager
def _kept() -> Iterator[int]:
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
