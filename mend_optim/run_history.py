"""The steps and tokens of a run so far, and the checkpoint that it goes on from."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from mend_optim.finish import Finish
from mend_optim.model.copies import flat, sketch
from mend_optim.model.layout import Layout
from mend_optim.model.plain_mode import in_plain_mode
from mend_optim.runtime.learner import Learner
from mend_optim.status import Status, status_alone
from mend_optim.worker.checkpoint import Checkpoint, with_group
from mend_optim.wrapped_parameters import WrappedParameters

log = logging.getLogger("mend_optim")
BEYOND = (
    "trains alone from here on, because its run has ended, by finish() or with its `with` block: "
    "nobody gets what it learns; call synchronize() to wait for a merge in mid-run, or make a new "
    "MendOptimizer for another run"
)


class RunHistory:
    """What lies behind one model's training, in this process and before its checkpoint.

    Args:
        name: the learner's name.
        model: the parameters that are trained.
    """

    def __init__(self, name: str, model: WrappedParameters) -> None:
        self._name = name
        self._model = model
        #: Inner steps and tokens so far, those before the loaded checkpoint included.
        self.step = 0
        self.tokens = 0
        #: The sum of these steps' inner learning rates; 0 unless the outer optimizer needs it.
        self.rate = 0.0
        #: The numbers that the script reported last. They are replaced as a whole, so other threads
        #: may read them.
        self.reported: Mapping[str, float] = {}
        #: The loaded checkpoint; without its fragments once a learner has gone on from them.
        self.saved: Checkpoint | None = None
        #: The end of the run, as long as nothing is trained after it. A library may call `finish()`
        #: before the script does.
        self.end: Finish | None = None
        #: Whether the last step was taken after the learner was closed.
        self.goes_on_alone = False
        #: Whether the state that the inner optimizer has before its first step tells of no
        #: training: SAM's `first_step()` has left it.
        self.begins_untrained = False
        # Whether `finish()` has ended the run, and nothing was trained since.
        self._is_over = False
        # Whether the weights were compared with those that `saved` was saved with.
        self._checked = True

    @property
    def totals(self) -> tuple[int, int, float]:
        """Steps, tokens and rate."""
        return self.step, self.tokens, self.rate

    @property
    def head_start(self) -> int:
        """The cluster's inner steps before those of the checkpoint's learner."""
        return self.saved.head_start if self.saved else 0

    @property
    def position(self) -> int:
        """Inner steps since the first weights, the cluster's included."""
        return self.step + self.head_start

    @property
    def has_left_anchors(self) -> bool:
        """Whether the weights have gone on from the anchors for good: the run has ended with them,
        or something was trained since the learner was closed."""
        return self.end is not None or self.goes_on_alone

    def count(self, tokens: int, rate: float, alone: bool) -> None:
        """One inner step was taken. `alone`: the learner is closed."""
        if self._is_over or self.end is not None:
            log.warning("%s: %s", self._name, BEYOND)
        self.end, self._is_over = None, False
        self.goes_on_alone = alone
        self.step += 1
        self.tokens += tokens
        self.rate += rate

    def go_on(self, saved: Checkpoint) -> None:
        """Go on from a checkpoint. It begins no other run where one was ended."""
        self.end, self._is_over = None, self._is_over or self.end is not None
        self.saved = saved
        self._checked = not saved.step
        self.step = saved.step
        self.tokens = saved.tokens
        self.rate = saved.rate

    def begun(self) -> None:
        """A learner has gone on from the checkpoint, and has copies of its own now."""
        self.begins_untrained = False
        if self.saved:
            self.saved = replace(self.saved, fragments=())

    def check(self) -> None:
        """Without peers, compare the weights with those of the loaded checkpoint, once.

        Other weights are nobody's progress, so they count as first weights."""
        saved = self.saved
        if self._checked or saved is None:
            return
        self._checked = True
        if saved.weights and not self._model.belongs_to(saved.weights):
            self.go_on(Checkpoint())

    def checkpoint(self, own: list[Tensor] | None, begun: bool) -> Checkpoint:
        """The part of a checkpoint that is no learner's.

        Args:
            own: this learner's own weights, if others are in their place.
            begun: whether a learner has gone on from `saved`.
        """
        saved = self.saved or Checkpoint()
        # Weights that were loaded and not yet compared may not be those of the checkpoint.
        known = begun or self._checked
        return replace(
            saved,
            step=self.step,
            tokens=self.tokens,
            rate=self.rate,
            weights=self._model.sketches(own) if known else saved.weights,
        )

    def status(self, name: str, learner: Learner | None, seconds_in_mend: float) -> Status:
        """Where the learner of this name stands. Without peers, `learner` is None."""
        if learner is None:
            return status_alone(name, self.step, self.tokens, self.position)
        return learner.status(
            step=self.step,
            tokens=self.tokens,
            head_start=self.head_start,
            seconds_in_mend=seconds_in_mend,
        )

    @in_plain_mode
    def extend(self, layout: Layout | None) -> None:
        """Give a loaded checkpoint, from which no learner has gone on yet, the group that was
        added."""
        saved = self.saved
        if saved is None or not saved.fragments:
            return
        here = replace(saved, step=self.step, tokens=self.tokens, rate=self.rate)
        self.saved = replace(here, fragments=())
        if layout:
            tensors = self._model.mergeable()
            added = sketch([tensors[i] for i in layout.added[-1]])
            self.saved = with_group(here, flat(layout.fragments[-1], tensors), added)
