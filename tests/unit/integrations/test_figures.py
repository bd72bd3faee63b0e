"""The figures of a status: complete, named as trackers want them, and true."""

from __future__ import annotations

import re
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim import PeerStatus, Refused, Status
from mend_optim.integrations.figures import FIGURES, Figure, scalars
from tests.unit.test_status import FRAGMENT, PEER, PULLED, ROUND, STATUS

#: A status in which no figure has the value of an empty one.
FULL = replace(
    STATUS,
    unmerged_tokens=16,
    dropped_tokens=3,
    superseded_tokens=4,
    outsized_offers=2,
    held_residual=0.5,
    dropped_residual=0.25,
    rollbacks=1,
    rounds=(replace(ROUND, absent=("c",)), PULLED),
    refused=(Refused(peer="b", reason="beat of N bytes", times=7),),
    reported={"loss": 0.25},
)
UNITS = ("steps", "tokens", "bytes", "seconds", "ratio")
by_name = {figure.name: figure for figure in FIGURES}


def read(name: str, status: Status) -> dict[tuple[str, ...], float]:
    return dict(by_name[name].read(status))


def changes(figure: Figure, before: Status, after: Status) -> bool:
    return dict(figure.read(before)) != dict(figure.read(after))


@pytest.mark.parametrize(
    "name",
    [each.name for each in fields(Status) if isinstance(getattr(FULL, each.name), int | float)],
)
def test_every_number_of_a_status_is_a_figure(name: str) -> None:
    now = getattr(FULL, name)
    other = replace(FULL, **{name: not now if isinstance(now, bool) else now + 1})
    assert [figure.name for figure in FIGURES if changes(figure, FULL, other)]


def test_every_number_of_a_peer_is_a_figure() -> None:
    for change in ({"state": "suspected"}, {"step": 10}, {"tokens": 10}, {"slow": 3.0}):
        other = replace(FULL, roster=(replace(PEER, **change), *FULL.roster[1:]))
        assert any(changes(figure, FULL, other) for figure in FIGURES), change


def test_names_are_unique_and_plain() -> None:
    assert len(by_name) == len(FIGURES)
    for figure in FIGURES:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", figure.name)
        # Counters get this end from the library that exports them.
        assert not figure.name.endswith("_total")
        assert figure.text.endswith((".", "else 0."))
        misplaced = [unit for unit in UNITS if unit in figure.name.split("_")[:-1]]
        assert misplaced == [], "a unit stands at the end"


@given(st.lists(st.tuples(st.sampled_from("bcd"), st.integers(1, 3), st.integers(0, 9))))
def test_of_two_processes_with_one_name_the_later_counts(peers: list[tuple[str, int, int]]) -> None:
    roster = tuple(
        PeerStatus(name=n, incarnation=i, state="alive", address="", step=step, tokens=0)
        for n, i, step in {each[:2]: each for each in peers}.values()
    )
    latest: dict[str, PeerStatus] = {}
    for peer in roster:
        if peer.name not in latest or peer.incarnation > latest[peer.name].incarnation:
            latest[peer.name] = peer
    told = read("peer_steps", replace(FULL, roster=roster))
    assert told == {(name,): peer.step for name, peer in latest.items()}


def test_refusals_of_one_kind_are_added_up() -> None:
    kinds = [("b", "x", 2), ("", "x", 1), ("b", "x", 3)]
    refused = tuple(Refused(peer=p, reason=r, times=n) for p, r, n in kinds)
    told = read("refused", replace(FULL, refused=refused))
    assert told == {("b", "x"): 5, ("", "x"): 1}


def test_the_last_round_is_the_last_that_merged() -> None:
    assert read("last_round_members", FULL) == {(): 2}
    assert read("last_round_absent", FULL) == {(): 1}
    unmerged = replace(FULL, rounds=(PULLED,))
    assert read("last_round_members", unmerged) == {(): 0}
    assert read("last_round_absent", unmerged) == {(): 0}


def test_peers_are_counted_by_state_also_where_there_are_none() -> None:
    assert read("peers", FULL) == {("alive",): 2, ("suspected",): 1, ("ended",): 0}
    assert read("peers", replace(FULL, roster=())) == {
        ("alive",): 0,
        ("suspected",): 0,
        ("ended",): 0,
    }


def test_fragments_are_told_apart() -> None:
    both = replace(FULL, fragments=(FRAGMENT, replace(FRAGMENT, index=1, version=9)))
    assert read("anchor_version", both) == {("0",): 12, ("1",): 9}


def test_scalars_are_the_figures_without_labels() -> None:
    plain = scalars(FULL)
    assert plain["mend/steps"] == 1500.0
    assert plain["mend/joined"] == 1.0
    assert len(plain) == sum(not figure.labels for figure in FIGURES)
    assert all(type(number) is float for number in plain.values())
