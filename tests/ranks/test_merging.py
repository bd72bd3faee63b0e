"""A learner of two ranks beside a plain one, in real processes, against its undivided twin."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.ranks.player import BATCH, EXACT_ROUNDS, HIDDEN, LR, STEPS, hidden_units
from tests.ranks.pool import Pool
from tests.support.addresses import free_addresses

WAYS = ("copied", "sharded", "tensorwise", "plain", "fused", "staged")
#: Ways to split plain tensors, and the blocks of which each rank has a part.
BY_HAND = {"plain": 1, "fused": 3}
Facts = dict[str, Any]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    pool = Pool(tmp_path_factory.mktemp("ranks") / "store")
    yield pool
    pool.close()


def play(pool: Pool, scenario: str, way: str, **told: Any) -> list[Facts]:
    return pool.play(scenario, way=way, addresses=free_addresses(2), **told)


@pytest.fixture(scope="module")
def twins(pool: Pool) -> list[Facts]:
    a, _, b = play(pool, "merge", "whole")
    assert a["finish"]["agreed"]
    return [a, b]


def distance(some: dict[str, list[float]], others: dict[str, list[float]]) -> float:
    pairs = (zip(some[name], others[name], strict=True) for name in some)
    return max(abs(x - y) for pair in pairs for x, y in pair)


def joined(way: str, first: dict[str, list[float]], second: dict[str, list[float]]) -> Any:
    """The whole tensors, of what the two ranks have."""
    both = {**first, **second}
    if way not in BY_HAND:
        return both
    for name in ("up.weight", "up.bias", "down.weight"):
        parts = [torch.tensor(each[name]).view(3, -1) for each in (first, second)]
        is_up = name.startswith("up")
        whole = torch.empty(HIDDEN, parts[0].shape[1] if is_up else 3)
        for rank, part in enumerate(parts):
            whole[hidden_units(BY_HAND[way], rank)] = part if is_up else part.T
        both[name] = (whole if is_up else whole.T).reshape(-1).tolist()
    return both


def assert_copies_are_equal(way: str, first: Facts, second: Facts) -> None:
    """Copies on both ranks are equal to the bit."""
    copied = {"down.bias"} if way in BY_HAND else first.keys() & second.keys()
    assert [first[name] for name in copied] == [second[name] for name in copied]


@pytest.mark.parametrize("way", WAYS)
def test_ranks_are_one_learner(pool: Pool, twins: list[Facts], way: str) -> None:
    first, second, b = play(pool, "merge", way)
    a_twin, b_twin = twins
    for kind in ("trained", "swapped", "ended"):
        assert distance(joined(way, first[kind], second[kind]), a_twin[kind]) < 1e-5
        assert distance(b[kind], b_twin[kind]) < 1e-5
        assert_copies_are_equal(way, first[kind], second[kind])
    assert distance(a_twin["swapped"], a_twin["trained"]) > 1e-3
    for kind in ("swapped", "ended"):
        assert joined(way, first[kind], second[kind]) == b[kind]
    assert first["finish"] == second["finish"]
    assert first["finish"]["digest"] == b["finish"]["digest"]
    assert b["finish"]["tokens"] == {"a": BATCH * STEPS, "b": BATCH * STEPS}
    assert all(each["back"] for each in (first, second, b))
    assert all(each["shown"] == each["ended"] for each in (first, second, b))
    assert [each["saves"] for each in (first, second, b)] == [True, False, True]
    assert all(each["again"] and each["copies"] for each in (first, second, b))
    refused = [text.split("()")[0] for text in first["told"]]
    assert refused == ["state_dict", "load_state_dict"], first["told"]
    assert [rank["step"] for rank in (first, second)] == [STEPS, STEPS]
    assert [rank["tokens"] for rank in (first, second)] == [BATCH * STEPS, BATCH * STEPS]
    # The ranks meet where something is due, and go on from all other steps without a wait.
    assert first["met"] == second["met"] == [*range(2, STEPS + 1, 2)]


def test_one_learner_takes_over_the_groups_of_the_one_before(pool: Pool) -> None:
    plays = [play(pool, "merge", "copied")[:2] for _ in range(2)]
    made = [each["pairs"] for ranks in plays for each in ranks]
    assert made == [made[0]] * 4


def test_ranks_wait_for_anchors_that_are_due_at_once(pool: Pool) -> None:
    a_twin, _, b_twin = play(pool, "merge", "whole", adopt_after=0)
    first, second, b = play(pool, "merge", "sharded", adopt_after=0)
    assert distance(first["trained"], a_twin["trained"]) < 1e-5
    assert distance(b["trained"], b_twin["trained"]) < 1e-5
    assert first["ended"] == second["ended"] == b["ended"]


@pytest.mark.parametrize("way", ["copied", "sharded"])
def test_in_lockstep_ranks_copy_and_correct_in_passing_at_exactly_their_steps(
    pool: Pool, way: str
) -> None:
    a_twin, _, b_twin = play(pool, "ahead", "whole")
    first, second, b = play(pool, "ahead", way)
    assert first["met"] == second["met"] == []
    assert first["added"] == second["added"] == [18, 28]
    assert distance(joined(way, first["trained"], second["trained"]), a_twin["trained"]) < 1e-5
    assert distance(b["trained"], b_twin["trained"]) < 1e-5
    assert_copies_are_equal(way, first["trained"], second["trained"])
    assert first["digest"] == second["digest"] == b["digest"]
    assert joined(way, first["ended"], second["ended"]) == b["ended"]


def test_what_a_codec_leaves_in_the_weights_is_merged_in_the_end(pool: Pool) -> None:
    a_twin, _, b_twin = play(pool, "merge", "whole", codec="powersgd")
    first, second, b = play(pool, "merge", "sharded", codec="powersgd")
    assert distance(first["trained"], a_twin["trained"]) < 1e-4
    assert distance(b["trained"], b_twin["trained"]) < 1e-4
    assert first["ended"] == second["ended"] == b["ended"]
    assert first["finish"]["digest"] == b["finish"]["digest"]


@pytest.mark.parametrize("way", ["copied", "sharded"])
def test_ranks_that_come_late_take_over_the_weights(pool: Pool, way: str) -> None:
    first, second, b = play(pool, "late", way, first="b")
    assert_that_all_ended_alike(way, first, second, b)
    # The gradients of the replaced weights have trained nothing.
    assert [rank["moved"] for rank in (first, second)] == [True, True]
    assert [rank["stepped"] for rank in (first, second)] == [0, 0]
    tokens = BATCH * (first["steps"] - 1)
    assert first["tokens"] == second["tokens"] == tokens
    assert first["finish"]["tokens"] == {"a": tokens, "b": BATCH * (6 + b["steps"])}


@pytest.mark.parametrize("way", ["sharded", "staged"])
def test_late_ranks_train_the_weights_taken_over_where_a_closure_computes(
    pool: Pool, way: str
) -> None:
    """No rank has a gradient from before."""
    first, second, b = play(pool, "late", way, first="b", in_closure=True)
    assert_that_all_ended_alike(way, first, second, b)
    assert [rank["stepped"] for rank in (first, second)] == [1, 1]
    assert first["tokens"] == second["tokens"] == BATCH * first["steps"]


@pytest.mark.parametrize(("way", "sync_every"), [("staged", 4), ("sharded", "auto")])
def test_ranks_that_were_alone_give_their_weights_to_one_that_comes(
    pool: Pool, way: str, sync_every: int | str
) -> None:
    """They make these the anchor, for which all of them copy all they have at one step."""
    first, second, b = play(pool, "late", way, first="a", sync_every=sync_every)
    assert_that_all_ended_alike(way, first, second, b)
    assert (b["moved"], b["stepped"]) == (True, 0)
    tokens = BATCH * (6 + first["steps"])
    assert first["tokens"] == second["tokens"] == tokens
    assert first["finish"]["tokens"] == {"a": tokens, "b": BATCH * (b["steps"] - 1)}


def assert_that_all_ended_alike(way: str, first: Facts, second: Facts, b: Facts) -> None:
    assert joined(way, first["ended"], second["ended"]) == b["ended"]
    assert_copies_are_equal(way, first["ended"], second["ended"])
    assert first["finish"] == second["finish"]
    assert first["finish"]["agreed"]
    assert first["finish"]["digest"] == b["finish"]["digest"]
    assert first["settled"] == second["settled"]
    assert first["position"] == second["position"]


@pytest.mark.parametrize("way", ["copied", "sharded", "staged"])
def test_offers_are_of_exactly_the_steps_that_they_tell(pool: Pool, way: str) -> None:
    """Copies are decided on before they are made, and counted afterwards."""
    first, second, b = play(pool, "exact", way)
    offers = first["offers"]
    assert len({steps for steps, _, _ in offers}) > 1 or len(offers) > 6
    for learner in (first, b):
        for steps, least, most in learner["offers"]:
            assert abs(least - steps * LR) < 2e-3 * LR
            assert abs(most - steps * LR) < 2e-3 * LR
    assert not second["offers"]
    assert 2 * first["in passing"] > len(offers)
    # All ranks copy and correct at the same steps.
    assert first["added"] == second["added"]
    assert len(first["added"]) >= EXACT_ROUNDS
    if way != "copied":  # of two copies the lead's alone are sent
        assert first["copied"] == second["copied"]
    assert first["ended"] == second["ended"] or way == "staged"
    assert first["finish"] == second["finish"]
    assert first["finish"][1] == b["finish"][1]
    tokens = BATCH * first["steps"]
    assert first["finish"][2] == {"a": tokens, "b": BATCH * b["steps"]}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_checkpoint_of_ranks_is_one_of_the_whole_model(pool: Pool, dtype: str) -> None:
    first, second, b = play(pool, "checkpoint", "sharded", dtype=dtype)
    assert [first[f"saves {i}"] for i in range(3)] == [True, True, True]
    assert [second.get(f"saves {i}") for i in range(3)] == [False, None, False]
    assert [first[f"step {i}"] for i in range(3)] == [9, 18, 27]
    assert second["step 2"] == 27
    assert [first[f"dropped {i}"] for i in range(3)] == [0, 0, 0]
    assert first["tokens"] == second["tokens"] == b["tokens"]
    assert first["tokens"]["a"] == 27 * BATCH
    assert first["ended"] == second["ended"] == b["ended"]


@pytest.mark.parametrize(
    ("way", "kind", "told"),
    [
        ("copied", "parted", ["rank 0 is in synchronize.*rank 1 is in step"] * 2),
        (
            "undeclared",
            "",
            [r"parameter down.weight must be the same on ranks 0 and 1.*shards="] * 2,
        ),
        (
            "copied",
            "arguments",
            ["fragments must be the same on all ranks .*got 1 on rank 0 and 2 on rank 1"] * 2,
        ),
        ("sharded", "copy", ["rank 1 of this learner failed", "ArithmeticError: no copy"]),
    ],
)
def test_what_ranks_must_not_do_is_told_on_all_of_them(
    pool: Pool, way: str, kind: str, told: list[str]
) -> None:
    said = play(pool, "fault", way, kind=kind)
    for rank, text in zip(said, told, strict=False):
        assert re.search(text, rank["raised"][0]), rank
        assert all("no longer agree" in line for line in rank["raised"][1:])


def test_what_began_alike_and_is_no_copy_is_told_before_anything_is_merged(pool: Pool) -> None:
    first, second, b = play(pool, "drift", "copied")
    told = r"UsageError: parameter w must be the same on ranks 0 and 1.*give them two names"
    for rank in (first, second):
        assert re.match(told, rank["raised"][0]), rank
    assert (first["merged"], b["merged"]) == (0, 0)


def test_the_death_of_a_rank_is_told_to_the_others(pool: Pool) -> None:
    """It comes last: it ends the pool."""
    said = play(pool, "fault", "copied", kind="death", dies=1)
    assert "another rank of this learner ended" in said[0]["raised"][0]
    assert "no longer agree" in said[0]["raised"][1]
