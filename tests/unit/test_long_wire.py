"""The wire of the bench of long links: the packets of one direction."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from bench.cluster.long_wire import Direction, LongWay

Sockets = tuple[socket.socket, ...]
#: Times and sizes that are sums of powers of two, so that sums are exact.
SLOW = LongWay(delay_s=0.5, loss=0.0, rate=1024.0, queue_s=0.25)
PACKET = b"p" * 128  # takes 1/8 s


@pytest.fixture
def ends() -> Iterator[Sockets]:
    """The sender, the wire's two sockets, and the receiver."""
    sender, source = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    target, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    all_ends = (sender, source, target, receiver)
    for end in all_ends:
        end.setblocking(False)
    yield all_ends
    for end in all_ends:
        end.close()


def received(receiver: socket.socket) -> list[bytes]:
    found = []
    while True:
        try:
            found.append(receiver.recv(4096))
        except BlockingIOError:
            return found


def test_a_packet_takes_its_time_in_line_and_on_the_way(ends: Sockets) -> None:
    sender, source, target, receiver = ends
    direction = Direction(SLOW, source, target)
    for name in (b"1", b"2"):
        sender.send(name + PACKET[1:])
    direction.take(10.0)
    assert direction.give(10.0) == 10.625
    assert received(receiver) == []
    assert direction.give(10.625) == 10.75
    assert [packet[:1] for packet in received(receiver)] == [b"1"]
    direction.give(10.75)
    assert [packet[:1] for packet in received(receiver)] == [b"2"]


def test_a_packet_for_which_the_line_is_too_long_is_dropped(ends: Sockets) -> None:
    sender, source, target, receiver = ends
    direction = Direction(SLOW, source, target)
    for _ in range(8):
        sender.send(PACKET)
    direction.take(0.0)
    direction.give(100.0)
    assert len(received(receiver)) == 3  # the third one begins after 1/4 s
    sender.send(PACKET)
    direction.take(100.0)
    assert direction.give(100.0) == 100.625


@pytest.mark.parametrize(("loss", "least", "most"), [(0.0, 200, 200), (0.5, 60, 140), (1.0, 0, 0)])
def test_the_share_is_lost(ends: Sockets, loss: float, least: int, most: int) -> None:
    sender, source, target, receiver = ends
    direction = Direction(LongWay(0.0, loss, 1e9, 1e9), source, target)
    arrived = 0
    for at in range(200):
        sender.send(PACKET)
        direction.take(float(at))
        direction.give(float(at) + 0.5)
        arrived += len(received(receiver))
    assert least <= arrived <= most


def test_a_packet_for_which_the_kernel_has_no_room_is_lost(ends: Sockets) -> None:
    sender, source, target, receiver = ends
    direction = Direction(LongWay(0.0, 0.0, 1e9, 1e9), source, target)
    full = 0
    try:
        while True:
            target.send(PACKET)
            full += 1
    except BlockingIOError:
        pass
    sender.send(PACKET)
    direction.take(0.0)
    direction.give(1.0)
    assert len(received(receiver)) == full
    sender.send(PACKET)
    direction.take(2.0)
    direction.give(3.0)
    assert received(receiver) == [PACKET]
