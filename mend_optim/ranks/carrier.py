"""The way of a fragment's elements between the lead, which has it whole, and the ranks, which have
parts of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Protocol

import torch
from torch import Tensor

from mend_optim.model.layout import Fragment
from mend_optim.ranks.assembly import LocalPart, local_part
from mend_optim.ranks.pieces import Division


class Transfer(Protocol):
    """The methods of a `Group` that a carrier needs."""

    rank: int
    size: int

    def transfer(self, given: Tensor, to: Sequence[int], taken: Tensor, of: Sequence[int]) -> None:
        """See `Group.transfer`."""
        ...

    def tell_along(self, data: bytes, nbytes: int) -> list[bytes]:
        """See `Group.tell_along`."""
        ...


class Carrier:
    """Collects parts at the lead, and spreads the lead's values. The couriers of all ranks call it
    together.

    Args:
        group: the ranks.
        division: which pieces each of them has.
        fragments: the whole fragments.
    """

    def __init__(self, group: Transfer, division: Division, fragments: Sequence[Fragment]) -> None:
        self._group = group
        names = tuple(division.tensors)
        held = [[local_part(f, names, pieces) for f in fragments] for pieces in division.pieces]
        self._names = [frozenset(names[i] for i in f.tensors) for f in fragments]
        #: The part of each fragment that each rank has.
        self._held = held
        #: The part of each fragment that each rank sends.
        self._sent = [
            [part.only(frozenset(division.sent_by(rank))) for part in parts]
            for rank, parts in enumerate(held)
        ]

    @property
    def own(self) -> list[LocalPart]:
        """This rank's part of each fragment."""
        return self._held[self._group.rank]

    def sends(self, p: int) -> bool:
        """Whether this rank sends anything of fragment `p`."""
        return self._sent[self._group.rank][p].numel > 0

    def collect(self, p: int, own: Tensor | None, out: Tensor | None) -> None:
        """Copy the parts of all ranks to the lead.

        Args:
            p: the fragment.
            own: this rank's flat copy of its part; float32, on the host. It may be None if the rank
                sends nothing.
            out: receives the whole fragment, flat, on the lead; None elsewhere.
        """
        rank = self._group.rank
        sent = self._sent[rank][p]
        part = memory(0) if own is None else self._held[rank][p].excerpt(own, sent)
        to, of = self._nothing(), self._nothing()
        if out is None:
            to[0] = len(part)
            self._group.transfer(part, to, memory(0), of)
            return
        # The lead's own part does not travel.
        sent.put(part, out)
        of[1:] = [parts[p].numel for parts in self._sent[1:]]
        taken = memory(sum(of))
        self._group.transfer(memory(0), to, taken, of)
        for parts, theirs in zip(self._sent[1:], _cut(taken, of[1:]), strict=True):
            parts[p].put(theirs, out)

    def collect_counts(self, p: int, own: Sequence[int]) -> list[list[int]]:
        """Tell the lead a number for each piece.

        Args:
            p: the fragment.
            own: a number for each of this rank's pieces of it. It may be empty if the rank sends
                nothing.

        Returns:
            On the lead, those of each rank, none of one that sends nothing; elsewhere nothing.
        """
        rank, to, of = self._group.rank, self._nothing(), self._nothing()
        given = torch.tensor(own if self.sends(p) else [], dtype=torch.int64, device="cpu")
        if rank:
            to[0] = len(given)
            self._group.transfer(given, to, given[:0], of)
            return []
        pairs = zip(self._held[1:], self._sent[1:], strict=True)
        of[1:] = [len(held[p].pieces) if sent[p].numel else 0 for held, sent in pairs]
        taken = torch.empty(sum(of), dtype=torch.int64, device="cpu")
        self._group.transfer(given[:0], to, taken, of)
        return [given.tolist(), *(theirs.tolist() for theirs in _cut(taken, of[1:]))]

    def names(self, p: int) -> frozenset[str]:
        """The names of the whole tensors of fragment `p`."""
        return self._names[p]

    def tell_of(self, data: bytes, nbytes: int) -> list[bytes]:
        """The bytes that each rank tells, at most `nbytes` each; shorter ones end in zeros."""
        return self._group.tell_along(data, nbytes)

    def tell(self, data: bytes) -> list[bytes]:
        """The same, where no rank knows how much the others tell."""
        size = len(data).to_bytes(8, "big")
        longest = max(int.from_bytes(each, "big") for each in self._group.tell_along(size, 8))
        return self._group.tell_along(data, longest)

    def spread(self, p: int, values: Tensor | None) -> Tensor:
        """Give each rank its part of the lead's values.

        Args:
            p: the fragment.
            values: the whole fragment, flat, on the lead; None elsewhere.

        Returns:
            This rank's part, flat.
        """
        own = memory(self.own[p].numel)
        to, of = self._nothing(), self._nothing()
        if values is None:
            of[0] = len(own)
            self._group.transfer(memory(0), to, own, of)
            return own
        to[1:] = [parts[p].numel for parts in self._held[1:]]
        given = memory(sum(to))
        for parts, theirs in zip(self._held[1:], _cut(given, to[1:]), strict=True):
            parts[p].take(values, theirs)
        self._group.transfer(given, to, memory(0), of)
        self.own[p].take(values, own)
        return own

    def part(self, rank: int, p: int) -> LocalPart:
        """A rank's part of fragment `p`."""
        return self._held[rank][p]

    def _nothing(self) -> list[int]:
        return [0] * self._group.size


def memory(numel: int) -> Tensor:
    """A flat tensor for parts of copies and corrections. They are float32 on all ranks, whatever
    default a script sets: the default dtype holds for all threads."""
    return torch.empty(numel, dtype=torch.float32, device="cpu")


def _cut(flat: Tensor, sizes: Sequence[int]) -> Iterator[Tensor]:
    """Views of the flat tensor, one after another."""
    for start, stop in pairwise(accumulate(sizes, initial=0)):
        yield flat[start:stop]
