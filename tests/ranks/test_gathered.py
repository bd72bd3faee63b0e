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
keep = {"reshard_after_forward": False}  # also in the inner modules
model = nn.Sequential(fully_shard(nn.Linear(3, 3), **keep), nn.Linear(3, 1))
model = fully_shard(model, **keep)
inner = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.ones(1, 3)
with torch.no_grad():
    model(x)  # the module has its whole parameters from here on
    gathered = Gathered(inner.param_groups[0]["params"])
    model(x)
    gathered.let_go()
    inner_weight, inner_bias, *outer = inner.param_groups[0]["params"]
    for part, value in zip((inner_weight, inner_bias, *outer), (0, 5, 2, 1), strict=True):
        part.fill_(value)
    print(float(model(x)))
dist.destroy_process_group()
"""


WITHOUT_LIST = """
import sys
from types import SimpleNamespace
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _composable_state
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_module
from mend_optim.model.gathered import Gathered
from mend_optim.own_tensors import OwnTensors

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
parts = list(distribute_module(nn.Linear(3, 1), init_device_mesh("cpu", (1,))).parameters())
listed = _composable_state._module_state_mapping
del _composable_state._module_state_mapping
print(Gathered(parts).is_blind)  # FSDP2 has divided nothing
_composable_state._module_state_mapping = listed
model = fully_shard(nn.Linear(3, 1))
print(Gathered(list(model.parameters())).is_blind)
del _composable_state._module_state_mapping
print(Gathered([torch.ones(1)]).is_blind)
for _ in range(2):
    OwnTensors(SimpleNamespace(fragments=()), list(model.parameters()), None, ())
dist.destroy_process_group()
"""


def told_by(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, str(folder / "store")]
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


def test_an_evaluation_before_the_first_step_hides_no_later_write(tmp_path: Path) -> None:
    ended = told_by(SCRIPT, tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "31.0\n"), ended.stderr


def test_a_torch_that_lists_no_divided_modules_is_told_once(tmp_path: Path) -> None:
    ended = told_by(WITHOUT_LIST, tmp_path)
    assert (ended.returncode, ended.stdout) == (0, 3 * "False\n"), ended.stderr
    told = "this version of torch keeps no list of the modules that FSDP2 has divided"
    assert ended.stderr.count(told) == 1
    assert "call reshard() of all its modules after" in ended.stderr
