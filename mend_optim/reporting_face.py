"""The face of an optimizer that takes numbers from the script, for those that watch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mend_optim.inner_face import InnerFace
from mend_optim.reported import merged_report, read_report
from mend_optim.status import Status


class ReportingFace(InnerFace):
    """An optimizer to which a script can report numbers."""

    def report(self, **numbers: Any) -> None:
        """Tell a few numbers, such as the loss, to those that watch this learner: `mend status`,
        `mend top` and `status().reported`. No other learner uses them.

        The newest value under each name counts. A float costs about a microsecond. A tensor is read
        by `float()`: on a GPU that waits until the device has computed it, so report a tensor only
        where your loop reads it anyway.

        Args:
            **numbers: floats, or tensors of one element; at most 16 names in a run, of at most 32
                printable characters.

        Raises:
            UsageError: a name or a number is wrong, or there are too many; then nothing has
                changed.

        Example:
            >>> import torch
            >>> from mend_optim import MendOptimizer
            >>> inner = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))])
            >>> optimizer = MendOptimizer(inner, name="a")
            >>> optimizer.report(loss=0.125)
            >>> optimizer.status().reported
            {'loss': 0.125}
        """
        history, learner = self._run.history, self._run.learner
        history.reported = merged_report(history.reported, read_report(numbers))
        if learner is not None:
            learner.network.reported = history.reported

    def _status(self) -> Status:
        run = self._run
        return replace(run.status(), reported=dict(run.history.reported))
