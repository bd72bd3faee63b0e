"""An anchor that is on its way to a learner."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mend_optim.protocol.lineage import Key, PeerId
from mend_optim.protocol.messages import State


@dataclass(slots=True)
class Wanted:
    """An anchor that this learner has asked a peer for."""

    peer: PeerId
    #: Of the anchor that the peer has shown. It hands over this one, or a greater one.
    key: Key
    #: When it was asked for.
    since: float
    #: Until when this learner waits.
    until: float
    #: Whether no seal would do.
    whole: bool = False
    #: Whether the anchor is less than ours, and this learner yields to it.
    gives_way: bool = False
    #: Whether only a seal is to be had, until most learners show what it led to.
    seal_only: bool = False
    #: An anchor that came instead of a seal, or that most don't show yet: taken once they do.
    held: State | None = None
    #: Whether it is to replace our own, which is wrong.
    mends: bool = False
    #: What another peer was asked for before, which is far slower, and sends it as well.
    overtaken: Wanted | None = None

    def __iter__(self) -> Iterator[Wanted]:
        """This one, and the one that it has overtaken."""
        yield self
        if self.overtaken:
            yield self.overtaken

    @property
    def catches_up(self) -> bool:
        """Whether it is a whole anchor that is greater than ours. Any peer that has it may send
        it."""
        return self.whole and not (self.gives_way or self.mends)

    def slept(self, seconds: float) -> None:
        """This learner was stopped for so long, and waited for nobody meanwhile."""
        for wanted in self:
            wanted.since += seconds
            wanted.until += seconds
