"""A small model of two blocks, split by asynchronous tensor parallelism as torch has it: it shards
the sequence too, and the compiler joins each matrix product with the collective before or after it.

torch has kernels of these joined operations for CUDA alone, and does not even look for them where
NCCL is not built in. It has slow ones for tests, in plain steps: here the CPU runs these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.ranks.parallel import LENGTH, LETTERS, TOKENS, batch

BLOCKS = 2
KERNELS: dict[str, Callable[..., Any]] = {
    "fused_all_gather_matmul": symmetric._fused_all_gather_matmul_fallback,
    "fused_matmul_reduce_scatter": symmetric._fused_matmul_reduce_scatter_fallback,
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(LENGTH, 2 * LENGTH, bias=False)
        self.down = nn.Linear(2 * LENGTH, LENGTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        wider: Tensor = x + self.down(F.relu(self.up(x)))
        return wider


class Overlapped:
    """This rank's part of the model; the whole of it, not compiled, where there is one rank.

    Args:
        rank: this one.
        ranks: how many there are.
    """

    def __init__(self, rank: int, ranks: int) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.tokens = TOKENS if rank == 0 else 0
        #: How often each joined operation was called.
        self.calls: Counter[str] = Counter()
        self._rank, self._ranks = rank, ranks
        self._forward: Callable[[Tensor], Tensor] = self.model
        if ranks > 1:
            self._split()
            self._compile()

    def _split(self) -> None:
        mesh = init_device_mesh("cpu", (self._ranks,))
        plan = {
            "up": ColwiseParallel(input_layouts=Shard(0)),
            "down": RowwiseParallel(output_layouts=Shard(0)),
        }
        for block in self.model:
            parallelize_module(block, mesh, plan)

    def _compile(self) -> None:
        """Compile both directions. From here on, to compile anything is an error."""
        self._library = torch.library.Library("symm_mem", "IMPL")
        for name, kernel in KERNELS.items():
            self._library.impl(name, self._counted(name, kernel), "CPU")
        self._forward = torch.compile(self.model, fullgraph=True)
        with asynchronous():
            self.train(*batch(0, 0))
        self.model.zero_grad()
        self.calls.clear()
        torch.compiler.set_stance("fail_on_recompile")

    def _counted(self, name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            self.calls[name] += 1
            return kernel(*args, **options)

        return counted

    @property
    def graphs(self) -> int:
        """How many graphs this process has compiled."""
        return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])

    def optimizer(self) -> torch.optim.AdamW:
        return torch.optim.AdamW(self.model.named_parameters(), lr=0.003, foreach=False)

    def train(self, x: Tensor, y: Tensor) -> None:
        """Compute the gradients of this rank's rows of a batch."""
        x, y = (t.chunk(self._ranks)[self._rank] / LETTERS for t in (x, y))
        F.mse_loss(self._forward(x), y, reduction="sum").backward()


@contextmanager
def asynchronous() -> Iterator[None]:
    """Let torch's compiler join what it can, on the CPU."""
    options = {
        "_micro_pipeline_tp": True,
        "force_disable_caches": True,  # whatever else has compiled this model did not join
        "fallback_by_default": True,  # all other operations as they are: a C++ compiler takes long
        "compile_threads": 1,
    }
    with (
        patch.object(dist, "is_nccl_available", lambda: True),
        symmetric._test_mode(),
        torch._inductor.config.patch(options),
    ):
        yield
