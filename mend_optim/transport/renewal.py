"""Keeps credentials current while a learner runs.

Every minute, files that have changed are read again, and peers whose time is over are sent away: a
connection that is open outlives the end of a certificate, its replacement and its denial.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from mend_optim.errors import PeerError
from mend_optim.transport.background_log import BackgroundLog
from mend_optim.transport.control import Links
from mend_optim.transport.security.channels import Security

log = BackgroundLog("mend_optim.transport")

#: Seconds between two looks.
EVERY_S = 60.0


class Renewal:
    """Looks after the credentials of one learner, and the certificates of its peers.

    Args:
        security: Reads the files again.
        links: The peers.
        rebind: Lets the server listen anew, with the present credentials. gRPC's own way to change
            the credentials of a server aborts the process under concurrent handshakes (1.85.1).
    """

    def __init__(
        self, security: Security, links: Links, rebind: Callable[[], Awaitable[None]]
    ) -> None:
        self._security = security
        self._links = links
        self._rebind = rebind
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look, if peers are authenticated at all."""
        if self._security.authenticates:
            self._task = asyncio.get_running_loop().create_task(self._watch())

    def stop(self) -> list[asyncio.Task[None]]:
        """Cancel the task, and return it."""
        tasks = [self._task] if self._task else []
        for task in tasks:
            task.cancel()
        return tasks

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self.look()
            except Exception:
                log.debug("credentials", exc_info=True)

    async def look(self) -> None:
        """Look once."""
        if await self._security.renew():
            await self._rebind()
            # connections for bulky messages are kept, and would show the former certificate
            for link in self._links:
                link.retire_lanes()
        for link in self._links:
            try:
                self._security.check_peer(link.id.name, link.certificate)
            except PeerError as fault:
                self._links.expel(link, str(fault))
