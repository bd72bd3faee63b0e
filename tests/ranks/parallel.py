"""A small language model, divided as users divide theirs: by torch's own means, in any product of
data, tensor and pipeline parallelism. The names of its parameters do not depend on that."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

LETTERS, WIDTH, HEADS, LAYERS, LENGTH = 32, 16, 4, 4, 8
BATCH = 8
#: The tokens of one batch, as these tests count them.
TOKENS = BATCH


class Ways(NamedTuple):
    """How many ways a model is divided."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    #: Data parallel copies of the shards: hybrid sharding. They are a part of `data`.
    copies: int = 1

    @property
    def ranks(self) -> int:
        return self.data * self.tensor * self.pipeline


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            layer(x).view(batch, length, -1, WIDTH // HEADS).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed: Tensor = self.out(y.transpose(1, 2).reshape(batch, length, -1))
        return mixed


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        wider: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return wider


class Model(nn.Module):
    """Layers are known by their number, so a stage's have the names that they have in the whole."""

    def __init__(self) -> None:
        super().__init__()
        self.letters: nn.Module | None = nn.Embedding(LETTERS, WIDTH)
        self.places: nn.Module | None = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleDict({str(i): Block() for i in range(LAYERS)})
        self.norm: nn.Module | None = nn.LayerNorm(WIDTH)
        self.head: nn.Module | None = nn.Linear(WIDTH, LETTERS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.letters is not None and self.places is not None:
            x = self.letters(x) + self.places(torch.arange(x.shape[1]))
        for layer in self.layers.values():
            x = layer(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


def loss_of(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out.flatten(0, 1), y.flatten())


def batch(learner: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * learner + step)
    x = torch.randint(0, LETTERS, (BATCH, LENGTH), generator=generator)
    return x, x.roll(1, 1)


def keep_stage(model: Model, stage: int, stages: int) -> None:
    """Delete the other stages' parameters."""
    own = range(stage * LAYERS // stages, (stage + 1) * LAYERS // stages)
    for i in set(range(LAYERS)) - set(own):
        del model.layers[str(i)]
    if stage > 0:
        model.letters = model.places = None
    if stage < stages - 1:
        model.norm = model.head = None


def split_tensors(model: Model, mesh: DeviceMesh) -> None:
    """Tensor parallelism over this mesh."""
    columns = ("attention.q", "attention.k", "attention.v", "up")
    for layer in model.layers.values():
        plan: dict[str, Any] = {name: ColwiseParallel() for name in columns}
        plan |= {"attention.out": RowwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(layer, mesh, plan)
    if model.head is not None:
        parallelize_module(model, mesh, {"head": ColwiseParallel(output_layouts=Replicate())})
    if model.letters is not None:
        parallelize_module(model, mesh, {"letters": RowwiseParallel(input_layouts=Replicate())})


class Divided:
    """This rank's part of a model.

    Args:
        ways: how it is divided over all ranks of the world; a process without ranks has it whole.
        seed: of its first weights.
    """

    def __init__(self, ways: Ways, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = Model()
        self.ways = ways
        self.at = {"pp": 0, "dp": 0, "tp": 0}
        self._schedule: Schedule1F1B | None = None
        if ways.ranks > 1:
            self._divide()

    def _divide(self) -> None:
        data, tensor, pipeline, copies = self.ways
        sizes, names = (pipeline, data, tensor), ("pp", "dp", "tp")
        if copies > 1:
            sizes, names = (pipeline, copies, data // copies), ("pp", "copies", "dp")  # type: ignore[assignment]
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
        for name in names:
            self.at[name] = mesh.get_local_rank(name)
        keep_stage(self.model, self.at["pp"], pipeline)
        if tensor > 1:
            split_tensors(self.model, mesh["tp"])
        if data > 1:
            over = mesh["copies", "dp"] if copies > 1 else mesh["dp"]
            for layer in self.model.layers.values():
                fully_shard(layer, mesh=over)
            fully_shard(self.model, mesh=over)
        if pipeline > 1:
            group = mesh.get_group("pp")
            cpu = torch.device("cpu")
            stage = PipelineStage(self.model, self.at["pp"], pipeline, cpu, group=group)
            self._schedule = Schedule1F1B(stage, pipeline, loss_fn=loss_of)

    @property
    def tokens(self) -> int:
        """The tokens that this rank counts of a batch: ranks that share one count it once."""
        shares = self.at["tp"] == self.at["pp"] == 0
        return TOKENS // self.ways.data if shares else 0

    def optimizer(self) -> torch.optim.AdamW:
        named = list(self.model.named_parameters())
        if self.ways.pipeline > 1:
            named.reverse()  # a stage may list its own in any order
        return torch.optim.AdamW(named, lr=0.003, foreach=False)

    def own(self, tensor: Tensor) -> Tensor:
        """This rank's share of a batch."""
        size = BATCH // self.ways.data
        number = self.at.get("copies", 0) * (self.ways.data // self.ways.copies) + self.at["dp"]
        return tensor[number * size : (number + 1) * size]

    def train(self, x: Tensor, y: Tensor) -> Tensor | None:
        """Compute the gradients of this rank's share of a batch. Returns the output for it, on the
        last stage."""
        x, y = self.own(x), self.own(y)
        if self._schedule is None:
            out: Tensor = self.model(x)
            loss_of(out, y).backward()
            return out.detach()
        first, last = self.at["pp"] == 0, self.at["pp"] == self.ways.pipeline - 1
        told: Any = self._schedule.step(*((x,) if first else ()), **({"target": y} if last else {}))
        return told.detach() if last else None
