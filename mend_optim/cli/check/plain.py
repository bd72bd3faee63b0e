"""The findings of a check as plain data, for scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mend_optim.cli.check.findings import (
    Facts,
    allowed_to_differ,
    differing,
    doubles,
    faults_of,
    has_faults,
)
from mend_optim.cli.check.way import Fault
from mend_optim.protocol.surveyed import Surveyed, Transfer


def plain_of(found: Sequence[Facts]) -> dict[str, Any]:
    """All that was found, at each address and of the learners together."""
    return {
        "sound": not has_faults(found),
        "addresses": [_learner(facts) for facts in found],
        "faults": [_fault(fault) for fault in doubles(found)],
        "differing": differing(found),
        "allowed_to_differ": allowed_to_differ(found),
    }


def _learner(facts: Facts) -> dict[str, Any]:
    """All that is known of one address. Times are in seconds, rates in bytes per second; what is
    not known is None."""
    visit = facts.visit
    answer = visit.answer if visit else None
    return {
        "address": facts.address,
        "resolves": [each.ip for each in facts.attempts],
        "connects": {each.ip: each.took_s for each in facts.attempts},
        "learner": answer.peer.name if answer else None,
        "incarnation": answer.peer.incarnation if answer else None,
        "secured": facts.secured,
        "round_trip_s": visit.round_trip_s if visit and answer else None,
        "tells": facts.back[0] if facts.back else None,
        "settings": visit.settings if visit else {},
        **_way(visit.surveyed if visit else Surveyed()),
        "faults": [_fault(fault) for fault in faults_of(facts)],
    }


def _way(found: Surveyed) -> dict[str, Any]:
    clock = found.clock
    return {
        "sees_you_as": found.seen_ip or None,
        "dials_back": found.dialled.value if found.dialled else None,
        "clock_offset_s": clock.offset_ns / 1e9 if clock else None,
        "clock_bound_s": clock.bound_ns / 1e9 if clock else None,
        "bytes_per_s_there": _rate(found.up),
        "bytes_per_s_back": _rate(found.down),
        "not_measured": _why(found),
    }


def _rate(transfer: Transfer | None) -> float | None:
    return transfer.bytes_per_s if transfer else None


def _why(found: Surveyed) -> str:
    if found.is_too_old:
        return "too old"
    return "busy" if found.wait_s else found.fault


def _fault(fault: Fault) -> dict[str, str]:
    return {"text": fault.text, "remedy": fault.remedy}
