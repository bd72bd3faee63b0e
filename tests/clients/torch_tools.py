"""Tools that come with torch: checkpoints of `torch.distributed.checkpoint`, `torch.compile`,
averaged weights and clipped gradients."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import SWALR, AveragedModel

from tests.clients.session import (
    STEPS,
    Facts,
    Session,
    digest,
    examples,
    gradient_norm,
    largest_gradient,
    network,
    serve,
    watch,
)

LR, BATCH = 0.01, 4


def backward(session: Session, model: nn.Module, step: int) -> None:
    """Compute the gradients of one batch, in place of the previous ones."""
    inputs, targets = (part[step * BATCH :][:BATCH] for part in examples(session, STEPS * BATCH))
    model.zero_grad()
    F.mse_loss(model(inputs), targets).backward()


def train(session: Session, model: nn.Module, optimizer: Optimizer, steps: int = STEPS) -> None:
    for step in range(steps):
        backward(session, model, step)
        optimizer.step()


# ── torch.distributed.checkpoint ──────────────────────────────────────────────────────────────────


def moments(optimizer: Optimizer) -> str:
    return digest(
        optimizer.state[p][key]
        for p in optimizer.state
        for key in ("step", "exp_avg", "exp_avg_sq")
    )


def save(folder: Path, model: nn.Module, optimizer: Optimizer) -> None:
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder / "dcp")


def load(folder: Path, model: nn.Module, optimizer: Optimizer) -> None:
    weights, state = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=folder / "dcp")
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)


def checkpoint(session: Session) -> Facts:
    """Train, save the global state, and train on from there in a new optimizer, without a process
    group."""
    model = network()
    optimizer = session.wrap(AdamW(model.parameters(), lr=LR))
    train(session, model, optimizer)
    settled = session.settle()
    trained = session.outcome(model, settled=settled)
    with optimizer.global_weights():
        save(session.folder, model, optimizer)
    saved = moments(optimizer)
    session.leave()
    # weights of this learner's own
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = session.wrap(AdamW(model.parameters(), lr=0.5))
    load(session.folder, model, optimizer)
    loaded = session.outcome(model, moments=moments(optimizer), lr=optimizer.param_groups[0]["lr"])
    session.taken = 0  # torch has taken one to make room for what it loads
    train(session, model, optimizer)
    settled = session.settle()
    return {
        "trained": trained,
        "saved": saved,
        "loaded": loaded,
        **session.outcome(model, settled=settled),
    }


def phantom(session: Session) -> Facts:
    """The state of a fresh optimizer is made by a step with zero gradients at a learning rate of
    zero, which is no training."""
    model = network()
    before = digest(model.parameters())
    optimizer = session.wrap(AdamW(model.parameters(), lr=LR))
    keys = sorted(get_optimizer_state_dict(model, optimizer)["state"])
    counted = session.outcome(model)
    session.taken = 0
    after = digest(model.parameters())
    train(session, model, optimizer)
    settled = session.settle()
    return {
        "keys": keys,
        "unchanged": before == after,
        "counted": counted,
        **session.outcome(model, settled=settled),
    }


# ── torch.compile ─────────────────────────────────────────────────────────────────────────────────


def plain(session: Session) -> Facts:
    """The plain loop that a compiled step is compared with."""
    model = network()
    train(session, model, session.wrap(AdamW(model.parameters(), lr=LR)))
    settled = session.settle()
    return session.outcome(model, settled=settled)


def compiled_step(session: Session) -> Facts:
    """A compiled function that takes the optimizer's step."""
    model = network()
    optimizer = session.wrap(AdamW(model.parameters(), lr=LR))

    @torch.compile(backend="eager")
    def step() -> None:
        optimizer.step()

    for i in range(STEPS):
        backward(session, model, i)
        step()
    settled = session.settle()
    return session.outcome(model, settled=settled)


def compiled_training(session: Session) -> Facts:
    """A compiled function that does all of a training step: forward, backward, step."""
    model = network()
    optimizer = session.wrap(AdamW(model.parameters(), lr=LR))

    @torch.compile(backend="eager")
    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    inputs, targets = examples(session, BATCH)
    losses = [float(step(inputs, targets)) for _ in range(STEPS)]
    settled = session.settle()
    return session.outcome(model, settled=settled, losses=losses)


# ── averaged weights, learning rates ──────────────────────────────────────────────────────────────


def averaging(session: Session) -> Facts:
    """Weights averaged over the second half, with the learning rates of `SWALR`."""
    model = network()
    optimizer = session.wrap(SGD(model.parameters(), lr=0.1))
    before = LambdaLR(optimizer, lambda step: 1 - step / STEPS)
    after = SWALR(optimizer, swa_lr=0.025, anneal_epochs=4, anneal_strategy="linear")
    averaged = AveragedModel(model)
    rates, seen = [], []
    for step in range(STEPS):
        backward(session, model, step)
        optimizer.step()
        if step < STEPS // 2:
            before.step()
        else:
            averaged.update_parameters(model)
            after.step()
            seen.append([p.detach().clone() for p in model.parameters()])
        rates.append(optimizer.param_groups[0]["lr"])
    means = [torch.stack(values).mean(0) for values in zip(*seen, strict=True)]
    errors = [
        float((p.detach() - q).abs().max())
        for p, q in zip(averaged.module.parameters(), means, strict=True)
    ]
    settled = session.settle()
    return session.outcome(
        model, settled=settled, rates=rates, averaged=int(averaged.n_averaged), error=max(errors)
    )


# ── clipping ──────────────────────────────────────────────────────────────────────────────────────


def clip_norm(session: Session) -> Facts:
    model = network()
    optimizer = session.wrap(SGD(model.parameters(), lr=0.1))
    clipped, whole = watch(optimizer, gradient_norm), []
    for step in range(STEPS):
        backward(session, model, step)
        whole.append(float(nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.1)))
        optimizer.step()
    settled = session.settle()
    return session.outcome(model, settled=settled, whole=whole, clipped=clipped)


def clip_value(session: Session) -> Facts:
    model = network()
    optimizer = session.wrap(SGD(model.parameters(), lr=0.1))
    clipped, whole = watch(optimizer, largest_gradient), []
    for step in range(STEPS):
        backward(session, model, step)
        whole.append(largest_gradient(optimizer))
        nn.utils.clip_grad_value_(model.parameters(), clip_value=0.1)
        optimizer.step()
    settled = session.settle()
    return session.outcome(model, settled=settled, whole=whole, clipped=clipped)


if __name__ == "__main__":
    serve(
        checkpoint,
        phantom,
        plain,
        compiled_step,
        compiled_training,
        averaging,
        clip_norm,
        clip_value,
    )
