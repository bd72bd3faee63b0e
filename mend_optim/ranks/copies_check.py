"""Whether what counts as copies of one part are copies.

A part of a split tensor that nobody declared, and two parameters that got one name, look like
copies: same name, shape and dtype on several ranks. They differ in their values. Those that begin
as zeros differ later only: so samples of them are compared again before each offer."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import NamedTuple

import torch
from torch import Tensor

from mend_optim.errors import UsageError
from mend_optim.model.copies import own_part
from mend_optim.protocol.lineage import content_digest
from mend_optim.ranks.pieces import RENAME, SPLIT, Division, Piece

#: So many elements of each copy are compared before an offer.
SAMPLES = 8
#: Copies may drift apart by rounding, where kernels don't add in one order. More than this part of
#: the largest sample is no rounding.
GROSS = 0.1
DIFFERS = (
    "parameter {name} must be the same on ranks {first} and {rank}, which have the same part of "
    "it, got two; {split}; {rename}; if each rank trains by itself, pass group=None; else give all "
    "ranks the same weights, and the same gradients in each step, as DDP does once it wraps the "
    "model"
)


class Samples(NamedTuple):
    """Samples of tensors, and the events after which they are there."""

    taken: list[Tensor]
    events: list[torch.cuda.Event]


#: Of a rank that compares nothing.
NONE = Samples([], [])


class CopiesCheck:
    """Compares this rank's copies with those of the other ranks.

    Args:
        division: which rank has which pieces.
        rank: this one.
        tensors: its parameters by name.
    """

    def __init__(self, division: Division, rank: int, tensors: Mapping[str, Tensor]) -> None:
        copied = set(division.copied())
        # Of each rank, the pieces that others have as well.
        self._copied = [[piece for piece in own if piece in copied] for own in division.pieces]
        self._rank = rank
        self._tensors = tensors

    def digests(self) -> bytes:
        """Of all that this rank has copies of, for the other ranks."""
        own = self._copied[self._rank]
        return " ".join(_digest(self._tensors[piece.name]) for piece in own).encode()

    def refuse_unequal(self, told: Sequence[bytes]) -> None:
        """Raise `UsageError` unless all copies are equal to the bit. Alike on all ranks.

        Args:
            told: the `digests` of each rank, which may end in zeros.
        """
        first: dict[Piece, tuple[int, str]] = {}
        for rank, line in enumerate(told):
            digests = line.rstrip(b"\0").decode().split()
            for piece, digest in zip(self._copied[rank], digests, strict=True):
                before, known = first.setdefault(piece, (rank, digest))
                if digest != known:
                    raise _differ(piece, before, rank)

    def samples(self, names: Set[str]) -> Samples:
        """Of those parameters with these names that this rank has copies of, as they are now, for
        the others. `said` waits for them."""
        taken = [_sample(self._tensors[piece.name]) for piece in self._named(self._rank, names)]
        gpus = {sample.device for sample in taken if sample.is_cuda}
        return Samples(taken, list(map(_mark, gpus)))

    def refuse_strange(self, names: Set[str], told: Sequence[bytes]) -> None:
        """Raise `UsageError` if copies differ by more than rounding. Alike on all ranks.

        Args:
            names: the parameters that `samples` was called for.
            told: what each rank has `said` of its samples, which may end in zeros.
        """
        first: dict[Piece, tuple[int, list[float]]] = {}
        for rank, line in enumerate(told):
            samples: list[list[float]] = json.loads(line.rstrip(b"\0"))
            for piece, sample in zip(self._named(rank, names), samples, strict=True):
                before, known = first.setdefault(piece, (rank, sample))
                if _is_gross(sample, known):
                    raise _differ(piece, before, rank)

    def has_copies(self, names: Set[str]) -> bool:
        """Whether any rank has copies of parameters with these names. Alike on all ranks."""
        return any(any(self._named(rank, names)) for rank in range(len(self._copied)))

    def _named(self, rank: int, names: Set[str]) -> Iterator[Piece]:
        return (piece for piece in self._copied[rank] if piece.name in names)


def said(samples: Samples) -> bytes:
    """The samples as they are told. On a GPU that waits until it has them: it is for the courier,
    so that training does not wait."""
    for event in samples.events:
        event.synchronize()
    counts = [len(sample) for sample in samples.taken]
    together = [sample.to(samples.taken[0].device) for sample in samples.taken]
    flat = torch.cat(together).tolist() if together else []
    ends = list(itertools.accumulate(counts, initial=0))
    return json.dumps([flat[start:end] for start, end in itertools.pairwise(ends)]).encode()


def _mark(gpu: torch.device) -> torch.cuda.Event:
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(gpu))
    return event


def _is_gross(some: Sequence[float], others: Sequence[float]) -> bool:
    known = [abs(value) for value in (*some, *others) if math.isfinite(value)]
    near = GROSS * max(known, default=0.0)
    pairs = zip(some, others, strict=True)
    return not all(abs(a - b) <= near or a == b or (a != a and b != b) for a, b in pairs)


def _differ(piece: Piece, first: int, rank: int) -> UsageError:
    told = DIFFERS.format(name=piece.name, first=first, rank=rank, split=SPLIT, rename=RENAME)
    return UsageError(told)


def _flat(tensor: Tensor) -> Tensor:
    flat = own_part(tensor.detach()).reshape(-1)
    return torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat


@torch.no_grad()
def _digest(tensor: Tensor) -> str:
    flat = _flat(tensor).contiguous().cpu()
    return content_digest(flat.view(torch.uint8).numpy().data).hex()[:16]


@torch.no_grad()
def _sample(tensor: Tensor) -> Tensor:
    flat = _flat(tensor)
    return flat[:: -(-len(flat) // SAMPLES)].to(torch.float32, copy=True)
