"""The addresses that the user gave, and what became of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from mend_optim.protocol.handshake import AT_ITS_END, Life, Namesake
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.seed_lists import Listing, SeedLists
from mend_optim.protocol.unreached import Unreached

#: Addresses with one cause that a text names. It counts the rest.
EACH_NAMED = 4

_NOT_GIVEN_UP = "this learner's earlier process, started {}, is not yet given up there"


class Seeds:
    """The addresses that the user gave, and the outcome at each: a peer, this learner itself, a
    refusal, or nobody. Lists may have further ones, which come and go."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._lists = SeedLists(addresses)
        #: By address, the peer that was last met there; None: none yet. Addresses of this learner
        #: itself are taken out.
        self.found: dict[str, PeerId | None] = dict.fromkeys(addresses)
        #: Names that stood for nobody but this learner. Others may come there. Invariant: none of
        #: them is in `found`.
        self._own: set[str] = set()
        #: Addresses that are this learner for good. Invariant: none of them is in `found`.
        self._itself: set[str] = set()
        #: Why the learners at these addresses must not train with this one. Invariant: refused and
        #: unreached share no address, and `found` has each of theirs.
        self.refused: dict[str, str] = {}
        #: The later process of this learner's name that the learner at an address has not given
        #: up, and since when it says so.
        self.held: dict[str, tuple[Namesake, float]] = {}
        #: Why nobody is reached at these addresses, and since when that is the cause. This
        #: learner's stops don't count.
        self.unreached: dict[str, tuple[Unreached, float]] = {}

    def resolve(self, address: str, peer: PeerId) -> None:
        """Take note that a peer was met at an address, be it a seed's or not."""
        self._take_back(address)
        if address in self.found:
            self.found[address] = peer
            self.refused.pop(address, None)
            self.unreached.pop(address, None)

    def listed(self, source: str, listing: Listing) -> None:
        """Take the present addresses of a list. An address that no list has any more is forgotten:
        it may come back as another machine's."""
        self._lists.take(source, listing)
        wanted = self._lists.wanted()
        for address in {*self.found, *self._own, *self._itself}.difference(wanted):
            self._forget(address)
            self._own.discard(address)
            self._itself.discard(address)
        for address in wanted:
            if address not in self._own and address not in self._itself:
                self.found.setdefault(address, None)

    def discard(self, address: str) -> None:
        """Forget an address that is this learner's own: there is nothing to wait for."""
        self._forget(address)
        self._itself.add(address)

    def _forget(self, address: str) -> None:
        self.found.pop(address, None)
        self.refused.pop(address, None)
        self.held.pop(address, None)
        self.unreached.pop(address, None)

    def refuse(self, address: str, reason: str) -> None:
        """Take note that the learner at an address must not train with this one: there is nothing
        to wait for, either, unless its run is at its end: a script may have several runs, one after
        the other, and be late in beginning the next."""
        if address in self.found:
            self.refused[address] = reason
            self.held.pop(address, None)
            self.unreached.pop(address, None)

    def is_closed(self, address: str) -> bool:
        """Whether the learner at an address must not train with this one, however long it waits."""
        return self.refused.get(address, AT_ITS_END) != AT_ITS_END

    def hold(self, now: float, address: str, namesake: Namesake) -> None:
        """Take note that the learner at an address turns this one away as long as another process
        of its name is not given up there."""
        if address in self.found and self.held.get(address, (None, now))[0] != namesake:
            self.held[address] = (namesake, now)
            self.refused.pop(address, None)
            self.unreached.pop(address, None)

    def linked(self, peer: PeerId) -> None:
        """Take note that a peer lets this learner in."""
        self.held = {at: held for at, held in self.held.items() if self.found.get(at) != peer}

    def held_until(self, patience_s: float) -> float:
        """Until when to wait for the peers to give up a process that they suspect."""
        suspected = [at for known, at in self.held.values() if known.life is Life.SUSPECTED]
        return max(suspected, default=float("-inf")) + patience_s

    def fail(self, now: float, address: str, cause: Unreached) -> None:
        """Take note that nobody was reached at an address.

        A name that stands for nobody but this learner is waited for only if it is the last one
        left: then it must be a name for all learners, and the others are still to come."""
        if cause is Unreached.ITSELF:
            if address in self._own:
                return
            if len(self.found) > 1 and address in self.found:
                self._forget(address)
                self._own.add(address)
                return
        self._take_back(address)
        if address in self.found and self.unreached.get(address, (None, now))[0] is not cause:
            self.unreached[address] = (cause, now)
            self.refused.pop(address, None)
            self.held.pop(address, None)

    def _take_back(self, address: str) -> None:
        """Somebody else is, or is to be, at a name that was this learner's alone."""
        if address in self._own:
            self._own.remove(address)
            self.found[address] = None

    def unresolved(self, now: float, patience_s: float) -> set[str]:
        """The addresses whose names have not resolved for `patience_s`."""
        return {
            address
            for address, (cause, since) in self.unreached.items()
            if cause is Unreached.NAME and now >= since + patience_s
        }

    @property
    def only_itself(self) -> bool:
        """Whether all addresses that were given are this learner's own. The first of many learners
        may be started so. It may also be a mistake."""
        return bool(self._itself) and not self.found

    @property
    def missing(self) -> list[str]:
        """The addresses where a peer may still turn up, and the lists that may name one."""
        here = [
            address
            for address, peer in self.found.items()
            if (peer is None or address in self.held) and not self.is_closed(address)
        ]
        return [*here, *self.awaited()]

    def awaited(self) -> dict[str, str]:
        """Return, by list, why it may still name a peer: it says so, or there is nobody else."""
        alone = {} if self.found else dict.fromkeys(self._lists.naming(), Unreached.ITSELF.value)
        return {**alone, **self._lists.awaited()}

    @property
    def expects_nobody(self) -> bool:
        """Whether no peer is, or is to be, at any address."""
        return not self.found and not self.awaited()

    def sought(self) -> list[str]:
        """Return the addresses where there is nobody to train with: the missing ones, and those
        that have refused this learner."""
        return [*dict.fromkeys([*self.missing, *sorted(self.refused)])]

    def failed(self) -> dict[str, str]:
        """Return, by address, why nobody is there to train with, where that is known."""
        known = {**self.unreached, **self.refused}
        return {address: self.cause(address) for address in self.found if address in known}

    def causes(self, addresses: Iterable[str]) -> str:
        """Return them as a list to read, each with the cause."""
        return ", ".join(f"{address} ({self.cause(address)})" for address in addresses)

    def cause(self, address: str) -> str:
        """Return why there is nobody to train with at an address."""
        if address in self.refused:
            return f"refused: {self.refused[address]}"
        if address not in self.found and address in self.awaited():
            return self.awaited()[address]
        if address in self.held:
            namesake, _ = self.held[address]
            if namesake.life is Life.ALIVE:
                return f"another process of this name, started {namesake.id.started}, is alive"
            return _NOT_GIVEN_UP.format(namesake.id.started)
        return self._unreached(address).value

    def remedy(self, address: str) -> str:
        """Return what to do about it if nobody is reached there. A refusal has its own remedy."""
        if address in self.held:
            return "end that process, or give each a name of its own"
        if address not in self.found:
            return Unreached.ITSELF.remedy
        return self._unreached(address).remedy

    def _unreached(self, address: str) -> Unreached:
        return self.unreached.get(address, (Unreached.ANSWER, 0.0))[0]

    def peers(self) -> list[PeerId]:
        """Return the peers that were met at the addresses."""
        return [peer for peer in self.found.values() if peer is not None]


def grouped(causes: Mapping[str, str]) -> Iterator[str]:
    """The addresses of each cause, with the cause."""
    by_cause: dict[str, list[str]] = {}
    for address, why in causes.items():
        by_cause.setdefault(why, []).append(address)
    for why, addresses in by_cause.items():
        more = f" and {len(addresses) - EACH_NAMED} more" if len(addresses) > EACH_NAMED else ""
        yield f"{', '.join(addresses[:EACH_NAMED])}{more} ({why})"
