"""The lines of a ledger whose signatures do not hold."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from mend_optim.errors import PeerError
from mend_optim.transport.security.evidence import statements_of
from mend_optim.transport.security.signers import Authorities


def unproven(lines: Iterable[str], ca_pem: bytes) -> Iterator[tuple[int, str]]:
    """Yield the number of each line that proves nothing or something else, from 1 on, and why."""
    authorities = Authorities(ca_pem)
    for number, line in enumerate(lines, 1):
        try:
            statements_of(json.loads(line), authorities)
        except PeerError as fault:
            yield number, str(fault)
        except (KeyError, TypeError, ValueError) as fault:
            yield number, f"it is no line of a ledger: {fault!r}"
