"""The learner's side of the tests with client libraries: a process that plays scenes, each with an
optimizer of its own.

One JSON order a line on stdin names a scene. One JSON line on stdout answers it, with the scene's
result or its failure. In between, `Session.meet` reports that a point is reached, and waits for a
line that says that both learners have reached it. The libraries' own output goes to stderr."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mend_optim import MendOptimizer, Timing

PATIENCE_S = 30.0
SYNC_EVERY, STEPS = 4, 24  # six rounds
TIMING = Timing(beat_s=0.2, join_timeout_s=PATIENCE_S, round_timeout_s=PATIENCE_S, evict_after_s=20)
Facts = dict[str, Any]


class Session:
    """One scene of one of the two learners."""

    def __init__(self, answers: TextIO, me: int, addresses: list[str], folder: str) -> None:
        self._answers = answers
        self.me, self.name, self.addresses = me, "ab"[me], addresses
        self.folder = Path(folder) / self.name
        self.optimizer: MendOptimizer | None = None
        self.taken = 0  # inner steps of that optimizer that had any gradient
        torch.manual_seed(me)

    def __deepcopy__(self, memo: object) -> Session:
        """A callback may copy the model that holds the session."""
        return self

    def say(self, event: str, **facts: object) -> None:
        print(json.dumps({"event": event, **facts}), file=self._answers, flush=True)

    def wrap(self, inner: Optimizer, **options: Any) -> MendOptimizer:
        """The line that the user adds. Anchors arrive at a step that both learners know, so every
        run has the same rounds."""
        others = [address for address in self.addresses if address != self.addresses[self.me]]
        common = {"sync_every": SYNC_EVERY, "adopt_after": 2, "timing": TIMING}
        self.optimizer = MendOptimizer(
            inner,
            name=self.name,
            listen=self.addresses[self.me],
            peers=others,
            **{**common, **options},
        )
        self.optimizer.register_step_post_hook(self._count)
        self.taken = 0
        return self.optimizer

    def _count(self, optimizer: Optimizer, *_: object) -> None:
        self.taken += bool(gradients(optimizer))

    def meet(self) -> None:
        """Wait until the other learner is here too."""
        self.say("reached")
        if not sys.stdin.readline():
            raise EOFError("nobody is waiting for this learner any more")

    def settle(self) -> bool:
        """Merge everything, twice: the second learner to synchronize moves the anchor once more."""
        assert self.optimizer is not None
        first = self.optimizer.synchronize(PATIENCE_S)
        self.meet()
        second = self.optimizer.synchronize(PATIENCE_S)
        self.meet()
        return bool(first and second)

    def leave(self) -> None:
        """Close the optimizer when the other learner no longer needs it, and wait until the other
        has done the same."""
        assert self.optimizer is not None
        self.meet()
        self.optimizer.close()
        self.meet()

    def outcome(self, model: nn.Module, **facts: Any) -> Facts:
        """The result of a learner with nothing unmerged: the rounds that merged something, and the
        global weights."""
        assert self.optimizer is not None
        status = self.optimizer.status()
        with self.optimizer.global_weights():
            weights = digest(model.parameters())
        own: Facts = {
            "taken": self.taken,
            "step": status.step,
            "tokens": status.tokens,
            "dropped_tokens": status.dropped_tokens,
            "rounds_adopted": status.rounds_adopted,
            "seals": [
                [member.name for member in round.members]
                for round in status.rounds
                if round.members
            ],
            "merged_tokens": [fragment.tokens for fragment in status.fragments],
            "weights": weights,
        }
        return {**own, **facts}


def digest(tensors: Any) -> str:
    """SHA-256 over the bytes of tensors."""
    content = hashlib.sha256()
    for tensor in tensors:
        content.update(tensor.detach().contiguous().numpy().tobytes())
    return content.hexdigest()


def network() -> nn.Module:
    """The same small network in every process."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def examples(session: Session, count: int) -> tuple[Tensor, Tensor]:
    """This learner's own inputs, and the function of them that both learn."""
    draws = torch.Generator().manual_seed(100 + session.me)
    inputs = torch.randn(count, 8, generator=draws)
    return inputs, inputs.sum(1, keepdim=True).sin()


def gradients(optimizer: Optimizer) -> list[Tensor]:
    return [
        p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None
    ]


def gradient_norm(optimizer: Optimizer) -> float:
    """The norm over all gradients that the optimizer has."""
    return float(nn.utils.get_total_norm(gradients(optimizer)))


def largest_gradient(optimizer: Optimizer) -> float:
    """The largest element of all gradients that the optimizer has."""
    return max(float(gradient.abs().max()) for gradient in gradients(optimizer))


def watch(optimizer: Optimizer, measure: Callable[[Optimizer], float]) -> list[float]:
    """A list that gets one measurement with every step, of the gradients that the step used."""
    seen: list[float] = []
    optimizer.register_step_post_hook(lambda hooked, *_: seen.append(measure(hooked)))
    return seen


def serve(*scenes: Callable[[Session], Facts]) -> None:
    """Play scenes until there are no more orders."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    named = {scene.__name__: scene for scene in scenes}
    print(json.dumps({"event": "ready"}), file=answers, flush=True)
    while line := sys.stdin.readline():
        order = json.loads(line)
        scene = named[order.pop("scene")]
        session = Session(answers, **order)
        try:
            session.folder.mkdir(parents=True, exist_ok=True)
            report = scene(session)
            session.leave()
        except Exception:
            session.say("failed", traceback=traceback.format_exc())
            return
        finally:
            if session.optimizer:
                session.optimizer.close()
        session.say("played", **report)
