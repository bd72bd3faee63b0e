"""The addresses that one seed stands for, and what they tell of the seed.

A seed is what the user gave: "host:port". Its name may have many addresses, those of a service's
machines, or one machine's IPv4 and IPv6. They change as machines come and go.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from mend_optim.protocol.unreached import Unreached


class Answer(Enum):
    """The learner that answered at an address."""

    LEARNER = "another learner"
    ITSELF = "this learner"


#: The causes from the one that tells least to the one that tells most. A name with a dead IPv6
#: route and a closed IPv4 port is a closed port.
_TELLING = (
    Unreached.NAME,
    Unreached.ROUTE,
    Unreached.ANSWER,
    Unreached.REFUSED,
    *(
        cause
        for cause in Unreached
        if cause not in (Unreached.NAME, Unreached.ROUTE, Unreached.ANSWER, Unreached.REFUSED)
    ),
)


class SeedAddresses:
    """The present addresses of a seed, each with the outcome of its last visit."""

    def __init__(self) -> None:
        #: In the resolver's order. None: not visited yet.
        self._outcomes: dict[str, Answer | Unreached | None] = {}

    def __contains__(self, address: str) -> bool:
        return address in self._outcomes

    def __len__(self) -> int:
        return len(self._outcomes)

    def renew(self, addresses: Sequence[str]) -> list[str]:
        """Take the addresses that the seed has now; return those to dial from now on.

        An address that has vanished is forgotten with its outcome: when it comes back, it may be
        another machine's."""
        former = self._outcomes
        self._outcomes = {address: former.get(address) for address in addresses}
        return [address for address in self._outcomes if address not in former]

    def note(self, address: str, outcome: Answer | Unreached) -> None:
        """Take note of a visit. An address that vanished meanwhile tells nothing of the seed."""
        if address in self._outcomes:
            self._outcomes[address] = outcome

    def verdict(self) -> Answer | Unreached | None:
        """Return the verdict: another learner if one answered at any of the addresses; this learner
        if the seed is nothing else; else why nobody is reached there. None: not known yet."""
        outcomes = self._outcomes.values()
        if Answer.LEARNER in outcomes:
            return Answer.LEARNER
        if None in outcomes or not outcomes:
            return None
        if self._is_itself():
            return Answer.ITSELF
        causes = [outcome for outcome in outcomes if isinstance(outcome, Unreached)]
        return max(causes, key=_TELLING.index)

    def _is_itself(self) -> bool:
        """Whether nobody answered but this learner, and nobody else is to be expected. A machine
        that listens on IPv4 alone still has an IPv6 address in its name: what fails in the other
        family does not count. In its own family, each further address is another machine."""
        outcomes = self._outcomes.items()
        own = {_family(at) for at, outcome in outcomes if outcome is Answer.ITSELF}
        failed = {
            _family(address) for address, outcome in outcomes if isinstance(outcome, Unreached)
        }
        return bool(own) and not own & failed


def _family(address: str) -> int:
    return 6 if address.startswith("[") else 4
