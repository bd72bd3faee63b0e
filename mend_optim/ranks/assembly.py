"""Between a rank's own flat copy of a fragment and the flat copy of the whole fragment.

A fragment is the same set of tensors on all ranks. A rank has pieces of some of these tensors. They
are a fragment of local shapes, which `model/copies.py` copies like any other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from mend_optim.model.layout import Fragment
from mend_optim.ranks.pieces import Piece


@dataclass(frozen=True)
class LocalPart:
    """The part of one fragment that one rank has."""

    #: Of the local shapes. Its `tensors` are indices into the rank's parameters.
    local: Fragment
    #: The whole fragment.
    whole: Fragment
    #: For each tensor of `local`, its place in `whole`.
    places: tuple[int, ...]
    #: For each tensor of `local`, which of the elements the rank has.
    pieces: tuple[Piece, ...]

    @property
    def numel(self) -> int:
        """How many elements the rank has of the fragment."""
        return self.local.numel

    def take(self, values: Tensor, out: Tensor) -> None:
        """Copy the rank's elements out of the whole fragment.

        Args:
            values: the whole fragment, flat; `whole.numel` elements.
            out: receives the rank's, flat; `local.numel` elements of the same dtype.
        """
        for number in range(len(self.pieces)):
            there, here = self._views(number, values, out)
            for source, target in self.pieces[number].blocks():
                here[target] = there[source]

    def put(self, part: Tensor, values: Tensor) -> None:
        """Copy the rank's elements to where they belong in the whole fragment.

        Args:
            part: the rank's, flat; `local.numel` elements.
            values: receives them; the whole fragment, flat; `whole.numel` elements of the same
                dtype.
        """
        for number in range(len(self.pieces)):
            there, here = self._views(number, values, part)
            for target, source in self.pieces[number].blocks():
                there[target] = here[source]

    def _views(self, number: int, values: Tensor, part: Tensor) -> tuple[Tensor, Tensor]:
        """Tensor `number` in the whole fragment, and the rank's piece of it."""
        piece = self.pieces[number]
        there = values[self.whole.span(self.places[number])].view(piece.shape)
        here = part[self.local.span(number)].view(piece.local_shape)
        return there, here

    def only(self, pieces: frozenset[Piece]) -> LocalPart:
        """The same, of these pieces only."""
        kept = [number for number, piece in enumerate(self.pieces) if piece in pieces]
        return _part(
            self.whole,
            [self.local.tensors[number] for number in kept],
            [self.places[number] for number in kept],
            [self.pieces[number] for number in kept],
        )

    def excerpt(self, part: Tensor, other: LocalPart) -> Tensor:
        """Of the flat copy of this part, the elements of `other`, which is some of it."""
        spans = {place: self.local.span(number) for number, place in enumerate(self.places)}
        chosen = [part[spans[place]] for place in other.places]
        return torch.cat(chosen) if chosen else part[:0]


def local_part(whole: Fragment, names: Sequence[str], pieces: Sequence[Piece]) -> LocalPart:
    """The part of a fragment that a rank with these pieces has.

    Args:
        whole: the fragment.
        names: those of all global tensors, in the order of the layout that `whole` is from.
        pieces: of all the rank's parameters, in their order.
    """
    numbers = {piece.name: number for number, piece in enumerate(pieces)}
    found = [
        (place, numbers[names[tensor]])
        for place, tensor in enumerate(whole.tensors)
        if names[tensor] in numbers
    ]
    tensors = [number for _, number in found]
    return _part(whole, tensors, [place for place, _ in found], [pieces[n] for n in tensors])


def _part(
    whole: Fragment, tensors: Sequence[int], places: Sequence[int], pieces: Sequence[Piece]
) -> LocalPart:
    offsets = (0, *accumulate(piece.numel for piece in pieces))
    shapes = tuple(piece.local_shape for piece in pieces)
    local = Fragment(whole.index, tuple(tensors), offsets, shapes)
    return LocalPart(local, whole, tuple(places), tuple(pieces))
