"""What the oldest torch that is supported (2.4) lacks. Tests of it are skipped there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed.fsdp
from torch import Tensor
from torch.nn import Parameter
from torch.optim import SGD, Adam


def _fails(deed: Callable[[], object]) -> bool:
    try:
        deed()
    except (RuntimeError, TypeError):
        return True
    return False


def _step_with_tensor_betas() -> None:
    parameter = Parameter(torch.zeros(1, dtype=torch.float64))
    parameter.grad = torch.ones_like(parameter)
    betas: tuple[Tensor, Tensor] = (torch.tensor(0.9), torch.tensor(0.99))
    optimizer = Adam([parameter], betas=betas, foreach=False)  # type: ignore[arg-type]
    optimizer.step()


#: Whether `betas` may be tensors, whatever the dtype of the parameters is.
HAS_TENSOR_BETAS = not _fails(_step_with_tensor_betas)
needs_names = pytest.mark.skipif(
    _fails(lambda: SGD([("weight", Parameter(torch.zeros(1)))], lr=0.1)),
    reason="the optimizers of this torch take no named parameters",
)
needs_float8 = pytest.mark.skipif(
    _fails(lambda: torch.ones(1, dtype=torch.float8_e4m3fn)),
    reason="this torch cannot fill float8 tensors on the CPU",
)
needs_fully_shard = pytest.mark.skipif(
    not hasattr(torch.distributed.fsdp, "fully_shard"),
    reason="this torch has no fully_shard in torch.distributed.fsdp",
)
