"""Whether beats come so late that learners suspect peers which live.

Learners that share too few cores beat late, and read the beats of others late. Then they suspect
one another in turns, and each suspect is back with its next beat. Rounds wait for no suspect, and
choose other sealers, so that they may never end. No single suspicion shows that: a peer that was
stopped, or a net that was parted, looks the same once."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from statistics import median

from mend_optim.engine.ledger import Event
from mend_optim.engine.state import EngineState

#: The beats of this learner that are looked back upon.
LOOKED_BACK = 60
#: At so many of them, some suspect was back. The suspicions that are over began at so many, too: a
#: net that was parted once began them within a beat or two, however slowly its links return.
FEWEST_RETURNS = 8
#: The least share of the peers that were suspects, and their least number. One that is stopped
#: again and again is no sign, unless it is the only one.
LATE_SHARE = 1 / 4
FEWEST_LATE = 2
_TEXT = (
    "in the last {beats} beats, peers were suspected and came back ({n} of {peers}): beats come "
    "later than timing.beat_s={beat_s:g} allows, and rounds go on without those peers; this "
    "learner's own beats were {own_s:.3g} s apart; pass a greater beat_s to all learners, or let "
    "fewer share a machine"
)


class LateBeats:
    """Tells the user once that `timing.beat_s` is too short."""

    def __init__(self, state: EngineState) -> None:
        self.state = state
        #: Of the last beats: when each was sent, and the suspects that were back.
        self._last: deque[tuple[float, Mapping[str, float]]] = deque(maxlen=LOOKED_BACK)
        self._is_told = False

    def look(self, now: float, back: Mapping[str, float]) -> None:
        """At every beat.

        Args:
            now: The time.
            back: The peers that were suspected for silence or deafness, and are not any more, with
                the time of the beat at which each suspicion began.
        """
        if self._is_told:
            return
        self._last.append((now, back))
        found = [suspects for _, suspects in self._last if suspects]
        begun = {since for suspects in found for since in suspects.values()}
        peers = self.state.roster.peers.keys()
        late = frozenset().union(*found) & peers
        fewest = max(min(FEWEST_LATE, len(peers)), LATE_SHARE * len(peers))
        turns = min(len(begun), len(found))
        if late and turns >= FEWEST_RETURNS and len(late) >= fewest:
            self._is_told = True
            self._tell(len(late), len(peers))

    def _tell(self, n: int, peers: int) -> None:
        times = [at for at, _ in self._last]
        own_s = median(later - at for at, later in pairwise(times))
        beats, beat_s = len(times), self.state.policies.timing.beat_s
        text = _TEXT.format(beats=beats, n=n, peers=peers, beat_s=beat_s, own_s=own_s)
        self.state.emit(Event("late_beats", text, {"n": n, "peers": peers, "own_s": own_s}))
