"""`peers="env://"`: the processes of one `torchrun` find each other through its store.

Each learner writes its address under the key of each of its ranks, and reads those of all others:
at once, and again now and then. A process that was started again overwrites what its rank had
written before.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import Any

from mend_optim.errors import PeerError, UsageError, require
from mend_optim.protocol.seed_lists import Listing
from mend_optim.runtime import last_work
from mend_optim.runtime.off_loop import off_loop
from mend_optim.transport.address import format_address, is_loopback, parse_address, parse_dialable
from mend_optim.transport.stream import settled

ENV = "env://"
#: Seconds for a connection to the store's host.
CONNECT_S = 5.0
#: Seconds for torch to open the store. It first asks for the host's name, for a text. Name servers
#: that do not answer take up to 30 s.
OPEN_S = 40.0
#: Seconds that one look at the store may take. A host that froze never answers.
PATIENCE_S = CONNECT_S + OPEN_S
#: Seconds that the end of the process waits for a look under way. Few take so long, and a host that
#: froze would hold it up.
LAST_LOOK_S = 2.0
#: Ranks named one by one in a text.
NAMED = 8
_NEEDED = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")


@dataclass(frozen=True, kw_only=True)
class World:
    """The processes of one run of `torchrun`, as it describes them to one of them.

    Args:
        host: Where the store is.
        port: The store's port.
        size: How many processes there are.
        ranks: The ranks of this process's learner. The first one is this process.
        is_local: Whether all processes are on one machine.
        agents_store: Whether `torchrun` keeps the store. Otherwise the process of rank 0 does.
        run: The name of the run. Runs that share a store have different names.
    """

    host: str
    port: int
    size: int
    ranks: tuple[int, ...]
    is_local: bool
    agents_store: bool
    run: str

    @property
    def keeps_store(self) -> bool:
        """Whether the store is in this process."""
        return not self.agents_store and self.ranks[0] == 0

    @property
    def listen(self) -> str:
        """Where a learner listens that was not told where: at any free port, of this machine alone
        if the others are here, too."""
        return "127.0.0.1:0" if self.is_local else "0.0.0.0:0"

    def key(self, number: int, rank: int) -> str:
        """Return the store's key of a rank, for the `number`-th learner of each process."""
        return f"mend_optim/{self.run}/{number}/{rank}"

    def listing(self, told: Mapping[int, str]) -> Listing:
        """Return the others' addresses, from those that the ranks have told."""
        others = [rank for rank in range(self.size) if rank not in self.ranks]
        absent = [str(rank) for rank in others if rank not in told]
        awaited = ""
        if absent:
            shown = ", ".join(absent[:NAMED]) + (", …" if len(absent) > NAMED else "")
            awaited = f"no address of rank {shown} yet"
        own = {told[rank] for rank in self.ranks if rank in told}
        seeds = dict.fromkeys(told[rank] for rank in others if rank in told)
        return Listing(seeds=tuple(seed for seed in seeds if seed not in own), awaited=awaited)

    def published(self, address: str, own_host: Callable[[], str]) -> str:
        """Return this learner's address as the others should dial it.

        Args:
            address: That of the transport. Its host is empty if it listens on all interfaces.
            own_host: Returns this machine's address on the way to the store's host.
        """
        host, port = parse_address("advertise", address)
        if not host:
            host = own_host()
            if is_loopback(host) and not self.is_local:
                # This is the store's host, and the others reach it by that name.
                host = self.host
        return format_address(host, port)


def read_world(environment: Mapping[str, str], source: str) -> World:
    """Return the world that the variables of `torchrun` describe. `source` is the argument, or the
    variable, that asks for it.

    Raises:
        UsageError: One of them is missing or wrong.
    """
    missing = [name for name in _NEEDED if not environment.get(name)]
    bound = f"addresses, or {ENV!r} in a process of torchrun, which sets {', '.join(_NEEDED)}"
    require(not missing, source, ENV, bound, f"not set: {', '.join(missing)}")
    host, port = environment["MASTER_ADDR"], _whole(environment, "MASTER_PORT", 1, 65535)
    parse_dialable("MASTER_ADDR and MASTER_PORT", format_address(host, port))
    size = _whole(environment, "WORLD_SIZE", 1, 10**6)
    local = environment.get("LOCAL_WORLD_SIZE", "")
    return World(
        host=host,
        port=port,
        size=size,
        ranks=(_whole(environment, "RANK", 0, size - 1),),
        is_local=is_loopback(host) or local == str(size),
        agents_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        run=environment.get("TORCHELASTIC_RUN_ID", "none"),
    )


def _whole(environment: Mapping[str, str], name: str, least: int, most: int) -> int:
    text = environment[name]
    good = text.isdecimal() and least <= int(text) <= most
    require(good, name, text, f"a whole number from {least} to {most}")
    return int(text)


@dataclass
class Rendezvous:
    """The list of the learners that are in a world.

    Args:
        world: The processes.
        number: Which of this process's learners that is, by the order of their making. The others
            make theirs in the same order.
        check: Raises `UsageError`, given what to call an address and the address, if this learner
            must not dial it.
    """

    world: World
    number: int
    check: Callable[[str, str], object]
    #: The connection to the store, while there is one.
    _store: Any = field(default=None, init=False, repr=False)
    name: str = field(default=ENV, init=False)

    async def read(self, address: str) -> Listing:
        """Tell this learner's address; return those of the others.

        Raises:
            PeerError: The store does not answer, or one of the others tells no address to dial.
        """
        world = self.world
        place = format_address(world.host, world.port)
        try:
            look = await settled(off_loop(partial(self._look, address), "mend-peers"), PATIENCE_S)
            told = look.result() if look else None
        except (OSError, RuntimeError) as error:  # torch's own errors are RuntimeErrors
            self._store = None
            raise PeerError(f"the store at {place} cannot be reached") from error
        if told is None:
            self._store = None
            raise PeerError(f"the store at {place} does not answer")
        for rank, theirs in told.items():
            try:
                parse_dialable(f"the address of rank {rank}", theirs)
                self.check(f"the address of rank {rank}", theirs)
            except UsageError as error:
                raise PeerError(str(error)) from error
        return world.listing(told)

    def _look(self, address: str) -> dict[int, str]:
        """Tell, and read, on a thread that may block."""
        last_work.note(threading.current_thread(), LAST_LOOK_S)
        world = self.world
        if not world.keeps_store:
            # Of a store that is gone, torch would talk at length, and try again and again.
            socket.create_connection((world.host, world.port), CONNECT_S).close()
        store = self._store or self._open()
        if address:
            told = world.published(address, partial(own_host, world.host, world.port))
            for rank in world.ranks:
                store.set(world.key(self.number, rank), told)
        found = _values(store, {r: world.key(self.number, r) for r in range(world.size)})
        self._store = store
        return found

    def _open(self) -> Any:
        distributed: Any = import_module("torch.distributed")  # it exports the class untold
        if not hasattr(distributed, "TCPStore"):
            raise PeerError(f"this build of torch has no TCPStore, which {ENV!r} needs")
        world = self.world
        return distributed.TCPStore(
            world.host,
            world.port,
            is_master=world.keeps_store,
            timeout=timedelta(seconds=OPEN_S),
            wait_for_workers=False,
            multi_tenant=True,  # init_process_group may keep one there, too
        )


def _values(store: Any, keys: Mapping[int, str]) -> dict[int, str]:
    """Return the words that the ranks have told so far. A word that is not UTF-8 has backslashes,
    so that it is refused like any other that is no address."""
    names = list(keys.values())
    here = keys if store.check(names) else {r: key for r, key in keys.items() if store.check([key])}
    values: Sequence[bytes] = store.multi_get(list(here.values())) if here else ()
    words = (value.decode(errors="backslashreplace") for value in values)
    return dict(zip(here, words, strict=True))


def own_host(host: str, port: int) -> str:
    """Return this machine's address on the way to a host. Nothing is sent. Raises `OSError`."""
    reasons = []
    for family, kind, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
        try:
            with socket.socket(family, kind) as way:
                way.connect(address)
                return str(way.getsockname()[0])
        except OSError as error:
            reasons.append(error)
    raise reasons[0]
