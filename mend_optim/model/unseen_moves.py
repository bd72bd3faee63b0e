"""Whether a script trains the weights in ways in which no step is ever seen: by other methods of
the inner optimizer, or by that one's own `step()`, past its wrapper."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from torch import Tensor

#: So many calls that move the weights, one after another without a step, are training. Going to
#: and fro between training and evaluation is not: there are steps in between.
CALLS = 16
TRAINED = 3
UNSEEN = (
    f"{{method}}() and others have moved the weights {CALLS} times without a step: nothing is "
    "merged; let the optimizer step in step(), for example with a closure"
)
DIRECT = (
    f"the inner optimizer has taken {CALLS} steps past this MendOptimizer, which sees none of "
    "them: nothing is merged; call step() of the MendOptimizer in place of the inner optimizer's"
)


class UnseenMoves:
    """Counts calls of methods that have moved the weights since the last step."""

    def __init__(self) -> None:
        self._calls = 0

    def stepped(self) -> None:
        """A step was taken."""
        self._calls = 0

    def moved(self, changed: bool) -> bool:
        """A method was called, in which no step was seen. Returns whether the user is to be told
        now: once, until there is a step."""
        self._calls += changed
        return changed and self._calls == CALLS


def versions(parameters: Sequence[Tensor]) -> tuple[int, ...]:
    """A value that changes when some parameters do: in-place operations count the versions of a
    tensor."""
    trained = (p for p in parameters if p.requires_grad)
    return tuple(p._version for p in islice(trained, TRAINED))
