"""A journal as records: lives, steps, adopted anchors, seals, faults."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from bench.storm.journal import Line
from bench.storm.spans import Spans, union, without

SEALED = ("all_present", "slow_left_out", "grace_expired")
NEVER = float("inf")
Life = tuple[str, int]  # learner, and the number of its process, from 1


@dataclass(frozen=True)
class Process:
    """One life of a learner, as moments."""

    who: str
    life: int
    ordered: float = NEVER
    born: float = NEVER  # the learner's own first line
    ready: float = NEVER
    ended: float = NEVER
    status: int | None = None
    meant: bool = True  # whether its end was intended
    alone: bool = False  # it found nobody to join


@dataclass(frozen=True)
class Adoption:
    """One anchor that one learner moved to. Its key orders anchors, as the library orders
    lineages."""

    t: float
    who: str
    life: int
    fragment: int
    tokens: int
    version: int
    digest: str
    reason: str
    members: tuple[str, ...] = ()
    superseded: tuple[str, ...] = ()
    superseded_tokens: int = 0
    dropped_tokens: int = 0

    @property
    def key(self) -> tuple[int, int, str]:
        return (self.tokens, self.version, self.digest)


@dataclass(frozen=True)
class Seal:
    """A sealed round, at the moment when the first learner adopted it."""

    t: float
    members: frozenset[str]
    reason: str
    adopters: frozenset[str]


@dataclass(frozen=True)
class Fault:
    """One fault on a learner. `end`: when its cause was gone (for a kill: when the process was
    gone)."""

    id: int
    kind: str
    who: str
    life: int
    begin: float
    end: float = NEVER
    seen: bool = False


@dataclass(frozen=True)
class Log:
    """All lines, in the order of time."""

    lines: list[Line] = field(repr=False)

    def of(self, event: str) -> list[Line]:
        return [line for line in self.lines if line["event"] == event]

    @cached_property
    def began(self) -> float:
        return float(self.lines[0]["t"])

    @cached_property
    def ended(self) -> float:
        """When the learners were told to leave; else the last line."""
        return self.phases.get("end", float(self.lines[-1]["t"]))

    @cached_property
    def phases(self) -> dict[str, float]:
        return {line["phase"]: line["t"] for line in self.of("phase")}

    @cached_property
    def steps(self) -> dict[Life, list[tuple[float, float]]]:
        """(moment, loss) of every step."""
        found: defaultdict[Life, list[tuple[float, float]]] = defaultdict(list)
        for line in self.of("step"):
            found[line["who"], line["life"]].append((line["t"], line["loss"]))
        return dict(found)

    @cached_property
    def step_times(self) -> dict[str, list[float]]:
        """When each learner took its steps, in all of its lives."""
        found: dict[str, list[float]] = {who: [] for who in self.learners}
        for (who, _), steps in self.steps.items():
            found[who] += [t for t, _ in steps]
        return {who: sorted(moments) for who, moments in found.items()}

    @cached_property
    def processes(self) -> list[Process]:
        found: defaultdict[Life, dict[str, Any]] = defaultdict(dict)
        names = {
            "start": "ordered",
            "born": "born",
            "ready": "ready",
            "ended": "ended",
            "alone": "",
        }
        for line in [line for line in self.lines if line["event"] in names]:
            facts = found[line["who"], line["life"]]
            if names[line["event"]]:
                facts[names[line["event"]]] = line["t"]
            if line["event"] == "ended":
                facts.update(status=line["status"], meant=line["meant"])
            if line["event"] == "alone":
                facts["alone"] = True
        return [Process(who, life, **facts) for (who, life), facts in sorted(found.items())]

    @cached_property
    def adoptions(self) -> list[Adoption]:
        names = ("t", "who", "life", "fragment", "tokens", "version", "digest", "reason")
        return [
            Adoption(
                **{name: line[name] for name in names},
                members=tuple(member["name"] for member in line.get("members", ())),
                superseded=tuple(line.get("superseded", ())),
                superseded_tokens=line.get("superseded_tokens", 0),
                dropped_tokens=line.get("dropped_tokens", 0),
            )
            for line in self.of("round")
        ]

    @cached_property
    def seals(self) -> list[Seal]:
        """Every sealed round once, however many adopted it."""
        by_digest: defaultdict[tuple[int, str], list[Adoption]] = defaultdict(list)
        for adoption in self.adoptions:
            by_digest[adoption.fragment, adoption.digest].append(adoption)
        seals = []
        for group in by_digest.values():
            sealed = [a for a in group if a.reason in SEALED]
            if sealed:
                adopters = frozenset(a.who for a in group)
                seals.append(
                    Seal(group[0].t, frozenset(sealed[0].members), sealed[0].reason, adopters)
                )
        return sorted(seals, key=lambda seal: seal.t)

    @cached_property
    def faults(self) -> list[Fault]:
        ends = {line["id"]: line for line in self.of("relief")}
        return [
            Fault(
                line["id"],
                line["kind"],
                line["who"],
                line["life"],
                line["t"],
                ends.get(line["id"], {}).get("t", NEVER),
                ends.get(line["id"], {}).get("seen", False),
            )
            for line in self.of("strike")
        ]

    @cached_property
    def learners(self) -> list[str]:
        return sorted({process.who for process in self.processes})

    def up(self, who: str) -> Spans:
        """When a process of that learner had joined and not ended yet."""
        return union((p.ready, min(p.ended, self.ended)) for p in self.processes if p.who == who)

    def struck(self, who: str) -> Spans:
        """When that learner had a fault. A kill lasts until its next process has joined."""
        return union((fault.begin, self.over(fault)) for fault in self.faults if fault.who == who)

    def over(self, fault: Fault) -> float:
        if fault.kind == "kill":
            after = (
                p.ready for p in self.processes if p.who == fault.who and p.ready > fault.begin
            )
            return min([*after, self.ended])
        return min(fault.end, self.ended)

    @cached_property
    def live(self) -> dict[str, Spans]:
        """When each learner had joined and had no fault."""
        return {who: without(self.up(who), self.struck(who)) for who in self.learners}

    @cached_property
    def troubled(self) -> Spans:
        """When any learner had a fault, or was on its way to join."""
        absent = [(p.ordered, p.ready) for p in self.processes if p.ready < NEVER]
        return union([*absent, *(span for who in self.learners for span in self.struck(who))])
