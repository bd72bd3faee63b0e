"""The run behind a `MendOptimizer`: one model's training, its checkpoint and its learner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from mend_optim.errors import UsageError
from mend_optim.handover import Handover
from mend_optim.model.copies import flat, sketch, sketches
from mend_optim.model.inner_rate import inner_rate
from mend_optim.model.layout import Layout
from mend_optim.runtime.learner import Learner
from mend_optim.settings import Settings
from mend_optim.status import Status
from mend_optim.worker.checkpoint import Checkpoint, with_group


class TrainingRun:
    """One model's training: its parameters, its counts, the checkpoint that it goes on from, and
    its learner. Only the training thread calls it.

    Args:
        inner: the inner optimizer.
        settings: the learner's settings; with peers, the learner starts at once.
        wrapped_groups: the number of `inner.param_groups` when `inner` was wrapped. Each group that
            was added later is a fragment of its own.
    """

    def __init__(self, inner: Optimizer, settings: Settings, wrapped_groups: int) -> None:
        self.inner = inner
        self.settings = settings
        self.wrapped_groups = wrapped_groups
        #: Inner steps and tokens so far, those before the loaded checkpoint included.
        self.step = 0
        self.tokens = 0
        #: The sum of these steps' inner learning rates; 0 unless the outer optimizer needs it.
        self.rate = 0.0
        #: Takes part in rounds; None without peers.
        self.learner: Learner | None = None
        #: Copies parameters out and adds corrections; None before the first step with peers.
        self.handover: Handover | None = None
        # The loaded checkpoint; without its fragments once `handover` has gone on from them.
        self._saved: Checkpoint | None = None
        # Whether the weights were compared with those that `_saved` was saved with.
        self._checked = True
        self.parameters, self.layout = self._build_layout()
        self.learner = settings.connect(lambda: self.layout)

    def count_step(self, tokens: int) -> float:
        """Count one inner step on so many tokens. Returns its inner learning rate, or 0 unless the
        outer optimizer needs it."""
        counted = self.settings.outer.counts_rates
        rate = inner_rate(self.inner.param_groups) if counted else 0.0
        self.step += 1
        self.tokens += tokens
        self.rate += rate
        return rate

    def ensure_joined(self) -> tuple[Handover, bool]:
        """Before the first inner step with peers, show this learner's weights and join.

        Returns the handover, and whether the cluster's weights have just replaced the learner's."""
        if self.handover:
            return self.handover, False
        assert self.learner is not None
        self.check_layout()
        self.handover = Handover(
            self.learner, self.layout, self.parameters, self.inner, self.settings
        )
        replaced = self.handover.begin(self._saved)
        if self._saved:
            # The learner has copies of its own now.
            self._saved = replace(self._saved, fragments=())
        return self.handover, replaced

    def check_layout(self) -> None:
        """Raise `UsageError` if the inner optimizer's parameters are not those of the layout."""
        present = [p for group in self.inner.param_groups for p in group["params"]]
        self.layout.check(present, self.parameters)

    def add_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters to the inner optimizer, as one more fragment. Raises `UsageError` for
        parameters that cannot be merged; then nothing has changed."""
        groups = self.inner.param_groups
        self.inner.add_param_group(param_group)
        try:
            parameters, layout = self._build_layout()
        except UsageError:
            groups.pop()
            raise
        if not groups[-1]["params"]:
            return
        self.parameters = parameters
        self.layout = layout
        if self._saved and self._saved.fragments and not self.handover:
            added = [parameters[i] for i in layout.added[-1]]
            here = replace(self._saved, step=self.step, tokens=self.tokens, rate=self.rate)
            self._saved = with_group(here, flat(layout.fragments[-1], parameters), sketch(added))
        if self.handover:
            self.handover.extend(layout, parameters, (self.step, self.tokens, self.rate))

    def checkpoint(self, weights: Sequence[Tensor]) -> Checkpoint:
        """All that it takes to go on from here; `weights` are this learner's own parameters."""
        saved, learner, handover = self._saved or Checkpoint(), self.learner, self.handover
        # Weights that were loaded and not yet compared may not be those of the checkpoint.
        known = handover is not None or self._checked
        here = replace(
            saved,
            step=self.step,
            tokens=self.tokens,
            rate=self.rate,
            weights=sketches(self.layout, weights) if known else saved.weights,
        )
        if learner is None or handover is None:
            return here
        return replace(
            here,
            head_start=learner.head_start(),
            period=learner.period(),
            history=(*saved.history, str(learner.me)),
            fragments=handover.keep(),
        )

    def resume(self, saved: Checkpoint) -> None:
        """Go on from a checkpoint at the next step: as a new incarnation, if this one has begun."""
        if self.learner and self.handover:
            was_closed = self.learner.closed
            self.learner.close()
            self.handover = None
            self.learner = None if was_closed else self.settings.connect(lambda: self.layout)
        self._saved = saved
        self._checked = not saved.step
        self.step = saved.step
        self.tokens = saved.tokens
        self.rate = saved.rate

    def check_saved(self) -> None:
        """Without peers, compare the weights with those of the loaded checkpoint, once.

        Other weights are nobody's progress, so they count as first weights."""
        saved = self._saved
        if self._checked or saved is None:
            return
        self._checked = True
        if saved.weights != sketches(self.layout, self.parameters):
            self._saved = None
            self.step = 0
            self.tokens = 0
            self.rate = 0.0

    def status(self, seconds_in_mend: float) -> Status:
        """Where this learner stands."""
        head_start = self._saved.head_start if self._saved else 0
        if self.learner is not None:
            return self.learner.status(
                step=self.step,
                tokens=self.tokens,
                head_start=head_start,
                seconds_in_mend=seconds_in_mend,
            )
        position = self.step + head_start
        return Status(
            name=self.settings.name,
            address="",
            step=self.step,
            tokens=self.tokens,
            position=position,
            cluster_step=position,
            cluster_tokens=self.tokens,
        )

    def _build_layout(self) -> tuple[list[Tensor], Layout]:
        groups = self.inner.param_groups
        parameters: list[Tensor] = []
        names: list[str] = []
        for group in groups:
            positions = map(str, range(len(names), len(names) + len(group["params"])))
            names += map(str, group.get("param_names", positions))
            parameters += group["params"]
        later = groups[self.wrapped_groups :]
        added = [len(group["params"]) for group in later if group["params"]]
        return parameters, Layout(names, parameters, self.settings.schedule.fragments, added)
