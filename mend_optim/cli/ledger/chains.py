"""The anchors of one fragment, as a tree.

Each anchor that a seal made has one *base*: the anchor that the same learner had adopted before. So
has one that a learner founded alone, of its own weights.
The base of an anchor that came whole is not in its line; another learner's ledger may have it. So
the ledgers of all learners together give a tree, whose branches are the forks of the run.

    link       the base is known because
    ─────────  ───────────────────────────────────────────────────────────────────────────────────
    SEALED     a learner that took the seal had that anchor before
    FOUNDED    the learner that founded it had that anchor before
    FITTING    of all anchors, only that one has the version and the tokens that a base must have
    COVERED    a learner moved from that anchor to this one, and no work was superseded: this anchor
               has all that the other has merged, but versions in between are missing
    ROLLBACK   the run was taken back to that anchor
    START      there is none: it is the first anchor here, or first weights come before it
    UNKNOWN    anchors come before it that are in none of the ledgers"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from mend_optim.cli.ledger.lines import Line
from mend_optim.engine.ledger import MemberRecord, RoundRecord
from mend_optim.protocol.lineage import PeerId

#: Tokens, version and digest of an anchor.
AnchorKey = tuple[int, int, str]
#: The reasons of lines that tell of the anchor that the learner had already.
SAME = ("reset", "healed")
#: The version of weights that a learner trained before it had peers.
ALONE = 1


class Link(Enum):
    """How the base of an anchor is known."""

    SEALED = "sealed"
    FOUNDED = "founded"
    FITTING = "fitting"
    COVERED = "covered"
    ROLLBACK = "rollback"
    START = "start"
    UNKNOWN = "unknown"


@dataclass(slots=True, kw_only=True)
class Anchor:
    """One anchor of a fragment, with all lines that tell of it."""

    key: AnchorKey
    lines: list[Line] = field(default_factory=list)
    #: Every base that a learner had before it took the seal of this anchor. More than one is a
    #: contradiction.
    bases: list[AnchorKey] = field(default_factory=list)
    base: AnchorKey | None = None
    link: Link = Link.UNKNOWN

    @property
    def version(self) -> int:
        return self.key[1]

    @property
    def sealed(self) -> Line | None:
        """A line of a learner that took the seal of this anchor; None if no ledger has one."""
        return next((line for line in self.lines if line.record.members), None)

    @property
    def founded(self) -> Line | None:
        """The line of the learner that founded it alone; None if it was sealed, or if no ledger has
        that line."""
        return next((line for line in self.lines if line.record.reason == "founded"), None)

    @property
    def members(self) -> tuple[MemberRecord, ...]:
        """The offers that it merged, as far as that is known; or the work that its founder did
        alone, which was no offer and has no number."""
        if self.sealed:
            return self.sealed.record.members
        if not self.founded or self.link not in (Link.FOUNDED, Link.START):
            return ()
        by, tokens = self.founded.by, self.key[0] - (self.base[0] if self.base else 0)
        return (
            MemberRecord(
                name=by.name, incarnation=by.incarnation, seq=0, tokens=tokens, steps=0, weight=1.0
            ),
        )

    @property
    def telling(self) -> Line:
        """The line that tells the most of how it came to be."""
        return self.sealed or self.founded or self.lines[0]

    @property
    def time(self) -> float:
        """When it was there: by the sealer's clock, or by that of the first learner that wrote it
        down."""
        own = [line.time for line in self.lines if line.by.name == line.record.sealer]
        return min(own or [line.time for line in self.lines])


def key_of(record: RoundRecord) -> AnchorKey:
    """The key of the anchor that a line tells of."""
    return record.tokens, record.version, record.digest


def base_shape(record: RoundRecord) -> tuple[int, int]:
    """The version and tokens that the base of a sealed anchor has."""
    return record.version - 1, record.tokens - sum(member.tokens for member in record.members)


@dataclass(slots=True)
class Chains:
    """All anchors of one fragment, and where each learner ended.

    Attributes:
        anchors: by key.
        ends: by a learner's name, the last anchor of its newest process.
        moves: each step of a process from one anchor to the next: line before, and line.
        tip: the end of the *trunk*, the branch that the run went on with.
        trunk: the keys of the anchors that led to the tip, the first one first.
    """

    anchors: dict[AnchorKey, Anchor]
    ends: dict[str, AnchorKey]
    moves: list[tuple[Line, Line]]
    tip: AnchorKey
    trunk: list[AnchorKey]

    def ancestry(self, key: AnchorKey) -> Iterator[AnchorKey]:
        """This anchor, its base, and so on."""
        return ancestry(self.anchors, key)

    def children(self) -> dict[AnchorKey | None, list[AnchorKey]]:
        """By anchor, those that are made of it; by None, those whose base is not known."""
        found: defaultdict[AnchorKey | None, list[AnchorKey]] = defaultdict(list)
        for key, anchor in self.anchors.items():
            found[anchor.base].append(key)
        return found


def ancestry(anchors: dict[AnchorKey, Anchor], key: AnchorKey | None) -> Iterator[AnchorKey]:
    """An anchor, its base, and so on. A base has a lesser version, or is one that a rollback went
    back to; forged lines might make a circle of rollbacks, so each comes once."""
    seen: set[AnchorKey] = set()
    while key is not None and key not in seen:
        seen.add(key)
        yield key
        key = anchors[key].base


def chains_of(lines: Sequence[Line]) -> dict[int, Chains]:
    """By fragment, the tree of its anchors. Lines of one process are in the order in which it wrote
    them."""
    by_fragment: defaultdict[int, list[Line]] = defaultdict(list)
    for line in lines:
        by_fragment[line.record.fragment].append(line)
    return {p: _chains_of(by_fragment[p]) for p in sorted(by_fragment)}


def _chains_of(lines: list[Line]) -> Chains:
    anchors: dict[AnchorKey, Anchor] = {}
    for line in lines:
        key = key_of(line.record)
        anchors.setdefault(key, Anchor(key=key)).lines.append(line)
    moves = list(_moves(lines))
    for before, line in moves:
        if line.record.members:
            anchors[key_of(line.record)].bases.append(key_of(before.record))
    covered = {
        key_of(line.record): key_of(before.record)
        for before, line in moves
        if line.record.reason == "pulled" and not line.record.superseded
    }
    founded_on = _bases_of_founders(lines)
    shapes: defaultdict[tuple[int, int], list[AnchorKey]] = defaultdict(list)
    for tokens, version, digest in anchors:
        shapes[version, tokens].append((tokens, version, digest))
    first = min(anchor.version for anchor in anchors.values())
    for key, anchor in anchors.items():
        if anchor.founded and not anchor.sealed:
            anchor.base, anchor.link = _base_of_founded(anchor, founded_on.get(key))
        else:
            anchor.base, anchor.link = _base_of(anchor, shapes, covered.get(key), first)
    ends = _ends(lines)
    tip = _tip(anchors, ends)
    trunk = list(ancestry(anchors, tip))[::-1]
    return Chains(anchors, ends, moves, tip, trunk)


def _moves(lines: Iterable[Line]) -> Iterator[tuple[Line, Line]]:
    """Each step of a process from one line to its next."""
    last: dict[PeerId, Line] = {}
    for line in lines:
        if line.by in last:
            yield last[line.by], line
        last[line.by] = line


def _base_of(
    anchor: Anchor,
    shapes: dict[tuple[int, int], list[AnchorKey]],
    covered: AnchorKey | None,
    first: int,
) -> tuple[AnchorKey | None, Link]:
    reasons = {line.record.reason for line in anchor.lines}
    sealed = anchor.sealed
    if sealed is not None:
        shape = base_shape(sealed.record)
        # Where tokens don't add up, which is a finding, the version still tells.
        fitting = [key for key in anchor.bases if key[1] == shape[0]]
        if fitting:
            return max(fitting, key=lambda key: key[0] == shape[1]), Link.SEALED
        known = shapes.get(shape, [])
        if len(known) == 1:
            return known[0], Link.FITTING
        if shape == (0, 0) or anchor.version == first:
            return None, Link.START
    elif "rolled_back" in reasons:
        same = [key for key in shapes[anchor.version, anchor.key[0]] if key != anchor.key]
        return (same[0], Link.ROLLBACK) if len(same) == 1 else (None, Link.START)
    elif anchor.version == first or reasons & {"restored", *SAME}:
        return None, Link.START
    if covered is not None and covered[1] < anchor.version:
        return covered, Link.COVERED
    return None, Link.UNKNOWN


def _bases_of_founders(lines: Iterable[Line]) -> dict[AnchorKey, AnchorKey]:
    """By anchor that a learner founded, the one that it had before. A process that was restored may
    have got another incarnation since."""
    found: dict[AnchorKey, AnchorKey] = {}
    last: dict[str, Line] = {}
    for line in lines:
        before = last.get(line.by.name)
        if before and line.record.reason == "founded":
            follows = before.record.version + 1 == line.record.version
            if before.by == line.by or (follows and before.record.reason == "restored"):
                found.setdefault(key_of(line.record), key_of(before.record))
        last[line.by.name] = line
    return found


def _base_of_founded(anchor: Anchor, before: AnchorKey | None) -> tuple[AnchorKey | None, Link]:
    """A founder adds one version to the anchor that it has. If its ledger has none, that was first
    weights, or those of a checkpoint from before it had peers."""
    if before is None and anchor.version <= ALONE + 1:
        return None, Link.START
    if before is None or before[1] >= anchor.version or before[0] > anchor.key[0]:
        return None, Link.UNKNOWN
    return before, Link.FOUNDED if before[1] == anchor.version - 1 else Link.COVERED


def _ends(lines: Iterable[Line]) -> dict[str, AnchorKey]:
    """By name, the anchor in the last line. A learner's ledger is appended to by one process after
    the other."""
    return {line.by.name: key_of(line.record) for line in lines}


def _tip(anchors: dict[AnchorKey, Anchor], ends: dict[str, AnchorKey]) -> AnchorKey:
    """The end that most learners' last anchors lead to; of equals, the later one."""
    paths = {end: set(ancestry(anchors, end)) for end in ends.values()}

    def weight(end: AnchorKey) -> tuple[int, float, AnchorKey]:
        followers = sum(other in paths[end] for other in ends.values())
        return followers, anchors[end].time, end

    return max(ends.values(), key=weight)
