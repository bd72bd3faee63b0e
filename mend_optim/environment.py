"""The environment variables that stand in for arguments of `MendOptimizer`."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

log = logging.getLogger("mend_optim")

#: The variable of each argument that has one.
VARIABLES = {
    "name": "MEND_NAME",
    "listen": "MEND_LISTEN",
    "peers": "MEND_PEERS",
    "credentials": "MEND_CREDENTIALS",
    "secret": "MEND_SECRET_FILE",
    "insecure": "MEND_INSECURE",
    "zone": "MEND_ZONE",
}
#: `mend run` names a file in it. A learner makes the file once it has joined.
JOINED_FILE = "MEND_JOINED_FILE"
UNKNOWN = "the environment variable %s means nothing to mend_optim%s"

# The unknown variables that were reported: once is enough for a process.
_reported: set[str] = set()


def stand_in(argument: str) -> tuple[str, str]:
    """What the environment says in place of an argument, and the name of the variable that says
    it. An empty text says nothing."""
    variable = VARIABLES[argument]
    return os.environ.get(variable, ""), variable


def note_joined() -> None:
    """Tell `mend run`, if that has started this process, that the learner has joined."""
    path = os.environ.get(JOINED_FILE)
    if path:
        with suppress(OSError):
            Path(path).touch()


def warn_of_unknown() -> None:
    """Warn of variables that look like ours and are none: a misspelt one would be ignored in
    silence."""
    known = [*VARIABLES.values(), JOINED_FILE]
    strange = {name for name in os.environ if name.startswith("MEND_")}.difference(known, _reported)
    for name in sorted(strange):
        _reported.add(name)
        nearest = get_close_matches(name, known, n=1)
        log.warning(UNKNOWN, name, f"; did you mean {nearest[0]}?" if nearest else "")
