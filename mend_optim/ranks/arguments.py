"""Whether all ranks of a learner were given the same arguments.

Each rank decides from them in which call it meets the others, and what it copies. With other
arguments it would wait for another call than they do, or take their parts for those of another
fragment."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from mend_optim.errors import UsageError

UNLIKE = (
    "{name} must be the same on all ranks of a learner, got {first} on rank 0 and {other} on rank "
    "{rank}; give the MendOptimizer the same arguments on every rank"
)


def encode_arguments(arguments: Iterable[tuple[str, str]]) -> bytes:
    """This rank's arguments, (name, value) pairs, for the other ranks."""
    return json.dumps(dict(arguments)).encode()


def refuse_unlike(told: Sequence[bytes]) -> None:
    """Raise `UsageError` unless all ranks have the same arguments. Alike on all ranks.

    Args:
        told: the arguments of each rank, which may end in zeros.
    """
    lead, *others = (json.loads(each.rstrip(b"\0")) for each in told)
    for rank, arguments in enumerate(others, 1):
        for name, first in lead.items():
            other = arguments[name]
            if other != first:
                raise UsageError(UNLIKE.format(name=name, first=first, other=other, rank=rank))
