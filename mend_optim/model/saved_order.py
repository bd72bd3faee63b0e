"""Whether a checkpoint has the parameters in the order of a layout.

Parameters correspond by their order. Those with names are ordered by these, and all others are as
the optimizer lists them. Where shapes are equal, only the names that a checkpoint tells show that
it has another order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mend_optim.protocol.handshake import BY_NAME, PARAMETER, are_positions

OTHER_ORDER = (
    "state_dict must have the parameters in the order of this optimizer, got {} first, here {}: "
    "give it named_parameters() if the optimizer that saved the checkpoint had them, else "
    "parameters(), and load the model's weights first"
)
INNER_ALONE = "or `del state_dict['mend']` to take the inner state alone"


def told_names(state: Any) -> list[str]:
    """The names of the wrapped parameters in a checkpoint that could be read, in its order."""
    fields = (str(field) for field, _ in state["model"])
    return [field.removeprefix(PARAMETER) for field in fields if field.startswith(PARAMETER)]


def is_by_name(state: Any) -> bool:
    """Whether a checkpoint says that it has the parameters in the order of their names, and that
    the optimizer listed them in another one."""
    return list(BY_NAME) in [list(field) for field in state["model"]]


def keeps_order(told: Sequence[str], own: Sequence[str], listed: Sequence[str]) -> bool | None:
    """Whether the names say that a checkpoint has the parameters in the order of a layout, whose
    model it is of: where both have names, these are compared there.

    Args:
        told: the names in the checkpoint, in its order, or positions.
        own: the names in the layout, in its order, or positions.
        listed: the same as the optimizer lists them.

    Returns:
        None if they cannot tell: the checkpoint has names, and the layout has positions.
    """
    if are_positions(told):
        return list(own) == list(listed)
    return None if are_positions(own) else True
