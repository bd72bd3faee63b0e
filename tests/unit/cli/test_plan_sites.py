"""The packets between sites in a plan: against a walk of each offer and each seal, hop by hop, by
the rules that learners follow, and against what was measured."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.cli.plan.model import OVERHEAD
from mend_optim.cli.plan.sites import (
    Stage,
    busiest_link,
    crossing,
    left_with_zones,
    sent_by_all,
    stages,
)
from tests import reference

DOCS = Path(__file__).parents[3] / "docs"
SITES = st.lists(st.integers(1, 5), min_size=2, max_size=4)
#: Sender, receiver and stage of one packet: 0 to 3 with zones, 1 and 2 without.
Hop = tuple[str, str, int]
#: How offers cross: without zones, one by one, or as one.
Way = dict[str, bool]
WAYS = st.sampled_from(
    [
        {"zoned": False, "joined": False},
        {"zoned": True, "joined": False},
        {"zoned": True, "joined": True},
    ]
)


def learners_of(sites: Sequence[int], salt: str = "") -> dict[str, str]:
    """Names, each with its site."""
    return {f"{salt}{s}-{i}": f"site-{s}" for s, n in enumerate(sites) for i in range(n)}


def hops_of(where: dict[str, str], fragment: int, sealer: str, way: Way) -> Iterator[Hop]:
    """Each packet of a round of one fragment, as it goes."""
    zones = {name: site if way["zoned"] else "" for name, site in where.items()}
    for author in where.keys() - {sealer}:
        first = reference.first_hop(zones, author, sealer, fragment)
        if first in (sealer, author):
            yield author, sealer, 1
            yield sealer, author, 2
        else:
            yield author, first, 0
            if not way["joined"]:
                yield first, sealer, 1
            yield first, author, 3


def walk(sites: Sequence[int], fragments: int, way: Way, salt: str = "") -> list[Hop]:
    """Each packet of a sync."""
    where = learners_of(sites, salt)
    sealers = reference.sealers(fragments, list(where))
    return [hop for p, s in enumerate(sealers) for hop in hops_of(where, p, s, way)]


def busiest_of(hops: Sequence[Hop], place: dict[str, str]) -> int:
    """Packets in the busier direction of the busiest link, of those that lead from place to
    place."""
    far = [(place[a], place[b]) for a, b, _ in hops if place[a] != place[b]]
    ends = (Counter(a for a, _ in far), Counter(b for _, b in far))
    return max((count for end in ends for count in end.values()), default=0)


@given(SITES, WAYS, st.integers(1, 2), st.text("abc", max_size=2))
def test_the_bytes_between_sites_are_those_of_a_walk(
    sites: list[int], way: Way, rows: int, salt: str
) -> None:
    """With a whole number of fragments for each learner, whatever the names are."""
    where, fragments = learners_of(sites, salt), rows * sum(sites)
    hops = walk(sites, fragments, way, salt)
    far = [(where[a], where[b]) for a, b, _ in hops if where[a] != where[b]]
    sent, received = Counter(a for a, _ in far), Counter(b for _, b in far)
    for place in range(len(sites)):
        found = crossing(sites, place, **way)
        assert found.sent * fragments == pytest.approx(sent[f"site-{place}"])
        assert found.received * fragments == pytest.approx(received[f"site-{place}"])


@given(SITES, WAYS, st.integers(0, 30))
def test_with_other_numbers_of_fragments_they_are_a_mean_over_the_sealers(
    sites: list[int], way: Way, fragment: int
) -> None:
    where = learners_of(sites)
    hops = [hop for sealer in where for hop in hops_of(where, fragment, sealer, way)]
    assert sent_by_all(sites, **way) * len(where) == pytest.approx(len(hops))
    for place in range(len(sites)):
        here = f"site-{place}"
        sent = sum(where[a] == here != where[b] for a, b, _ in hops)
        received = sum(where[b] == here != where[a] for a, b, _ in hops)
        found = crossing(sites, place, **way)
        assert found.sent * len(where) == pytest.approx(sent)
        assert found.received * len(where) == pytest.approx(received)


@given(SITES, WAYS, st.integers(1, 30), st.text("abc", max_size=2))
def test_no_names_make_a_link_busier_than_the_plan_says(
    sites: list[int], way: Way, fragments: int, salt: str
) -> None:
    where = learners_of(sites, salt)
    hops, own = walk(sites, fragments, way, salt), {name: name for name in where}
    assert busiest_of(hops, own) <= round(fragments * busiest_link(sites, fragments, **way))
    numbers = (0, 1, 2, 3) if way["zoned"] else (1, 2)
    told = stages(sites, fragments, **way)
    for number, stage in zip(numbers, told, strict=True):
        now = [hop for hop in hops if hop[2] == number]
        assert busiest_of(now, own) <= round(fragments * stage.own)
        assert busiest_of(now, where) <= round(fragments * stage.site)


@given(st.lists(st.integers(1, 6), min_size=2, max_size=5))
def test_zones_never_add_to_what_crosses(sites: list[int]) -> None:
    """Where each learner is alone in its site, they change nothing."""
    left, joined = left_with_zones(sites), left_with_zones(sites, joined=True)
    assert left == pytest.approx(1) if max(sites) == 1 else 0.5 < left < 1
    assert joined == pytest.approx(1) if max(sites) == 1 else joined < left


def test_without_zones_sites_change_nothing_but_what_crosses() -> None:
    """The sealer of one fragment takes the offers of all others, and gives each the seal."""
    for sites in ([4], [2, 2], [3, 1]):
        (offers, seals) = stages(sites, 1, zoned=False)
        assert offers.own == seals.own == 3
    assert stages([4], 4, zoned=False) == [Stage(own=3 / 4), Stage(own=3 / 4)]


def test_the_bytes_that_were_measured_between_two_sites() -> None:
    """The table of `python -m bench zones` in docs/benchmarks.md: 3.2 MB, in four fragments."""
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| float32([^|]*) \| ([\d.]+) MB \| ([\d.]+) MB \| ([\d.]+) \(", page, re.MULTILINE
    )
    assert [name for name, *_ in rows] == ["", ", and a moment in every round"]
    (one_by_one,) = re.findall(r"one by one \(([\d.]+) MB\)", page)
    sites, whole = (4, 4), 3.2
    measured = [(True, False, 1, one_by_one)]
    for packets, (_, zones, flat, left) in enumerate(rows, 1):
        measured += [(True, True, packets, zones), (False, False, packets, flat)]
        assert abs(left_with_zones(sites, joined=True) - float(left)) < 0.02
    for zoned, joined, packets, megabytes in measured:
        crossed = sum(crossing(sites, p, zoned=zoned, joined=joined).sent for p in (0, 1))
        assert float(megabytes) <= OVERHEAD * crossed * packets * whole <= 1.1 * float(megabytes)
