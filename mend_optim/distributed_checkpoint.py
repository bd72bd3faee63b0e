"""The entry for torch.distributed.checkpoint, which keeps only an optimizer's `state` and
`param_groups`."""

from __future__ import annotations

import io
from typing import Any

import torch

from mend_optim.errors import UsageError, require
from mend_optim.given_state import require_dict
from mend_optim.optimizer import MendOptimizer


class LearnerState:
    """The part of `MendOptimizer.state_dict()` that is under "mend", as a `Stateful` of its own.

    It has one entry, of bytes. The entries of a learner's state differ from moment to moment, but
    torch.distributed.checkpoint fills only the entries that a state had when loading began.

    Args:
        optimizer: the optimizer whose learner is saved and loaded.

    Raises:
        UsageError: `optimizer` is not a `MendOptimizer`.

    Example:
        >>> import tempfile, torch
        >>> import torch.distributed.checkpoint as dcp
        >>> from torch.optim import SGD
        >>> optimizer = MendOptimizer(SGD([torch.nn.Parameter(torch.ones(2))]), tokens_per_step=8)
        >>> optimizer.step()
        >>> with tempfile.TemporaryDirectory() as path:
        ...     _ = dcp.save({"learner": LearnerState(optimizer)}, checkpoint_id=path, no_dist=True)
        ...     optimizer.step()
        ...     dcp.load({"learner": LearnerState(optimizer)}, checkpoint_id=path, no_dist=True)
        >>> optimizer.status().step, optimizer.status().tokens
        (1, 8)
    """

    def __init__(self, optimizer: MendOptimizer) -> None:
        require(
            isinstance(optimizer, MendOptimizer),
            "optimizer",
            type(optimizer).__name__,
            "a MendOptimizer",
        )
        self._optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        """The learner's state, as bytes that `torch.load` reads with `weights_only=True`. Of a
        learner of several ranks, only the lead has it; the others have an empty dict."""
        saved = self._optimizer.learner_state()
        if not self._optimizer._run.keeps_learner:
            return {}
        file = io.BytesIO()
        torch.save(saved, file)
        return {"mend": file.getvalue()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state as `MendOptimizer.load_state_dict` does, but leave the inner
        optimizer's state alone.

        Args:
            state_dict: from `state_dict()`.

        Raises:
            UsageError: it is damaged, or another model's; then nothing has changed.
        """
        if not self._optimizer._run.keeps_learner:
            self._optimizer.load_learner_state({})
            return
        require_dict(state_dict)
        content = state_dict.get("mend")
        try:
            state = torch.load(io.BytesIO(content), weights_only=True)  # type: ignore[arg-type]
        except Exception as error:
            raise UsageError(
                f"state_dict['mend'] must be the bytes that state_dict() gave, "
                f"got {repr(content)[:40]}; load without this entry to begin afresh"
            ) from error
        self._optimizer.load_learner_state(state)
