"""64 ranks, each in a forked child, on a backend that does nothing: a line of JSON for each says
which pieces it has, and how many of them are not what the rank has in truth.

torch keeps meshes by their ranks, with the place of the first rank that asked: hence the children.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
import torch._dynamo  # noqa: F401 - else each child would import it, for a second
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from mend_optim.model.copies import own_part
from mend_optim.ranks.pieces import Held, encode_held
from mend_optim.ranks.shards import piece_of

STAGES, DATA, TENSOR = 2, 8, 4
LAYERS = 2
#: Those of each layer: two matrices, and their biases.
PARAMETERS = 4 * LAYERS


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # 20 rows over 4 tensor parallel ranks are 5, which do not go evenly into 8.
        self.up = nn.Linear(12, 20)
        self.down = nn.Linear(20, 12)


class Collectives(TorchDispatchMode):
    """Counts what ranks do together."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += func.namespace in ("c10d", "_c10d_functional")
        return func(*args, **(kwargs or {}))


def stage(number: int) -> nn.ModuleDict:
    """The layers of one stage. Each weight is the number of its place."""
    layers = nn.ModuleDict({str(i): Layer() for i in range(LAYERS) if i % STAGES == number})
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.copy_(torch.arange(parameter.numel()).view(parameter.shape))
    return layers


def play(rank: int) -> dict[str, Any]:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=STAGES * DATA * TENSOR)
    names = ("pp", "dp", "tp")
    mesh = init_device_mesh("cpu", (STAGES, DATA, TENSOR), mesh_dim_names=names)
    layers = stage(mesh.get_local_rank("pp"))
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    for layer in layers.values():
        parallelize_module(layer, mesh["tp"], plan, src_data_rank=None)
        fully_shard(layer, mesh=mesh["dp"])
    wrong = 0
    with Collectives() as collectives:
        pieces = [piece_of(name, p) for name, p in layers.named_parameters()]
    for piece, parameter in zip(pieces, layers.parameters(), strict=True):
        whole = torch.arange(float(parameter.numel())).view(piece.shape)
        own = torch.full(piece.local_shape, -1.0)
        for there, here in piece.blocks():
            own[here] = whole[there]
        wrong += not torch.equal(own, own_part(parameter.detach()))
    said = encode_held(Held(tuple(pieces))).decode()
    return {"rank": rank, "wrong": wrong, "collectives": collectives.calls, "pieces": said}


def main() -> None:
    torch.set_num_threads(1)
    for rank in range(STAGES * DATA * TENSOR):
        child = os.fork()
        if not child:
            print(json.dumps(play(rank)), flush=True)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(1)


if __name__ == "__main__":
    main()
