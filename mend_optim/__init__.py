"""mend_optim: independent training processes, on slow and unreliable links, train one model behind one line.

    optimizer = MendOptimizer(AdamW(model.parameters(), lr=3e-4), listen="0.0.0.0:51900", peers=["b:51900"])
"""

from .errors import ClosedError, MendError, PeerError, UsageError
from .ledger import Event, MemberRecord, RoundRecord
from .optimizer import MendOptimizer
from .outer import Nesterov
from .quorum import Grace, Quorum
from .roster import Timing
from .stateful import LearnerState
from .status import FragmentStatus, PeerStatus, Status

__all__ = [
    "ClosedError",
    "Event",
    "FragmentStatus",
    "Grace",
    "LearnerState",
    "MemberRecord",
    "MendError",
    "MendOptimizer",
    "Nesterov",
    "PeerError",
    "PeerStatus",
    "Quorum",
    "RoundRecord",
    "Status",
    "Timing",
    "UsageError",
]
__version__ = "0.1.0"
