"""Slow and obvious twins of the numeric kernels: textbook formulas in float64, one element at a time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

Vector = Sequence[float]


def smallest_load(sizes: Sequence[int], fragments: int) -> int:
    """The least possible size of the largest fragment, by trying every partition."""
    choices = itertools.product(range(fragments), repeat=len(sizes))
    return min(
        max(sum(s for s, b in zip(sizes, bins, strict=True) if b == f) for f in range(fragments)) for bins in choices
    )


def weights(scheme: str, work: Sequence[tuple[int, int]]) -> list[Fraction]:
    """Exact weights of members that did (tokens, steps) of work, some of it not zero."""
    formula = {
        "tokens": lambda tokens, steps: Fraction(tokens),
        "throughput": lambda tokens, steps: Fraction(tokens * tokens, steps),
        "uniform": lambda tokens, steps: Fraction(1),
    }[scheme]
    raw = [formula(tokens, steps) if steps else Fraction(0) for tokens, steps in work]
    return [w / sum(raw) for w in raw]


def weighted_mean(deltas: Sequence[Vector], w: Sequence[float]) -> list[float]:
    """Σ wᵢ Δᵢ, coordinate by coordinate, correctly rounded."""
    return [
        math.fsum(weight * value for weight, value in zip(w, column, strict=True))
        for column in zip(*deltas, strict=True)
    ]


def norm(x: Vector) -> float:
    return math.sqrt(math.fsum(value * value for value in x))


def direction(x: Vector) -> list[float]:
    """φ(x) = x/‖x‖, φ(0) = 0."""
    length = norm(x)
    return [value / length if length else 0.0 for value in x]


def radial_directional(deltas: Sequence[Vector], w: Sequence[float]) -> list[float]:
    """R φ(Σ wᵢ φ(Δᵢ)) with R = Σ wᵢ ‖Δᵢ‖, of one tensor."""
    radius = math.fsum(weight * norm(delta) for weight, delta in zip(w, deltas, strict=True))
    return [radius * value for value in direction(weighted_mean([direction(delta) for delta in deltas], w))]


def trimmed_mean(deltas: Sequence[Vector], cut: int) -> list[float]:
    """Per coordinate, the mean without the `cut` smallest and the `cut` largest."""
    kept = [sorted(column)[cut : len(column) - cut] for column in zip(*deltas, strict=True)]
    return [math.fsum(column) / len(column) for column in kept]


def nesterov(lr: float, momentum: float, start: Vector, deltas: Sequence[Vector]) -> Iterator[list[float]]:
    """The anchors after each outer step, by the textbook: b ← μ b + Δ; Θ ← Θ - η (Δ + μ b)."""
    theta, b = list(start), [0.0] * len(start)
    for delta in deltas:
        for i, d in enumerate(delta):
            b[i] = momentum * b[i] + d
            theta[i] = theta[i] - lr * (d + momentum * b[i])
        yield list(theta)
