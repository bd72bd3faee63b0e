"""The work of the ranks that `nursery.py` forks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.tensor import DTensor

from mend_optim import LearnerState, MendError, MendOptimizer, MomentSchedule, Timing, rank_meetings
from mend_optim.ranks.orders import Deed, Order
from tests.ranks import faults, player, unusual
from tests.ranks.cast import Cast
from tests.ranks.overlapped import Overlapped
from tests.ranks.parallel import TOKENS, Divided, Ways, batch

PARITY_STEPS = 11
STEPS = 10
ROUNDS = 3
LOCKSTEP = {"sync_every": 4, "fragments": 2, "adopt_after": 2}
MOMENTS = MomentSchedule(first=1, second=1)
WHOLE = Ways()
TIMING = Timing(beat_s=0.2, evict_after_s=5.0)
#: Of learners that must be the same again, however busy the machine is: none begins alone, and
#: none is left out.
PATIENT = replace(TIMING, join_timeout_s=200.0, evict_after_s=60.0, round_timeout_s=60.0)


def meet(cast: Cast, store: str, timeout_s: float) -> None:
    """The ranks of one learner are a world."""
    if cast.ranks > 1:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=cast.rank,
            world_size=cast.ranks,
            timeout=timedelta(seconds=timeout_s),
        )
        dist.barrier()


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor of which this rank has a part."""
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach().clone()


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: whole(p) for name, p in model.named_parameters()}


def distance(some: dict[str, Tensor], others: dict[str, Tensor]) -> float:
    """The largest difference of values under one name."""
    return max(float((value - others[name]).abs().max()) for name, value in some.items())


def same_as_alone(divided: Divided, ways: Ways) -> dict[str, float]:
    """Train as ranks do, without the library, and as one process does. Returns the differences."""
    alone = Divided(Ways())
    inner, inner_alone = divided.optimizer(), alone.optimizer()
    apart = {"forward": 0.0}
    for step in range(PARITY_STEPS):
        for each in (inner, inner_alone):
            each.zero_grad()
        x, y = batch(0, step)
        out, out_alone = divided.train(x, y), alone.train(x, y)
        if step == 0:
            assert out_alone is not None
            if out is not None:
                apart["forward"] = float((whole(out) - divided.own(out_alone)).abs().max())
            gradients, gradients_alone = (
                {
                    name: whole(p.grad)
                    for name, p in each.model.named_parameters()
                    if p.grad is not None
                }
                for each in (divided, alone)
            )
            assert gradients
            apart["gradients"] = distance(gradients, gradients_alone)
        inner.step()
        inner_alone.step()
    apart["weights"] = distance(weights_of(divided.model), weights_of(alone.model))
    return apart


def merge(
    cast: Cast, ways: list[int], first_seed: int = 0, parity: bool = False, **options: Any
) -> None:
    """Train beside another learner in lockstep, and end on one model."""
    how = Ways(*ways)
    facts: dict[str, Any] = {}
    if parity:
        facts["apart"] = same_as_alone(Divided(how), how)
    train_beside(cast, Divided(how, first_seed), facts, **options)
    cast.leave(facts)


def halve(cast: Cast, way: str) -> None:
    """The same with the model of `player.py`, of which each rank has a half in that way."""
    torch.manual_seed(0)
    ranks = dist.group.WORLD if cast.ranks > 1 else None
    divided = player.WAYS[way](player.Model(), ranks)
    optimizer = MendOptimizer(
        torch.optim.AdamW(divided.parameters(), lr=0.05, foreach=False),
        name=cast.learner,
        listen=cast.addresses[cast.learner],
        peers=[address for name, address in cast.addresses.items() if name != cast.learner],
        shards=divided.shards,
        moments=MOMENTS,
        **LOCKSTEP,  # type: ignore[arg-type]
    )
    with optimizer:
        for step in range(STEPS):
            optimizer.zero_grad()
            optimizer.count_tokens(divided.tokens)
            divided.train(*player.batch(cast.number, step))
            optimizer.step()
        trained = player.weights(optimizer)
        finish = optimizer.finish()
    ended = player.weights(optimizer)
    cast.leave({"trained": trained, "ended": ended, "digest": finish.digest})


def overlap(cast: Cast) -> None:
    """The same with a model that is compiled before any learner knows of it."""
    model = Overlapped(cast.rank, cast.ranks)
    cast.say("compiled")
    facts: dict[str, Any] = {}
    train_beside(cast, model, facts)
    cast.leave({**facts, "graphs": model.graphs, "calls": dict(model.calls)})


def train_beside(
    cast: Cast, divided: Divided | Overlapped, facts: dict[str, Any], **options: Any
) -> None:
    """Train in lockstep with another learner, and end on one model."""
    others = [address for name, address in cast.addresses.items() if name != cast.learner]
    settings: dict[str, Any] = {
        **LOCKSTEP,
        "moments": MOMENTS,
        "timing": PATIENT,
        **options,
    }
    optimizer = MendOptimizer(
        divided.optimizer(),
        name=cast.learner,
        listen=cast.addresses[cast.learner],
        peers=others,
        **settings,
    )
    with optimizer:
        for step in range(STEPS):
            optimizer.zero_grad()
            optimizer.count_tokens(divided.tokens)
            divided.train(*batch(cast.number, step))
            optimizer.step()
        facts["trained"] = weights_of(divided.model)
        facts["rounds"] = sorted((r.fragment, r.version) for r in optimizer.status().rounds)
        finish = optimizer.finish()
        facts["ended"] = weights_of(divided.model)
        facts["finish"] = (finish.agreed, finish.digest, dict(finish.tokens))


def endure(cast: Cast, fault: list[Any]) -> None:
    """Two ranks train until a fault befalls one of them. They have the same batches, and no
    collectives of their own: nobody but this library learns of it."""
    doom = faults.Doom(cast, faults.Fault(*fault))
    taken = 0
    if doom.is_absent:
        doom.strike()
        return
    try:
        optimizer, divided = free_learner(cast)
        with optimizer if doom.is_within else nullcontext():
            while True:
                if doom.skips(taken):
                    doom.strike()
                    optimizer.finish()
                train_once(cast, optimizer, divided, taken)
                taken += 1
                doom.between(taken)
    except (MendError, KeyboardInterrupt) as error:
        cast.say("raised", kind=type(error).__name__, text=str(error), steps=taken)


def break_down(cast: Cast, adopt_after: int | None) -> None:
    """Two ranks train. After some steps an error ends the background threads of their lead."""
    alone = replace(TIMING, join_timeout_s=1.0)  # nobody else ever comes
    optimizer, divided = free_learner(cast, timing=alone, sync_every=20, adopt_after=adopt_after)
    try:
        for taken in range(4 * faults.STEPS):
            train_once(cast, optimizer, divided, taken)
            if cast.rank == 0 and taken == faults.STEPS:
                optimizer._run.learner.guard.end(MemoryError("none is left"))
        cast.say("raised", kind="", text="nothing", steps=taken)
    except MendError as error:
        cast.say("raised", kind=type(error).__name__, text=str(error), steps=taken)


def beside(cast: Cast, moments: bool = False) -> None:
    """Train until the test has seen enough, and end on the model of all."""
    optimizer, divided = free_learner(cast, moments=MOMENTS if moments else None)
    cast.say("open")
    taken = 0
    with optimizer:
        while not (cast.folder / "enough").exists():
            train_once(cast, optimizer, divided, taken)
            taken += 1
        end(cast, optimizer, divided)


def pause(cast: Cast) -> None:
    """Train until the test says so, pause until it lets this learner go on, and end on the model of
    all."""
    optimizer, divided = free_learner(cast)
    cast.say("open")
    taken = 0
    with optimizer:
        while not (cast.folder / "pause").exists():
            train_once(cast, optimizer, divided, taken)
            taken += 1
        cast.say("pauses")
        (cast.folder / "go on").read_text()  # a pipe, which the test opens in the end
        train_once(cast, optimizer, divided, taken)
        end(cast, optimizer, divided)


def come_back(cast: Cast) -> None:
    """Train on as ranks that were started again, and end on the model of all."""
    optimizer, divided = free_learner(cast)
    taken = 0
    rounds = torch.tensor(0)
    with optimizer:
        while rounds < ROUNDS:
            train_once(cast, optimizer, divided, taken)
            taken += 1
            rounds.fill_(len(optimizer.status().rounds))
            dist.broadcast(rounds, 0)
        cast.say("merged", rounds=int(rounds))
        end(cast, optimizer, divided)


def go_on(cast: Cast, ways: list[int], part: int, end_here: bool) -> None:
    """One part of a run, which goes on from the checkpoint of the part before. That one's ranks may
    have divided the model in another way."""
    how = Ways(*ways)
    optimizer, divided = free_learner(cast, how, seed=part, moments=MOMENTS)
    # Names instead of positions: the stages of a pipeline have other parameters.
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    facts: dict[str, Any] = {}
    if part:
        model, inner = get_state_dict(divided.model, optimizer, options=options)
        state = {"model": model, "optimizer": inner, "learner": LearnerState(optimizer)}
        dcp.load(state, checkpoint_id=cast.folder / f"part-{part - 1}")
        set_state_dict(
            divided.model,
            optimizer,
            model_state_dict=model,
            optim_state_dict=inner,
            options=options,
        )
        facts["loaded"] = kept_of(divided, optimizer)
    optimizer.join()
    for step in range(part * STEPS, (part + 1) * STEPS):
        optimizer.zero_grad()
        optimizer.count_tokens(divided.tokens)
        divided.train(*batch(cast.number, step))
        optimizer.step()
    model, inner = get_state_dict(divided.model, optimizer, options=options)
    state = {"model": model, "optimizer": inner, "learner": LearnerState(optimizer)}
    dcp.save(state, checkpoint_id=cast.folder / f"part-{part}")
    facts["saved"] = kept_of(divided, optimizer)
    facts["status"] = (optimizer.status().step, optimizer.status().dropped_tokens)
    if end_here:
        (cast.folder / "enough").touch()
        finish = optimizer.finish()
        facts["finish"] = (finish.agreed, finish.digest, dict(finish.tokens))
        facts["ended"] = weights_of(divided.model)
    optimizer.close()
    cast.leave(facts)


def kept_of(divided: Divided, optimizer: Any) -> dict[str, Tensor]:
    """The weights and the moments of all parameters that this rank has a part of."""
    kept = weights_of(divided.model)
    for name, p in divided.model.named_parameters():
        for moment in ("exp_avg", "exp_avg_sq"):
            kept[f"{name} {moment}"] = whole(optimizer.state[p][moment])
    return kept


def wait_long(cast: Cast) -> None:
    """The same, and say each time that the lead tells the other ranks to wait."""
    decode = rank_meetings.decode_order

    def watched(data: bytes) -> Order:
        order = decode(data)
        if order.deed is Deed.WAIT:
            cast.say("waits")
        return order

    with patch.object(rank_meetings, "decode_order", watched):
        come_back(cast)


def free_learner(
    cast: Cast, ways: Ways = WHOLE, seed: int | None = None, **options: Any
) -> tuple[Any, Divided]:
    """A learner that adopts anchors as they come. By default each rank has the whole model."""
    divided = Divided(ways, seed=cast.number if seed is None else seed)
    others = [address for name, address in cast.addresses.items() if name != cast.learner]
    optimizer = MendOptimizer(
        divided.optimizer(),
        name=cast.learner if cast.rank == 0 else None,
        listen=cast.addresses[cast.learner],
        peers=others if cast.learner == "a" else [],
        **{"timing": TIMING, "sync_every": 4, "moments": None, **options},
    )
    return optimizer, divided


def train_once(cast: Cast, optimizer: Any, divided: Divided, step: int) -> None:
    optimizer.zero_grad()
    optimizer.count_tokens(TOKENS if cast.rank == 0 else 0)
    divided.train(*batch(cast.number, step))
    optimizer.step()


def end(cast: Cast, optimizer: Any, divided: Divided) -> None:
    trained = optimizer.status().tokens
    finish = optimizer.finish()
    cast.leave(
        {
            "ended": weights_of(divided.model),
            "finish": (finish.agreed, finish.digest, dict(finish.tokens)),
            "trained": trained,
            "name": optimizer.name,
        }
    )


SCENARIOS: dict[str, Callable[..., None]] = {
    "merge": merge,
    "halve": halve,
    "overlap": overlap,
    "endure": endure,
    "break down": break_down,
    "beside": beside,
    "come back": come_back,
    "go on": go_on,
    "wait long": wait_long,
    "pause": pause,
    "live in mode": unusual.live_in_mode,
    "idle stage": unusual.idle_stage,
    "mask": unusual.mask,
    "called back": unusual.called_back,
    "wrap": unusual.wrap,
    "evaluate": unusual.evaluate,
    "replace a rank": unusual.replace_a_rank,
}
