"""Whether torch.distributed.checkpoint takes a step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from mend_optim.model.checkpoint_step import is_for_checkpoint


def test_only_the_step_that_a_checkpoint_takes_is_for_it() -> None:
    """It takes one for an optimizer without state."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    seen: list[bool] = []

    def watched(*_: Any) -> None:
        seen.append(is_for_checkpoint())

    optimizer.register_step_pre_hook(watched)
    get_optimizer_state_dict(model, optimizer)
    optimizer.step()
    assert seen == [True, False]
