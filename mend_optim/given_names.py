"""The names that a user gives: that of a learner, and that of its zone."""

from __future__ import annotations

import os
import socket
import unicodedata
from collections.abc import Iterator
from itertools import chain, count

from mend_optim.environment import stand_in
from mend_optim.errors import require

# Endings of the names of learners that the user did not name, in one process.
_suffixes: Iterator[str] = chain([""], map("-{}".format, count(2)))


def learner_name(name: str | None) -> str:
    """Return the name of a learner, from the argument or the environment; else one that tells its
    machine and its process. Raises `UsageError`."""
    source = "name"
    if name is None:
        told, source = stand_in("name")
        name = told or f"{socket.gethostname()}-{os.getpid()}{next(_suffixes)}"
    return _checked(source, name)


def zone_name(zone: str | None) -> str:
    """Return the name of a learner's zone, from the argument or the environment; empty for none.
    Raises `UsageError`."""
    source = "zone"
    if zone is None:
        zone, source = stand_in("zone")
        if not zone:
            return ""
    return _checked(source, zone)


def _checked(source: str, name: str) -> str:
    # In this order: a lone surrogate, as of an environment that is not UTF-8, is not printable, and
    # cannot be encoded.
    good = isinstance(name, str) and name.isprintable() and 0 < len(name.encode()) <= 200
    require(good, source, name, "a printable text of 1 to 200 bytes")
    # One text, whichever way an operating system spells an accent.
    return unicodedata.normalize("NFC", name)
