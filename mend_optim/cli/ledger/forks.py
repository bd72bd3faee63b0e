"""The forks of a fragment's tree: branches that the run did not go on with, and whether every
learner came back from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from mend_optim.cli.ledger.chains import AnchorKey, Chains, Link
from mend_optim.cli.ledger.lines import Line
from mend_optim.protocol.lineage import PeerId


class Fate(Enum):
    """What became of a branch beside the trunk."""

    #: Every learner on it went over to the trunk.
    HEALED = "healed"
    #: A user went back to an earlier anchor, and a learner that had ended did not follow.
    GIVEN_UP = "given up"
    #: One learner made its last anchor, and wrote nothing more: it died before the others had it.
    STRANDED = "stranded"
    #: Learners ended on it.
    OPEN = "open"
    #: It has no anchor in common with the trunk: it is another model.
    APART = "apart"
    #: It has none but perhaps first weights, and it ended before the trunk began, or began after
    #: its end. A learner that was on both has started anew, so this is a run before or after.
    OTHER_RUN = "another run"
    #: The same, and it has first weights only, on which nothing was merged.
    EMPTY = "first weights"
    #: The same, with merged work, and no learner's name is on both: it may be another run, or a
    #: branch of this one whose learners never met the others.
    UNRELATED = "another run, or a branch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """One branch beside the trunk.

    Attributes:
        at: the last anchor that it shares with the trunk; None if there is none.
        keys: the anchors of the branch.
        names: the learners that were on it.
        ended: those of them whose last anchor is on it.
        fate: what became of it.
        is_rooted: whether the first of its anchors has no base, as far as is known.
    """

    at: AnchorKey | None
    keys: tuple[AnchorKey, ...]
    names: tuple[str, ...]
    ended: tuple[str, ...]
    fate: Fate
    is_rooted: bool = True

    @property
    def versions(self) -> tuple[int, int]:
        """Those of its first anchor and of its last one."""
        versions = [version for _, version, _ in self.keys]
        return min(versions), max(versions)


def forks_of(chains: Chains) -> list[Fork]:
    """All branches beside the trunk, the earliest first. A branch of a branch is part of it. First
    weights that a learner gave up for the others' are none."""
    trunk = set(chains.trunk)
    children = chains.children()
    branches: defaultdict[AnchorKey, list[AnchorKey]] = defaultdict(list)
    for at in (None, *chains.trunk):
        for first in children.get(at, []):
            if first not in trunk:
                branches[first] = _beyond(children, first)
    found = [_fork_of(chains, first, keys) for first, keys in branches.items()]
    forks = [fork for fork in found if fork.ended or any(tokens for tokens, _, _ in fork.keys)]
    return sorted(forks, key=lambda fork: fork.versions)


def _beyond(children: dict[AnchorKey | None, list[AnchorKey]], first: AnchorKey) -> list[AnchorKey]:
    """An anchor and all that follow from it."""
    found, left = [], [first]
    while left:
        key = left.pop()
        found.append(key)
        left += children.get(key, [])
    return sorted(found)


def _fork_of(chains: Chains, first: AnchorKey, keys: list[AnchorKey]) -> Fork:
    at = chains.anchors[first].base
    on_it = {line.by.name for key in keys for line in chains.anchors[key].lines}
    ended = {name for name, end in chains.ends.items() if end in keys}
    return Fork(
        at=at,
        keys=tuple(keys),
        names=tuple(sorted(on_it)),
        ended=tuple(sorted(ended)),
        fate=_fate_of(chains, at, keys, ended),
        is_rooted=chains.anchors[first].link is Link.START,
    )


def _fate_of(chains: Chains, at: AnchorKey | None, keys: list[AnchorKey], ended: set[str]) -> Fate:
    if _is_at_another_time(chains, at, keys):
        if _shares_a_name(chains, at, keys):
            return Fate.OTHER_RUN
        return Fate.UNRELATED if any(tokens for tokens, _, _ in keys) else Fate.EMPTY
    if not ended:
        return Fate.HEALED
    if _went_back_from(chains, at):
        return Fate.GIVEN_UP
    is_known = chains.anchors[keys[0]].link is not Link.UNKNOWN
    if is_known and len(keys) == 1 and len(ended) == 1:
        return Fate.STRANDED
    return Fate.APART if at is None else Fate.OPEN


def _is_at_another_time(chains: Chains, at: AnchorKey | None, keys: list[AnchorKey]) -> bool:
    """Whether these anchors, which have at most first weights in common with the trunk, were made
    before it began or after it had ended, and no process has to do with both.

    A line of the first weights counts for the side that its process went on with."""
    if chains.anchors[keys[0]].link is Link.UNKNOWN or _went_back_from(chains, at):
        return False
    if at is not None and not _is_first_weights(at):
        return False
    trunk = _trunk_beyond(chains, at)
    if not trunk:
        return False
    ours, theirs = _processes(chains, keys), _processes(chains, trunk)
    first = chains.anchors[at].lines if at is not None else []
    begun, over = _span(chains, keys, [line for line in first if line.by in ours])
    begins, ends = _span(chains, trunk, [line for line in first if line.by in theirs])
    return not ours & theirs and (over < begins or ends < begun)


def _shares_a_name(chains: Chains, at: AnchorKey | None, keys: list[AnchorKey]) -> bool:
    """Whether a learner had to do with these anchors and, as another process, with the trunk."""
    ours, theirs = _processes(chains, keys), _processes(chains, _trunk_beyond(chains, at))
    return not {each.name for each in ours}.isdisjoint(each.name for each in theirs)


def _trunk_beyond(chains: Chains, at: AnchorKey | None) -> list[AnchorKey]:
    """The trunk without the anchor that a branch has in common with it, which is its first one."""
    return [key for key in chains.trunk if key != at]


def _is_first_weights(key: AnchorKey) -> bool:
    """Whether nothing was merged in this anchor: scripts with a fixed seed make it again."""
    tokens, version, _ = key
    return not tokens and not version


def _processes(chains: Chains, keys: Iterable[AnchorKey]) -> set[PeerId]:
    """The processes that wrote down these anchors, or worked for them."""
    anchors = [chains.anchors[key] for key in keys]
    wrote = {line.by for anchor in anchors for line in anchor.lines}
    return wrote | {PeerId(m.name, m.incarnation) for anchor in anchors for m in anchor.members}


def _span(chains: Chains, keys: Iterable[AnchorKey], more: Iterable[Line]) -> tuple[float, float]:
    """When the first and the last line of these anchors were written, or of those lines."""
    times = [line.time for key in keys for line in (*chains.anchors[key].lines, *more)]
    return min(times), max(times)


def _went_back_from(chains: Chains, at: AnchorKey | None) -> bool:
    """Whether the trunk goes on from that anchor, or from where it has its first one, by a
    rollback."""
    after = chains.trunk.index(at) + 1 if at is not None else 0
    if after >= len(chains.trunk):
        return False
    lines = chains.anchors[chains.trunk[after]].lines
    return any(line.record.reason == "rolled_back" for line in lines)
