"""Learners of one process, one after another, whose kernels are those for an older processor if the
environment says so.

    python -m tests.system.processor_learner FILE

Each line of the file has the arguments of `train`, and each line of the output the end of a
learner. The first line of the output has the kind of kernels."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mend_optim import Int4, MendOptimizer, MomentSchedule, Nesterov, PowerSGD

STEPS = 24
#: Settings whose state goes through the kernels of every round. Their tensors have odd sizes, so
#: that vectors of any width leave a rest.
SETTINGS: dict[str, Any] = {
    "sync_every": 4,
    "adopt_after": 2,
    "moments": MomentSchedule(first=1, second=1),
    "outer": Nesterov(gain=1.0, momentum=0.7),
}
CODECS = {
    "int4, back exact": Int4(back="exact"),
    "powersgd, back same": PowerSGD(rank=3, back="same"),
}


def digest(tensors: Iterable[Tensor]) -> str:
    content = hashlib.sha256()
    for tensor in tensors:
        content.update(tensor.detach().contiguous().numpy().tobytes())
    return content.hexdigest()


def train(name: str, seed: int, address: str, peers: list[str], **options: Any) -> dict[str, Any]:
    """The digests with which a learner ends, and how many rounds it had."""
    torch.manual_seed(5)
    model = nn.Sequential(
        nn.Linear(37, 129), nn.BatchNorm1d(129), nn.ReLU(), nn.Linear(129, 65), nn.Linear(65, 3)
    )
    draws = torch.Generator().manual_seed(seed)
    codec = options.pop("codec")
    with MendOptimizer(
        torch.optim.AdamW(model.parameters(), lr=3e-3),
        name=name,
        listen=address,
        peers=peers,
        buffers=model,
        codec=CODECS.get(codec, codec),
        **{**SETTINGS, **options},
    ) as optimizer:
        for _ in range(STEPS):
            optimizer.zero_grad()
            x = torch.randn(16, 37, generator=draws)
            (model(x).sin() - x[:, :3]).square().mean().backward()
            optimizer.step()
        finish = optimizer.finish()
    with optimizer.global_weights():
        ended = {"weights": digest(model.parameters()), "buffers": digest(model.buffers())}
    return {**ended, "agreed": finish.agreed, "rounds": optimizer.status().rounds_adopted}


def main() -> None:
    torch.set_num_threads(1)
    print(json.dumps(torch.backends.cpu.get_cpu_capability()))
    for line in Path(sys.argv[1]).read_text().splitlines():
        print(json.dumps(train(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
