"""Saving and loading checkpoints in tests, and learners that go on from them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import AdamW, Optimizer

from mend_optim import MendOptimizer
from mend_optim.engine.progress import Progress
from mend_optim.protocol.lineage import PeerId
from tests.support.learners import LOOPBACK, TIMING, cluster, parameters, start

Saved = tuple[list[Tensor], dict[str, Any]]


def stored(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state after a round trip through a file that `torch.load` trusts."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def save(optimizer: Optimizer) -> Saved:
    return [p.clone() for p in parameters(optimizer)], stored(optimizer.state_dict())


def load(optimizer: Optimizer, saved: Saved) -> None:
    for parameter, value in zip(parameters(optimizer), saved[0], strict=True):
        parameter.copy_(value)
    optimizer.load_state_dict(saved[1])


@contextmanager
def resumed(
    makes: Sequence[Callable[[], Optimizer]],
    saved: Sequence[Saved],
    started: bool = True,
    **options: Any,
) -> Iterator[list[MendOptimizer]]:
    """New learners that go on from checkpoints."""
    with cluster(*(make() for make in makes), started=False, **options) as made:
        for optimizer, state in zip(made, saved, strict=True):
            load(optimizer, state)
        if started:
            start(made)
        yield made


def newcomer(inner: Optimizer, name: str, *others: MendOptimizer, **options: Any) -> MendOptimizer:
    """A learner that can join these, and has not begun. The caller closes it."""
    peers = [other.status().address for other in others]
    return MendOptimizer(
        inner, **{"name": name, "listen": LOOPBACK, "peers": peers, "timing": TIMING, **options}
    )


def adam() -> Optimizer:
    draws = torch.Generator().manual_seed(3)
    # The tensors are large enough for codecs to save bytes.
    return AdamW([Parameter(torch.randn(s, generator=draws)) for s in ((31,), (6, 7))], lr=0.1)


def anchors(optimizer: MendOptimizer) -> list[Tensor]:
    with optimizer.global_weights():
        return [p.clone() for p in parameters(optimizer)]


def me(optimizer: MendOptimizer) -> PeerId:
    assert optimizer._learner
    return optimizer._learner.engine.state.me


def progress(optimizer: MendOptimizer, p: int = 0) -> Progress:
    assert optimizer._learner
    return optimizer._learner.engine.state.fragments[p]


def assert_alike(these: Any, those: Any) -> None:
    """Assert that two structures are equal, their tensors to the bit."""
    if isinstance(these, Tensor):
        assert torch.equal(these, those)
    elif isinstance(these, Mapping):
        assert these.keys() == those.keys()
        for key in these:
            assert_alike(these[key], those[key])
    elif isinstance(these, (list, tuple)):
        assert len(these) == len(those)
        for this, that in zip(these, those, strict=True):
            assert_alike(this, that)
    else:
        assert these == those
