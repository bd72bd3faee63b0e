"""Whether a run was sound, by its ledgers.

    rule                what it finds
    ──────────────────  ────────────────────────────────────────────────────────────────────────────
    exactly once        an offer that one chain of anchors has merged twice, or after a later one
    one chain           two lines that contradict each other about one anchor; tokens that don't add
                        up
    no open fork        learners that ended on a branch that the others did not go on with
    nothing is missing  a damaged line, lines that a ledger lacks, rounds that no ledger tells of,
                        learners of which no ledger tells whether they were of this run

The first three break the verdict. The last one leaves it open: the run may be sound, and these
ledgers don't show it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby

from mend_optim.cli.ledger.chains import (
    Anchor,
    AnchorKey,
    Chains,
    Link,
    base_shape,
    key_of,
)
from mend_optim.cli.ledger.forks import Fate, Fork
from mend_optim.cli.ledger.lines import Damage
from mend_optim.cli.ledger.story import Story
from mend_optim.cli.wording import shown
from mend_optim.protocol.lineage import PeerId

#: Weights are rounded, and each of them is at most so far off.
ROUNDING = 1e-3
#: Of a file with at most so many damaged lines, each is told by itself.
FEW_LINES = 3
ALL = "give the ledgers of all learners"
NO_LINE = "give the paths that the learners got as ledger=; they write a line with each round"
LOST_LINE = "leave it; if it was a line once, the round may be in another learner's ledger"


class Severity(Enum):
    """The weight of a finding in the verdict."""

    #: Something happened that must not happen.
    BROKEN = "broken"
    #: The ledgers don't show everything.
    INCOMPLETE = "incomplete"
    #: Something to know, as it may happen in any sound run.
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that the ledgers show, with its remedy; empty if there is nothing to do."""

    severity: Severity
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """All findings, the gravest first."""

    findings: tuple[Finding, ...]

    @property
    def severity(self) -> Severity:
        """The gravest of them; `NOTE` if the run is sound."""
        return self.findings[0].severity if self.findings else Severity.NOTE

    @property
    def status(self) -> int:
        """The exit status of the command: 0 if the run is sound, 1 if it is broken, and 3 if the
        ledgers don't show everything."""
        return {Severity.BROKEN: 1, Severity.INCOMPLETE: 3, Severity.NOTE: 0}[self.severity]

    @property
    def word(self) -> str:
        """The verdict in a word."""
        return self.text.partition(":")[0]

    @property
    def text(self) -> str:
        """The verdict in a sentence."""
        return {
            Severity.NOTE: "sound: every offer was merged once, on one chain, and no fork is open",
            Severity.INCOMPLETE: "incomplete: nothing here is wrong, but not everything is here",
            Severity.BROKEN: "broken: the run did what it must not do",
        }[self.severity]


def verdict_of(story: Story, proofs: Sequence[Finding] = ()) -> Verdict:
    """Judge a run.

    Args:
        story: its ledgers.
        proofs: the result of a check of the signatures.
    """
    found = [*proofs, *_damaged(story)]
    if not story.lines and not story.damaged:
        found.append(_incomplete("these files have no line of a ledger", NO_LINE))
    for p, chains in story.chains.items():
        where = f" of fragment {p}" if len(story.chains) > 1 else ""
        found += _contradictions(chains, where)
        found += _double_merges(chains, where)
        found += _missing_lines(chains, where)
        found += _missing_rounds(chains, where)
        found += [_fork_finding(fork, where) for fork in story.forks[p]]
    found += _uncounted(story)
    order = list(Severity)
    return Verdict(tuple(sorted(found, key=lambda finding: order.index(finding.severity))))


def _broken(text: str, remedy: str = "") -> Finding:
    return Finding(severity=Severity.BROKEN, text=text, remedy=remedy)


def _incomplete(text: str, remedy: str) -> Finding:
    return Finding(severity=Severity.INCOMPLETE, text=text, remedy=remedy)


# ── what is missing ───────────────────────────────────────────────────────────────────────────────


def _damaged(story: Story) -> Iterator[Finding]:
    """A finding for each damaged line of a ledger, or one for a file that has more than a few."""
    for damage in story.damaged:
        if damage.good and len(damage.lines) <= FEW_LINES:
            for line in damage.lines:
                text = f"{damage.source}:{line.number} is no line of a ledger: {line.why}"
                yield _incomplete(text, LOST_LINE)
        else:
            yield _file_damaged(damage)


def _file_damaged(damage: Damage) -> Finding:
    first, count = damage.lines[0], len(damage.lines)
    total = count + damage.good
    which, lead = f"{count} of {total} lines are", "the first one, line"
    if total == 1:
        which, lead = "its only line is", "line"
    is_ledger = "" if damage.good else " is no ledger"
    return _incomplete(
        f"{damage.source}{is_ledger}: {which} none of a ledger; {lead} {first.number}: {first.why}",
        LOST_LINE if damage.good else NO_LINE,
    )


def _missing_lines(chains: Chains, where: str) -> Iterator[Finding]:
    """Lines that one ledger lacks: a learner took a seal whose base it had not written down."""
    for before, line in chains.moves:
        if not line.record.members:
            continue
        version, tokens = base_shape(line.record)
        had = before.record
        if (had.version, had.tokens) == (version, tokens):
            continue
        text = (
            f"{line.place}: {line.by.name} took version {line.record.version}{where}, which was"
            f" made of version {version} with {tokens} tokens, and its line before tells of version"
            f" {had.version} with {had.tokens}"
        )
        base = chains.anchors[key_of(line.record)].base
        is_known = base is not None and (base[1], base[0]) == (version, tokens)
        if had.version < version or is_known:
            yield _incomplete(text, "look for the lines between, or for a disk that was full")
        else:
            yield _broken(f"{text}: the tokens don't add up")


def _missing_rounds(chains: Chains, where: str) -> Iterator[Finding]:
    """Rounds of the trunk of which no ledger says who was in them."""
    for key in chains.trunk:
        anchor = chains.anchors[key]
        if anchor.link is Link.UNKNOWN:
            text = f"no ledger says how version {anchor.version}{where} came to be"
        elif anchor.link is Link.COVERED and anchor.base is not None:
            first, last = anchor.base[1] + 1, anchor.version
            which = f"version {last}" if first == last else f"versions {first} to {last}"
            text = f"no ledger says who was in {which}{where}"
        else:
            continue
        yield _incomplete(text, ALL)


# ── two accounts ──────────────────────────────────────────────────────────────────────────────────


def _uncounted(story: Story) -> Iterator[Finding]:
    """Work by which the ledger and a learner's own account differ."""
    for name, account in story.accounts.items():
        if account.uncounted:
            text = (
                f"{shown(name)}: of its {account.tokens:,} tokens, earlier processes merged"
                f" {account.uncounted:,} that no checkpoint gave to the later ones. They are in the"
                " model, and status() and finish() don't count them"
            )
            yield Finding(severity=Severity.NOTE, text=text)


# ── contradictions ────────────────────────────────────────────────────────────────────────────────


def _contradictions(chains: Chains, where: str) -> Iterator[Finding]:
    by_digest = sorted(
        (a for a in chains.anchors.values() if a.sealed), key=lambda anchor: anchor.key[2]
    )
    for digest, same in groupby(by_digest, key=lambda anchor: anchor.key[2]):
        anchors = list(same)
        if len(anchors) > 1:
            told = ", ".join(_line_of(anchor) for anchor in anchors)
            yield _broken(f"{told} give one digest{where}, {digest}, to different anchors")
    for anchor in chains.anchors.values():
        yield from _contradiction(anchor, where)


def _line_of(anchor: Anchor) -> str:
    return anchor.lines[0].place


def _contradiction(anchor: Anchor, where: str) -> Iterator[Finding]:
    sealed = [line for line in anchor.lines if line.record.members]
    if not sealed:
        return
    first = sealed[0]
    for line in sealed[1:]:
        if line.record.members != first.record.members:
            yield _broken(
                f"{first.place} and {line.place} have different members of version"
                f" {anchor.version}{where}"
            )
    members = first.record.members
    # Offers of nothing have no weight.
    is_work = any(member.tokens for member in members)
    if is_work and abs(sum(member.weight for member in members) - 1) > ROUNDING * len(members):
        yield _broken(f"{first.place}: the weights of its members are not 1 in sum")
    shape = base_shape(first.record)
    bases = {base for base in anchor.bases if (base[1], base[0]) == shape}
    if len(bases) > 1:
        yield _broken(f"learners took version {anchor.version}{where} on different anchors")


# ── exactly once ──────────────────────────────────────────────────────────────────────────────────


def _double_merges(chains: Chains, where: str) -> Iterator[Finding]:
    """Walk every branch of the tree, with the number of each author's last offer on it."""
    children = chains.children()
    merged: dict[PeerId, int] = {}
    # Each entry is an anchor to enter, or the numbers to go back to when it is left.
    left: list[AnchorKey | dict[PeerId, int]] = list(reversed(children.get(None, [])))
    while left:
        step = left.pop()
        if isinstance(step, dict):
            merged.update(step)
            continue
        former: dict[PeerId, int] = {}
        for member in chains.anchors[step].members:
            author = PeerId(member.name, member.incarnation)
            if not member.seq:
                continue
            last = former.setdefault(author, merged.get(author, 0))
            last = max(last, merged.get(author, 0))
            if member.seq <= last:
                yield _merged_twice(chains.anchors[step], author, member.seq, last, where)
            merged[author] = max(member.seq, last)
        left.append(former)
        left += children.get(step, [])


def _merged_twice(anchor: Anchor, author: PeerId, seq: int, last: int, where: str) -> Finding:
    what = "which was merged before" if seq == last else f"although its offer {last} was merged"
    return _broken(
        f"{_line_of(anchor)}: version {anchor.version}{where} has offer {seq} of {author.name},"
        f" {what}"
    )


# ── forks ─────────────────────────────────────────────────────────────────────────────────────────


def _fork_finding(fork: Fork, where: str) -> Finding:
    first, last = fork.versions
    which = f"version {first}" if first == last else f"versions {first} to {last}"
    names = ", ".join(fork.names)
    on_it = f"{names}: a branch{where} with {which}"
    ended = ", ".join(fork.ended)
    match fork.fate:
        case Fate.HEALED:
            return Finding(severity=Severity.NOTE, text=f"{on_it}; all came back from it")
        case Fate.GIVEN_UP:
            text = f"{on_it} was given up by a rollback, and {ended} had ended before"
            return Finding(severity=Severity.NOTE, text=text)
        case Fate.STRANDED:
            text = f"{on_it}; it is the last line of {ended}, and no other learner took it"
            return Finding(
                severity=Severity.NOTE,
                text=text,
                remedy=f"start {ended} again, if you have not: it goes over to the others",
            )
        case Fate.OPEN:
            text = f"{on_it}; {ended} ended on it, and the others went on without it"
            return _broken(text, f"let {ended} meet the others: check the network between them")
        case Fate.OTHER_RUN:
            common = "nothing" if fork.at is None else "only its first weights"
            text = f"{names}: another run{where}, with {which}; it has {common} in common with this"
            return Finding(severity=Severity.NOTE, text=f"{text} one")
        case Fate.EMPTY:
            text = f"{ended} ended with first weights{where}, on which nothing was merged"
            return Finding(severity=Severity.NOTE, text=text)
        case Fate.UNRELATED:
            return _unrelated(fork, on_it)
        case Fate.APART:
            return _apart(fork, on_it, ended)


def _unrelated(fork: Fork, on_it: str) -> Finding:
    common = "no anchor" if fork.at is None else "only the first weights"
    return _incomplete(
        f"{on_it}; it has {common} and no learner in common with the others', and they were never"
        " there at the same time. No ledger tells whether it was another run, or a branch of this"
        " one",
        "if you know that it was another run, give the ledgers of each run to a command of its own",
    )


def _apart(fork: Fork, on_it: str, ended: str) -> Finding:
    if not fork.is_rooted:
        return _incomplete(f"{on_it}; no ledger joins it to the others'", ALL)
    return _broken(
        f"{on_it}; {ended} ended on it, and it has nothing in common with the others'",
        f"look whether {ended} was given the addresses of the others",
    )
