"""One training process, with mend_optim or with torchft: `python -m bench.peers.trainer JSON`.

Both train the same small model at the same pace and print one JSON event a line, with the time on
the clock that all processes of a machine share:

    imported   all imports are done, those of torch's first optimizer included
    ready      training begins
    step       `thrown`: how many steps of this process it made worthless
    merge      `parties`: how many learners were merged

torchft is set up as in its README and examples: DiLoCo with one fragment, without overlap, gloo, a
Manager that may commit alone. Its outer optimizer is SGD(lr=1), plain averaging, which is also
mend_optim's default."""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

WIDTH, LAYERS, BATCH = 128, 4, 8
SYNC_EVERY, STEP_S = 32, 0.02
QUORUM_S = 10.0  # how long torchft waits for its lighthouse before it gives up; its default is 60 s

Say = Callable[..., None]
Facts = dict[str, Any]


def say(event: str, **facts: Any) -> None:
    """Print one event in one write, because two threads print."""
    os.write(1, json.dumps({"event": event, "at": time.monotonic(), **facts}).encode() + b"\n")


class Task:
    """The model and its data. `backward` is one micro-batch that takes as long as a step should."""

    def __init__(self, seed: int) -> None:
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self._inputs, self._targets = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)

    def backward(self) -> None:
        time.sleep(STEP_S)
        self.optimizer.zero_grad()
        (self.model(self._inputs) - self._targets).square().mean().backward()


def train_with_mend(facts: Facts) -> None:
    from mend_optim import Event, MendOptimizer

    task = Task(facts["seed"])
    say("imported")

    def note(event: Event) -> None:
        record = event.facts.get("round")
        if record and record.mine:
            say("merge", parties=len(record.members), sealer=record.sealer)

    optimizer = MendOptimizer(
        task.optimizer,
        name=facts["name"],
        listen=facts["listen"],
        peers=facts["peers"],
        sync_every=SYNC_EVERY,
        on_event=note,
    )
    say("ready")
    taken = 0
    while True:
        task.backward()
        optimizer.step()
        before, taken = taken, optimizer.status().step
        # the gradient of weights that another learner's replaced
        say("step", thrown=int(taken == before))


def train_with_torchft(facts: Facts) -> None:
    import torch
    from torch.distributed import TCPStore
    from torchft import Manager, ProcessGroupGloo
    from torchft.local_sgd import DiLoCo

    say("imported")
    task = Task(facts["seed"])

    healed = False

    def load(state: Facts) -> None:
        nonlocal healed
        healed = True
        task.model.load_state_dict(state["model"])
        task.optimizer.load_state_dict(state["optimizer"])

    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=30)),
        load_state_dict=load,
        state_dict=lambda: {
            "model": task.model.state_dict(),
            "optimizer": task.optimizer.state_dict(),
        },
        min_replica_size=1,
        use_async_quorum=False,
        quorum_timeout=timedelta(seconds=QUORUM_S),
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        lighthouse_addr=facts["lighthouse"],
        replica_id=facts["name"],
        hostname="localhost",
    )
    outer = torch.optim.SGD(task.model.parameters(), lr=1.0)
    with DiLoCo(manager, [task.model], task.optimizer, outer, sync_every=SYNC_EVERY):
        say("ready")
        for step in itertools.count(1):
            task.backward()
            before, healed = manager.current_step(), False
            task.optimizer.step()
            committed = manager.current_step() > before
            # who healed took another's weights, and brought nothing
            kept = committed and not healed
            say("step", thrown=SYNC_EVERY if step % SYNC_EVERY == 0 and not kept else 0)
            if committed:
                say("merge", parties=manager.num_participants())


def _end_with_the_bench() -> None:
    """End this process when the bench ends and its pipe closes."""
    sys.stdin.read()
    os._exit(1)


def main() -> None:
    threading.Thread(target=_end_with_the_bench, daemon=True).start()
    facts: Facts = json.loads(sys.argv[1])
    {"mend_optim": train_with_mend, "torchft": train_with_torchft}[facts["library"]](facts)


if __name__ == "__main__":
    main()
