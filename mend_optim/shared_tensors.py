"""The tensors of a model that several ranks have together.

The lead's engine, anchors and codecs know only whole tensors. `SharedTensors` stands for these on
the lead: each of its methods orders all ranks to do their part. `RankDeeds` is what every rank then
does with its own part. Only the training thread calls this. The couriers bring the tensors from one
rank to another."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor

from mend_optim.codecs.buffers import Buffers
from mend_optim.errors import UsageError
from mend_optim.model.copies import Ready, narrow, sketches
from mend_optim.model.layout import Fragment, Layout
from mend_optim.model.weights_watch import WeightsWatch
from mend_optim.own_tensors import OwnTensors
from mend_optim.ranks.carrier import Carrier, memory
from mend_optim.ranks.copies_check import CopiesCheck, said
from mend_optim.ranks.courier import Courier, Errand
from mend_optim.ranks.crew import Crew
from mend_optim.ranks.orders import Deed, Order, encode_order
from mend_optim.ranks.words import Call
from mend_optim.worker.correction import Correction, MomentCorrection, Reading

GROUPS = (
    "add_param_group() must not be called for a learner of several ranks; give the inner optimizer "
    "all its groups before you wrap it"
)


class RankDeeds:
    """The deeds of one rank at an order of the lead.

    Args:
        own: this rank's tensors.
        carrier: the way of its parts to the lead and back.
        courier: carries them.
        crew: the ranks.
        copies: compares what several ranks have.
    """

    def __init__(
        self,
        own: OwnTensors,
        carrier: Carrier,
        courier: Courier,
        crew: Crew,
        copies: CopiesCheck,
    ) -> None:
        self._own = own
        self._carrier = carrier
        self._courier = courier
        self._crew = crew
        self._copies = copies
        #: Where all ranks are: the call, and the step.
        self.at = (Call.CONSTRUCTOR, 0)
        #: This rank's own weights, if an anchor is in their place.
        self.replaced: Sequence[Tensor] | None = None

    def perform(
        self, order: Order, values: Sequence[Tensor] = (), out: Tensor | None = None
    ) -> Any:
        """Do what is ordered, with all other ranks. If that fails here, the other ranks learn of
        it, and the learner is over. Copies may still be on their way to the lead when this returns:
        see `SharedTensors.ready`.

        Args:
            order: the same on all ranks.
            values: on the lead, the whole tensors that ranks get their parts of.
            out: on the lead, receives the whole tensor that ranks give their parts of.

        Returns:
            What the ranks told of a moment, for `READ`; else None.
        """
        try:
            return self._perform(order, values, out)
        except BaseException:
            self._crew.fail(*self.at)
            raise

    def _perform(self, order: Order, values: Sequence[Tensor], out: Tensor | None) -> Any:
        p, facts = order.fragment, order.facts
        match order.deed:
            case Deed.COPY:
                self._compare(p)
                self._collect(p, lambda: self._own.copy(p), out)
            case Deed.COPY_PLAIN:
                self._collect(p, lambda: self._own.plain(p, self.replaced), out)
            case Deed.READ:
                return self._read(p, facts["moment"], facts["steps"], out)
            case Deed.ROUNDED_OFF:
                self._collect(p, lambda: self._rounded_off(p), out)
            case Deed.LOAD_ROUNDED_OFF:
                self._own.load_rounded_off(p, self._spread(p, values, 0))
            case Deed.FORGET_ROUNDED_OFF:
                self._own.forget_rounded_off()
            case Deed.APPLY | Deed.APPLY_MOMENTS:
                self._correct(order, values)
            case Deed.PUT:
                self._own.put(p, self._spread(p, values, 0), for_good=facts["for_good"])
            case _:
                raise AssertionError(f"no deed: {order}")
        return None

    def _collect(self, p: int, make: Callable[[], Tensor], out: Tensor | None) -> Errand:
        """Copy this rank's part, which the courier takes to the lead."""
        flat: Tensor | None = None
        fault: BaseException | None = None
        if self._carrier.sends(p):
            try:
                flat = make()
            except BaseException as error:
                # The other couriers are in the transfer already: this one takes part in it.
                fault = error
                flat = memory(self._carrier.own[p].numel).zero_()
        ready = self._own.ready()

        def carry() -> None:
            ready()
            self._carrier.collect(p, flat, out)

        errand = self._courier.put(carry)
        if fault is not None:
            raise fault
        return errand

    def _compare(self, p: int) -> None:
        """Raise `UsageError`, on all ranks, if what counts as copies in a fragment is none."""
        names = self._carrier.names(p)
        if self._copies.has_copies(names):
            told = self._crew.tell(*self.at, said(self._copies.samples(names)))
            self._copies.refuse_strange(names, told)

    def _spread(self, p: int, values: Sequence[Tensor], number: int) -> Tensor:
        parts: list[Tensor] = []

        def carry() -> None:
            parts.append(self._carrier.spread(p, values[number] if values else None))

        self._courier.put(carry).wait()
        return parts[0]

    def _rounded_off(self, p: int) -> Tensor:
        lost = self._own.rounded_off(p)
        return memory(self._carrier.own[p].numel).zero_() if lost is None else lost

    def _read(self, p: int, name: str, steps: int, out: Tensor | None) -> list[list[int]]:
        """Copy a moment. Returns, for each rank, how many updates each of its tensors has seen."""
        updates: list[int] = []

        def make() -> Tensor:
            reading = self._own.read(p, [name], steps)[name]
            updates[:] = reading.updates
            return reading.values

        self._collect(p, make, out)
        told = self._crew.tell(*self.at, json.dumps(updates).encode())
        return [json.loads(each.rstrip(b"\0")) for each in told]

    def _correct(self, order: Order, values: Sequence[Tensor]) -> None:
        """Correct this rank's parts, once it has all that it needs for that."""
        own: list[Correction] = []

        def receive() -> None:
            own.append(self._own.bring(own_part(self._carrier, order, values)))

        self._courier.put(receive).wait()
        if order.facts["weights"]:
            self._own.apply(own[0], order.facts["steps"])
        else:
            self._own.apply_moments(own[0], order.facts["steps"])


class SharedTensors:
    """On the lead, the whole tensors of the model. Fulfils `ModelTensors`.

    Args:
        layout: of the whole tensors.
        own: the lead's parts.
        deeds: of this rank.
        carrier: the way of the parts.
        courier: carries them.
        crew: the ranks.
    """

    def __init__(
        self,
        layout: Layout,
        own: OwnTensors,
        deeds: RankDeeds,
        *,
        carrier: Carrier,
        courier: Courier,
        crew: Crew,
    ) -> None:
        self.layout = layout
        self.pool: Buffers = own.pool
        self.watch: WeightsWatch = own.watch
        self._own = own
        self._deeds = deeds
        self._carrier = carrier
        self._courier = courier
        self._crew = crew
        dtypes = [torch.empty(0, dtype=dtype_of(name)) for name in layout.dtypes]
        self._is_narrow = any(map(narrow, dtypes))

    def order(self, deed: Deed, p: int = 0, **facts: Any) -> Order:
        """Tell all ranks what to do."""
        order = Order(deed=deed, fragment=p, facts=facts)
        self._crew.tell(*self._deeds.at, encode_order(order))
        return order

    def memory(self, fragment: Fragment) -> Tensor:
        """See `ModelTensors`, as for all methods here."""
        return self.pool.take(fragment.numel)

    def copy(self, p: int) -> Tensor:
        """See `ModelTensors`."""
        return self._collect(self.order(Deed.COPY, p))

    def _collect(self, order: Order) -> Tensor:
        """A copy that is complete once what `ready` returns has returned."""
        out = self.memory(self.layout.fragments[order.fragment])
        self._deeds.perform(order, out=out)
        return out

    def _collect_now(self, order: Order) -> Tensor:
        out = self._collect(order)
        self._courier.wait()
        return out

    def ready(self) -> Ready:
        """See `ModelTensors`."""
        return self._courier.waiting()

    def read(self, p: int, names: Sequence[str], steps: int) -> dict[str, Reading]:
        """See `ModelTensors`."""
        readings: dict[str, Reading] = {}
        for name in names:
            order = self.order(Deed.READ, p, moment=name, steps=steps)
            out = self.memory(self.layout.fragments[p])
            told = self._deeds.perform(order, out=out)
            readings[name] = Reading(out, updates_of(self._carrier, p, told))
        return readings

    def state_names(self, p: int, steps: int) -> list[str]:
        """See `ModelTensors`. Of the lead's own parts."""
        return self._own.state_names(p, steps)

    def have_stepped(self) -> bool:
        """See `ModelTensors`. Of the lead's own parts."""
        return self._own.have_stepped()

    def bring(self, correction: Correction) -> Correction:
        """See `ModelTensors`. The ranks get their parts from the host."""
        return correction

    def apply(self, correction: Correction, steps: int) -> None:
        """See `ModelTensors`."""
        self._correct(Deed.APPLY, correction, steps)

    def apply_moments(self, correction: Correction, steps: int) -> None:
        """See `ModelTensors`."""
        self._correct(Deed.APPLY_MOMENTS, correction, steps)

    def _correct(self, deed: Deed, correction: Correction, steps: int) -> None:
        facts = correction_facts(deed, correction)
        order = self.order(deed, correction.fragment, **facts, steps=steps)
        self._deeds.perform(order, values_of(deed, correction))

    def put(self, p: int, anchor: Tensor, *, for_good: bool) -> None:
        """See `ModelTensors`."""
        self._deeds.perform(self.order(Deed.PUT, p, for_good=for_good), [anchor])

    @contextmanager
    def keeping(self, own: Sequence[Tensor]) -> Iterator[None]:
        """See `ModelTensors`. Of the lead's own parts: each rank keeps its own."""
        with self._own.keeping(own):
            yield

    def rounded_off(self, p: int) -> Tensor | None:
        """See `ModelTensors`."""
        return self._collect_now(self.order(Deed.ROUNDED_OFF, p)) if self._is_narrow else None

    def load_rounded_off(self, p: int, lost: Tensor) -> None:
        """See `ModelTensors`."""
        self._deeds.perform(self.order(Deed.LOAD_ROUNDED_OFF, p), [lost])

    def forget_rounded_off(self) -> None:
        """See `ModelTensors`."""
        self._deeds.perform(self.order(Deed.FORGET_ROUNDED_OFF))

    def belong_to(self, told: str) -> bool:
        """See `ModelTensors`."""
        return told == self.sketches()

    def sketches(self) -> str:
        """The `sketches` of the whole tensors."""
        tensors: list[Tensor | None] = [None] * len(self.layout.names)
        for fragment in self.layout.fragments:
            flat = self._collect_now(self.order(Deed.COPY_PLAIN, fragment.index))
            for place, index in enumerate(fragment.tensors):
                tensors[index] = flat[fragment.span(place)]
        return sketches(self.layout, cast(list[Tensor], tensors))

    def extend(self, layout: Layout, parameters: Sequence[Tensor]) -> None:
        """See `ModelTensors`. Raises `UsageError`."""
        raise UsageError(GROUPS)


def updates_of(carrier: Carrier, p: int, told: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The updates of a moment of each whole tensor: the fewest that any of its parts has seen.

    Args:
        carrier: knows the parts.
        p: the fragment.
        told: for each rank, the updates of each of its parts; none of one that sends nothing.
    """
    seen: dict[int, int] = {}
    for rank, updates in enumerate(told):
        part = carrier.part(rank, p)
        for place, piece, count in zip(part.places, part.pieces, updates, strict=False):
            if piece.numel:
                seen[place] = min(count, seen.get(place, count))
    return tuple(seen.get(place, 0) for place in range(len(carrier.own[p].whole.tensors)))


def correction_facts(deed: Deed, correction: Correction) -> dict[str, Any]:
    """The facts that all ranks have to know of a correction, besides its values."""
    return {
        "weights": int(deed is Deed.APPLY),
        "replace": correction.replace,
        "resets": correction.resets,
        "moments": [[m.moment, m.updates, m.newcomer] for m in correction.moments],
    }


def values_of(deed: Deed, correction: Correction) -> list[Tensor]:
    """The tensors of a correction, in the order in which they go to the ranks."""
    weights = [correction.values] if deed is Deed.APPLY else []
    return [*weights, *(m.values for m in correction.moments)]


def own_part(carrier: Carrier, order: Order, values: Sequence[Tensor]) -> Correction:
    """This rank's part of a correction. All couriers call it together.

    Args:
        carrier: the way of the parts.
        order: the same on all ranks.
        values: on the lead, the `values_of` the whole correction; elsewhere none.
    """
    p, facts = order.fragment, order.facts
    weights, told = facts["weights"], facts["moments"]
    taken = [carrier.spread(p, values[i] if values else None) for i in range(weights + len(told))]
    places = carrier.own[p].places
    moments = tuple(
        MomentCorrection(name, flat, tuple(updates[i] for i in places), newcomer)
        for (name, updates, newcomer), flat in zip(told, taken[weights:], strict=True)
    )
    flat = taken[0] if weights else memory(0)
    return Correction(p, flat, facts["replace"], moments, facts["resets"])


def dtype_of(name: str) -> torch.dtype:
    """The dtype that torch prints so."""
    found = getattr(torch, name.removeprefix("torch."))
    assert isinstance(found, torch.dtype)
    return found
