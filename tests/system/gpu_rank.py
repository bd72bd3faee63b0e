"""One rank of a learner whose ranks share a GPU. It prints the digest of the model that it ends on.

    python -m tests.system.gpu_rank KIND RANK RANKS STORE PEER

The ranks meet at the file STORE, over gloo: NCCL wants a GPU for each rank."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from mend_optim import MendOptimizer
from tests.system.test_gpu import EVERY, SIZE, STEPS, TIMING, model, plain_step


def divided(kind: str, whole: nn.Module) -> nn.Module:
    """The model as its ranks have it."""
    if kind == "ddp":
        return DistributedDataParallel(whole, device_ids=[0])
    mesh = dist.init_device_mesh("cuda", (dist.get_world_size(),))
    return fully_shard(whole, mesh=mesh)


def main() -> None:
    kind, rank, ranks, store, peer = sys.argv[1:]
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(ranks)
    )
    torch.cuda.set_device(0)
    whole = divided(kind, model(seed=0))
    draws = torch.Generator("cuda").manual_seed(int(rank))
    with MendOptimizer(
        torch.optim.AdamW(whole.named_parameters(), lr=1e-3),
        name="ranks",
        peers=[peer],
        sync_every=EVERY,
        timing=TIMING,
        quorum=2,
    ) as optimizer:
        for _ in range(STEPS):
            x = torch.randn(64, SIZE, device="cuda", generator=draws)
            plain_step(whole, optimizer, x)
        finish = optimizer.finish(60)
    print(finish.digest, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
