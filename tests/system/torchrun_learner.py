"""One learner of `test_torchrun.py`: trains until it is told to stop, and prints what it has seen.

    torchrun … torchrun_learner.py FOLDER [rank that fails at its first start]

It trains until the folder has a file `stop`, and prints one JSON object per line. With
TEST_GROUP=2, every two ranks are one learner.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import Linear
from torch.optim import SGD

from mend_optim import Event, MendOptimizer, Timing

TIMING = Timing(beat_s=0.2, join_timeout_s=60.0, round_timeout_s=20.0, evict_after_s=5.0)


def say(**facts: Any) -> None:
    rank = os.environ["RANK"]
    # one write, because torchrun's processes share the pipe
    sys.stdout.write(json.dumps({"rank": int(rank), "pid": os.getpid(), **facts}) + "\n")
    sys.stdout.flush()


def tell(event: Event) -> None:
    if event.kind in ("joined", "alone", "round"):
        record = event.facts.get("round")
        members = [member.name for member in record.members] if record else []
        say(event=event.kind, text=event.text, members=members)


def told_to_stop(folder: Path, group: Any) -> bool:
    """Whether there is the file; all ranks of a learner say the same."""
    told = torch.tensor([(folder / "stop").exists()], dtype=torch.uint8)
    if group is not None:
        dist.all_reduce(told, dist.ReduceOp.MAX, group=group)
    return bool(told)


def main() -> None:
    folder = Path(sys.argv[1])
    rank, restarts = os.environ["RANK"], os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    fails = sys.argv[2:] == [rank] and restarts == "0"
    torch.set_num_threads(1)
    group, size = None, int(os.environ.get("TEST_GROUP", "1"))
    if size > 1:
        dist.init_process_group("gloo")
        group, _ = dist.new_subgroups(size)
    torch.manual_seed(0)
    model = Linear(4, 1)
    optimizer = MendOptimizer(
        SGD(model.parameters(), lr=0.01),
        name=f"learner-{int(rank) // size}-{restarts}",
        listen=os.environ.get("TEST_LISTEN"),
        peers="env://",
        sync_every=4,
        timing=TIMING,
        group=group,
        on_event=tell,
    )
    while not told_to_stop(folder, group):
        optimizer.zero_grad()
        model(torch.ones(8, 4)).square().sum().backward()
        optimizer.step()
        if fails and optimizer.status().rounds_adopted:
            say(event="fails")
            os._exit(1)
    end = optimizer.finish(timeout=60)
    say(event="end", agreed=end.agreed, digest=end.digest, names=sorted(end.tokens))


if __name__ == "__main__":
    main()
