"""The memory of peers that are gone. It keeps old gossip from bringing them back."""

from __future__ import annotations

from dataclasses import dataclass

from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Rumor

#: Peers that are remembered; the oldest go first. Every start of a process may bring a new name.
GRAVES = 1024
#: The beat count of a peer that said goodbye. No news of that incarnation can be newer.
LEFT = 2**62
#: Goodbyes that one beat passes on: the newest.
GOODBYES = 64
#: Beats to all that pass a goodbye on. A peer that gets none of them evicts the silent learner by
#: itself.
TOLD = 12


@dataclass(slots=True)
class _Tombstone:
    incarnation: int
    #: The last beat count; `LEFT` after a goodbye.
    count: int
    #: The proof of the goodbye.
    proof: bytes
    #: Whether it was evicted for its silence.
    silent: bool
    #: Beats to all since.
    told: int = 0


class Graves:
    """The last process of each name that is gone."""

    def __init__(self) -> None:
        #: By name. The oldest comes first.
        self._tombstones: dict[str, _Tombstone] = {}

    def last(self, name: str) -> tuple[int, int]:
        """The (incarnation, beat count) of the last process of this name. Whatever is not beyond
        them is old news."""
        buried = self._tombstones.get(name)
        return (buried.incarnation, buried.count) if buried else (0, -1)

    def bury(self, id: PeerId, count: int, proof: bytes = b"", *, silent: bool = False) -> None:
        """A peer was evicted, or said goodbye."""
        self._tombstones.pop(id.name, None)
        self._tombstones[id.name] = _Tombstone(id.incarnation, count, proof, silent)
        if len(self._tombstones) > GRAVES:
            del self._tombstones[next(iter(self._tombstones))]

    def is_silent(self, id: PeerId) -> bool:
        """Whether this process was evicted for its silence."""
        buried = self._tombstones.get(id.name)
        return buried is not None and buried.silent and buried.incarnation == id.incarnation

    def open(self, name: str) -> None:
        """A process of this name is here."""
        self._tombstones.pop(name, None)

    def broadcast(self) -> None:
        """A beat is sent to all."""
        for buried in self._tombstones.values():
            buried.told += 1

    def goodbyes(self) -> tuple[Rumor, ...]:
        """The goodbyes to pass on."""
        left = [
            Rumor(PeerId(name, buried.incarnation), "", LEFT, left=True, proof=buried.proof)
            for name, buried in self._tombstones.items()
            if buried.count == LEFT and buried.told < TOLD
        ]
        return tuple(left[-GOODBYES:])
