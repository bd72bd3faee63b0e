"""For torch.distributed.checkpoint, which keeps of an optimizer only its `state` and
`param_groups`."""

from __future__ import annotations

import io
from typing import Any

import torch

from mend_optim.errors import UsageError, require
from mend_optim.optimizer import MendOptimizer


class LearnerState:
    """All that `MendOptimizer.state_dict()` has beside the inner optimizer's state, as a `Stateful`
    of its own:

        dcp.save({"model": …, "optimizer": …, "learner": LearnerState(optimizer)}, checkpoint_id=path)

    One entry, bytes: what a learner holds differs from moment to moment, and
    torch.distributed.checkpoint fills only what a state had when loading began."""

    def __init__(self, optimizer: MendOptimizer) -> None:
        require(
            isinstance(optimizer, MendOptimizer),
            "optimizer",
            type(optimizer).__name__,
            "a MendOptimizer",
        )
        self._optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        file = io.BytesIO()
        torch.save(self._optimizer.learner_state(), file)
        return {"mend": file.getvalue()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there, as `MendOptimizer.load_state_dict` does, but leave the inner
        optimizer's state alone. Raises `UsageError` for what is damaged or another model's; then
        nothing has changed."""
        content = state_dict.get("mend")
        try:
            state = torch.load(io.BytesIO(content), weights_only=True)  # type: ignore[arg-type]
        except Exception as error:
            raise UsageError(
                f"state_dict['mend'] must be the bytes that state_dict() gave, got {repr(content)[:40]}; "
                "leave the entry out of what is loaded to begin afresh"
            ) from error
        self._optimizer.load_learner_state(state)
