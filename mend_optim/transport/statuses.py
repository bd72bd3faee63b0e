"""The statuses by which RPCs of this learner's server end."""

from __future__ import annotations

from mend_optim.errors import PeerError
from mend_optim.transport.checksums import DamagedError
from mend_optim.transport.grpc_setup import grpc
from mend_optim.transport.receiving import BusyError
from mend_optim.transport.stream import StillError

#: Characters of an RPC's status.
REASON_LIMIT = 500
_TELLING = {
    BusyError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    StillError: grpc.StatusCode.DEADLINE_EXCEEDED,
    DamagedError: grpc.StatusCode.DATA_LOSS,
}


def status_of(fault: PeerError, otherwise: grpc.StatusCode) -> grpc.StatusCode:
    """Return the status that tells the caller of a fault more than that it is refused, if there is
    one."""
    return _TELLING.get(type(fault), otherwise)
