"""The learners that are known of a run, by the answers of some."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mend_optim.cli.watch.command import MERGING, NO_ANSWER, NOT_MERGING, see, status_of
from mend_optim.cli.watch.crowd import HISTORY, PATIENCE, Crowd
from mend_optim.cli.watch.text import cells_of, lines_of, sparkline
from mend_optim.errors import PeerError
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.sight import SeenPeer, SeenRound, Sight

A, B, C = "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"
AT = {"a": A, "b": B, "c": C}
ROUND = SeenRound(
    fragment=0, version=1, tokens=8, reason="all_present", sealer="a", members=("a", "b")
)
GONE = PeerError("gone")


def seen(name: str, **told: Any) -> SeenPeer:
    told = {"address": AT[name], "state": "alive", "step": 4, "tokens": 4} | told
    return SeenPeer(name=name, incarnation=1, **told)


def sight(name: str, *others: SeenPeer, **told: Any) -> Sight:
    told = {"joined": True, "last": (ROUND,), "address": AT[name]} | told
    return Sight(
        peer=PeerId(name, told.pop("incarnation", 1)),
        step=4,
        tokens=8,
        position=4,
        cluster_step=4,
        cluster_tokens=8,
        seconds_per_step=0.5,
        roster=others,
        **told,
    )


def states(crowd: Crowd) -> dict[str, str]:
    return {row.name: row.state for row in crowd.rows()}


def test_gossip_is_followed_to_those_that_the_first_does_not_know() -> None:
    run = {A: sight("a", seen("b")), B: sight("b", seen("a"), seen("c")), C: sight("c", seen("b"))}
    asked: list[str] = []

    def look(addresses: list[str]) -> dict[str, Sight | PeerError]:
        asked.extend(addresses)
        return {address: run[address] for address in addresses}

    crowd = Crowd(A)
    see(crowd, look)
    assert asked == [A, B, C]
    assert states(crowd) == {"a": "merging", "b": "merging", "c": "merging"}
    assert crowd.rows()[0].past == (4.0,)


def test_the_others_are_watched_on_when_the_one_that_was_dialled_dies() -> None:
    run: dict[str, Sight | PeerError] = {A: sight("a", seen("b")), B: sight("b", seen("a"))}
    crowd = Crowd(A)
    see(crowd, lambda addresses: {each: run[each] for each in addresses})
    run = {A: GONE, B: sight("b", seen("c")), C: sight("c", seen("b"))}
    found = see(crowd, lambda addresses: {each: run[each] for each in addresses})
    assert status_of(found[A]) == NO_ANSWER
    assert states(crowd) == {"a": "gone", "b": "merging", "c": "merging"}


def test_a_learner_that_waits_for_the_others_to_finish_is_told_of() -> None:
    """Those that finish first train no more, and whoever trains on should know."""
    done, hidden = seen("b", finishing=True), seen("c", finishing=True, address="")
    run = {A: sight("a", done, hidden), B: sight("b", seen("a"))}
    crowd = Crowd(A)
    see(crowd, lambda addresses: {each: run[each] for each in addresses})
    assert states(crowd) == {"a": "merging", "b": "finishing", "c": "finishing"}
    see(crowd, lambda addresses: {each: run[A] if each == A else GONE for each in addresses})
    assert states(crowd)["b"] == "no answer"


@pytest.mark.parametrize(
    ("quiet_s", "period", "is_quiet"),
    [(0.0, 1, False), (60.0, 1, False), (61.0, 1, True), (500.0, 96, False), (501.0, 96, True)],
)
def test_rounds_that_stay_away_are_told_of(quiet_s: float, period: int, is_quiet: bool) -> None:
    """Those of 100 steps of half a second take 50 s."""
    told = sight("a", seen("b"), quiet_s=quiet_s, sync_every=period, latency=4)
    crowd = Crowd(A)
    crowd.follow({A: told})
    crowd.take({A: told})
    state = f"no round for {quiet_s:.0f} s" if is_quiet else "merging"
    assert states(crowd)["a"] == state
    assert status_of(told) == (NOT_MERGING if is_quiet else MERGING)


def test_one_that_is_gone_for_long_is_forgotten_but_the_given_address_is_not() -> None:
    crowd = Crowd(A)
    crowd.follow({A: sight("a", seen("b"))})
    crowd.take({A: GONE, B: sight("b")})
    for _ in range(PATIENCE):
        crowd.take({A: GONE, B: GONE})
        assert crowd.addresses() == [A, B]
    crowd.take({A: GONE, B: GONE})
    assert crowd.addresses() == [A]
    assert states(crowd) == {}


def test_a_later_process_of_a_name_is_shown() -> None:
    crowd = Crowd(A)
    crowd.take({A: sight("a", incarnation=2), B: sight("a", incarnation=1)})
    assert [each.peer.incarnation for each in crowd.sights] == [2]


def test_what_others_say_of_a_learner_counts() -> None:
    crowd = Crowd(A)
    told = (seen("b", state="suspected"), seen("c", address="", step=7))
    crowd.take({A: sight("a", *told), B: sight("b", seen("a", slow=2.5))})
    assert states(crowd) == {"a": "slow (2.5×)", "b": "suspected", "c": "cannot be dialled"}
    assert cells_of(crowd.rows()[2])[3] == "7"
    crowd.take(
        {A: sight("a", seen("c")), B: sight("b", seen("c", slow=2.5)), C: sight("c", told[0])}
    )
    assert states(crowd)["c"] == "slow (2.5×)"


def test_a_learner_whose_offers_come_late_or_that_declines_to_seal_is_told() -> None:
    """It merges all the same. One missed round is nothing."""
    crowd = Crowd(A)
    late = (seen("b", missed=(0, 7)), seen("c", declines=True, missed=(1, 0)))
    others = (seen("a"), seen("b"), seen("c"))
    crowd.take({A: sight("a", *late), B: sight("b", *others), C: sight("c", *others)})
    assert states(crowd) == {
        "a": "merging",
        "b": "merging, late (7 rounds)",
        "c": "merging, declines to seal",
    }


def test_a_learner_merges_if_it_has_joined_others_and_a_round_has_merged() -> None:
    other = seen("b")
    assert status_of(sight("a", other)) == MERGING
    assert status_of(sight("a", other, joined=False)) == NOT_MERGING
    assert status_of(sight("a", other, last=())) == NOT_MERGING
    assert status_of(sight("a")) == NOT_MERGING
    assert status_of(sight("a", seen("b", state="suspected"))) == NOT_MERGING


def test_there_is_a_column_of_zones_if_any_learner_is_in_one() -> None:
    crowd = Crowd(A)
    crowd.take({A: sight("a"), B: sight("b")})
    assert lines_of(crowd)[0].split()[:3] == ["learner", "state", "position"]
    crowd.take({A: sight("a", seen("c", zone="west")), B: sight("b", zone="east")})
    head, *lines = lines_of(crowd)[:4]
    at = head.index("zone")
    assert head.split()[:4] == ["learner", "state", "zone", "position"]
    assert [line[at : at + 5].strip() for line in lines] == ["", "east", "west"]


def test_names_of_others_draw_nothing() -> None:
    crowd = Crowd(A)
    crowd.take({A: sight("a", reported=(("loss\x1b[2J", 1.0),))})
    assert not any("\x1b" in line for line in lines_of(crowd))


def test_an_address_on_loopback_is_that_of_the_machine_that_told_it() -> None:
    crowd = Crowd(A)
    crowd.follow({A: sight("a", seen("b", address="127.0.0.1:7"), seen("c", address="a b:7"))})
    assert crowd.addresses() == [A, "10.0.0.1:7"]


def test_a_sparkline_has_a_bar_for_each_value() -> None:
    assert sparkline([0.0, 7.0, 14.0, float("nan")]) == "▁▅█▁"
    assert sparkline([0.0, 0.0]) == "▁▁"
    crowd = Crowd(A)
    for _ in range(HISTORY + 5):
        crowd.take({A: sight("a")})
    assert len(crowd.rows()[0].past) == HISTORY


def a_run() -> Crowd:
    rounds = tuple(replace(ROUND, version=version, tokens=2 * version) for version in (4, 5))
    crowd = Crowd(A)
    told = {
        name: replace(
            sight(name, seen(other), last=rounds, reported=(("loss", loss),)),
            step=5,
            tokens=5,
            position=5,
            seconds_per_step=0.1,
            rounds=5,
            sync_every=1,
            latency=1,
            codec="none",
            bytes_sent=1200,
            bytes_received=1300,
        )
        for name, other, loss in (("a", "b", 0.25), ("b", "a", 0.27))
    }
    crowd.take({A: told["a"], B: told["b"]})
    return crowd


def test_a_round_of_many_learners_takes_one_line_that_fits() -> None:
    for many, words in [(8, "l06, l07"), (9, "l06 and 2 more"), (100, "l06 and 93 more")]:
        members = tuple(f"l{i:02}" for i in range(many))
        crowd = Crowd(A)
        crowd.take({A: sight("a", seen("b"), last=(replace(ROUND, members=members),))})
        assert lines_of(crowd)[-1].endswith(f", {words}")


def test_the_output_in_the_docs() -> None:
    page = (Path(__file__).parents[3] / "docs" / "command.md").read_text(encoding="utf-8")
    printed = "\n".join(f"    {line}" if line else "" for line in lines_of(a_run()))
    assert f"    $ mend status 127.0.0.1:29600\n{printed}\n\n" in page
