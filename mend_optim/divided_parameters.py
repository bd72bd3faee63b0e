"""The parameters of an inner optimizer on one rank of several: this rank's parts, and the layout of
the whole tensors, which all learners of the model have in common."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from mend_optim.errors import UsageError
from mend_optim.model.fragment_count import FragmentCount
from mend_optim.model.layout import Layout, is_shapeless
from mend_optim.model.saved_order import INNER_ALONE, OTHER_ORDER, is_by_name, told_names
from mend_optim.protocol.handshake import are_positions, name_order, plain_name
from mend_optim.ranks.copies_check import CopiesCheck
from mend_optim.ranks.crew import Crew
from mend_optim.ranks.pieces import Division, Held, Piece, decode_held, encode_held
from mend_optim.ranks.shards import Shards, piece_of, split_of
from mend_optim.ranks.words import Call
from mend_optim.shared_tensors import SharedTensors, dtype_of
from mend_optim.worker.checkpoint import Checkpoint
from mend_optim.worker.checkpoint_reader import OtherModelError
from mend_optim.wrapped_parameters import WrappedParameters

BUFFERS = (
    "buffers must be None for a learner of several ranks, got modules; keep batch-norm statistics "
    "local, or use SyncBatchNorm and save one rank's"
)
SHAPELESS = (
    "parameter {name} must have values before a learner of several ranks is made, got none yet; "
    "run a batch through lazy modules, or materialize the model, before you wrap its optimizer"
)


#: DDP puts this before all names, and other learners may have the bare model. But a model may also
#: have a part of that name: the order of its names must stay as it is elsewhere. Where some names
#: begin with it and others don't, nobody can tell which of the two it is, so they stay as they are.
#: The handshake refuses a learner whose order differs for that reason.
WRAPPER = "module."


class DividedParameters(WrappedParameters):
    """The tensors of the inner optimizer on this rank.

    Args:
        wrapped: the same without ranks.

    Raises:
        UsageError: there are buffers to merge, or a parameter has no values yet.
    """

    def __init__(self, wrapped: WrappedParameters) -> None:
        modules = wrapped.buffers.modules
        super().__init__(wrapped.inner, wrapped.count, wrapped.wrapped_groups, modules)
        if self.buffers.modules:
            raise UsageError(BUFFERS)
        for name, tensor in self._known():
            if is_shapeless(tensor):
                raise UsageError(SHAPELESS.format(name=name))
        #: Stands for the whole tensors, on the lead.
        self.shared: SharedTensors | None = None
        #: Compares what several ranks have; None before they met.
        self.copies: CopiesCheck | None = None
        self._shapes: list[torch.Size] = []
        # The part of each name that a wrapper around the whole model has put before it.
        self._prefix = ""
        self._whole: Layout | None = None

    def named(self) -> dict[str, Tensor]:
        """This rank's tensors by the names that all learners know them by. Of two tensors with one
        name the first: `Division` refuses them."""
        named: dict[str, Tensor] = {}
        for name, tensor in self._known():
            named.setdefault(name.removeprefix(self._prefix), tensor)
        return named

    def _known(self) -> list[tuple[str, Tensor]]:
        ordered = self._ordered(self.named_groups(), self.wrapped_groups, self.by_name)
        return [(plain_name(name), tensor) for name, tensor in ordered]

    def _known_as_listed(self) -> bool:
        """Whether the optimizer lists its tensors in that order, too."""
        listed = [tensor for group in self.named_groups() for _, tensor in group]
        return all(map(_is_same, listed, [tensor for _, tensor in self._known()]))

    def divide(self, crew: Crew, rank: int, shards: Shards) -> Division:
        """Agree with the other ranks which of them has which elements, and lay out the whole
        tensors. Raises `UsageError`, alike on all ranks but for what is wrong with this rank's
        own tensors."""
        known = self._known()
        own = WRAPPER if all(name.startswith(WRAPPER) for name, _ in known) else ""
        pieces = tuple(
            piece_of(name, t, split_of(shards, name.removeprefix(own), t)) for name, t in known
        )
        told = crew.tell(Call.CONSTRUCTOR, 0, encode_held(Held(pieces, self._known_as_listed())))
        held = [decode_held(each.rstrip(b"\0")) for each in told]
        is_wrapped = all(piece.name.startswith(WRAPPER) for each in held for piece in each.pieces)
        self._prefix = WRAPPER if is_wrapped else ""
        unwrapped = [[_without(self._prefix, piece) for piece in each.pieces] for each in held]
        division = Division(unwrapped, all(each.as_listed for each in held))
        self.copies = CopiesCheck(division, rank, self.named())
        self.copies.refuse_unequal(crew.tell(Call.CONSTRUCTOR, 0, self.copies.digests()))
        self._whole = _whole_layout(division, self.count)
        return division

    def lay_out(self, layout: Layout | None = None) -> None:
        """Let the present tensors be merged. `divide` comes before it."""
        super().lay_out(layout)
        self._shapes = [tensor.shape for tensor in self.merged]

    def build(
        self,
        wrapped_groups: int | None = None,
        by_name: bool | None = None,
        count: FragmentCount | None = None,
    ) -> Layout:
        """The layout of the whole tensors. Raises `UsageError` before they are divided."""
        if self._whole is None:
            raise UsageError("the ranks of this learner have not met yet")
        return self._whole

    def _refuse_other_order(
        self, state: object, saved: Checkpoint, layout: Layout, wrapped: int
    ) -> None:
        """What a checkpoint and the ranks say of their orders is compared, and no weights: no rank
        has all of them."""
        told = told_names(state)
        saved_listed, own_listed = not is_by_name(state), layout.as_listed
        other = (are_positions(told) and not own_listed) or (
            are_positions(layout.names) and not saved_listed
        )
        # Earlier versions took such a part's name for a wrapper's, and ordered by the rest.
        bare = [name.removeprefix(WRAPPER) for name in layout.names]
        former = [bare[i] for i in name_order(bare)]
        if other or (told == former and former != bare):
            fault = OTHER_ORDER.format(told[:3], list(layout.names[:3]))
            raise OtherModelError(fault, INNER_ALONE)

    def check(self) -> None:
        """Raise `UsageError` if the inner optimizer's parameters are not those that were laid
        out."""
        present = self.mergeable()
        kept = len(present) == len(self.merged) and all(map(_is_same, present, self.merged))
        if not kept or [tensor.shape for tensor in present] != self._shapes:
            raise UsageError(
                "the optimizer must keep its parameters and their shapes while it trains with "
                "peers, got others; close() it and make a new one for the changed model"
            )

    def sketches(self, own: list[Tensor] | None = None) -> str:
        """The `sketches` of the whole tensors; the lead asks the other ranks for their parts."""
        return self.shared.sketches() if self.shared else ""


def _without(prefix: str, piece: Piece) -> Piece:
    return replace(piece, name=piece.name.removeprefix(prefix))


def _is_same(now: Tensor, then: Tensor) -> bool:
    return now is then


def _whole_layout(division: Division, count: FragmentCount) -> Layout:
    """The layout of the whole tensors. Nobody has these: views of one number stand for them."""
    whole = list(map(_stand_in, division.tensors.values()))
    fragments = count.of([tensor.numel() for tensor in whole])
    return Layout(list(division.tensors), whole, fragments, as_listed=division.as_listed)


def _stand_in(piece: Piece) -> Tensor:
    dtype = dtype_of(piece.dtype)
    shape = piece.shape[:-1] if dtype.is_complex else piece.shape
    return torch.empty((), dtype=dtype).expand(shape)
