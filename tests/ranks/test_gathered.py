"""What FSDP2 has gathered before a learner is constructed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from mend_optim.model.gathered import Gathered

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
model = fully_shard(nn.Linear(3, 1))
inner = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.ones(1, 3)
with torch.no_grad():
    model(x)  # the module has its whole parameters from here on
    gathered = Gathered(inner.param_groups[0]["params"])
    model(x)
    gathered.let_go()
    for part in inner.param_groups[0]["params"]:
        part.zero_()
    print(float(model(x)))
dist.destroy_process_group()
"""


def test_an_evaluation_before_the_first_step_hides_no_later_write(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "store")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "0.0\n"), ended.stderr
