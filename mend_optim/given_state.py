"""The state that a user gives to `load_state_dict`."""

from __future__ import annotations

import reprlib
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch.optim import Optimizer

from mend_optim.errors import UsageError, require

#: The entries that torch reads of an optimizer's state.
INNER = ("state", "param_groups")
WHOLE = "all that state_dict() returned, of this optimizer or of the bare one"
#: The entry of the learner in a state, and one that the learner's part itself always has.
MEND, FORMAT = "mend", "format"

#: Shows the names of entries, however many they are.
_SHORT = reprlib.Repr()
_SHORT.maxlist = 8


def require_dict(state_dict: object) -> None:
    """Raise `UsageError` unless a state is a dict."""
    kind = type(state_dict).__name__
    holds = isinstance(state_dict, Mapping)
    require(holds, "state_dict", kind, "a dict", "pass what state_dict() returned")


def parts_of(state_dict: Mapping[str, Any]) -> tuple[dict[str, Any], object]:
    """Return the inner optimizer's part of a state, and the learner's: None if the bare optimizer
    saved it. Raises `UsageError`."""
    require_dict(state_dict)
    inner = {key: value for key, value in state_dict.items() if key != MEND}
    return inner, state_dict.get(MEND)


def learners_part(state_dict: Mapping[str, Any]) -> object:
    """Return the learner's part of a state, which may be given by itself. Raises `UsageError`."""
    require_dict(state_dict)
    if MEND not in state_dict and FORMAT not in state_dict:
        whole = "all that state_dict() of a MendOptimizer returned"
        raise UsageError(
            f"state_dict must be a MendOptimizer's state, with the entry {MEND!r}, got the entries "
            f"{_SHORT.repr(list(state_dict))}; pass {_entry_with((MEND,), state_dict) or whole}"
        )
    return state_dict.get(MEND, state_dict)


@contextmanager
def refusing_foreign(state: Mapping[str, Any]) -> Iterator[None]:
    """Load the inner optimizer's part of a state within this context. Raises `UsageError` if that
    fails in torch's own code, before it changes anything, for an entry that every optimizer of
    torch's saves.

    It is not asked for beforehand: an optimizer may load another format, and a hook may make an
    optimizer's state of what was saved. An error of such code stays what it is."""
    try:
        yield
    except KeyError as error:
        is_missing = any(error.args == (key,) and key not in state for key in INNER)
        if not is_missing or not _is_of_torch(error):
            raise
        raise UsageError(
            f"state_dict must be an optimizer's state, with the entries {INNER}, got the entries "
            f"{_SHORT.repr(list(state))}; pass {_entry_with(INNER, state) or WHOLE}"
        ) from error


def _is_of_torch(error: KeyError) -> bool:
    """Whether an optimizer of torch's raised an error by its own code, and no hook or subclass."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return bool(frame.f_globals.get("__name__") == Optimizer.__module__)


def _entry_with(names: Sequence[str], state: Mapping[str, Any]) -> str:
    """The entry that has all these names, as a script reads it; empty if there is not just one.
    Checkpoints of scripts often have the states of a model and its optimizer."""
    found = [
        key
        for key, value in state.items()
        if isinstance(value, Mapping) and all(name in value for name in names)
    ]
    return f"state_dict[{found[0]!r}]" if len(found) == 1 else ""
