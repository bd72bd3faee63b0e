"""How much peers may cost a learner."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from mend_optim.errors import require, take_plain_numbers

#: The greatest counter: tokens, versions, steps, sequence numbers, incarnations. Sums of two of
#: them still fit into the 64 bits of the wire.
COUNTER_LIMIT = 2**62
#: The most learners that a limit may allow: what they tell of one another fits into one beat.
MOST_LEARNERS = 4096
#: The least limit on the bytes of offers that are on their way.
LEAST_RECEIVE_BYTES = 1 << 20
#: Bytes of offers that may be on their way besides one copy of the model from each peer.
SPARE_RECEIVE_BYTES = 64 << 20
#: Bytes of a learner's name, an address, a codec's or a section's name.
NAME_LIMIT = 256
#: Offers of its sender's neighbours in one joint offer. A relay passes on the rest one by one.
OTHERS_LIMIT = 255
#: Entries of any list: peers, fragments, members, fields.
COUNT_LIMIT = 1 << 16


def is_plain(text: str) -> bool:
    """Whether a text could not pass for another: it is printable, and in the composed form of
    Unicode (NFC)."""
    return text.isprintable() and (text.isascii() or unicodedata.is_normalized("NFC", text))


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much peers may cost this learner, and when one of them is believed. Learners need not
    have the same limits.

    Args:
        learners: the most learners in the run, with this one, from 2 to 4096. One more is refused
            until somebody leaves.
        receive_bytes: the most bytes of offers that may be on their way to this learner at a time;
            further ones wait for their turn. None: 64 MiB, and the size of the model in float32
            for each peer, of which there are at least 2. Offers that have arrived don't count.
        majority: whether a greater anchor needs the word of more than half of the peers while
            rounds go on here. False: the word of one is enough.

    Raises:
        UsageError: an argument is out of its bounds.

    Example:
        >>> Limits(learners=1000)
        Limits(learners=1000, receive_bytes=None, majority=True)
    """

    learners: int = 256
    receive_bytes: int | None = None
    majority: bool = True

    def __post_init__(self) -> None:
        take_plain_numbers(self)
        require(
            type(self.learners) is int and 2 <= self.learners <= MOST_LEARNERS,
            "limits.learners",
            self.learners,
            f"an int from 2 to {MOST_LEARNERS}",
        )
        require(
            self.receive_bytes is None
            or (type(self.receive_bytes) is int and self.receive_bytes >= LEAST_RECEIVE_BYTES),
            "limits.receive_bytes",
            self.receive_bytes,
            f"None or an int >= {LEAST_RECEIVE_BYTES}",
            "an offer that is greater waits until no other one is on its way",
        )
        require(type(self.majority) is bool, "limits.majority", self.majority, "True or False")

    @property
    def rumors(self) -> int:
        """The most rumors of one beat that are looked at."""
        return 4 * self.learners

    def receiving(self, numel: int, peers: int) -> int:
        """The most bytes of offers that may be on their way: of a model of `numel` elements, with
        that many peers."""
        if self.receive_bytes is not None:
            return self.receive_bytes
        return SPARE_RECEIVE_BYTES + 4 * numel * max(2, peers)
