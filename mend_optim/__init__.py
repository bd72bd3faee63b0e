"""mend_optim: independent training processes, on slow and unreliable links, train one model behind one line.

    optimizer = MendOptimizer(AdamW(model.parameters(), lr=3e-4), listen="0.0.0.0:51900", peers=["b:51900"])
"""

from .errors import ClosedError, MendError, PeerError, UsageError
from .failslow import FailSlow
from .ledger import Event, MemberRecord, RoundRecord
from .moments import Moment, MomentSchedule
from .optimizer import MendOptimizer
from .outer import Nesterov
from .powersgd import PowerSGD
from .quantize import Float4, Int4, Int8
from .quorum import Grace, Quorum
from .roster import Timing
from .sparse import Sparse
from .stateful import LearnerState
from .status import FragmentStatus, PeerStatus, Status

__all__ = [
    "ClosedError",
    "Event",
    "FailSlow",
    "Float4",
    "FragmentStatus",
    "Grace",
    "Int4",
    "Int8",
    "LearnerState",
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
    "RoundRecord",
    "Sparse",
    "Status",
    "Timing",
    "UsageError",
]
__version__ = "0.1.0"
