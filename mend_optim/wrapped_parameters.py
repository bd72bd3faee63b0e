"""The parameters of an inner optimizer, and the buffers beside them, as fragments that are
merged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, dtype
from torch.nn import Module
from torch.optim import Optimizer

from mend_optim.errors import UsageError, require
from mend_optim.given_state import refusing_foreign
from mend_optim.model.copies import belong_to, own_part, sketches
from mend_optim.model.fragment_count import FragmentCount
from mend_optim.model.layout import Layout, is_mergeable, is_shapeless, overlaps_itself
from mend_optim.model.module_buffers import ModuleBuffers
from mend_optim.model.plain_mode import in_plain_mode
from mend_optim.model.saved_order import INNER_ALONE, OTHER_ORDER, keeps_order, told_names
from mend_optim.protocol.handshake import name_order, plain_name
from mend_optim.worker.checkpoint import Checkpoint
from mend_optim.worker.checkpoint_reader import OtherModelError, StateError, from_state

FROZEN = (
    "parameter {name} must be finite to be merged, got NaN or infinity in one that is frozen; make "
    "a mask a buffer, or give the optimizer only the parameters that it trains"
)

UNMERGED = (
    "take a later one; or load the weights that you want on every learner, and start them all anew"
)

EARLIER = "give it the checkpoint of any learner of this model, whole"


class Loaded(NamedTuple):
    """A checkpoint, and the layout, the numbers of wrapped groups and of fragments and the order
    with which it can be read; no layout without peers, if the parameters could not be merged."""

    saved: Checkpoint
    layout: Layout | None
    wrapped_groups: int
    fragments: FragmentCount
    by_name: bool = True

    def require_merged(self) -> None:
        """Raise `UsageError` unless each of the wrapped fragments has been merged."""
        fragments = self.layout.parts if self.layout else 1
        anchors = [kept.standing.lineage for kept in self.saved.fragments]
        merged = sum(anchor.version > 0 for anchor in anchors[:fragments])
        bound = f"a checkpoint by whose time all {fragments} fragments had been merged"
        require(merged == fragments, "state_dict", merged, bound, UNMERGED)


class _Listing(NamedTuple):
    """All of an optimizer's list that a layout depends on, and quick to compare: thousands of
    tensors are checked at every boundary."""

    sizes: list[int]
    names: list[list[str] | None]
    ids: list[int]
    shapes: list[tuple[int, ...]]
    dtypes: list[dtype]

    @classmethod
    def of(cls, optimizer: Optimizer) -> _Listing:
        groups = optimizer.param_groups
        tensors = [tensor for group in groups for tensor in group["params"]]
        return cls(
            sizes=[len(group["params"]) for group in groups],
            names=[
                list(group["param_names"]) if "param_names" in group else None for group in groups
            ],
            ids=list(map(id, tensors)),
            shapes=[tensor.shape for tensor in tensors],
            dtypes=[tensor.dtype for tensor in tensors],
        )


class WrappedParameters:
    """The tensors of an inner optimizer, and their layout once there are peers.

    Args:
        inner: the inner optimizer.
        count: P, for the groups that were wrapped.
        wrapped_groups: the number of `inner.param_groups` when `inner` was wrapped. Each group that
            was added later is a fragment of its own.
        modules: those whose buffers are merged, too.
    """

    def __init__(
        self,
        inner: Optimizer,
        count: FragmentCount,
        wrapped_groups: int,
        modules: Sequence[Module] = (),
    ) -> None:
        #: The inner optimizer.
        self.inner = inner
        #: P, as the user or a checkpoint tells it, or by the size of the model.
        self.count = count
        self.wrapped_groups = wrapped_groups
        #: Whether the wrapped tensors are ordered by name, where they have one. The first versions
        #: had them as they are listed, and their checkpoints go on so.
        self.by_name = True
        #: The buffers that are merged.
        self.buffers = ModuleBuffers(modules)
        #: The tensors that are merged; empty before they are laid out.
        self.merged: list[Tensor] = []
        self._layout: Layout | None = None
        #: The optimizer's list when its tensors were laid out, and the tensors, whose ids stay
        #: theirs while they are kept.
        self._listing: tuple[_Listing, list[Tensor]] | None = None

    def tensors(self) -> list[Tensor]:
        """All tensors of the inner optimizer."""
        return [p for group in self.inner.param_groups for p in group["params"]]

    def mergeable(self) -> list[Tensor]:
        """The tensors that can be merged, in the layout's order. One that is given twice is merged
        once: torch only warns of that."""
        tensors = [tensor for _, tensor in _once(("", tensor) for tensor in self.tensors())]
        groups = self.named_groups()
        # There are more tensors than names if somebody has added to a group's list.
        named = sum(map(len, groups)) == len(tensors)
        ordered = self._ordered(groups, self.wrapped_groups, self.by_name)
        return [tensor for _, tensor in ordered] if named else tensors

    @property
    def has_shapes(self) -> bool:
        """Whether all tensors have values by now."""
        return not any(map(is_shapeless, [*self.tensors(), *self.buffers.tensors()]))

    def wrapping(self) -> dict[str, Any]:
        """How the inner optimizer was wrapped, for a copy or a pickle."""
        return {
            "inner": self.inner,
            "count": self.count,
            "groups": self.wrapped_groups,
            "by_name": self.by_name,
            "buffers": self.buffers.modules,
        }

    # ── layout ────────────────────────────────────────────────────────────────────────────────────

    @property
    def laid_out(self) -> bool:
        """Whether there is a layout that learners have in common."""
        return self._layout is not None

    def lay_out(self, layout: Layout | None = None) -> None:
        """Let the present tensors be merged by this layout; None: by one made of them. Raises
        `UsageError`."""
        self._layout = layout or self.build()
        self.buffers.fix()
        self.merged = self.mergeable()
        self._listing = _Listing.of(self.inner), self.tensors()

    def layout(self) -> Layout:
        """The layout that learners have in common."""
        assert self._layout is not None
        return self._layout

    def layout_if_any(self) -> Layout | None:
        """The layout; without peers, that of the present tensors, or None if they could not be
        merged."""
        if self._layout is not None:
            return self._layout
        with suppress(UsageError):
            return self.build()
        return None

    def check(self) -> None:
        """Raise `UsageError` if the inner optimizer's parameters, or the buffers, are not those of
        the layout."""
        if self._listing is None or self._listing[0] != _Listing.of(self.inner):
            self.layout().check(self.mergeable(), self.merged)
        self.layout().check_buffers(self.buffers.tensors())

    @in_plain_mode
    def check_frozen(self) -> None:
        """Raise `UsageError` if a frozen parameter is not finite, as a mask may be: its fragment
        can never be merged, and no training changes that."""
        for named in self.named_groups():
            for name, tensor in named:
                if not tensor.requires_grad and not _is_finite(own_part(tensor)):
                    raise UsageError(FROZEN.format(name=name))

    def build(
        self,
        wrapped_groups: int | None = None,
        by_name: bool | None = None,
        count: FragmentCount | None = None,
    ) -> Layout:
        """A layout of the present tensors, if so many groups count as wrapped, in this order, and
        in so many fragments. Raises `UsageError`."""
        wrapped = self.wrapped_groups if wrapped_groups is None else wrapped_groups
        groups = self.named_groups()
        added = [len(group) for group in groups[wrapped:] if group]
        ordered = self._ordered(groups, wrapped, self.by_name if by_name is None else by_name)
        names = [name for name, _ in ordered]
        for name, tensor in ordered:
            if not is_shapeless(tensor) and overlaps_itself(tensor):
                raise UsageError(
                    f"parameter {name} must have memory for each of its elements to be merged, got "
                    "one that shares memory among them; give the optimizer a copy of it"
                )
        tensors = [tensor for _, tensor in ordered]
        kept = len(tensors) - sum(added)
        # Those without a shape are refused by the layout.
        sizes = [0 if is_shapeless(tensor) else tensor.numel() for tensor in tensors[:kept]]
        fragments = (count or self.count).of(sizes)
        as_listed = names == [name for group in groups for name, _ in group]
        buffers = self.buffers.named()
        return Layout(names, tensors, fragments, added, buffers=buffers, as_listed=as_listed)

    def named_groups(self) -> list[list[tuple[str, Tensor]]]:
        """The tensors that can be merged, by group, each one once; with their names, or else their
        positions."""
        groups: list[list[tuple[str, Tensor]]] = []
        seen = 0
        met: set[int] = set()
        for group in self.inner.param_groups:
            positions = map(str, range(seen, seen + len(group["params"])))
            seen += len(group["params"])
            named = zip(group.get("param_names", positions), group["params"], strict=False)
            groups.append(list(_once(named, met)))
        return groups

    def _ordered(
        self, groups: Sequence[Sequence[tuple[str, Tensor]]], wrapped: int, by_name: bool
    ) -> list[tuple[str, Tensor]]:
        """The tensors of these groups in the layout's order: those of added groups come last, as
        they are listed."""
        first = [pair for group in groups[:wrapped] for pair in group]
        if by_name:
            first = [first[i] for i in name_order([name for name, _ in first])]
        return [*first, *(pair for group in groups[wrapped:] for pair in group)]

    # ── a checkpoint ──────────────────────────────────────────────────────────────────────────────

    def sketches(self, own: list[Tensor] | None = None) -> str:
        """The `sketches` of the tensors, or of `own` in their place; empty if they could not be
        merged."""
        layout = self.layout_if_any()
        return sketches(layout, own or self.mergeable()) if layout else ""

    def belongs_to(self, told: str) -> bool:
        """Whether the tensors are those that a checkpoint tells the sketches of; True if they could
        not be merged."""
        layout = self.layout_if_any()
        return layout is None or belong_to(told, layout, self.mergeable())

    def read_earlier(self, state: object) -> Checkpoint:
        """Read a checkpoint to go back to. Raises `UsageError` also if it is older than the first
        merge."""
        try:
            loaded = self.read(state, regroup=False)
        except StateError as error:
            error.remedy = EARLIER
            raise
        loaded.require_merged()
        return loaded.saved

    @in_plain_mode
    def read(self, state: object, regroup: bool) -> Loaded:
        """Read a checkpoint.

        A group that was added before the checkpoint was made may be there from the start now. It
        becomes an added group again, because the other learners have it so. And the checkpoint may
        have the tensors in another order, and in another number of fragments if nobody told that.

        Args:
            state: the part of a `state_dict` that is under "mend".
            regroup: whether groups may become added ones, and order and number others.

        Raises:
            OtherModelError: the checkpoint is another model's.
            UsageError: the checkpoint is damaged.
        """
        try:
            layout = self.layout_if_any()
            return self._read(state, layout, self.wrapped_groups, self.count, self.by_name)
        except OtherModelError as error:
            refused = error
        wrapped_groups = [*range(len(self.inner.param_groups) - 1, 0, -1), self.wrapped_groups]
        orders = (self.by_name, not self.by_name) if regroup else ()
        for by_name, wrapped in product(orders, wrapped_groups):
            for count in self._counts(state, wrapped):
                with suppress(UsageError):
                    layout = self.build(wrapped, by_name, count)
                    return self._read(state, layout, wrapped, count, by_name)
        raise refused

    def _read(
        self,
        state: object,
        layout: Layout | None,
        wrapped: int,
        count: FragmentCount,
        by_name: bool,
    ) -> Loaded:
        """Read a checkpoint in just this way. Raises `OtherModelError` also where only the order is
        another one: equal shapes would hide that, and tensors would take one another's values."""
        saved = from_state(state, layout)
        if layout and saved.fragments:
            self._refuse_other_order(state, saved, layout, wrapped)
        return Loaded(saved, layout, wrapped, count, by_name)

    def _refuse_other_order(
        self, state: object, saved: Checkpoint, layout: Layout, wrapped: int
    ) -> None:
        told = told_names(state)
        groups = self.named_groups()[:wrapped]
        listed = [plain_name(name) for group in groups for name, _ in group]
        keeps = keeps_order(told, layout.names[: len(told)], listed)
        if keeps is None:
            keeps = belong_to(saved.weights, layout, self.mergeable())
        if not keeps:
            fault = OTHER_ORDER.format(told[:3], list(layout.names[:3]))
            raise OtherModelError(fault, INNER_ALONE)

    def _counts(self, state: object, wrapped: int) -> Iterator[FragmentCount]:
        """The numbers of fragments that a checkpoint may have, if so many groups were wrapped."""
        yield self.count
        kept = state.get("fragments") if isinstance(state, Mapping) else None
        if self.count.told is None and isinstance(kept, list):
            others = len(self.inner.param_groups) - wrapped + bool(self.buffers.modules)
            if len(kept) > others:
                yield replace(self.count, kept=len(kept) - others)

    def load_inner(self, state: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Load the inner optimizer's part of a checkpoint. Tensors that are laid out keep their
        names, because all learners know them by these. torch takes over the names in `state`, and
        ranks that had other parameters have written theirs into it."""
        names = [group.get("param_names") for group in self.inner.param_groups]
        with refusing_foreign(state):
            self.inner.load_state_dict(state, *args, **kwargs)
        for group, own in zip(self.inner.param_groups, names, strict=False):  # it may add some
            if own is not None and self.laid_out:
                group["param_names"] = own
            elif self.laid_out:
                group.pop("param_names", None)

    def follow(self, loaded: Loaded) -> bool:
        """Group, order and divide the tensors as a checkpoint has them. Returns whether it had them
        in another way."""
        before = (self.wrapped_groups, self.by_name, self.count)
        self.wrapped_groups, self.by_name = loaded.wrapped_groups, loaded.by_name
        self.count = loaded.fragments
        is_other = before != (self.wrapped_groups, self.by_name, self.count)
        # A script may have put whole groups into the optimizer since it was wrapped.
        is_other |= self.laid_out and loaded.layout is not self._layout
        if is_other and self.laid_out:
            self.lay_out(loaded.layout)
        return is_other


def _is_finite(tensor: Tensor) -> bool:
    wide = tensor if tensor.dtype.itemsize > 1 else tensor.float()  # float8 cannot tell
    # The sum needs no memory. It may overflow, though all elements are finite.
    return bool(torch.isfinite(wide.sum())) or bool(torch.isfinite(wide).all())


def _once(
    named: Iterable[tuple[object, Tensor]], met: set[int] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Those of the named tensors that can be merged and are none of those `met`, each one once."""
    met = set() if met is None else met
    for name, tensor in named:
        if is_mergeable(tensor) and id(tensor) not in met:
            met.add(id(tensor))
            yield str(name), tensor


def wrapped_again(state: Mapping[str, Any]) -> WrappedParameters:
    """The inverse of `wrapping`, beside the settings. Older pickles have no buffers, tensors in the
    order in which they are listed, and a number of fragments that the user told."""
    told = FragmentCount(told=state["settings"].schedule.fragments)
    count, buffers = state.get("count", told), state.get("buffers", ())
    model = WrappedParameters(state["inner"], count, state["groups"], buffers)
    model.by_name = state.get("by_name", False)
    return model
