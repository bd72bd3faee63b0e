"""Finding the others: when a learner may take its first inner step, and whose weights it takes when they are not its
own.

Lineages of one genesis are compared fragment by fragment. Those of different genesis are compared as whole models, by
(Σ tokens, whether anybody steps with it, Σ version, genesis), and taken as whole models: no learner ends with a mixture
of two. """

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mend_optim.protocol.lineage import Key, PeerId
from mend_optim.protocol.messages import State


class ModelKey(NamedTuple):
    """The order of whole models. `started` breaks the tie before the first seal: what somebody trains is worth more
    than first weights."""

    tokens: int
    started: bool
    version: int
    genesis: bytes


def model_key(keys: Iterable[Key], genesis: bytes, started: bool) -> ModelKey:
    listed = list(keys)
    return ModelKey(sum(k.tokens for k in listed), started, sum(k.version for k in listed), genesis)


@dataclass(slots=True)
class Switch:
    """Taking another model whole: the anchors that have arrived from `peer`, until those of all its fragments have. It
    may have fewer than we have, or have had more: answers to what was asked before do not count."""

    peer: PeerId
    genesis: bytes
    fragments: int
    states: dict[int, State] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return len(self.states) == self.fragments


class Seeds:
    """The addresses the user gave, and what became of each: a peer, ourselves, or a refusal."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.found: dict[str, PeerId | None] = dict.fromkeys(addresses)
        self.refused: set[str] = set()

    def resolve(self, address: str, peer: PeerId) -> None:
        if address in self.found:
            self.found[address] = peer
            self.refused.discard(address)

    def discard(self, address: str) -> None:
        """The address is our own: nothing to wait for."""
        self.found.pop(address, None)

    def refuse(self, address: str) -> None:
        """The learner there and we must not train together: nothing to wait for, either."""
        if address in self.found:
            self.refused.add(address)

    @property
    def missing(self) -> list[str]:
        return [address for address, peer in self.found.items() if peer is None and address not in self.refused]

    def peers(self) -> list[PeerId]:
        return [peer for peer in self.found.values() if peer is not None]
