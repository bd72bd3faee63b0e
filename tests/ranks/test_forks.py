"""Forked children of ranks, and what is left of ranks that have ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: Two ranks, of which the second forks a child for each of these calls. Then both go on.
SCRIPT = """
import gc, os, sys, weakref
from datetime import timedelta
import torch
import torch.distributed as dist
from torch import nn
from mend_optim import ClosedError, MendOptimizer

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


def step():
    optimizer.zero_grad()
    model(torch.ones(2, 2)).sum().backward()
    optimizer.step()


def steps():
    for _ in range(3):
        step()


def show():
    with optimizer.global_weights():
        pass


def leave():
    with optimizer:
        raise SystemExit


def save():
    try:
        optimizer.state_dict()
    except ClosedError as error:
        assert "in the process that trains" in str(error)
    else:
        raise AssertionError("saved")


def child(call):
    try:
        call()
    except SystemExit:
        pass
    except BaseException as error:
        print(rank, call.__name__, repr(error), flush=True)
        os._exit(1)
    os._exit(0)


steps()
for call in (steps, show, save, leave, optimizer.close):
    if not (pid := os.fork()):
        child(call)
    if os.waitpid(pid, 0)[1]:
        print(rank, "a child failed", flush=True)
    steps()
assert optimizer.finish()
print(rank, "ended after", optimizer.status().step, flush=True)
gc.disable()
optimizer.close()
group = weakref.ref(optimizer._run._group)
del optimizer, call
print(rank, "has a group" if group() else "has let go", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system forks no processes")
@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_child_of_a_rank_disturbs_nothing(tmp_path: Path) -> None:
    """It once spoke as its parent, whose learner then ended on all ranks. Nothing is left of the
    ranks after the end."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(tmp_path / "store"), str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    told = [rank.communicate(timeout=120)[0] for rank in ranks]
    for rank, lines in enumerate(told):
        assert f"{rank} ended after 18" in lines, lines
        assert "a child failed" not in lines, lines
        # Not only once Python looks for circles: each group has threads and connections.
        assert f"{rank} has let go" in lines, lines
