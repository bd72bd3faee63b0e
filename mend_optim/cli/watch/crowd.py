"""All learners of a run, as those that answer tell of themselves and of the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mend_optim.errors import PeerError
from mend_optim.protocol.peer_limits import MOST_LEARNERS
from mend_optim.protocol.sight import SeenPeer, SeenRound, Sight
from mend_optim.transport.address import parse_address, seen_from

#: Looks of which a sparkline tells.
HISTORY = 24
#: Looks after which a learner that does not answer, and of which nobody tells, is forgotten.
PATIENCE = 30
#: The state of a learner that has called `finish()`, and waits for the others.
FINISHING = "finishing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One learner. `sight` is None if it did not answer; then the others have told of it."""

    name: str
    state: str
    address: str
    step: int
    tokens: int
    sight: Sight | None = None
    past: tuple[float, ...] = ()
    zone: str = ""


class Crowd:
    """The learners that are known of a run, and the last look at each.

    Args:
        address: The one that the user gave. It is dialled at every look.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        #: By address, the looks in a row at which it has not answered.
        self._missed: dict[str, int] = {address: 0}
        self._sights: dict[str, Sight] = {}
        self._past: dict[str, deque[float]] = {}
        #: Names that have answered once, and their last address.
        self._known: dict[str, str] = {}

    def addresses(self) -> list[str]:
        """Whom to look at."""
        return list(self._missed)

    def take(self, found: Mapping[str, Sight | PeerError]) -> None:
        """Take note of what one look has shown, at all these addresses."""
        self._sights = {}
        for address, sight in found.items():
            if isinstance(sight, Sight):
                self._missed[address] = 0
                self._add(address, sight)
            else:
                self._missed[address] = self._missed.get(address, 0) + 1
        for name, sight in self._sights.items():
            past = self._past.setdefault(name, deque(maxlen=HISTORY))
            past.append(sight.tokens_per_s)
        gone = [a for a, n in self._missed.items() if n > PATIENCE and a != self.address]
        for address in gone:
            del self._missed[address]
            self._known = {name: at for name, at in self._known.items() if at != address}

    def follow(self, found: Mapping[str, Sight | PeerError]) -> None:
        """Know the addresses, too, of the learners that these tell of and that have not answered
        themselves."""
        answered = {sight.peer.name for sight in found.values() if isinstance(sight, Sight)}
        for address, sight in found.items():
            if isinstance(sight, Sight):
                host, _ = parse_address("address", address)
                others = [peer for peer in sight.roster if peer.name not in answered]
                self._know(host, others)

    def _add(self, address: str, sight: Sight) -> None:
        name = sight.peer.name
        former = self._sights.get(name)
        if former is None or former.peer.incarnation <= sight.peer.incarnation:
            self._sights[name] = sight
            self._known[name] = address

    def _know(self, host: str, peers: Iterable[SeenPeer]) -> None:
        for peer in peers:
            there = seen_from(peer.address, host) if peer.address else ""
            if there and there not in self._missed and len(self._missed) < MOST_LEARNERS:
                self._missed[there] = 0

    def has_news(self, looked_at: Iterable[str]) -> bool:
        """Whether there are addresses that were not looked at yet."""
        return not set(self._missed) <= set(looked_at)

    @property
    def sights(self) -> list[Sight]:
        """The sights of the learners that answered, by name."""
        return [self._sights[name] for name in sorted(self._sights)]

    def rows(self) -> list[Row]:
        """All learners, by name."""
        told: dict[str, SeenPeer] = {}
        for sight in self.sights:
            for peer in sight.roster:
                if peer.name not in told or peer.tells:
                    told[peer.name] = peer
        names = sorted({*self._sights, *told, *self._known})
        return [self._row(name, told.get(name)) for name in names]

    def _row(self, name: str, told: SeenPeer | None) -> Row:
        sight = self._sights.get(name)
        if sight:
            return Row(
                name=name,
                state=_state(sight, told),
                address=sight.address,
                step=sight.position,
                tokens=sight.tokens,
                sight=sight,
                past=tuple(self._past[name]),
                zone=sight.zone,
            )
        if told:
            hidden = FINISHING if told.finishing else "cannot be dialled"
            state = "no answer" if told.address else hidden
            state = told.state if told.state != "alive" else state
            return Row(
                name=name,
                state=state,
                address=told.address,
                step=told.step,
                tokens=told.tokens,
                zone=told.zone,
            )
        return Row(name=name, state="gone", address=self._known[name], step=0, tokens=0)

    def rounds(self) -> list[SeenRound]:
        """The last rounds that any of them tells of, the newest last."""
        found = {(r.version, r.fragment, r.tokens): r for s in self.sights for r in s.last}
        return [found[key] for key in sorted(found)]


def _state(sight: Sight, told: SeenPeer | None) -> str:
    if not sight.joined:
        return "joining"
    if told and told.state != "alive":
        return told.state
    if told and told.finishing:
        return FINISHING
    if told and told.slow:
        return f"slow ({told.slow:.1f}×)"
    if sight.is_quiet:
        return f"no round for {sight.quiet_s:.0f} s"
    state = "merging" if sight.is_merging else "alone" if not sight.roster else "joined"
    late = f", late ({max(told.missed)} rounds)" if told and told.is_late else ""
    return f"{state}{late}{', declines to seal' if told and told.declines else ''}"
