"""The training thread's part of a round: copy parameters out, add corrections to them, wait where it was asked to."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .anchor import Anchors, Correction
from .buffers import Buffers
from .checkpoint import Checkpoint, Kept, anchored
from .fragment import Layout, copied, gather, narrow, scatter, sketches
from .merge_thread import MergeThread
from .starting import Resumed


class Handover:
    """Between one model's parameters and one learner's background threads. Only the training thread calls it.

    `make(weights, buffers)` makes the anchors. `synchronous`: adopt at the very step of the snapshot. `patience_s`: the
    longest that `run` waits for an anchor."""

    def __init__(
        self,
        learner: MergeThread,
        layout: Layout,
        parameters: Sequence[Tensor],
        make: Callable[[list[Tensor], Buffers], Anchors],
        synchronous: bool,
        patience_s: float,
    ) -> None:
        self._learner, self._layout, self._parameters = learner, layout, parameters
        self._make, self._synchronous, self._patience_s = make, synchronous, patience_s
        self._device = next((p.device for p in parameters if p.is_cuda), None)
        self._buffers = Buffers(pin=self._device is not None)
        rounds = any(map(narrow, parameters))
        self._rounding = [self._buffers.take(f.numel).zero_() if rounds else None for f in layout.fragments]
        self._in_flight: list[tuple[torch.cuda.Event, Correction]] = []

    def begin(self, saved: Checkpoint | None) -> bool:
        """Before the first inner step: show our weights, or go on where a checkpoint stood; join. Whether the cluster's
        weights replaced ours."""
        fragments = range(len(self._layout.fragments))
        if saved and saved.fragments:
            replaced = self._learner.begin(*self._restore(saved))
        else:
            weights = [self._copy(p) for p in fragments]
            copied(self._device)()
            intact = saved is None or saved.weights == sketches(self._layout, self._parameters)
            resumed = Resumed(saved.totals, (), saved.head_start, intact) if saved and saved.step else None
            replaced = self._learner.begin(self._make(weights, self._buffers), resumed, ())
        self.run()
        return replaced

    def _restore(self, saved: Checkpoint) -> tuple[Anchors, Resumed, list[Correction]]:
        intact = saved.weights == sketches(self._layout, self._parameters)
        kept = saved.fragments if intact else tuple(map(anchored, saved.fragments))
        anchors = self._make([self._buffers.take(f.numel) for f in self._layout.fragments], self._buffers)
        corrections = []
        for p, fragment in enumerate(kept):
            anchors.load(p, fragment.tensors)
            rounding = self._rounding[p]
            if rounding is not None and "rounding" in fragment.tensors:
                rounding.copy_(fragment.tensors["rounding"])
            if "correction" in fragment.tensors:
                values = self._buffers.take(self._layout.fragments[p].numel)
                corrections.append(Correction(p, values.copy_(fragment.tensors["correction"]), fragment.replace))
        standings = [fragment.standing for fragment in kept]
        return anchors, Resumed(saved.totals, standings, saved.head_start, intact), corrections

    def keep(self) -> tuple[Kept, ...]:
        """What a checkpoint keeps of every fragment. Waits for the worker's present job, never for the network."""
        kept = self._learner.keep()
        return tuple(
            k if rounding is None else replace(k, tensors={**k.tensors, "rounding": rounding.clone()})
            for k, rounding in zip(kept, self._rounding, strict=False)
        )

    def run(self, check: Callable[[], None] = lambda: None) -> None:
        """Apply what is ready, copy what is due (after `check`); under `adopt_after`, wait for an anchor due now."""
        deadline = time.monotonic() + self._patience_s
        while True:
            todo = self._learner.take()
            for correction in todo.corrections:
                self._apply(correction)
            if todo.wanted:
                try:
                    check()
                    self._offer(todo.wanted, todo.founding)
                except BaseException:  # Ctrl-C too: a fragment that stays reserved would never be offered again
                    self._learner.release(todo.wanted)
                    raise
            if not todo.wait and not (todo.wanted and self._synchronous):
                return
            if not self._learner.wait(self._learner.deliverable, deadline - time.monotonic()):
                self._learner.give_up()
                return

    def settle(self, timeout_s: float, check: Callable[[], None]) -> bool:
        """Rest, handing over what is due, until all of ours is merged and nobody has a greater anchor; False if that
        takes too long."""
        learner, deadline = self._learner, time.monotonic() + timeout_s
        learner.rest()
        while True:
            self.run(check)
            left = deadline - time.monotonic()
            if learner.wait(learner.engine.training.settled, 0.0) and not learner.closed:
                return True
            if left <= 0 or learner.closed:
                return False
            learner.wait(learner.news, min(left, learner.engine.books.policies.timing.beat_s))

    def extend(self, layout: Layout, parameters: Sequence[Tensor], at: tuple[int, int]) -> None:
        """A group was added: it is the last fragment of `layout`."""
        self._layout, self._parameters = layout, parameters
        fragment = layout.fragments[-1]
        rounds = any(narrow(parameters[i]) for i in fragment.tensors)
        self._rounding.append(self._buffers.take(fragment.numel).zero_() if rounds else None)
        self._learner.extend(layout, self._copy(fragment.index), copied(self._device), at)

    def show(self, anchors: Sequence[Tensor]) -> None:
        """Write these anchors over the parameters."""
        for fragment, anchor in zip(self._layout.fragments, anchors, strict=True):
            scatter(fragment, anchor, self._parameters, replace=True)

    def _copy(self, p: int) -> Tensor:
        fragment = self._layout.fragments[p]
        buffer = self._buffers.take(fragment.numel)
        gather(fragment, self._parameters, buffer, self._rounding[p])
        return buffer

    def _offer(self, wanted: Sequence[int], founding: bool) -> None:
        if founding:
            copies = tuple(self._copy(p) for p in wanted)
            self._learner.submit_all(copies, copied(self._device))
            return
        for p in wanted:
            self._learner.submit(p, self._copy(p), copied(self._device))

    def _apply(self, correction: Correction) -> None:
        """Law 10. The buffer must outlive an asynchronous copy to a GPU before it returns to its pool."""
        fragment, rounding = self._layout.fragments[correction.fragment], self._rounding[correction.fragment]
        scatter(fragment, correction.values, self._parameters, correction.replace, rounding)
        if self._device is not None:
            self._in_flight = [(event, held) for event, held in self._in_flight if not event.query()]  # type: ignore[no-untyped-call]
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self._device))
            self._in_flight.append((event, correction))
