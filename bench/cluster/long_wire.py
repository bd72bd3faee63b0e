"""A long wire between two Linux network namespaces: a packet takes its time, and some are lost.

The kernel has an emulator of such wires (netem), but many machines lack it. So a process in a third
namespace stands between the two, and passes the packets on one by one:

    one ── wire ── near │ this process │ far ── wire ── other

TCP itself is the kernel's, with its windows and its answer to lost packets."""

from __future__ import annotations

import random
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from bench.cluster import namespaces
from bench.cluster.namespaces import ADDRESSES, End

NEAR, FAR = "near", "far"  # the interfaces of the process in the middle
ALL_PROTOCOLS = 3
# Of Linux's packet sockets: hear nothing of what this process sends; and leave a checksum that the
# sender's interface would have computed to the receiver's.
SOL_PACKET, IGNORE_OUTGOING, VIRTUAL_HEADER = 263, 23, 15
PACKET_BYTES, BUFFER_BYTES = 1 << 16, 1 << 25
CONGESTION = "/proc/sys/net/ipv4/tcp_congestion_control"


class LongWay(NamedTuple):
    """What the wire does to packets, in either direction."""

    #: Seconds on the way.
    delay_s: float
    #: The share of packets that is lost.
    loss: float
    #: Bytes per second that pass.
    rate: float
    #: Seconds that a packet may stand in line before it is dropped.
    queue_s: float = 0.2


@contextmanager
def joined_afar(way: LongWay, congestion: str = "") -> Iterator[tuple[End, End]]:
    """Two ends that reach only each other, by a long wire, until the block ends.

    Args:
        way: What it does.
        congestion: The kernel's congestion control at both ends; empty: the machine's own.
    """
    with ExitStack() as stack:
        middle = stack.enter_context(namespaces.kept())
        ends = []
        for address, port in zip(ADDRESSES, (NEAR, FAR), strict=True):
            end = End(stack.enter_context(namespaces.kept()), address)
            namespaces.lay_wire(end.keeper, port, middle)
            plugged = ("gso_max_segs", "1", "addrgenmode", "none", "up")
            namespaces.run_in(middle, "ip", "link", "set", port, *plugged)
            end.plug()
            if congestion:
                end.run("sh", "-c", f"echo {congestion} > {CONGESTION}")
            ends.append(end)
        stack.enter_context(_passing(middle, way))
        yield ends[0], ends[1]


def congestion_control() -> str:
    """The congestion control of this machine."""
    return Path(CONGESTION).read_text().strip()


@contextmanager
def _passing(middle: int, way: LongWay) -> Iterator[None]:
    """A process that passes packets on in that namespace. It prints a line once it does."""
    there = ["nsenter", f"--net=/proc/{middle}/ns/net", sys.executable, "-m", __spec__.name]
    command = [*there, *map(str, way)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout
        if not process.stdout.readline():
            raise RuntimeError("no process passes the packets of the wire on")
        yield
    finally:
        process.kill()
        process.communicate()


class Direction:
    """The packets from one interface to the other, in their order."""

    def __init__(self, way: LongWay, source: socket.socket, target: socket.socket) -> None:
        self.way = way
        self.source, self.target = source, target
        self.draws = random.Random(source.fileno())
        self._line: deque[tuple[float, bytes]] = deque()
        #: When the last packet in line has left.
        self._free_at = 0.0

    def take(self, now: float) -> None:
        """Take all packets that are here."""
        while packet := _received(self.source):
            begins = max(now, self._free_at)
            if self.draws.random() < self.way.loss or begins - now > self.way.queue_s:
                continue
            self._free_at = begins + len(packet) / self.way.rate
            self._line.append((self._free_at + self.way.delay_s, packet))

    def give(self, now: float) -> float:
        """Send all packets that are due; return when the next one is. The kernel may have no room
        for one, which is lost then."""
        while self._line and self._line[0][0] <= now:
            _, packet = self._line.popleft()
            with suppress(OSError):
                self.target.send(packet)
        return self._line[0][0] if self._line else now + 1.0


def _received(source: socket.socket) -> bytes:
    try:
        return source.recv(PACKET_BYTES)
    except BlockingIOError:
        return b""


def _listening(interface: str) -> socket.socket:
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    link.setsockopt(SOL_PACKET, IGNORE_OUTGOING, 1)
    link.setsockopt(SOL_PACKET, VIRTUAL_HEADER, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    link.bind((interface, 0))
    link.setblocking(False)
    return link


def pass_on(way: LongWay) -> None:
    """Pass packets on in both directions, until the process ends."""
    links = [_listening(NEAR), _listening(FAR)]
    directions = [Direction(way, *links), Direction(way, *reversed(links))]
    print("there", flush=True)
    while True:
        now = time.monotonic()
        for direction in directions:
            direction.take(now)
        due = min(direction.give(time.monotonic()) for direction in directions)
        select.select(links, [], [], max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    pass_on(LongWay(*map(float, sys.argv[1:])))
