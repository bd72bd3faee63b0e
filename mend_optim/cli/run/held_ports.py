"""The ports of learners that have yet to listen."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from mend_optim.errors import UsageError, require


@contextmanager
def held_addresses(host: str, count: int, first: int | None) -> Iterator[list[str]]:
    """Addresses with free ports, no two the same. Without a first one the system chooses the ports.

    On Linux the ports are held to the end. A learner takes seconds to listen, and as long when it
    is started again; until then the system would give its port to any other program. A socket that
    is bound and does not listen keeps the port from those, and admits a server that sets
    SO_REUSEADDR, as gRPC's does. On other systems it would keep out the server, too.

    Raises:
        UsageError: if one of the ports is not free.
    """
    if first is not None:
        bound = f"a port from 1 to {65536 - count}"
        require(1 <= first <= 65536 - count, "--port", first, bound)
    with ExitStack() as held:
        ports = []
        for i in range(count):
            port = 0 if first is None else first + i
            holder = held.enter_context(socket.socket())
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                holder.bind((host, port))
            except OSError as error:
                raise UsageError(
                    f"--port must be the first of {count} free ports, got {first}: {port} is not"
                    f" ({error.strerror}); leave it out to take free ones"
                ) from None
            ports.append(holder.getsockname()[1])
        if sys.platform != "linux":
            held.close()
        yield [f"{host}:{port}" for port in ports]
