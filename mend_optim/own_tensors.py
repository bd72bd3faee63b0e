"""This process's parameters, their moments and its buffers: copied out fragment by fragment, and
corrected. Only the training thread calls this."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from mend_optim.codecs.buffers import LOOK, PER_ROUND, Buffers
from mend_optim.engine.moment_schedule import Moment, Updates
from mend_optim.model.copies import Ready, belong_to, gather, give_back, narrow, scatter
from mend_optim.model.gathered import UNKNOWN, Gathered
from mend_optim.model.layout import BufferFragment, Fragment, Layout
from mend_optim.model.module_buffers import ModuleBuffers, gather_buffers, move_buffers
from mend_optim.model.moment_state import (
    FragmentState,
    clip_first_moment,
    correct,
    install,
    read,
)
from mend_optim.model.ruined_state import reset_state
from mend_optim.model.side_copies import SideCopies
from mend_optim.model.weights_watch import WeightsWatch
from mend_optim.runtime.interrupts import Uninterrupted
from mend_optim.worker.correction import BufferCorrection, Correction, Reading

log = logging.getLogger("mend_optim")


class ModelTensors(Protocol):
    """The tensors of one model, as its fragments: where copies come from, and corrections go to.

    `steps` are this learner's inner steps so far: the number of updates where the inner optimizer
    does not count them itself."""

    @property
    def layout(self) -> Layout:
        """Which tensor belongs to which fragment."""
        ...

    @property
    def pool(self) -> Buffers:
        """Host memory for copies."""
        ...

    @property
    def watch(self) -> WeightsWatch:
        """Notices weights that are replaced between steps."""
        ...

    def memory(self, fragment: Fragment) -> Tensor:
        """Host memory for a flat copy of the fragment."""
        ...

    def copy(self, p: int) -> Tensor:
        """A flat copy of fragment `p`, complete once what `ready` returns has returned."""
        ...

    def ready(self) -> Ready:
        """A function that waits for all copies so far."""
        ...

    def read(self, p: int, names: Sequence[str], steps: int) -> dict[str, Reading]:
        """Copies of the moments of these names."""
        ...

    def state_names(self, p: int, steps: int) -> list[str]:
        """The names of all that the inner optimizer keeps for fragment `p`."""
        ...

    def have_stepped(self) -> bool:
        """Whether the inner optimizer has trained these tensors before."""
        ...

    def bring(self, correction: Correction) -> Correction:
        """The correction, with its tensors where the parameters are. The worker calls it."""
        ...

    def apply(self, correction: Correction, steps: int) -> None:
        """Add a correction to parameters and moments (law 10), or let the buffers follow one."""
        ...

    def apply_moments(self, correction: Correction, steps: int) -> None:
        """Add a correction to the moments alone."""
        ...

    def put(self, p: int, anchor: Tensor, *, for_good: bool) -> None:
        """Write an anchor into fragment `p`. `for_good`: as its own weights."""
        ...

    def keeping(self, own: Sequence[Tensor]) -> AbstractContextManager[None]:
        """Write the parameters `own`, and the present buffers, back when the block ends."""
        ...

    def rounded_off(self, p: int) -> Tensor | None:
        """A copy of what the dtypes of fragment `p` have rounded away; None if they are wide."""
        ...

    def load_rounded_off(self, p: int, lost: Tensor) -> None:
        """Take over what `rounded_off` returned: parameters that are wide by now grow by it."""
        ...

    def forget_rounded_off(self) -> None:
        """Nothing was rounded away."""
        ...

    def belong_to(self, told: str) -> bool:
        """Whether the weights are those that a checkpoint tells the sketches of."""
        ...

    def extend(self, layout: Layout, parameters: Sequence[Tensor]) -> None:
        """Take over a layout whose last fragment is an added group."""
        ...


class OwnTensors:
    """The tensors of this process.

    Args:
        layout: which parameters belong to which fragment.
        parameters: the model's parameters, in the layout's order.
        inner: the inner optimizer, whose state holds the moments.
        moments: those that are averaged.
        module_buffers: the layout's buffers.
    """

    def __init__(
        self,
        layout: Layout,
        parameters: Sequence[Tensor],
        inner: Optimizer,
        moments: Sequence[Moment],
        *,
        module_buffers: ModuleBuffers | None = None,
    ) -> None:
        self.layout = layout
        self.inner = inner
        self._parameters = parameters
        self._gathered = Gathered(parameters)
        if self._gathered.is_blind:
            _warn_once(UNKNOWN)
        self._module_buffers = module_buffers or ModuleBuffers(())
        self._moments = {moment.name: moment for moment in moments}
        gpu = next((p.device for p in parameters if p.is_cuda), None)
        self._side = SideCopies(gpu) if gpu else None
        self.pool = Buffers(look=max(LOOK, PER_ROUND * len(layout.fragments)))
        # Per fragment, what its parameters' dtypes have rounded away; None where they are float32.
        rounds = any(map(narrow, parameters))
        self._rounding = [
            self._nothing_lost(f) if rounds and not isinstance(f, BufferFragment) else None
            for f in layout.fragments
        ]
        self.watch = WeightsWatch(parameters)

    # ── copies ────────────────────────────────────────────────────────────────────────────────────

    def memory(self, fragment: Fragment) -> Tensor:
        """See `ModelTensors`, as for all methods here."""
        memory = self.pool.take(fragment.numel)
        return memory.view(torch.uint8) if isinstance(fragment, BufferFragment) else memory

    def copy(self, p: int) -> Tensor:
        """See `ModelTensors`."""
        fragment = self.layout.fragments[p]
        if isinstance(fragment, BufferFragment):
            tensors = self._present_buffers()
            return self._copied(self.memory(fragment), partial(gather_buffers, fragment, tensors))
        return self._copy(fragment, self._parameters, self._rounding[p])

    def plain(self, p: int, own: Sequence[Tensor] | None) -> Tensor:
        """A flat copy of fragment `p` without what was rounded away; of the parameters `own`, if
        others are in their place."""
        return self._copy(self.layout.fragments[p], own or self._parameters, None)

    def _copy(
        self, fragment: Fragment, parameters: Sequence[Tensor], rounding: Tensor | None
    ) -> Tensor:
        out = self.memory(fragment)
        return self._copied(out, partial(gather, fragment, parameters), rounding)

    def _copied(
        self, out: Tensor, fill: Callable[..., object], rounding: Tensor | None = None
    ) -> Tensor:
        """Host memory with a copy of the values that `fill` writes. From a GPU it is complete once
        the function of `ready` has returned. `fill` gets memory, and `rounding` if there is any."""
        room = self._side.room(out.numel(), out.dtype) if self._side else None
        if self._side and room is not None:
            fill(room)
            self._side.take_out(room, out, rounding)
            return out
        self._join()
        if rounding is None:
            fill(out)
        else:
            fill(out, rounding)
        return out

    def ready(self) -> Ready:
        """See `ModelTensors`."""
        return self._side.ready() if self._side else lambda: None

    def read(self, p: int, names: Sequence[str], steps: int) -> dict[str, Reading]:
        """See `ModelTensors`."""
        fragment_state = self._state(p, steps)
        updates: list[Updates] = []

        def fill(name: str, out: Tensor) -> None:
            updates.append(read(self._moments[name], fragment_state, out))

        values = [
            self._copied(self.pool.take(fragment_state.fragment.numel), partial(fill, name))
            for name in names
        ]
        return dict(zip(names, map(Reading, values, updates), strict=True))

    def state_names(self, p: int, steps: int) -> list[str]:
        """See `ModelTensors`."""
        return self._state(p, steps).names()

    def have_stepped(self) -> bool:
        """See `ModelTensors`."""
        fragments = self.layout.fragments
        own = [f.index for f in fragments if not isinstance(f, BufferFragment)]
        return any(self._state(p, 0).has_stepped() for p in own)

    def _join(self) -> None:
        """Let the training stream wait for what was rounded away and is on its way."""
        if self._side:
            self._side.join()

    def _settle(self) -> None:
        """Wait until the host has what was rounded away."""
        if self._side:
            self._side.settle()

    def _nothing_lost(self, fragment: Fragment) -> Tensor:
        """Memory for what was rounded away, which is nothing yet. The caller's script may be in
        inference mode, and have another default device."""
        is_pinned = self._side is not None
        with torch.inference_mode(False):
            return torch.zeros(
                fragment.numel, dtype=torch.float32, device="cpu", pin_memory=is_pinned
            )

    def _state(self, p: int, steps: int) -> FragmentState:
        return FragmentState(self.layout.fragments[p], self._parameters, self.inner, steps)

    # ── corrections ───────────────────────────────────────────────────────────────────────────────

    def bring(self, correction: Correction) -> Correction:
        """See `ModelTensors`."""
        side = self._side
        if side is None or isinstance(correction, BufferCorrection):
            return correction
        brought = side.bring([correction.values, *(m.values for m in correction.moments)])
        if brought is None:
            return correction
        values, *rest = brought
        pairs = zip(correction.moments, rest, strict=True)
        moments = tuple(m._replace(values=there) for m, there in pairs)
        return replace(correction, there=replace(correction, values=values, moments=moments))

    def apply(self, correction: Correction, steps: int) -> None:
        """See `ModelTensors`."""
        fragment = self.layout.fragments[correction.fragment]
        present = self._present(correction)
        if isinstance(fragment, BufferFragment):
            assert isinstance(correction, BufferCorrection)
            tensors = self._present_buffers()
            move_buffers(fragment, tensors, correction.values, correction.base)
        else:
            self._scatter(fragment, present.values, present.replace, for_good=True)
            if correction.resets:
                reset_state(self._state(correction.fragment, steps), self._moments)
            self.apply_moments(present, steps)

    def _present(self, correction: Correction) -> Correction:
        """The correction with its tensors on the GPU, if they are there."""
        if self._side is None or correction.there is None:
            return correction
        there = correction.there
        self._side.use([there.values, *(m.values for m in there.moments)])
        return there

    def _scatter(
        self, fragment: Fragment, values: Tensor, replaces: bool, *, for_good: bool
    ) -> None:
        self._gathered.let_go()
        lost = self._rounding[fragment.index] if for_good else None
        there = self._side.take_in(lost) if self._side and lost is not None else None
        if self._side and lost is not None and there is not None:
            scatter(fragment, values, self._parameters, replaces, there)
            self._side.put_back(there, lost)
        else:
            self._join()
            scatter(fragment, values, self._parameters, replaces, lost)

    def apply_moments(self, correction: Correction, steps: int) -> None:
        """See `ModelTensors`."""
        known = [m for m in correction.moments if m.moment in self._moments]
        if not known:
            return
        fragment_state = self._state(correction.fragment, steps)
        for m in known:
            if not m.newcomer:
                correct(self._moments[m.moment], fragment_state, m.values, m.updates)
        clip_first_moment(fragment_state)
        values = {m.moment: m.values for m in known if m.newcomer}
        if values:
            updates = {m.moment: m.updates for m in known if m.newcomer}
            install(tuple(self._moments.values()), fragment_state, values, updates)

    def put(self, p: int, anchor: Tensor, *, for_good: bool) -> None:
        """See `ModelTensors`."""
        fragment = self.layout.fragments[p]
        if isinstance(fragment, BufferFragment):
            move_buffers(fragment, self._present_buffers(), anchor, None)
            return
        self._scatter(fragment, anchor, True, for_good=for_good)

    @contextmanager
    def keeping(self, own: Sequence[Tensor]) -> Iterator[None]:
        """See `ModelTensors`."""
        own_buffers = [tensor.detach().clone() for tensor in self._present_buffers()]
        try:
            yield
        finally:
            with Uninterrupted():
                self._gathered.let_go()
                # No parameter that is divided could be written to in inference mode. A buffer that
                # the model has replaced in that mode can be written to in no other.
                with torch.inference_mode(False), torch.no_grad():
                    for parameter, value in zip(self._parameters, own, strict=True):
                        parameter.copy_(value)
                with torch.no_grad():
                    for tensor, value in zip(self._present_buffers(), own_buffers, strict=True):
                        tensor.copy_(value)

    # ── what narrow dtypes lose ───────────────────────────────────────────────────────────────────

    def rounded_off(self, p: int) -> Tensor | None:
        """See `ModelTensors`."""
        rounding = self._rounding[p]
        if rounding is None:
            return None
        self._settle()
        return rounding.clone()

    def load_rounded_off(self, p: int, lost: Tensor) -> None:
        """See `ModelTensors`."""
        self._gathered.let_go()
        self._settle()
        rest = give_back(self.layout.fragments[p], lost, self._parameters)
        rounding = self._rounding[p]
        if rounding is not None:
            rounding.copy_(rest)

    def forget_rounded_off(self) -> None:
        """See `ModelTensors`."""
        self._settle()
        for lost in [rounding for rounding in self._rounding if rounding is not None]:
            lost.zero_()

    # ── the model ─────────────────────────────────────────────────────────────────────────────────

    def belong_to(self, told: str) -> bool:
        """See `ModelTensors`."""
        return belong_to(told, self.layout, self._parameters)

    def extend(self, layout: Layout, parameters: Sequence[Tensor]) -> None:
        """See `ModelTensors`."""
        self.layout = layout
        self._parameters = parameters
        fragment = layout.fragments[-1]
        rounds = any(narrow(parameters[i]) for i in fragment.tensors)
        self._rounding.append(self._nothing_lost(fragment) if rounds else None)

    def _present_buffers(self) -> list[Tensor]:
        """The layout's buffers. Raises `UsageError` if they are others than they were."""
        tensors = self._module_buffers.tensors()
        self.layout.check_buffers(tensors)
        return tensors


@cache
def _warn_once(text: str) -> None:
    """A later optimizer of this process has nothing new to say."""
    log.warning(text)
