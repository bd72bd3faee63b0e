"""What is in an anchor: whether other learners have the same under its key.

A key stands for one history, but nothing in a whole anchor ties its bytes to the key: that would
take all seals that led to it. A peer whose anchor is believed could hand over other bytes. So each
learner takes a digest of every anchor that it comes to, and tells the last few in its beats. Before
it takes a whole anchor, it asks what the *others* tell, that is all voters but the peer that has
handed it over:

    others tell                                       the anchor
    ────────────────────────────────────────────────  ──────────────────────────────────────────
    one content, of most that know the key            is taken if that is in it, and else refused
    too little yet: some have just come to the key    is kept until their next beats
    several contents, and none of most                is kept until this learner is stuck
    of anchors before and after it, and not of it     is not taken: nobody else has had it
    of later anchors alone, or of none                is taken

The last line is for rounds that are faster than beats, and for peers of a former version. The word
of the peer itself counts, too, if others know the key. An anchor that nobody else has had may be
that of an honest learner, on a branch of its own: so it is not called a fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from mend_optim.protocol.lineage import Key, PeerId
from mend_optim.protocol.messages import MOST_CONTENTS, Beat, Content

#: Stands for a content that is not told, so that any will do.
ANY = b""
#: Stands for that of an anchor which nobody else has had. No digest is so short.
NOBODYS = b"nobody's"


class Contents:
    """What is in the last anchors of one fragment of this learner."""

    def __init__(self) -> None:
        self._digests: dict[Key, bytes] = {}

    def note(self, key: Key, digest: bytes) -> None:
        self._digests.pop(key, None)
        self._digests[key] = digest
        if len(self._digests) > MOST_CONTENTS:
            del self._digests[next(iter(self._digests))]

    def told(self) -> tuple[Content, ...]:
        """What the beats tell, oldest first."""
        return tuple(Content(key, digest) for key, digest in self._digests.items())


def to_check(content: bytes | None) -> bytes:
    """What an anchor must have in it that is taken, by what `expected` has found."""
    return ANY if content is None or content == NOBODYS else content


def expected(voters: Iterable[Beat], p: int, key: Key, sender: PeerId) -> bytes | None:
    """What must be in an anchor of fragment `p` that `sender` hands over; None if that is not known
    yet.

    Args:
        voters: The last beats of the learners whose word counts.
        p: The fragment.
        key: The anchor's.
        sender: The peer that has handed it over.
    """
    told: Counter[bytes] = Counter()
    known: list[Key] = []
    waiting, own = 0, ANY
    for beat in voters:
        contents = dict(beat.reports[p].contents)
        if beat.peer == sender:
            own = contents.get(key, ANY)
        elif key in contents:
            told[contents[key]] += 1
        elif contents:
            shown = beat.reports[p].key
            known += [*contents, shown]
            waiting += shown == key
    if not told and not waiting:
        return NOBODYS if known and min(known) < key < max(known) else ANY
    if own:
        told[own] += 1
    ((most, count),) = told.most_common(1) or [(ANY, 0)]
    return most if 2 * count > told.total() + waiting else None
