"""Independent training processes, on slow and unreliable links, train one model together.

    inner = AdamW(model.parameters(), lr=3e-4)
    credentials = Credentials.secret("cluster.secret")
    optimizer = MendOptimizer(
        inner, listen="0.0.0.0:29600", peers=["b:29600"], credentials=credentials
    )

All public names are here. The packages below this one are internal."""

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
    "Status",
    "Timing",
    "UsageError",
    "close_all",
]
__version__ = "0.1.0"
