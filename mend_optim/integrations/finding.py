"""The `MendOptimizer` within the wrappers that other libraries put around an optimizer."""

from __future__ import annotations

from collections.abc import Iterable

from mend_optim.errors import require
from mend_optim.optimizer import MendOptimizer

#: Wrappers around wrappers that are looked into.
_DEPTH = 8


def find_optimizer(candidate: object) -> MendOptimizer | None:
    """The `MendOptimizer` that this is, or that is inside it. None if there is none.

    Lightning's proxy claims to be an instance of the class that it wraps, so the innermost one
    counts."""
    found = None
    for _ in range(_DEPTH):
        if isinstance(candidate, MendOptimizer):
            found = candidate
        candidate = getattr(candidate, "optimizer", None)
    return found


def found_in(candidates: Iterable[object]) -> list[MendOptimizer]:
    """The `MendOptimizer`s in these, each once."""
    found = [each for candidate in candidates if (each := find_optimizer(candidate)) is not None]
    return list({id(each): each for each in found}.values())


def require_found(candidate: object) -> MendOptimizer:
    """The `MendOptimizer` in a trainer's optimizer. Raises `UsageError` if there is none."""
    found = find_optimizer(candidate)
    bound = "a MendOptimizer, or have one inside"
    remedy = "wrap it before you give it to the trainer: MendOptimizer(AdamW(…), …)"
    require(found is not None, "the trainer's optimizer", type(candidate).__name__, bound, remedy)
    assert found is not None
    return found
