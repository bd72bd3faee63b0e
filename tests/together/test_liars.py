"""Fewer than half of the learners lie about what they have learned, and a robust merge keeps the
honest ones converging."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from bench.cluster.liars import LIES, Crew, held_out_loss
from bench.cluster.tasks import Task

STEPS = 80
#: As much worse as honest learners may become by liars: the loss begins at about 9.
NEAR = 0.02
RULE = torch.arange(-4.0, 5.0).unsqueeze(0)


class Line(nn.Module):
    """Finds nine coefficients from noisy examples."""

    def __init__(self) -> None:
        super().__init__()
        self.fit = nn.Linear(9, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.fit(x), y)


def draw(draws: Generator, size: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(size, 9, generator=draws)
    return x, x @ RULE.T + 0.1 * torch.randn(size, 1, generator=draws)


TASK = Task(
    model=Line,
    inner=lambda parameters, rate: SGD(parameters, lr=rate),
    draw=draw,
    held_out=(draw(Generator().manual_seed(99), 500),),
)


def loss(**crew: object) -> float:
    return held_out_loss(Crew(steps=STEPS, **crew), TASK, rate=0.05)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def honest() -> float:
    """The loss of honest learners alone."""
    return loss()


def test_honest_learners_converge(honest: float) -> None:
    assert honest < 0.02


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("merge", ["median", "centered_clip"])
def test_two_liars_among_five_stop_no_robust_merge(merge: str, lie: str, honest: float) -> None:
    assert loss(merge=merge, liars=2, lie=lie) < honest + NEAR


@pytest.mark.parametrize("lie", LIES)
def test_one_liar_among_four_stops_no_trimmed_mean(lie: str, honest: float) -> None:
    assert loss(merge="trimmed_mean", liars=1, lie=lie) < honest + NEAR


def test_the_same_liars_do_stop_a_mean() -> None:
    """Else the tests above would show nothing."""
    found = {lie: loss(merge="mean", liars=2, lie=lie) for lie in LIES}
    spoiled = [lie for lie, value in found.items() if not value < 0.1 or math.isnan(value)]
    assert len(spoiled) >= 3, found
