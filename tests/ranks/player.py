"""One process of the pool: it plays its part in each scenario that it is told on standard input,
and says what it saw, one line of JSON each.

Processes 0 and 1 are the ranks of learner a, or process 0 is a by itself. The last one is learner
b. All make the same calls of `torch.distributed` in the same order."""

from __future__ import annotations

import copy
import gc
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
import torch._dynamo  # noqa: F401 - else the first learner that shards would do it in mid-run
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from mend_optim import (
    Adoption,
    Event,
    LearnerState,
    MendError,
    MendOptimizer,
    MomentSchedule,
    UsageError,
)
from mend_optim.own_tensors import OwnTensors
from mend_optim.rank_meetings import Meetings
from mend_optim.rank_run import RankRun
from mend_optim.rank_traffic import Arrived, RankTraffic
from mend_optim.ranks.group import _pairs
from mend_optim.ranks.shards import Split
from mend_optim.ranks.words import Call
from mend_optim.runtime import held_copies
from mend_optim.runtime.learner import Learner

RANKS = 2
PROCESSES = RANKS + 1
BATCH = 8
HIDDEN = 6
STEPS = 18
ROUNDS = 3
LOCKSTEP = {"sync_every": 4, "fragments": 2, "adopt_after": 2}
AHEAD = {"sync_every": 10, "fragments": 1, "adopt_after": 8}
AHEAD_STEPS = 29
FREE = {"sync_every": 4}
EXACT: dict[str, Any] = {"sync_every": 6, "fragments": 2, "moments": None, "merge": "mean"}
EXACT["adoption"] = Adoption(gain=1.0)
EXACT_ROUNDS = 6
LR = 2.0**-10
Facts = dict[str, Any]


class Model(nn.Module):
    """Two matrices with their biases. The last bias does not go evenly into 2 ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, HIDDEN)
        self.down = nn.Linear(HIDDEN, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.tanh(self.up(x)))


def batch(learner: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * learner + step)
    x = torch.randn(BATCH, 4, generator=generator)
    return x, x[:, :3].sin()


def loss_of(out: Tensor, y: Tensor) -> Tensor:
    return (out - y).square().mean()


# ── the ways to divide a model ────────────────────────────────────────────────────────────────────


class Whole:
    """The model is here, whole. It is the twin of those that are divided."""

    tokens = BATCH
    shards: Any = None

    def __init__(self, model: Model, pair: Any) -> None:
        self.model = model
        self.pair = pair
        self.rank = dist.get_rank(pair) if dist.is_initialized() else 0
        self.divide()

    def divide(self) -> None: ...

    def parameters(self) -> list[tuple[str, Tensor]]:
        return list(self.model.named_parameters())

    def train(self, x: Tensor, y: Tensor) -> None:
        loss_of(self.model(x), y).backward()


class Copied(Whole):
    """Each rank has the model, and half of the batch."""

    tokens = BATCH // RANKS

    def divide(self) -> None:
        self.trained: nn.Module = DistributedDataParallel(self.model, process_group=self.pair)

    def train(self, x: Tensor, y: Tensor) -> None:
        n = self.tokens
        here = slice(self.rank * n, (self.rank + 1) * n)
        loss_of(self.trained(x[here]), y[here]).backward()


class Sharded(Copied):
    """FSDP2: each rank has some rows of each parameter; one that has 3 has none on the last."""

    def divide(self) -> None:
        mesh = DeviceMesh.from_group(self.pair, "cpu")
        for layer in (self.model.up, self.model.down, self.model):
            fully_shard(layer, mesh=mesh)
        self.trained = self.model


class Tensorwise(Whole):
    """Tensor parallelism: columns of one matrix, rows of the other. The ranks share the batch, so
    the second counts none of it."""

    def divide(self) -> None:
        mesh = DeviceMesh.from_group(self.pair, "cpu")
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(self.model, mesh, plan)
        self.tokens = BATCH if self.rank == 0 else 0


def hidden_units(blocks: int, rank: int) -> Tensor:
    """Those that a rank has, by their numbers."""
    return torch.arange(HIDDEN).view(blocks, RANKS, -1)[:, rank].reshape(-1)


class _Summed(torch.autograd.Function):
    """The sum over the ranks. Each has the whole gradient of it."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, pair: Any) -> Tensor:
        whole = part.clone()
        dist.all_reduce(whole, group=pair)
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient, None


class Plain(Whole):
    """Tensor parallelism by hand, with plain tensors, as Megatron does it."""

    blocks = 1

    def divide(self) -> None:
        self.tokens = BATCH if self.rank == 0 else 0
        units = hidden_units(self.blocks, self.rank)
        up, down = self.model.up, self.model.down
        up.weight, up.bias = nn.Parameter(up.weight[units]), nn.Parameter(up.bias[units])
        down.weight = nn.Parameter(down.weight[:, units].contiguous())
        rowwise = Split(dim=0, group=self.pair, blocks=self.blocks)
        self.shards = {
            "up.weight": rowwise,
            "up.bias": rowwise,
            "down.weight": Split(dim=1, group=self.pair, blocks=self.blocks),
        }

    def train(self, x: Tensor, y: Tensor) -> None:
        hidden = torch.tanh(self.model.up(x))
        part = nn.functional.linear(hidden, self.model.down.weight)
        loss_of(_Summed.apply(part, self.pair) + self.model.down.bias, y).backward()


class Fused(Plain):
    """The same with three blocks, of each of which each rank has a part: as with the query, the key
    and the value of attention in one matrix."""

    blocks = 3


class Undeclared(Plain):
    """The same, and nobody tells."""

    def divide(self) -> None:
        super().divide()
        self.shards = None


class Staged(Whole):
    """A pipeline of two stages, by hand."""

    def divide(self) -> None:
        self.tokens = BATCH if self.rank == 0 else 0

    def parameters(self) -> list[tuple[str, Tensor]]:
        mine = ("up", "down")[self.rank]
        return [pair for pair in self.model.named_parameters() if pair[0].startswith(mine)]

    def train(self, x: Tensor, y: Tensor) -> None:
        hidden = torch.empty(BATCH, 6)
        if self.rank == 0:
            hidden = torch.tanh(self.model.up(x))
            dist.send(hidden.detach(), 1, group=self.pair)
            gradient = torch.empty(BATCH, 6)
            dist.recv(gradient, 1, group=self.pair)
            hidden.backward(gradient)
            return
        dist.recv(hidden, 0, group=self.pair)
        hidden.requires_grad_()
        loss_of(self.model.down(hidden), y).backward()
        dist.send(hidden.grad, 0, group=self.pair)


WAYS: dict[str, type[Whole]] = {
    "whole": Whole,
    "copied": Copied,
    "sharded": Sharded,
    "tensorwise": Tensorwise,
    "plain": Plain,
    "fused": Fused,
    "undeclared": Undeclared,
    "staged": Staged,
}


# ── scenarios ─────────────────────────────────────────────────────────────────────────────────────


class Player:
    """The knowledge of one process."""

    def __init__(self, process: int, pair: Any) -> None:
        self.process = process
        self.pair = pair

    def plays(self, way: str) -> bool:
        """Whether this process has a part: a model that is whole needs one rank only."""
        return self.process in ((0, PROCESSES - 1) if way == "whole" else range(PROCESSES))

    def learner(
        self,
        way: str,
        addresses: list[str],
        seed: int = 0,
        dtype: str = "float32",
        inner: type[torch.optim.Optimizer] = torch.optim.AdamW,
        **options: Any,
    ) -> tuple[Whole, Any]:
        """This process's model and optimizer."""
        torch.manual_seed(seed)
        is_b = self.process == PROCESSES - 1
        divided = WAYS["whole" if is_b else way](
            Model().to(getattr(torch, dtype)), None if is_b else self.pair
        )
        lr = 0.05 if inner is torch.optim.AdamW else LR
        optimizer = MendOptimizer(
            inner(divided.parameters(), lr=lr, foreach=False),  # type: ignore[call-arg]
            name="b" if is_b else "a",
            listen=addresses[is_b],
            group=None if is_b or way == "whole" else self.pair,
            shards=None if is_b else divided.shards,
            **{
                "peers": [addresses[not is_b]],
                "moments": MomentSchedule(first=1, second=1),
                **options,
            },
        )
        return divided, optimizer

    def agreed(self, number: int) -> int:
        """The number that the lead has, on all ranks of a; for b, its own."""
        told = torch.tensor(number)
        if self.process < RANKS:
            dist.broadcast(told, 0, group=self.pair)
        return int(told)

    def train(self, divided: Whole, optimizer: Any, steps: range, in_closure: bool = False) -> None:
        """`in_closure`: a closure computes the gradients."""
        learner = 2 if self.process == PROCESSES - 1 else 1
        for step in steps:
            optimizer.zero_grad()
            optimizer.count_tokens(divided.tokens)
            dtype = optimizer.param_groups[0]["params"][0].dtype
            examples = [tensor.to(dtype) for tensor in batch(learner, step)]
            if in_closure:
                optimizer.step(lambda: divided.train(*examples))  # noqa: B023
                continue
            divided.train(*examples)
            optimizer.step()


def load(optimizer: Any, values: dict[str, list[float]]) -> None:
    """Put values that `weights` returned into the parameters."""
    group = optimizer.param_groups[0]
    for name, p in zip(group["param_names"], group["params"], strict=True):
        whole = torch.tensor(values[name]).view(p.shape)
        with torch.no_grad():
            if isinstance(p, DTensor):
                whole = distribute_tensor(whole, p.device_mesh, p.placements)
            p.copy_(whole)


def weights(optimizer: Any) -> dict[str, list[float]]:
    """The whole of each DTensor, and what this rank has of each other parameter."""
    group = optimizer.param_groups[0]
    named = zip(group["param_names"], group["params"], strict=True)
    return {
        name: (p.full_tensor() if isinstance(p, DTensor) else p).detach().reshape(-1).tolist()
        for name, p in named
    }


def merge(player: Player, way: str, addresses: list[str], **options: Any) -> Facts:
    """a and b train one model in lockstep, and end on it."""
    told: list[str] = []

    def on_event(event: Event) -> None:
        """The calls of all ranks, by one of them beside its training."""
        if event.kind != "round" or told:
            return
        for call in (optimizer.state_dict, lambda: optimizer.load_state_dict({"mend": {}})):
            try:
                call()
            except UsageError as error:
                told.append(str(error))

    options = {**LOCKSTEP, "on_event": on_event, **options}
    divided, optimizer = player.learner(way, addresses, **options)
    met: list[int] = []
    hold = Meetings.hold

    def watched(meetings: Meetings, at: tuple[Call, int], *args: Any) -> Any:
        if at[0] is Call.STEP:
            met.append(at[1])
        return hold(meetings, at, *args)

    with optimizer, patch.object(Meetings, "hold", watched):
        player.train(divided, optimizer, range(STEPS))
        trained = weights(optimizer)
        status = optimizer.status()
        optimizer.synchronize()
        before = weights(optimizer)
        with optimizer.global_weights():
            swapped = weights(optimizer)
        back = weights(optimizer)
        finish = optimizer.finish()
    # A script may save after its block, as a process by itself does.
    saved = optimizer.state_dict()["mend"]
    optimizer.zero_grad()  # torch copies no sharded gradients
    twin = copy.deepcopy(optimizer)
    with optimizer.global_weights():
        shown = weights(optimizer)
    return {
        "saves": bool(saved),
        "told": told,
        "pairs": sorted(_pairs[tuple(range(RANKS))]._made),
        "copies": len(twin.param_groups),
        "again": optimizer.finish() == finish,
        "shown": shown,
        "trained": trained,
        "met": met,
        "swapped": swapped,
        "back": back == before,
        "ended": weights(optimizer),
        "step": status.step,
        "tokens": status.tokens,
        "finish": {"agreed": finish.agreed, "digest": finish.digest, "tokens": dict(finish.tokens)},
    }


def late(
    player: Player,
    way: str,
    addresses: list[str],
    first: str,
    in_closure: bool = False,
    **options: Any,
) -> Facts:
    """One learner has trained before the other one comes, which begins with other weights."""
    is_first = (player.process == PROCESSES - 1) == (first == "b")
    told = {**FREE, **options, **({"peers": []} if is_first else {})}
    divided, optimizer = player.learner(way, addresses, seed=2 if is_first else 1, **told)
    with optimizer:
        if is_first:
            player.train(divided, optimizer, range(6))
        dist.barrier()
        before = weights(optimizer)
        player.train(divided, optimizer, range(1), in_closure)
        then = weights(optimizer)
        stepped = optimizer.status().step
        steps = 1
        while player.agreed(len(optimizer.status().rounds)) < ROUNDS:
            player.train(divided, optimizer, range(steps, steps + 5))
            steps += 5
        settled = bool(optimizer.synchronize())
        status = optimizer.status()
        finish = optimizer.finish()
    return {
        "moved": before != then,
        "stepped": stepped,
        "settled": settled,
        "steps": steps,
        "position": status.position,
        "tokens": status.tokens,
        "ended": weights(optimizer),
        "finish": {"agreed": finish.agreed, "digest": finish.digest, "tokens": dict(finish.tokens)},
    }


def exact(player: Player, way: str, addresses: list[str]) -> Facts:
    """Every gradient is the same, so that an offer of k steps is k times one step. Ranks copy and
    correct in passing."""
    divided, optimizer = player.learner(way, addresses, inner=torch.optim.SGD, **EXACT)
    copied: list[tuple[int, int]] = []
    added: list[tuple[int, int]] = []
    offers: list[tuple[int, float, float]] = []
    copy, apply, submit = OwnTensors.copy, OwnTensors.apply, Learner.submit
    counted = held_copies.counted
    here = {"steps": 0, "in passing": 0}

    def watched_counted(learner: Learner, p: int) -> bool:
        taken = counted(learner, p)
        here["in passing"] += taken
        return taken

    def watched_copy(own: OwnTensors, p: int) -> Tensor:
        copied.append((here["steps"], p))
        return copy(own, p)

    def watched_apply(own: OwnTensors, correction: Any, steps: int) -> None:
        added.append((here["steps"], correction.fragment))
        assert not here["steps"] or steps == here["steps"]
        apply(own, correction, steps)

    def watched_submit(learner: Learner, p: int, values: Tensor, moments: Any, ready: Any) -> None:
        ready()
        pending = learner.engine.state.fragments[p].pending
        assert pending is not None
        assert learner.worker.anchors is not None
        # The anchor stands still as long as the copy is in the worker's hands.
        moved = (learner.worker.anchors.fragments[p].theta - values).aminmax()
        offers.append((pending.steps, float(moved[0]), float(moved[1])))
        submit(learner, p, values, moments, ready)

    with ExitStack() as stack:
        watches: list[tuple[Any, str, Any]] = [
            (OwnTensors, "copy", watched_copy),
            (OwnTensors, "apply", watched_apply),
            (Learner, "submit", watched_submit),
            (held_copies, "counted", watched_counted),
        ]
        for owner, name, watched in watches:
            stack.enter_context(patch.object(owner, name, watched))
        with optimizer:
            going = True
            while going:
                for p in optimizer.param_groups[0]["params"]:
                    p.grad = torch.ones_like(p)
                optimizer.count_tokens(divided.tokens)
                here["steps"] += 1
                optimizer.step()
                going = player.agreed(len(optimizer.status().rounds)) < 2 * EXACT_ROUNDS
            passed = len(added), len(copied)
            finish = optimizer.finish()
            held = weights(optimizer)
    return {
        "copied": copied[: passed[1]],
        "added": added[: passed[0]],
        "offers": offers,
        "in passing": here["in passing"],
        "ended": held,
        "finish": (finish.agreed, finish.digest, dict(finish.tokens)),
        "steps": here["steps"],
    }


def ahead(player: Player, way: str, addresses: list[str]) -> Facts:
    """In lockstep, each correction is there steps before it is due: the lead waits for it after the
    step that follows a boundary, and each rank for its courier after every step."""
    divided, optimizer = player.learner(way, addresses, **AHEAD)
    met: list[int] = []
    added: list[int] = []
    hold, add = Meetings.hold, RankTraffic._add

    def watched(meetings: Meetings, at: tuple[Call, int], *args: Any) -> Any:
        if at[0] is Call.STEP:
            met.append(at[1])
        return hold(meetings, at, *args)

    def watched_add(
        traffic: RankTraffic, ready: Sequence[Arrived], step: int, learner: Learner | None
    ) -> None:
        added.extend([step] * len(ready))
        add(traffic, ready, step, learner)

    with (
        optimizer,
        patch.object(Meetings, "hold", watched),
        patch.object(RankTraffic, "_add", watched_add),
    ):
        for step in range(1, AHEAD_STEPS + 1):
            player.train(divided, optimizer, range(step, step + 1))
            if player.process == 0 and step % AHEAD["sync_every"] == 1 and step > 1:
                learner = optimizer._learner
                assert learner.wait(lambda: bool(learner.worker.mailbox), 30.0)  # noqa: B023
            if isinstance(optimizer._run, RankRun):
                optimizer._run._courier.wait()
        trained = weights(optimizer)
        finish = optimizer.finish()
    return {
        "met": met,
        "added": added,
        "trained": trained,
        "ended": weights(optimizer),
        "digest": finish.digest,
    }


def checkpoint(player: Player, way: str, addresses: list[str], dtype: str) -> Facts:
    """a is saved by its ranks, goes on as one process, and as two again."""
    is_b = player.process == PROCESSES - 1
    facts: Facts = {}
    saved: Any = None
    values: dict[str, list[float]] = {}
    for number, here in enumerate((way, "whole", way)):
        playing = here == way or player.process != 1
        if playing:
            divided, optimizer = player.learner(
                here, addresses, seed=3 * number, dtype=dtype, **FREE
            )
            if number:
                leads = player.process != 1
                load(optimizer, values)
                LearnerState(optimizer).load_state_dict({"mend": saved} if leads else {})
            optimizer.join()
        dist.barrier()
        if playing:
            player.train(divided, optimizer, range(9 * number, 9 * number + 9))
            state = LearnerState(optimizer).state_dict()
            status = optimizer.status()
            facts[f"dropped {number}"] = status.dropped_tokens
            facts[f"step {number}"] = status.step
            facts[f"saves {number}"] = bool(state)
            values = weights(optimizer)
            saved = state.get("mend")
        told: list[Any] = [(saved, values) if player.process == 0 else None]
        if number < 2 and not is_b:
            dist.broadcast_object_list(told, 0, group=player.pair)
            saved, values = told[0]
        dist.barrier()
        if playing and number < 2:
            optimizer.close()
        dist.barrier()
    finish = optimizer.finish()
    facts["tokens"] = dict(finish.tokens)
    facts["ended"] = weights(optimizer)
    return facts


def fault(player: Player, way: str, addresses: list[str], kind: str) -> Facts:
    """A deed that the ranks must not do: the error that each raises, and then raises again."""
    if player.process == PROCESSES - 1:
        return {}
    arguments = FREE | ({"fragments": 1 + player.process} if kind == "arguments" else {})
    try:
        divided, optimizer = player.learner(way, addresses, peers=[], **arguments)
    except UsageError as error:
        return {"raised": [str(error)]}
    player.train(divided, optimizer, range(2))
    raised = []
    for _ in range(2):
        try:
            FAULTS[kind](player, divided, optimizer)
        except (MendError, ArithmeticError) as error:
            raised.append(f"{type(error).__name__}: {error}")
    optimizer.close()
    return {"raised": raised}


def drift(player: Player, way: str, addresses: list[str]) -> Facts:
    """The ranks have two parameters of one name, which begin alike and are trained apart."""
    is_b = player.process == PROCESSES - 1
    parameter = nn.Parameter(torch.zeros(4))
    optimizer = MendOptimizer(
        torch.optim.SGD([("w", parameter)], lr=LR),
        name="b" if is_b else "a",
        listen=addresses[is_b],
        peers=[addresses[not is_b]],
        group=None if is_b else player.pair,
        **FREE,
    )
    raised, merged = "", 0
    over = dist.barrier(async_op=True) if is_b else None
    while not (over.is_completed() if over else raised or merged >= ROUNDS):
        parameter.grad = torch.full((4,), float(player.process + 1))
        try:
            optimizer.step()
        except MendError as error:
            raised = f"{type(error).__name__}: {error}"
        merged = player.agreed(len(optimizer.status().rounds))
    if not is_b:
        dist.barrier()
    optimizer.close()
    return {"raised": [raised], "merged": merged}


def part(player: Player, divided: Whole, optimizer: Any) -> None:
    """The ranks are in two different calls."""
    if player.process == 0:
        optimizer.synchronize()
    for _ in range(3):
        optimizer.step()


def fail_in_a_copy(player: Player, divided: Whole, optimizer: Any) -> None:
    """One rank cannot copy its part."""
    if player.process == 1:
        with patch.object(OwnTensors, "plain", side_effect=ArithmeticError("no copy")):
            optimizer.state_dict()
    optimizer.state_dict()


def die(player: Player, divided: Whole, optimizer: Any) -> None:
    """One rank is gone. The other one trains on without what its model would need of it."""
    if player.process == 1:
        os._exit(0)
    for _ in range(9):
        optimizer.step()


FAULTS = {"parted": part, "copy": fail_in_a_copy, "death": die}


SCENARIOS: dict[str, Callable[..., Facts]] = {
    "merge": merge,
    "late": late,
    "exact": exact,
    "ahead": ahead,
    "checkpoint": checkpoint,
    "fault": fault,
    "drift": drift,
}


def main() -> None:
    torch.set_num_threads(1)
    process, store = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=process, world_size=PROCESSES
    )
    player = Player(process, dist.new_group(list(range(RANKS))))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        told = json.loads(line)
        said: Facts = {}
        if player.plays(told["way"]):
            said = SCENARIOS[told.pop("play")](player, **told)
        gc.collect()
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
