"""The result of a visit to an address by somebody that takes no part in the run."""

from __future__ import annotations

from dataclasses import dataclass, field

from mend_optim.protocol.handshake import Hello
from mend_optim.protocol.surveyed import Surveyed
from mend_optim.protocol.unreached import Unreached

#: The model's field that a refusal tells first.
COUNT = "number of parameters"
#: A visitor's name for the shape of the model's first parameter, which tells most models apart.
FIRST = "first parameter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """The result of a visit.

    Attributes:
        answer: the learner's hello; None if there was none.
        cause: why not.
        fault: the same in the transport's words.
        silent_s: how long nothing came of a port that accepts connections; 0 if something came.
        round_trip_s: the shortest of several hellos.
        settings: by field, the learner's value, where it was asked for.
        surveyed: the measures of the way there.
    """

    answer: Hello | None = None
    cause: Unreached | None = None
    fault: str = ""
    silent_s: float = 0.0
    round_trip_s: float = 0.0
    settings: dict[str, str] = field(default_factory=dict)
    surveyed: Surveyed = field(default_factory=Surveyed)
