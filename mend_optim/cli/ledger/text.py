"""The story of a run as text, for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from mend_optim.cli.ledger.pace import Pace
from mend_optim.cli.ledger.story import Account, Round, Story
from mend_optim.cli.ledger.verdict import Severity, Verdict
from mend_optim.cli.wording import (
    bytes_of,
    clock_of,
    count_of,
    moment_of,
    seconds_of,
    shown,
    some_of,
    table_of,
)

HEAD = (
    "learner",
    "rounds",
    "absent",
    "tokens",
    "share",
    "sealed",
    "whole",
    "superseded",
    "dropped",
    "sent",
    "received",
    "lag",
)
#: Findings of one kind can be many; the page shows all.
MOST_FINDINGS = 20


def text_of(story: Story, verdict: Verdict, last: int) -> str:
    """The whole story.

    Args:
        story: of the ledgers.
        verdict: on that story.
        last: how many rounds to show, the latest ones.
    """
    parts = [[headline(story)], list(_learners(story))]
    if story.rounds:
        parts.append([reasons_of(story)])
    if last and story.rounds:
        latest = story.sequence[-last:]
        rounds = [(each, round_cells(each, story.rounds[0].time)) for each in latest]
        parts.append(_rounds(rounds, len(story.chains) > 1))
    parts.append(list(_verdict(verdict)))
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def headline(story: Story) -> str:
    """How much there is, and when it was."""
    learners = sum(account.has_ledger for account in story.accounts.values())
    said = f"{_many(learners, 'learner')}, {_many(len(story.lines), 'line')}"
    if len(story.chains) > 1:
        said += f", {len(story.chains)} fragments"
    if not story.rounds:
        return f"{said}; no anchor"
    first, last = story.rounds[0].time, story.rounds[-1].time
    return (
        f"{said}; {moment_of(first)} to {clock_of(last, first)} ({seconds_of(last - first)});"
        f" {count_of(story.tokens)} tokens{_pace(story.pace)}"
    )


def _pace(pace: Pace) -> str:
    if not pace.seconds:
        return ""
    said = f", {count_of(pace.per_s)} tokens/s"
    if pace.pauses:
        said += f" without {_many(len(pace.pauses), 'pause')} of {seconds_of(sum(pace.pauses))}"
    return said


def reasons_of(story: Story) -> str:
    """How many rounds were sealed, and why."""
    reasons = Counter(each.reason for each in story.rounds)
    told = ", ".join(f"{count} {shown(reason)}" for reason, count in reasons.most_common())
    return f"{_many(len(story.rounds), 'anchor')}: {told}" if told else ""


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def cells_of(name: str, account: Account, tokens: int) -> tuple[str, ...]:
    """A learner's row under `HEAD`."""
    return (
        shown(name) + ("" if account.has_ledger else " (no ledger)"),
        count_of(account.rounds),
        count_of(account.absences),
        count_of(account.tokens),
        f"{account.tokens / tokens:.0%}" if tokens else "–",
        count_of(account.sealed),
        count_of(account.pulled),
        count_of(account.superseded),
        count_of(account.dropped),
        bytes_of(account.sent),
        bytes_of(account.received),
        seconds_of(account.lag) if account.lags else "–",
    )


def _learners(story: Story) -> list[str]:
    rows = [cells_of(name, account, story.tokens) for name, account in story.accounts.items()]
    return table_of(HEAD, rows) if rows else []


def round_cells(each: Round, began: float) -> tuple[str, ...]:
    """A round's row: its time, version, reason, sealer, members and absent learners. `began`: when
    the run did."""
    members = [f"{shown(n)} {count_of(t)}" for n, t in sorted(each.members.items())]
    return (
        clock_of(each.time, began),
        f"{each.version}",
        shown(each.reason),
        shown(each.sealer),
        some_of(members),
        some_of([*map(shown, each.absent)]),
    )


def _rounds(rounds: Sequence[tuple[Round, tuple[str, ...]]], has_fragments: bool) -> list[str]:
    head: tuple[str, ...] = ("time", "version", "reason", "sealer", "members and tokens", "absent")
    rows = [cells for _, cells in rounds]
    if has_fragments:
        head = ("fragment", *head)
        rows = [(str(each.fragment), *cells) for each, cells in rounds]
    return table_of(head, rows, len(head))


def _verdict(verdict: Verdict) -> Iterator[str]:
    yield verdict.text
    for severity in Severity:
        found = [finding for finding in verdict.findings if finding.severity is severity]
        for finding in found[:MOST_FINDINGS]:
            # names in it may come from a file
            yield f"  {severity.value}: {shown(finding.text)}"
            if finding.remedy:
                yield f"    {shown(finding.remedy)}"
        if len(found) > MOST_FINDINGS:
            yield f"  {severity.value}: and {len(found) - MOST_FINDINGS} more"
