"""The story that the ledgers of a run tell: its rounds, and the account of each learner."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from mend_optim.cli.ledger.chains import Anchor, Chains, chains_of
from mend_optim.cli.ledger.forks import Fork, forks_of
from mend_optim.cli.ledger.lines import Damage, KnownMembers, Line, read_lines
from mend_optim.cli.ledger.pace import Pace, pace_of
from mend_optim.cli.ledger.restarts import uncounted_tokens
from mend_optim.protocol.lineage import PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One anchor of the trunk.

    Attributes:
        fragment, version: which one.
        time: in Unix seconds: by the sealer's clock, where its ledger is given.
        tokens: that this round added.
        reason: why it was sealed, or how the anchor came.
        sealer: who sealed it; empty if no ledger tells.
        members: by name, the tokens of each; or those of its founder.
        absent: learners that were expected.
        adopted: by name, when each learner has it.
        period: `sync_every`, if the round tells; else 0.
    """

    fragment: int
    version: int
    time: float
    tokens: int
    reason: str
    sealer: str
    members: Mapping[str, int]
    absent: tuple[str, ...]
    adopted: Mapping[str, float]
    period: int


@dataclass(slots=True)
class Account:
    """The account of one learner, by all ledgers.

    Attributes:
        has_ledger: whether its own ledger is among those given.
        processes: how many processes of its name wrote lines.
        rounds: of the trunk that have its offer.
        absences: rounds of the trunk that expected it and went on without it.
        tokens, steps: its own in the trunk of the fragment with most tokens.
        superseded: tokens that were merged on a branch that the run did not go on with.
        dropped: tokens that could not be kept.
        sealed: rounds of the trunk that it sealed.
        sent, received: bytes of offers and seals, as if each went straight to its receiver.
        lags: seconds from a round to this learner's adoption of it.
        pulled: anchors that it took whole.
        uncounted: tokens of its own in the trunk that the account of its last process lacks.
    """

    has_ledger: bool = False
    processes: int = 0
    rounds: int = 0
    absences: int = 0
    tokens: int = 0
    steps: int = 0
    superseded: int = 0
    dropped: int = 0
    sealed: int = 0
    sent: int = 0
    received: int = 0
    pulled: int = 0
    uncounted: int = 0
    lags: list[float] = field(default_factory=list)

    @property
    def lag(self) -> float:
        """The median of its lags; 0 if there are none."""
        return median(self.lags) if self.lags else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """All that the ledgers tell.

    Attributes:
        lines: in the order in which the processes wrote them.
        damaged: by file that has any, the lines that are none.
        chains: by fragment, the tree of its anchors.
        forks: by fragment, the branches beside the trunk.
        rounds: the trunks of all fragments, by time.
        sequence: the same rounds, those of each fragment in the order of its trunk, even if a clock
            was set back in mid-run.
        accounts: by learner's name.
        pace: how fast tokens came, pauses left out.
    """

    lines: Sequence[Line]
    damaged: Sequence[Damage]
    chains: Mapping[int, Chains]
    forks: Mapping[int, Sequence[Fork]]
    rounds: Sequence[Round]
    sequence: Sequence[Round]
    accounts: Mapping[str, Account]
    pace: Pace

    @property
    def tokens(self) -> int:
        """In the anchors at the end. All fragments have merged the same work, or soon will."""
        return self.chains[_furthest(self.chains)].tip[0] if self.chains else 0

    @property
    def seconds(self) -> float:
        """From the first round to the last."""
        return self.rounds[-1].time - self.rounds[0].time if self.rounds else 0.0


def story_of(files: Iterable[tuple[str, Iterable[str]]]) -> Story:
    """Read ledgers: names of files, each with its lines."""
    sources: list[list[Line]] = []
    damaged: list[Damage] = []
    known = KnownMembers()
    for source, text in files:
        good, damage = read_lines(source, text, known)
        sources.append(good)
        if damage.lines:
            damaged.append(damage)
    lines = _once(line for source in _in_order(sources) for line in source)
    chains = chains_of(lines)
    forks = {p: forks_of(tree) for p, tree in chains.items()}
    trunks = [
        [_round_of(p, tree.anchors[key], tree) for key in tree.trunk] for p, tree in chains.items()
    ]
    rounds = [each for trunk in trunks for each in trunk]
    rounds.sort(key=lambda each: (each.time, each.fragment, each.version))
    return Story(
        lines=lines,
        damaged=damaged,
        chains=chains,
        forks=forks,
        rounds=rounds,
        sequence=_sequence_of(trunks),
        accounts=_accounts_of(lines, chains, rounds),
        pace=_pace_of(lines, chains, rounds),
    )


def _in_order(sources: Iterable[list[Line]]) -> list[list[Line]]:
    """A learner may have several files: the later one goes on where the earlier one ended. Clocks
    don't tell which one that is: they may have been set back between the two."""
    return sorted(filter(None, sources), key=lambda lines: (lines[0].by.name, *_place_of(lines)))


def _place_of(lines: Sequence[Line]) -> tuple[int, float, float]:
    """A place among the files of one learner: by its newest process, and by the number of the first
    offer of that process. Without one, the file is of a learner that has just started, or that
    rests and has offered before."""
    newest = max(line.by for line in lines)
    has_start = any(line.by != newest or line.record.reason == "restored" for line in lines)
    members = (member for line in lines for member in line.record.members)
    own = (m.seq for m in members if m.seq and PeerId(m.name, m.incarnation) == newest)
    return newest.incarnation, next(own, 0 if has_start else math.inf), lines[0].time


def _once(lines: Iterable[Line]) -> list[Line]:
    """The lines without those that are there a second time, as in a copy of a ledger."""
    known: dict[tuple[object, ...], Line] = {}
    for line in lines:
        told = line.record
        known.setdefault((line.by, line.time, told.fragment, told.digest, told.reason), line)
    return list(known.values())


def _round_of(fragment: int, anchor: Anchor, tree: Chains) -> Round:
    adopted: dict[str, float] = {}
    for line in anchor.lines:
        adopted.setdefault(line.by.name, line.time)
    tokens: Counter[str] = Counter()
    for member in anchor.members:
        tokens[member.name] += member.tokens
    told = anchor.telling.record
    base = anchor.base[0] if anchor.base else anchor.key[0] - sum(tokens.values())
    return Round(
        fragment=fragment,
        version=anchor.version,
        time=anchor.time,
        tokens=max(0, anchor.key[0] - base),
        reason=told.reason,
        sealer=told.sealer,
        members=dict(tokens),
        absent=told.absent,
        adopted=adopted,
        period=told.period,
    )


def _sequence_of(trunks: Iterable[Sequence[Round]]) -> list[Round]:
    """The rounds of all trunks by time, where no round is later than one that follows from it."""
    placed = []
    for trunk in trunks:
        latest = math.inf
        for i, each in reversed(list(enumerate(trunk))):
            latest = min(latest, each.time)
            placed.append((latest, each.fragment, i, each))
    return [each for *_, each in sorted(placed, key=lambda place: place[:3])]


def _furthest(chains: Mapping[int, Chains]) -> int:
    """The fragment with most tokens at its end."""
    return max(chains, key=lambda p: chains[p].tip[0])


def _pace_of(lines: Sequence[Line], chains: Mapping[int, Chains], rounds: Sequence[Round]) -> Pace:
    """That of the fragment with most tokens: all fragments merge the same work."""
    if not rounds:
        return Pace()
    furthest = _furthest(chains)
    own = [(each.time, each.tokens) for each in rounds if each.fragment == furthest]
    return pace_of(own, sorted(line.time for line in lines))


def _accounts_of(
    lines: Sequence[Line], chains: Mapping[int, Chains], rounds: Sequence[Round]
) -> dict[str, Account]:
    accounts: defaultdict[str, Account] = defaultdict(Account)
    processes = {line.by for line in lines}
    for process in processes:
        accounts[process.name].has_ledger = True
        accounts[process.name].processes += 1
    for line in lines:
        _count_line(accounts, line)
    for process, lost in _losses(lines).items():
        accounts[process.name].superseded += max(superseded for superseded, _ in lost.values())
        accounts[process.name].dropped += max(dropped for _, dropped in lost.values())
    for each in rounds:
        _count_round(accounts, each)
    # Every fragment has the same steps, so tokens and steps count once. One fragment tells of all
    # learners: no other has merged just as much of each, and their shares have to add up.
    for account, name in [(accounts[name], name) for name in sorted(accounts) if chains]:
        account.tokens, account.steps = _merged(chains[_furthest(chains)], name)
    for p, tree in chains.items():
        own_lines = (line for line in lines if line.record.fragment == p)
        for name, tokens in uncounted_tokens(tree, own_lines).items():
            accounts[name].uncounted = max(accounts[name].uncounted, tokens)
    return {name: accounts[name] for name in sorted(accounts)}


def _losses(lines: Sequence[Line]) -> Mapping[PeerId, Mapping[int, tuple[int, int]]]:
    """By process and fragment, the tokens that were superseded, and dropped. All fragments have the
    same tokens, so the one that has lost the most tells of all, as in `Status`."""
    lost: defaultdict[PeerId, dict[int, tuple[int, int]]] = defaultdict(dict)
    for line in lines:
        told = line.record
        superseded, dropped = lost[line.by].get(told.fragment, (0, 0))
        lost[line.by][told.fragment] = (
            superseded + told.superseded_tokens,
            dropped + told.dropped_tokens,
        )
    return lost


def _count_line(accounts: defaultdict[str, Account], line: Line) -> None:
    own, record = accounts[line.by.name], line.record
    own.pulled += record.reason == "pulled"
    if record.members and record.sealer != line.by.name:
        other = accounts[record.sealer]
        own.sent += record.offer_bytes
        other.received += record.offer_bytes
        own.received += record.merged_bytes
        other.sent += record.merged_bytes


def _count_round(accounts: defaultdict[str, Account], each: Round) -> None:
    for name in each.members:
        accounts[name].rounds += 1
    for name in each.absent:
        accounts[name].absences += 1
    if each.members and each.sealer:
        accounts[each.sealer].sealed += 1
    for name, time in each.adopted.items():
        accounts[name].lags.append(time - each.time)


def _merged(tree: Chains, name: str) -> tuple[int, int]:
    """A learner's tokens and steps in the trunk of one fragment."""
    own = [m for key in tree.trunk for m in tree.anchors[key].members if m.name == name]
    return sum(member.tokens for member in own), sum(member.steps for member in own)
