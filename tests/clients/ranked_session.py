"""What the scripts share in which a learner of several ranks trains in the trainer of a library."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW

from mend_optim import Finish, MendOptimizer
from tests.clients import session
from tests.clients.session import digest

RANK = int(os.environ.get("RANK", "0"))
RANKS = int(os.environ.get("WORLD_SIZE", "1"))
#: Of a part of a run, and between two rounds.
STEPS, SYNC_EVERY = 6, 2
#: Processes that a launcher starts come later than one without, by as much as the machine is busy.
TIMING = replace(session.TIMING, join_timeout_s=120.0)


class Part:
    """One of two parts of a run. The second goes on from the checkpoint that the first wrote."""

    def __init__(self, name: str, folder: Path, addresses: list[str], number: int) -> None:
        self.name, self.folder, self.number = name, folder / name, number
        me = "ab".index(name)
        self.listen = addresses[2 * number + me]
        self.peer = addresses[2 * number + 1 - me]
        self.steps = STEPS * (1 + number)
        self.optimizer: MendOptimizer | None = None

    def wrap(self, model: nn.Module) -> MendOptimizer:
        """The line that the user writes, the same on each rank."""
        self.optimizer = MendOptimizer(
            AdamW(model.named_parameters(), lr=0.01),
            name=self.name,
            listen=self.listen,
            peers=[self.peer],
            sync_every=SYNC_EVERY,
            adopt_after=1,
            timing=TIMING,
        )
        return self.optimizer

    def ended(self, model: nn.Module, finish: Finish) -> dict[str, Any]:
        """The end of this part, and of its learner."""
        assert self.optimizer is not None
        rounds = self.optimizer.status().rounds
        self.optimizer.close()
        return {
            "agreed": bool(finish),
            "reason": finish.reason,
            "digest": finish.digest,
            "tokens": dict(finish.tokens),
            "rounds": [[member.name for member in each.members] for each in rounds],
            "step": self.optimizer.status().step,
            "weights": digest(model.parameters()),
        }


def play(train: Callable[[Part], dict[str, Any]]) -> None:
    """Train both parts, and write down how they ended. The arguments: a name, a folder, and the
    addresses of both learners in both parts."""
    torch.set_num_threads(1)
    name, folder, *addresses = sys.argv[1:]
    ends = [train(Part(name, Path(folder), addresses, number)) for number in (0, 1)]
    (Path(folder) / f"{name}{RANK}.json").write_text(json.dumps(ends), encoding="utf-8")
