"""Independent training processes, on slow and unreliable links, train one model together.

    inner = AdamW(model.parameters(), lr=3e-4)
    credentials = Credentials.secret("cluster.secret")
    optimizer = MendOptimizer(
        inner, listen="0.0.0.0:29600", peers=["b:29600"], credentials=credentials
    )

All public names are here, and those of each integration in its module of `mend_optim.integrations`.
The other packages below this one are internal."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mend_optim.codecs.blockwise import Float4, Int4, Int8
    from mend_optim.codecs.powersgd import PowerSGD
    from mend_optim.codecs.sparse import Sparse
    from mend_optim.distributed_checkpoint import LearnerState
    from mend_optim.engine.late_adoption import Adoption
    from mend_optim.engine.ledger import Event, MemberRecord, RoundRecord
    from mend_optim.engine.moment_schedule import Moment, MomentSchedule
    from mend_optim.engine.period import AutoPeriod
    from mend_optim.engine.quorum import Grace, Quorum
    from mend_optim.errors import ClosedError, MendError, PeerError, UsageError
    from mend_optim.finish import Finish, Settled
    from mend_optim.membership.failslow import FailSlow
    from mend_optim.optimizer import MendOptimizer
    from mend_optim.protocol.peer_limits import Limits
    from mend_optim.protocol.refusals import Refused
    from mend_optim.protocol.timing import Timing
    from mend_optim.ranks.shards import Split, megatron
    from mend_optim.runtime.open_learners import close_all
    from mend_optim.status import FragmentStatus, PeerStatus, Status
    from mend_optim.transport.security.credentials import Credentials
    from mend_optim.worker.offer_sizes import Guard
    from mend_optim.worker.outer import DiLoCoNesterov, Nesterov

__all__ = [
    "Adoption",
    "AutoPeriod",
    "ClosedError",
    "Credentials",
    "DiLoCoNesterov",
    "Event",
    "FailSlow",
    "Finish",
    "Float4",
    "FragmentStatus",
    "Grace",
    "Guard",
    "Int4",
    "Int8",
    "LearnerState",
    "Limits",
    "MemberRecord",
    "MendError",
    "MendOptimizer",
    "Moment",
    "MomentSchedule",
    "Nesterov",
    "PeerError",
    "PeerStatus",
    "PowerSGD",
    "Quorum",
    "Refused",
    "RoundRecord",
    "Settled",
    "Sparse",
    "Split",
    "Status",
    "Timing",
    "UsageError",
    "close_all",
    "megatron",
]
__version__ = "0.1.0"

# The module of each name, which is imported when the name is first asked for: torch takes seconds,
# and the command `mend` mostly needs none.
_HOMES = {
    "Adoption": "mend_optim.engine.late_adoption",
    "AutoPeriod": "mend_optim.engine.period",
    "ClosedError": "mend_optim.errors",
    "Credentials": "mend_optim.transport.security.credentials",
    "DiLoCoNesterov": "mend_optim.worker.outer",
    "Event": "mend_optim.engine.ledger",
    "FailSlow": "mend_optim.membership.failslow",
    "Finish": "mend_optim.finish",
    "Float4": "mend_optim.codecs.blockwise",
    "FragmentStatus": "mend_optim.status",
    "Grace": "mend_optim.engine.quorum",
    "Guard": "mend_optim.worker.offer_sizes",
    "Int4": "mend_optim.codecs.blockwise",
    "Int8": "mend_optim.codecs.blockwise",
    "LearnerState": "mend_optim.distributed_checkpoint",
    "Limits": "mend_optim.protocol.peer_limits",
    "MemberRecord": "mend_optim.engine.ledger",
    "MendError": "mend_optim.errors",
    "MendOptimizer": "mend_optim.optimizer",
    "Moment": "mend_optim.engine.moment_schedule",
    "MomentSchedule": "mend_optim.engine.moment_schedule",
    "Nesterov": "mend_optim.worker.outer",
    "PeerError": "mend_optim.errors",
    "PeerStatus": "mend_optim.status",
    "PowerSGD": "mend_optim.codecs.powersgd",
    "Quorum": "mend_optim.engine.quorum",
    "Refused": "mend_optim.protocol.refusals",
    "RoundRecord": "mend_optim.engine.ledger",
    "Settled": "mend_optim.finish",
    "Sparse": "mend_optim.codecs.sparse",
    "Split": "mend_optim.ranks.shards",
    "Status": "mend_optim.status",
    "Timing": "mend_optim.protocol.timing",
    "UsageError": "mend_optim.errors",
    "close_all": "mend_optim.runtime.open_learners",
    "megatron": "mend_optim.ranks.shards",
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a public name."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
