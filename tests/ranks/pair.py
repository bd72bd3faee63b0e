"""Two ranks of one learner that run a script, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BEGIN = """
import gc, os, sys, weakref
from datetime import timedelta
import torch
import torch.distributed as dist
from torch import nn
from mend_optim import ClosedError, MendOptimizer, UsageError

rank = int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group(
    "gloo",
    init_method=f"file://{sys.argv[1]}",
    rank=rank,
    world_size=2,
    timeout=timedelta(seconds=30),
)
torch.manual_seed(0)
model = nn.Linear(2, 1)
inner = torch.optim.SGD(model.named_parameters(), lr=0.01)
optimizer = MendOptimizer(inner, name="a", listen="127.0.0.1:0", sync_every=4)


def steps():
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 2)).sum().backward()
        optimizer.step()
"""


def run_pair(script: str, folder: Path) -> list[str]:
    """The output of the two ranks, each of which runs `BEGIN`, and then this."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", BEGIN + script, str(folder / "store"), str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    return [rank.communicate(timeout=200)[0] for rank in ranks]
