"""Which of the learners seals which fragment: rendezvous hashing with a bounded load.

Fragment f is sealed by the learner with the greatest hash of (f, name) among those that seal fewer
than ⌈(f + 1)/M⌉ of the fragments before it, M the number of learners. So in every row of M
fragments, each learner seals one:

    fragment    0  1  2  3 | 4  5  6  7 | 8 …          M = 4
    sealer      c  a  d  b | a  d  c  b | c …

- Learners with the same roster agree without a word.
- Nobody seals more than ⌈P/M⌉ of P fragments, whatever the names are. In a round, a sealer sends
  and receives as much as all M learners together offer, so all wait for its link.
- The fragments of a learner that declines (see `engine/declining.py`) are sealed by others beside
  their own. No other fragment moves.
- An added fragment does not move the others.
- When a learner comes or goes, about twice as many fragments change hands as with a hash alone,
  where only that learner's own do.

Source of the idea: consistent hashing with bounded loads (arXiv 1608.01350).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from mend_optim.protocol.lineage import PeerId

#: Places of a row that are computed at once: enough for a model's fragments, in a big roster.
AT_ONCE = 32


def choose(
    fragment: int, candidates: Iterable[PeerId], declines: Callable[[PeerId], bool]
) -> PeerId | None:
    """Return the sealer of a fragment among these, of which no two have the same name. If that one
    declines, choose among the others, and so on, unless all decline. None if there is nobody."""
    return choose_each((fragment,), candidates, declines)[0]


def choose_each(
    fragments: Sequence[int], candidates: Iterable[PeerId], declines: Callable[[PeerId], bool]
) -> list[PeerId | None]:
    """Return the sealer of each of some fragments, as `choose` does."""
    ids = {id.name: id for id in candidates}
    if not ids:
        return [None for _ in fragments]
    learners = tuple(ids)
    names = [_sealer_of(fragment, learners) for fragment in fragments]
    if any(declines(ids[name]) for name in set(names)):
        declining = frozenset(name for name, id in ids.items() if declines(id))
        names = [_next(fragment, learners, declining) for fragment in fragments]
    return [ids[name] for name in names]


@lru_cache(maxsize=128)
def _next(fragment: int, learners: tuple[str, ...], declining: frozenset[str]) -> str:
    """The first sealer that does not decline: of these, then of those without the first one, and so
    on; the first one if all decline. Where hundreds of learners join, nearly all decline for a
    while, so nothing is hashed anew for each of them."""
    chosen, passed = _sealer_of(fragment, learners), set[str]()
    if len(declining) == len(learners):
        return chosen
    first = max(0, fragment + 1 - len(learners))
    ranked = [_ranked(each, learners) for each in range(first, fragment + 1)]
    while chosen in declining:
        passed.add(chosen)
        left, taken = len(learners) - len(passed), set(passed)
        for names in ranked[fragment - fragment % left - first :]:
            chosen = next(name for name in names if name not in taken)
            taken.add(chosen)
    return chosen


@lru_cache(maxsize=256)
def _ranked(fragment: int, learners: tuple[str, ...]) -> tuple[str, ...]:
    """The learners by their hash of a fragment, the greatest first."""
    return tuple(sorted(learners, key=lambda name: _rendezvous(fragment, name), reverse=True))


def sealer_of(fragment: int, names: Iterable[str]) -> str:
    """Return the learner that seals a fragment.

    Args:
        fragment: Its index.
        names: The learners that can seal it, at least one, in any order.
    """
    return _sealer_of(fragment, tuple(names))


@lru_cache(maxsize=1024)
def _sealer_of(fragment: int, learners: tuple[str, ...]) -> str:
    row, place = divmod(fragment, len(learners))
    places = min(AT_ONCE * (1 + place // AT_ONCE), len(learners))
    return _row(learners, row, places)[place]


@lru_cache(maxsize=256)
def _row(learners: tuple[str, ...], row: int, places: int) -> tuple[str, ...]:
    """The sealers of the first fragments of a row."""
    free, chosen = set(learners), []
    first = row * len(learners)
    for fragment in range(first, first + places):
        chosen.append(max(free, key=lambda name: _rendezvous(fragment, name)))
        free.remove(chosen[-1])
    return tuple(chosen)


def _rendezvous(fragment: int, name: str) -> bytes:
    return hashlib.blake2b(f"{fragment}/{name}".encode(), digest_size=16).digest()
