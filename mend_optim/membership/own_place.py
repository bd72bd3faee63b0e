"""This learner's own place as a sealer, and why it leaves it to others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class OwnPlace:
    """Each of the first three is reason enough to leave it."""

    #: Its link is weak. `Declining` alone writes it, and the next ones but `lacks_model`.
    is_weak: bool = False
    #: It is so far behind that it fetches whole anchors, or the seals after them.
    is_behind: bool = False
    #: It joins, or fetches another model: it has no anchors yet. `EngineState` writes this.
    lacks_model: bool = False
    #: It begins no round, because it is about to leave its place.
    hands_over: bool = False

    @property
    def is_left(self) -> bool:
        return self.is_weak or self.is_behind or self.lacks_model
