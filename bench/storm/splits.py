"""The figures of a partition: the work of each side, the reunion of the sides, and its cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from bench.storm.figure import Figure, spread
from bench.storm.log import NEVER, Adoption, Log

Side = tuple[str, ...]


def partition_figures(log: Log) -> Iterator[Figure]:
    phases = log.phases
    if "partition" not in phases:
        return
    cut, healed = phases["partition"], phases.get("healed", log.ended)
    (sides,) = [
        [tuple(side) for side in line["sides"]]
        for line in log.of("phase")
        if line["phase"] == "partition"
    ]
    for side in sides:
        yield from _side(log, side, cut, healed)
    one = one_lineage(log, healed)
    found = [one - healed] if one < NEVER else []
    yield spread(
        "end of the partition to one lineage",
        "s",
        found,
        notes="" if found else "never in this run",
    )
    yield from _cost(log, sides, cut, healed)


def _side(log: Log, side: Side, cut: float, healed: float) -> Iterator[Figure]:
    name = "+".join(side)
    seals = [seal.t for seal in log.seals if cut < seal.t <= healed and seal.members <= set(side)]
    notes = f"the first {seals[0] - cut:.1f} s after the cut" if seals else ""
    yield spread(f"seals of {name} while parted", "", [float(len(seals))], notes=notes)
    evicted = [
        x["t"] - cut for x in log.of("evicted") if x["who"] in side and cut < x["t"] <= healed
    ]
    yield spread(f"  {name}: cut to an eviction", "s", evicted)


def holdings(log: Log, moment: float) -> dict[str, Adoption]:
    """The anchor (of fragment 0) that each learner holds at that moment."""
    return {a.who: a for a in log.adoptions if a.fragment == 0 and a.t <= moment}


def one_lineage(log: Log, since: float) -> float:
    """When all learners hold one anchor that was sealed or taken after that moment; infinite if
    they never do."""
    held = holdings(log, since)
    for adoption in [a for a in log.adoptions if a.fragment == 0 and a.t > since]:
        held[adoption.who] = adoption
        if len({a.digest for a in held.values()}) == 1 and len(held) == len(log.learners):
            return adoption.t
    return NEVER


def _cost(log: Log, sides: list[Side], cut: float, healed: float) -> Iterator[Figure]:
    """Merged work of the side that lost, and unmerged work that was dropped."""
    common = max((a.tokens for a in holdings(log, cut).values()), default=0)
    held = holdings(log, healed)
    ends = {
        side: max((held[who].tokens for who in side if who in held), default=0) for side in sides
    }
    for side, tokens in ends.items():
        yield spread(
            f"tokens that {'+'.join(side)} merged while parted", "", [float(tokens - common)]
        )
    later = [a for a in log.adoptions if a.t > healed]
    superseded = Counter(name for a in later if a.superseded for name in a.superseded)
    losing = min(ends.values()) - common if superseded else 0
    told = (
        "merged work of " + ", ".join(sorted(superseded)) if superseded else "no side had to yield"
    )
    yield spread("tokens superseded", "", [float(losing)], notes=told)
    own = [float(a.superseded_tokens) for a in later if a.superseded_tokens]
    yield spread(
        "  as the ledgers say", "", own, notes="the sum; each learner tells of its own", value=sum
    )
    yield spread(
        "tokens dropped",
        "",
        [float(sum(a.dropped_tokens for a in later))],
        notes="unmerged, in doubt",
    )
