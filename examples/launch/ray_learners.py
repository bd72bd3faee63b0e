"""Learners as actors of Ray: each is on any node that has room, and comes back on another one.

    pip install '.[ray]'
    python examples/launch/ray_learners.py --learners 3 --steps 200

On a cluster, submit it as a job, and give all nodes one secret by the variable MEND_SECRET_FILE,
since links then leave the machine.

An actor that dies is started again by Ray. It asks the board for the others' addresses, and takes
over their weights. To train your own model, change `Learner.__init__` and `Learner.train`.
"""

import argparse
import logging
import os
import socket

import ray
import torch
from torch import nn

from mend_optim import MendOptimizer, Timing

BOARD = "mend-board"


@ray.remote(num_cpus=0)
class Board:
    """The addresses that the learners have told last."""

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}

    def enter(self, name: str, address: str) -> None:
        self.addresses[name] = address

    def others(self, name: str) -> list[str]:
        return [address for other, address in self.addresses.items() if other != name]


@ray.remote(max_restarts=-1)
class Learner:
    """One learner. Between two calls of `train` its training loop stands still, so make few.

    Its arguments are small values, because Ray needs them again when it starts the actor again."""

    def __init__(self, index: int, local: bool, beat_s: float) -> None:
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        torch.set_num_threads(1)
        torch.manual_seed(0)  # the same first weights everywhere
        self.name, self.board = f"learner-{index}", ray.get_actor(BOARD)
        self.model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
        self.data = torch.Generator().manual_seed(index)  # each learner has its own data
        host = "127.0.0.1" if local else ray.util.get_node_ip_address()
        with socket.create_server((host, 0)) as free:
            self.address = f"{host}:{free.getsockname()[1]}"
        self.timing = Timing(beat_s=beat_s, evict_after_s=30 * beat_s)
        self.optimizer: MendOptimizer | None = None

    def enter(self) -> None:
        """Tell the others where this learner will be. All do so before the first one trains."""
        ray.get(self.board.enter.remote(self.name, self.address))

    def train(self, steps: int) -> dict[str, object]:
        """Take so many steps, and return where the learner stands."""
        if self.optimizer is None:  # this process is new
            self.enter()
            self.optimizer = MendOptimizer(
                torch.optim.AdamW(self.model.parameters(), lr=1e-2),
                name=self.name,
                listen=self.address,
                peers=ray.get(self.board.others.remote(self.name)),
                sync_every=8,
                timing=self.timing,
            )
            self.optimizer.join()
        for _ in range(steps):
            x = torch.randn(32, 8, generator=self.data)
            loss = (self.model(x) - x.prod(dim=1, keepdim=True).tanh()).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        status = self.optimizer.status()
        members = [member.name for member in status.rounds[-1].members] if status.rounds else []
        return {
            "name": self.name,
            "pid": os.getpid(),
            "step": status.position,
            "loss": round(loss.item(), 4),
            "members": members,
        }

    def finish(self) -> str:
        """End together with the others; return the digest of the model that all have then."""
        return self.optimizer.finish(timeout=60).digest if self.optimizer else ""


def train(
    learners: "list[ray.actor.ActorHandle]", steps: int, at_once: int = 20
) -> "list[ray.actor.ActorHandle]":
    """Let every learner train until its position is `steps`. Return those that got there."""
    under_way = {learner.train.remote(at_once): learner for learner in learners}
    done = []
    while under_way:
        (ready,), _ = ray.wait(list(under_way), num_returns=1)
        learner = under_way.pop(ready)
        try:
            stand = ray.get(ready)
        except ray.exceptions.RayActorError as error:
            # Ray starts it again, and keeps the next call until it is there.
            print(f"a learner is gone: {type(error).__name__}", flush=True)
            stand = None
        if stand:
            print(stand, flush=True)
        if stand and stand["step"] >= steps:
            done.append(learner)
        else:
            under_way[learner.train.remote(at_once)] = learner
    return done


def start(
    count: int, beat_s: float = 1.0
) -> "tuple[ray.actor.ActorHandle, list[ray.actor.ActorHandle]]":
    """Start learners that know of each other. Return the board, too: it ends with its handle."""
    board = Board.options(name=BOARD).remote()
    local = len(ray.nodes()) == 1
    learners = [Learner.remote(index, local, beat_s) for index in range(count)]
    ray.get([learner.enter.remote() for learner in learners])
    return board, learners


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small model with actors of Ray.")
    parser.add_argument("--learners", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200)
    told = parser.parse_args()
    ray.init(namespace="mend")
    _board, learners = start(told.learners)
    done = train(learners, told.steps)
    digests = ray.get([learner.finish.remote() for learner in done])
    print("one model:", len(set(digests)) == 1, digests[0], flush=True)


if __name__ == "__main__":
    main()
