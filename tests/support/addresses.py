"""Addresses for the learners of tests, with ports that nobody else gets.

A learner takes seconds to listen, and as long when it is started again. Until then the system would
give a released port to any program that asks for one: to a rank's store, or to another test. So the
ports are held until this process ends. A socket that is bound and does not listen keeps a port from
all others, and admits a server that sets SO_REUSEADDR, as those of gRPC, torch and Python do. Only
Linux admits it; elsewhere the ports are released."""

from __future__ import annotations

import itertools
import os
import socket
import sys

_HOSTS = itertools.count()
_HELD: list[socket.socket] = []


def free_addresses(count: int) -> list[str]:
    """Loopback addresses with free ports, no two the same. Each call has a host of its own."""
    host = _own_host()
    return [f"{host}:{port}" for port in _held_ports(host, count)]


def port_of_all_hosts() -> str:
    """A port for the ranks of a learner, of which the first listens on every host."""
    (port,) = _held_ports("", 1)
    return str(port)


def _held_ports(host: str, count: int) -> list[int]:
    holders = [socket.socket() for _ in range(count)]
    for holder in holders:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, 0))
    ports: list[int] = [holder.getsockname()[1] for holder in holders]
    if sys.platform == "linux":
        _HELD.extend(holders)
    else:
        for holder in holders:
            holder.close()
    return ports


def _own_host() -> str:
    """A loopback host that no other call has, in this process or another of the tests; 127.0.0.1
    where 127/8 is not available."""
    number = os.getpid() * 61 + next(_HOSTS) % 61
    host = f"127.{1 + (number >> 16) % 254}.{(number >> 8) % 256}.{number % 256}"
    try:
        socket.create_server((host, 0)).close()
    except OSError:
        return "127.0.0.1"
    return host
