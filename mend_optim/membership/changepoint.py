"""How long a level has held: Bayesian online change-point detection (Adams and MacKay, arXiv
0710.3742).

    P(rₜ = r + 1) ∝ P(rₜ₋₁ = r) π(xₜ | the last r) (1 − H)        P(rₜ = 0) = H

The run length r is how many of the last observations are of one level, H the hazard that a level
ends, and π Student's t: what observations of a normal law predict whose mean and variance are not
known (prior: normal-inverse-gamma)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

# run lengths from here on are one: the predictions of the last 64 are as good as those of more
LONGEST = 64
HAZARD = 0.01
NOISE = 0.05  # a priori, the standard deviation of an observation about its level,
SHAPE = 2.0  # as sure as if it had been seen in twice so many,
WIDTH = 0.7  # and of a level about the origin: half or twice as much is nothing special
CERTAIN = 0.9

_r = np.arange(LONGEST + 1)
_kappa, _alpha = (NOISE / WIDTH) ** 2 + _r, SHAPE + _r / 2
_gain = _kappa / (_kappa + 1)
_scale = (
    np.array([math.lgamma(a + 0.5) - math.lgamma(a) for a in _alpha])
    + np.log(_gain / (2 * math.pi)) / 2
)
_rate = 1 / (_kappa + 1)


class RunLengths:
    """`mass[r]` = P(the level has held for r observations | all so far)."""

    def __init__(self) -> None:
        self.mass: NDArray[np.float64] = np.zeros(LONGEST + 1)
        self.mass[0] = 1.0
        # at r: posterior of the level from the last r observations
        self._mean = np.zeros(LONGEST + 1)
        self._beta = np.full(LONGEST + 1, SHAPE * NOISE**2)
        self._log_beta = np.log(self._beta)

    def add(self, x: float) -> None:
        """One more observation. π(x) = √(κ / 2π(κ+1)) Γ(α+½) / Γ(α) · βᵅ / β'^(α+½); β' = β + κ (x
        − μ)² / 2(κ+1)."""
        off = x - self._mean
        beta = self._beta + 0.5 * _gain * off * off
        log_beta = np.log(beta)
        joint = self.mass * np.exp(_scale + _alpha * self._log_beta - (_alpha + 0.5) * log_beta)
        joint *= (1 - HAZARD) / joint.sum()
        self.mass[0], self.mass[1:] = HAZARD, joint[:-1]
        self.mass[-1] += joint[-1]
        self._mean[1:] = (self._mean + _rate * off)[:-1]
        self._beta[1:], self._log_beta[1:] = beta[:-1], log_beta[:-1]

    def shortest(self) -> int:
        """The smallest k with P(r ≤ k) > 0.9: the level has held for no longer."""
        return int(np.searchsorted(np.cumsum(self.mass), CERTAIN, side="right"))
