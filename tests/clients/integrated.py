"""Observations of the scripts with our callbacks, by ways of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mend_optim import Finish, MendOptimizer
from tests.clients.session import Facts, Session, digest


def flat(model: nn.Module) -> Tensor:
    """A copy of all parameters."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


class Tokens:
    """Counts the tokens that a model is trained on, in its forward passes.

    Args:
        model: takes its batch in keywords.
        name: of the tensor to count: a mask, or ids.
    """

    def __init__(self, model: nn.Module, name: str) -> None:
        self.seen = 0
        self._name = name
        model.register_forward_pre_hook(self._look, with_kwargs=True)

    def _look(self, model: nn.Module, args: Any, batch: dict[str, Tensor]) -> None:
        if model.training:
            tensor = batch[self._name]
            self.seen += int(tensor.sum()) if "mask" in self._name else tensor.numel()


class Evaluations:
    """Looks at the weights in each forward pass of an evaluation, and after it.

    An anchor may move while a learner evaluates: once, since the next round needs its next offer.
    So the weights must be the anchor of before the evaluation, or that of now. Until something is
    merged, the learner's own weights stand for the anchor."""

    def __init__(self, model: nn.Module, optimizer: MendOptimizer) -> None:
        self.seen = {"passes": 0, "global": 0, "unlike_own": 0}
        #: Whether each step began with the weights of the last step's end.
        self.resumed = True
        self._model, self._optimizer = model, optimizer
        self._own: Tensor | None = None
        self._before: Tensor | None = None
        model.register_forward_pre_hook(self._look)

    def _look(self, model: nn.Module, args: Any) -> None:
        learner = self._optimizer._learner
        if model.training or self._own is None or learner is None or learner.closed:
            return
        here, anchors = flat(model), (self._before, self._anchor())
        self.seen["passes"] += 1
        self.seen["global"] += any(torch.equal(here, each) for each in anchors if each is not None)
        self.seen["unlike_own"] += not torch.equal(self._own, here)

    def _anchor(self) -> Tensor | None:
        """The anchor, or what stands for it; None before the first step."""
        fragments = self._optimizer.status().fragments
        if not fragments or not fragments[0].version:
            return self._own
        assert self._optimizer._learner is not None
        (anchor,) = self._optimizer._learner.anchors()
        return anchor

    def stepped(self) -> None:
        """A step has ended; an evaluation may follow."""
        self._own = flat(self._model)
        self._before = self._anchor()

    def goes_on(self) -> None:
        """The next step begins."""
        if self._own is not None:
            self.resumed = self.resumed and torch.equal(self._own, flat(self._model))


def finished(session: Session, model: nn.Module, finish: Finish) -> Facts:
    """The end of a learner whose trainer has finished the run."""
    assert session.optimizer is not None
    status = session.optimizer.status()
    return {
        "agreed": bool(finish),
        "reason": finish.reason,
        "digest": finish.digest,
        "all_tokens": dict(finish.tokens),
        "unmerged_tokens": finish.unmerged_tokens,
        "dropped_tokens": finish.dropped_tokens,
        "step": status.step,
        "tokens": status.tokens,
        "reported": dict(status.reported),
        "rounds": [[m.name for m in record.members] for record in status.rounds if record.members],
        "weights": digest(model.parameters()),
    }
