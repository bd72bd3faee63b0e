"""Learners of the first code that had this version of the protocol: `tests/fixtures/wire-N.json`
tells what these send. They train with learners of the present code, while a run is brought to that
one by one."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from mend_optim.protocol.handshake import PROTOCOL
from mend_optim.protocol.messages import Beat, Message, Report, Rumor

FIXTURES = Path(__file__).parents[1] / "fixtures"
Part = TypeVar("Part", Beat, Report, Rumor)


@cache
def recorded() -> dict[str, Any]:
    """What was written of the first code with the present version of the protocol."""
    found: dict[str, Any] = json.loads((FIXTURES / f"wire-{PROTOCOL}.json").read_text())
    return found


def as_former(message: Message) -> Message:
    """The message as such a learner sends and understands it: without the fields of beats, of which
    it knows nothing. The other messages have all that they have now."""
    if not isinstance(message, Beat):
        return message
    reports = tuple(map(_known, message.reports))
    return replace(_known(message), reports=reports, roster=tuple(map(_known, message.roster)))


def _known(part: Part) -> Part:
    names = recorded()["fields"][type(part).__name__]
    return replace(part, **{f.name: f.default for f in fields(part) if f.name not in names})
