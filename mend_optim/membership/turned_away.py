"""The memory of processes that were turned away, because another one of their name is known."""

from __future__ import annotations

from collections.abc import Iterator

from mend_optim.protocol.lineage import PeerId

#: Names that are remembered; the oldest go first. Anybody can say hello in any name.
TURNED_AWAY = 1024


class TurnedAway:
    """The last process of each name that was turned away."""

    def __init__(self) -> None:
        #: By name. The oldest comes first.
        self._last: dict[str, PeerId] = {}

    def __iter__(self) -> Iterator[PeerId]:
        return iter(self._last.values())

    def add(self, id: PeerId) -> None:
        """A process was turned away."""
        self.forget(id.name)
        self._last[id.name] = id
        if len(self._last) > TURNED_AWAY:
            del self._last[next(iter(self._last))]

    def forget(self, name: str) -> None:
        """The next process of this name was admitted."""
        self._last.pop(name, None)
