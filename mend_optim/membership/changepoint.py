"""How long a level has held: Bayesian online change-point detection (Adams and MacKay, arXiv
0710.3742).

    P(rₜ = r + 1) ∝ P(rₜ₋₁ = r) π(xₜ | the last r) (1 − H)        P(rₜ = 0) = H

The run length r is the number of last observations that are of one level. H is the hazard that a
level ends. π is Student's t: the predictive distribution of a normal law of unknown mean and
variance, under a normal-inverse-gamma prior.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

#: All run lengths from here on count as this one: the last 64 observations predict as well as more.
LONGEST = 64
#: H, the probability that a level ends with any one observation.
HAZARD = 0.01
#: The prior's standard deviation of an observation about its level.
NOISE = 0.05
#: How sure the prior is of `NOISE`: as if it had been seen in twice as many observations.
SHAPE = 2.0
#: The prior's standard deviation of a level about the origin. Observations are logarithms, so half
#: or twice as much is nothing special.
WIDTH = 0.7
#: The probability at which a run length counts as certain.
CERTAIN = 0.9

# the part of the posterior after r observations that is the same for all observations
_r = np.arange(LONGEST + 1)
_kappa = (NOISE / WIDTH) ** 2 + _r
_alpha = SHAPE + _r / 2
_gain = _kappa / (_kappa + 1)
_scale = (
    np.array([math.lgamma(a + 0.5) - math.lgamma(a) for a in _alpha])
    + np.log(_gain / (2 * math.pi)) / 2
)
_rate = 1 / (_kappa + 1)


class RunLengths:
    """The distribution of the run length. Every array has one entry per run length r = 0 … 64."""

    def __init__(self) -> None:
        #: mass[r] = P(the level has held for r observations | all so far). float64, sums to 1.
        self.mass: NDArray[np.float64] = np.zeros(LONGEST + 1)
        self.mass[0] = 1.0
        #: μ at r: the posterior mean of the level, from the last r observations.
        self._mean = np.zeros(LONGEST + 1)
        #: β at r: the scale of the posterior variance. Invariant: > 0.
        self._beta = np.full(LONGEST + 1, SHAPE * NOISE**2)
        #: log β, kept because two terms of the next observation need it.
        self._log_beta = np.log(self._beta)

    def add(self, x: float) -> None:
        """Take in one more observation.

        π(x) = √(κ / 2π(κ+1)) Γ(α+½) / Γ(α) · βᵅ / β'^(α+½)
        β' = β + κ (x − μ)² / 2(κ+1)
        """
        off = x - self._mean
        beta = self._beta + 0.5 * _gain * off * off
        log_beta = np.log(beta)
        joint = self.mass * np.exp(_scale + _alpha * self._log_beta - (_alpha + 0.5) * log_beta)
        joint *= (1 - HAZARD) / joint.sum()
        self.mass[0] = HAZARD
        self.mass[1:] = joint[:-1]
        self.mass[-1] += joint[-1]
        self._mean[1:] = (self._mean + _rate * off)[:-1]
        self._beta[1:] = beta[:-1]
        self._log_beta[1:] = log_beta[:-1]

    def shortest(self) -> int:
        """Return the smallest k with P(r ≤ k) > 0.9: the level has held for at most k
        observations."""
        return int(np.searchsorted(np.cumsum(self.mass), CERTAIN, side="right"))
