"""A live peer for every wrapped optimizer: a second learner in the same process that trains on the
same gradients.

The partner begins with the learner's weights. After each of the learner's steps it takes a step of
its own, which leaves it with the weights and the state that the learner has. So a round merges two
offers that are equal. The merge changes a weight by rounding alone, and a test of the suite sees
the numbers that it would see without peers. Joining, offers, rounds, seals, adoption and
checkpoints of running rounds are all real. What a merge of *different* work does to a model is not
shown here.

A learner that loads a checkpoint goes on without its partner, as if all others had left. So does
one that outlives the test that made it."""

from __future__ import annotations

import copy
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mend_optim import MendOptimizer, Timing

PATIENCE_S = 60.0
LOOPBACK = "127.0.0.1:0"
#: Rounds every other step, adopted a step later: short tests have rounds, and each learner takes
#: them at the same steps.
ROUNDS: dict[str, Any] = {
    "sync_every": 2,
    "adopt_after": 1,
    "quorum": 2,
    "failslow": None,
    "timing": Timing(
        beat_s=0.2, join_timeout_s=PATIENCE_S, round_timeout_s=PATIENCE_S, evict_after_s=PATIENCE_S
    ),
}

#: An attribute of the optimizers of partners.
MARK = "_is_a_mirror"

Group = dict[str, Any]


def is_partner(optimizer: MendOptimizer) -> bool:
    """Whether this is a partner's own optimizer, open or closed."""
    return hasattr(optimizer.inner, MARK)


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _clone(group: Group) -> Group:
    """The group with parameters of its own."""
    clones = [p.detach().clone().requires_grad_(p.requires_grad) for p in group["params"]]
    rest = {key: value for key, value in group.items() if key != "params"}
    return {**copy.deepcopy(rest), "params": clones}


class Snapshot:
    """The weights and the state of an optimizer at one moment, and its groups beyond the first
    `known` ones."""

    def __init__(self, optimizer: Optimizer, known: int) -> None:
        parameters = _parameters(optimizer)
        self.weights = [p.detach().clone() for p in parameters]
        self.state = [_copied(optimizer.state.get(p, {})) for p in parameters]
        self.added = [_clone(group) for group in optimizer.param_groups[known:]]


def _copied(state: Any) -> dict[Any, Any]:
    """The tensors and numbers of one parameter's state: that is where moments are."""
    kept: dict[Any, Any] = {}
    for key, value in dict(state).items():
        if isinstance(value, Tensor):
            kept[key] = value.detach().clone()
        elif isinstance(value, int | float):
            kept[key] = value
    return kept


def _mirror(original: Optimizer, groups: int) -> Any:
    """An optimizer of the same class by name and base, with the original's first `groups` groups,
    whose step takes over a snapshot."""

    def step(self: Any, closure: Any = None) -> None:
        snapshot = self.snapshot
        with torch.no_grad():
            for p, weights, state in zip(
                _parameters(self), snapshot.weights, snapshot.state, strict=True
            ):
                p.copy_(weights)
                self.state[p] = state

    body = {
        MARK: True,
        "step": step,
        "__init__": Optimizer.__init__,
        "add_param_group": Optimizer.add_param_group,
        "zero_grad": Optimizer.zero_grad,
        # Its own, where the class of the original has those of an optimizer inside it.
        **dict.fromkeys(("param_groups", "state", "defaults")),
    }
    metaclass: Any = type(type(original))
    kind = metaclass(type(original).__name__, (type(original),), body)
    first = [_clone(group) for group in original.param_groups[:groups]]
    return kind(first, dict(original.defaults))


def _join(learner: MendOptimizer) -> None:
    """Join, and wait until the other learner of the two trains as well: they begin together."""
    inside = learner._learner
    assert inside is not None
    state = inside.engine.state
    assert inside.wait(lambda: any(p.linked for p in state.roster.peers.values()), PATIENCE_S)
    learner.join()
    assert inside.wait(
        lambda: (
            not state.alone and any(p.training and p.linked for p in state.roster.peers.values())
        ),
        PATIENCE_S,
    ), f"{learner.name} and its partner don't find each other: {learner.status()}"


class Partner:
    """The second learner of one wrapped optimizer, in a thread of its own.

    Args:
        learner: has an address and has not joined yet. It joins here.
        groups: how many groups the learner was made with. Others were added, and are added here.
    """

    def __init__(self, learner: MendOptimizer, groups: int) -> None:
        self._mirror = _mirror(learner.inner, groups)
        self._groups = groups
        self._optimizer = MendOptimizer(
            self._mirror,
            name=f"{learner.name}-partner",
            listen=LOOPBACK,
            peers=[learner.status().address],
            **ROUNDS,
        )
        for group in learner.inner.param_groups[groups:]:
            self._optimizer.add_param_group(_clone(group))
        self._groups = len(learner.param_groups)
        self._orders: queue.SimpleQueue[Snapshot | None] = queue.SimpleQueue()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._train, name="partner", daemon=True)
        self._thread.start()

    @property
    def rounds(self) -> int:
        """Anchors adopted so far."""
        return self._optimizer.status().rounds_adopted

    def follow(self, learner: MendOptimizer) -> None:
        """Let the partner take the step that the learner has just taken."""
        self._orders.put(Snapshot(learner.inner, self._groups))
        self._groups = len(learner.param_groups)

    def close(self) -> None:
        self._orders.put(None)
        self._optimizer.close()
        self._thread.join(PATIENCE_S)

    def _train(self) -> None:
        try:
            _join(self._optimizer)
            for snapshot in iter(self._orders.get, None):
                for group in snapshot.added:
                    self._optimizer.add_param_group(group)
                self._mirror.snapshot = snapshot
                self._optimizer.step()
        except BaseException as error:
            self.error = error


class Partners:
    """Gives each wrapped optimizer a partner when it first steps."""

    def __init__(self, suspended: Callable[[], Any]) -> None:
        self._suspended = suspended
        self._partners: dict[MendOptimizer, Partner] = {}
        self._open: list[MendOptimizer] = []
        #: How many groups each was made with.
        self._groups: dict[MendOptimizer, int] = {}
        self._count = 0
        self._errors: list[str] = []
        #: Partners so far, and the rounds that they adopted.
        self.made = 0
        self.rounds = 0

    def wrap(self, inner: Optimizer) -> MendOptimizer:
        self._count += 1
        made = MendOptimizer(inner, name=f"suite{self._count}", listen=LOOPBACK, **ROUNDS)
        self._open.append(made)
        self._groups[made] = len(inner.param_groups)
        return made

    def before_step(self, learner: MendOptimizer) -> None:
        waits = learner in self._open and learner not in self._partners
        if waits and not learner.status().step:
            if learner._run._starts_late:
                # Its parameters had no shapes, and it has no address before the first step.
                learner._run._start()
            with self._suspended():
                self._partners[learner] = Partner(learner, self._groups[learner])
            self.made += 1
            _join(learner)

    def take_errors(self) -> list[str]:
        """What stopped partners since the last call."""
        errors, self._errors = self._errors, []
        return errors

    def after_step(self, learner: MendOptimizer) -> None:
        if learner in self._partners:
            self._partners[learner].follow(learner)

    def forget(self, learner: MendOptimizer) -> None:
        """Close the partner."""
        partner = self._partners.pop(learner, None)
        if partner is not None:
            partner.close()
            self.rounds += partner.rounds
            if partner.error is not None:
                self._errors.append(f"{type(partner.error).__name__}: {partner.error}")

    def close(self) -> None:
        """Close all learners that are open."""
        for learner in self._open:
            self.forget(learner)
            with suppress(Exception):
                learner.close()
        self._open.clear()
        self._groups.clear()
