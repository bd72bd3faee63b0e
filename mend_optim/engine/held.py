"""The digests of the last anchors of one fragment of this learner.

To take them of all anchors costs a third more processor time where rounds follow one another at
once. So where rounds are faster than beats, a digest is taken of every eighth anchor, by its
version: all learners then have digests of the same ones. It is also taken of an anchor that has
stood still from one beat to the next."""

from __future__ import annotations

import math

from mend_optim.protocol.lineage import Key
from mend_optim.protocol.messages import Content

#: Anchors whose digests are remembered. There may be many rounds in a beat, and peers tell of one.
HELD = 64
#: The version of an anchor that is attested, however fast rounds are, is divisible by this.
EVERY = 8


class Held:
    """The digests of the last anchors, which beats tell."""

    def __init__(self) -> None:
        #: Of anchors that followed from one another by seals, oldest first.
        self._digests: dict[Key, bytes] = {}
        #: The anchor of which the worker was last asked for a digest.
        self._asked: Key | None = None
        #: The anchor that this learner came to last, and when; and the one that it had at its last
        #: beat.
        self._newest: Key | None = None
        self._came_at = -math.inf
        self._at_beat: Key | None = None
        #: Whether the anchor follows from one that a peer handed over, and most learners have not
        #: attested the same since.
        self.is_in_question = False

    def comes(self, now: float, key: Key, beat_s: float) -> bool:
        """This learner is at an anchor. Returns whether the worker is to take its digest, because
        it is a new one."""
        if key == self._newest:
            return False
        stood_s = now - self._came_at
        self._newest, self._came_at = key, now
        return self._asks(key, stood_s >= beat_s or key.version % EVERY == 0)

    def stands(self, key: Key) -> bool:
        """A beat of this learner goes out. Returns whether the worker is to take the digest of the
        present anchor: it may be the last one, or come from a checkpoint."""
        stood, self._at_beat = key == self._at_beat, key
        return self._asks(key, stood)

    def _asks(self, key: Key, wanted: bool) -> bool:
        """The worker is asked once. First weights need no digest: their own one is their key."""
        if not wanted or not key.version or key == self._asked:
            return False
        self._asked = key
        return True

    def note(self, key: Key, digest: bytes) -> None:
        """The worker has taken the digest of an anchor."""
        self._digests[key] = digest
        if len(self._digests) > HELD:
            del self._digests[next(iter(self._digests))]

    def confirm(self) -> None:
        """Most learners have attested what this one has."""
        self.is_in_question = False

    def begin_anew(self, *, handed_over: bool) -> None:
        """The anchor is a whole one now, which a peer may have handed over. It may follow from
        others than the last ones."""
        self.is_in_question = handed_over
        self._digests.clear()
        self._asked = self._newest = None
        self._came_at = -math.inf

    def has(self, key: Key) -> bytes:
        """The digest of one of the last anchors; empty if it is not known."""
        return self._digests.get(key, b"")

    def told(self) -> Content | None:
        """The content that beats tell: of the last anchor that has a digest."""
        return next((Content(*item) for item in reversed(self._digests.items())), None)
