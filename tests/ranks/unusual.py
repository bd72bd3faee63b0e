"""Ranks whose scripts have set torch's defaults, or do not all train the same."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from mend_optim import Event, MendOptimizer, UsageError
from tests.ranks import player
from tests.ranks.cast import Cast

STEPS = 10
LOCKSTEP: dict[str, Any] = {"sync_every": 4, "fragments": 2, "adopt_after": 2}


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


#: Around the whole of the training. They hold for all threads.
DTYPES = {"narrow": torch.bfloat16, "wide": torch.float64}
#: Around all calls that the optimizer gets.
MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "inference": torch.inference_mode,
    "a device": lambda: torch.device("meta"),
}


def learner(cast: Cast, inner: torch.optim.Optimizer, **options: Any) -> Any:
    others = [address for name, address in cast.addresses.items() if name != cast.learner]
    address = cast.addresses[cast.learner]
    told = {**LOCKSTEP, "moments": None, "peers": others, **options}
    return MendOptimizer(inner, name=cast.learner, listen=address, **told)


def live_in_mode(cast: Cast, way: str, mode: str, dtype: str = "float32") -> None:
    """All calls that ranks make, in a mode or with other defaults."""
    torch.manual_seed(0)
    ranks = dist.group.WORLD if cast.ranks > 1 else None
    narrow = getattr(torch, dtype)
    divided = player.WAYS[way](player.Model().to(narrow), ranks)
    batches = [player.batch(cast.number, step) for step in range(2 * STEPS)]
    within = MODES.get(mode, nullcontext)
    inner = torch.optim.SGD(divided.parameters(), lr=0.05)  # type: ignore[arg-type]

    def train(steps: range) -> None:
        for step in steps:
            optimizer.zero_grad()
            optimizer.count_tokens(divided.tokens)
            divided.train(*(tensor.to(narrow) for tensor in batches[step]))
            with within():
                optimizer.step()

    with default_dtype(DTYPES.get(mode, torch.float32)):
        with within():
            optimizer = learner(cast, inner)
        train(range(STEPS))
        trained = player.weights(optimizer)
        with within():
            optimizer.synchronize()
            saved = optimizer.state_dict()
            with optimizer.global_weights():
                pass
            optimizer.reset_progress()
        train(range(STEPS, 2 * STEPS))
        with within():
            finish = optimizer.finish()
            with optimizer.global_weights():
                shown = player.weights(optimizer)
            optimizer.close()
    ended = player.weights(optimizer)
    kept = saved["mend"].get("fragments", ())
    dtypes = {str(tensor.dtype) for each in kept for tensor in each["tensors"].values()}
    told = {"trained": trained, "ended": ended, "shown": shown, "digest": finish.digest}
    cast.leave({**told, "dtypes": dtypes})


def idle_stage(cast: Cast, idles: str) -> None:
    """The first of two stages is not trained. Gradients are all the same, so nobody waits for those
    of another stage."""
    torch.manual_seed(0)
    model = player.Model()
    parts = [model.up, model.down][cast.rank :][:1] if cast.ranks > 1 else [model]
    is_idle = cast.learner == "a" and cast.rank == 0
    names = {id(p): name for name, p in model.named_parameters()}
    listed = [(names[id(p)], p) for part in parts for p in part.parameters()]
    if is_idle and idles == "frozen":
        parts[0].requires_grad_(False)
    if idles == "empty":  # nobody lists what is not trained
        listed = [pair for pair in listed if pair[0].startswith("down")]
    rate = 0.0 if is_idle and idles == "rate" else 0.05
    told: Any = listed or [{"params": []}]
    optimizer = learner(cast, torch.optim.AdamW(told, lr=rate))

    def train(steps: int) -> None:
        for _ in range(steps):
            for _, parameter in listed:
                if parameter.requires_grad:
                    parameter.grad = torch.full_like(parameter, float(not is_idle))
            optimizer.step()
            optimizer.zero_grad()

    with optimizer:
        train(STEPS)
        get_optimizer_state_dict(parts[0], optimizer)
        train(STEPS)
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        train(STEPS)
        finish = optimizer.finish()
        saved = get_optimizer_state_dict(parts[0], optimizer)
    facts = {"step": optimizer.status().step, "digest": finish.digest, "saved": bool(saved)}
    cast.leave({**facts, "agreed": finish.agreed, "again": optimizer.finish() == finish})


def mask(cast: Cast) -> None:
    """The second of two stages has a frozen parameter that can never be merged."""
    torch.manual_seed(0)
    model = player.Model()
    listed = [pair for pair in model.named_parameters() if pair[0].startswith("up")]
    if cast.rank == 1:
        listed = [("mask", nn.Parameter(torch.full((3,), -torch.inf), requires_grad=False))]
    optimizer = learner(cast, torch.optim.SGD(listed, lr=0.05), peers=[])
    raised = ""
    try:
        optimizer.step()
        optimizer.synchronize()
    except UsageError as error:
        raised = f"UsageError: {error}"
    except Exception as error:
        raised = str(error)
    cast.leave({"raised": raised})


def called_back(cast: Cast) -> None:
    """The callback of events takes a step, before any other one."""
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.ones(4)) for _ in range(2)]
    was_called, raised = threading.Event(), [""]

    def on_event(event: Event) -> None:
        if event.kind == "joined":
            try:
                optimizer.step()
            except UsageError as error:
                raised[0] = str(error)
            finally:
                was_called.set()

    optimizer = learner(cast, torch.optim.SGD(parameters, lr=0.05), on_event=on_event)
    with optimizer:
        optimizer.join()
        assert cast.rank or was_called.wait(60.0)
        for _ in range(STEPS):
            for parameter in parameters:
                parameter.grad = torch.ones(4)
            optimizer.step()
    cast.leave({"raised": raised[0], "step": optimizer.status().step})


def evaluate(cast: Cast) -> None:
    """Forward passes without backward passes, of this learner's own weights and of the common
    ones. They leave what FSDP2 has gathered of the outermost module in it."""
    torch.manual_seed(0)
    ranks = dist.group.WORLD if cast.ranks > 1 else None
    divided = player.WAYS["sharded" if ranks else "whole"](player.Model(), ranks)
    # The outermost module has parameters of its own.
    model = nn.Sequential(divided.model, nn.Linear(3, 3))
    if ranks:
        fully_shard(model)
    inner = torch.optim.SGD(model.named_parameters(), lr=0.05)
    optimizer = learner(cast, inner, fragments=1)
    n, told = divided.tokens, []

    def loss(step: int, here: slice = slice(None)) -> Tensor:
        x, y = player.batch(cast.number, step)
        return player.loss_of(model(x[here]), y[here])

    @torch.no_grad()
    def see() -> None:
        told.append(float(loss(2 * STEPS)))

    for step in range(2 * STEPS):
        optimizer.zero_grad()
        optimizer.count_tokens(n)
        loss(step, slice(cast.rank * n, (cast.rank + 1) * n)).backward()
        optimizer.step()
        if step % 4 != 2:  # a round may be open, and have moved the anchor or not
            continue
        if step > STEPS:
            see()
        with optimizer.global_weights():
            see()
        if step > STEPS:
            see()
    trained = player.weights(optimizer)
    finish = optimizer.finish()
    see()
    cast.leave({"seen": told, "trained": trained, "digest": finish.digest})


def replace_a_rank(cast: Cast) -> None:
    """A process takes the place of another one, in a new world. The lead goes on as it is."""
    dist.destroy_process_group()
    taken = []
    for number, members in enumerate(([0, 1], [0, 2])):
        if cast.rank not in members:
            continue
        store, rank = f"file://{cast.folder}/world-{number}", members.index(cast.rank)
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
        parameter = nn.Parameter(torch.ones(4))
        inner = torch.optim.SGD([("w", parameter)], lr=0.05)
        optimizer = learner(cast, inner, peers=[], fragments=1)
        for _ in range(STEPS):
            parameter.grad = torch.ones(4)
            optimizer.step()
        optimizer.synchronize()
        taken.append(optimizer.status().step)
        optimizer.close()
        dist.destroy_process_group()
    cast.leave({"taken": taken})


class Parts(nn.Module):
    """Two matrices of one shape. One is called as the part of a wrapper is."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(3, 3, bias=False)
        self.out = nn.Linear(3, 3, bias=False)


def wrap(cast: Cast, kind: str) -> None:
    """Names of parameters with a part that a wrapper may have put before them."""
    torch.manual_seed(0)
    model: nn.Module = Parts() if kind == "part" else player.Model()
    listed = list(model.named_parameters())
    if kind == "wrapper" and cast.ranks > 1:
        listed = list(DistributedDataParallel(model).named_parameters())
    optimizer = learner(cast, torch.optim.SGD(listed, lr=0.05))
    with optimizer:
        for step in range(STEPS):
            for i, (_, parameter) in enumerate(listed):
                parameter.grad = torch.full_like(parameter, float(step + 2 * i))
            optimizer.step()
    values = {name: p.detach().clone() for name, p in model.named_parameters()}
    cast.leave({"ended": values, "digest": optimizer.finish().digest})
