"""The operating system's resolver: all addresses of a name."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from functools import partial

from mend_optim.runtime.off_loop import off_loop
from mend_optim.transport.address import format_address


async def resolve(host: str, port: int) -> Sequence[str]:
    """Return the addresses "ip:port" of a host, IPv4 and IPv6, in the system's order. Raises
    `OSError` if there are none."""
    return await off_loop(partial(addresses_of, host, port), "mend-resolve")


def addresses_of(host: str, port: int) -> list[str]:
    """Do the same, and block."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a label that is empty or too long
        raise OSError(str(error)) from error
    hosts = dict.fromkeys(str(address[0]) for *_, address in found)
    return [format_address(host, port) for host in hosts]
