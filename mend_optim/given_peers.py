"""The argument `peers` of `MendOptimizer`: addresses, and lists of addresses that change."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from torch import distributed

from mend_optim.environment import stand_in
from mend_optim.errors import items_of, require
from mend_optim.runtime.peer_file import PeerFile
from mend_optim.runtime.rendezvous import ENV, Rendezvous, World, read_world
from mend_optim.transport.address import parse_dialable
from mend_optim.transport.seeking import PeerList

FILE = "file:"
Check = Callable[[str, str], object]

# The learners of this process that have been found through the store.
_numbers: Iterator[int] = count()


@dataclass(frozen=True, kw_only=True)
class GivenPeers:
    """The meaning of `peers`. `source` is the argument, or the variable, that says it.

    Args:
        seeds: Addresses "host:port".
        files: Paths of files with such addresses.
        world: The processes of this run of `torchrun`; None if they are not asked for.
        number: Which of this process's learners that ask for them this is.
    """

    source: str
    seeds: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    world: World | None = None
    number: int = 0

    @property
    def any(self) -> bool:
        """Whether there are, or may be, any peers."""
        return bool(self.seeds or self.files or self.world)

    def check(self, check: Check) -> None:
        """Read the files once. Raises `UsageError` if one is missing or broken."""
        for file in self._opened(check):
            file.addresses()

    def lists(self, check: Check) -> list[PeerList]:
        """The lists that are read while the learner runs. `check` raises `UsageError` for an
        address that must not be dialled."""
        found: list[PeerList] = [*self._opened(check)]
        if self.world:
            found.append(Rendezvous(self.world, self.number, check))
        return found

    def of_ranks(self, ranks: Sequence[int]) -> GivenPeers:
        """The same for a learner of these ranks; this process is the first one."""
        return replace(self, world=self.world and replace(self.world, ranks=tuple(ranks)))

    def _opened(self, check: Check) -> list[PeerFile]:
        return [PeerFile(path, self.source, check) for path in self.files]


def read_peers(peers: Sequence[str] | None) -> GivenPeers:
    """Check the argument, and take it from the environment if it is None or empty. One text has
    several separated by commas.

    Raises:
        UsageError: it is wrong.
    """
    peers = () if peers is None else peers
    bound = "None or addresses 'host:port' of other learners"
    told, source = _separated(peers) if isinstance(peers, str) else items_of(peers), "peers"
    require(told is not None, "peers", peers, bound)
    if not told:
        variable, source = stand_in("peers")
        told = _separated(variable)
    files = [text for text in told if isinstance(text, str) and text.startswith(FILE)]
    for text in files:
        require(text != FILE, source, text, "a path after 'file:'")
    seeds = [text for text in told if text not in files and text != ENV]
    for seed in seeds:
        parse_dialable(source, seed)
    given = GivenPeers(
        source=source,
        seeds=tuple(seeds),
        # The script may change its folder later.
        files=tuple(Path(text.removeprefix(FILE)).absolute() for text in dict.fromkeys(files)),
    )
    return _in_world(given) if ENV in told else given


def _in_world(given: GivenPeers) -> GivenPeers:
    world = read_world(os.environ, given.source)
    bound = "addresses where torch was built without torch.distributed"
    require(distributed.is_available(), given.source, ENV, bound)
    return replace(given, world=world, number=next(_numbers))


def _separated(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
