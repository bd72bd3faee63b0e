"""The addresses of this machine at which a learner listens.

gRPC takes a name, too. But it looks the name up while the loop waits, and is content with a single
address of it. At the others another program may listen, whom peers would then reach."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence

from mend_optim.transport.address import is_ip, parse_address
from mend_optim.transport.seeking import Resolve

#: Why an address cannot be bound that is another machine's, or of a family that this one lacks.
_ELSEWHERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


async def own_addresses(host: str, port: int, resolve: Resolve) -> Sequence[str]:
    """Return the IP addresses of a host that this machine has. An IP address stands for itself.

    Args:
        host: An IP address or a name.
        port: The port to listen on.
        resolve: Finds the addresses of a name. It must not block the loop.
    """
    if is_ip(host):
        return [host]
    try:
        found = await resolve(host, port)
    except OSError:
        return []
    ips = [parse_address("listen", address)[0] for address in found]
    return [ip for ip in ips if _is_here(ip)]


def _is_here(ip: str) -> bool:
    try:
        with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET) as bound:
            bound.bind((ip, 0))
    except OSError as error:
        return error.errno not in _ELSEWHERE
    return True
