"""Pairs of groups that learners use one after another; `tests/ranks` has real ones."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

from mend_optim.ranks.pairs import Pair, Pairs, Use


class Group:
    """Something that can be known weakly."""


class Learner:
    """Its end gives a pair back."""


class Work:
    """A word on its way."""

    def __init__(self, is_completed: bool = True, fault: str = "") -> None:
        self._is_completed = is_completed
        self._fault = fault

    def is_completed(self) -> bool:
        return self._is_completed

    def wait(self) -> None:
        assert self._is_completed, "nobody waits for a word that may never come"
        if self._fault:
            raise RuntimeError(self._fault)


def made() -> tuple[Pairs, Pair]:
    """A pair with the number 7."""
    pairs, pair = Pairs(), Pair(Group(), Group())
    pairs.add(7, pair)
    return pairs, pair


def used(pairs: Pairs, act: Callable[[Use], None]) -> None:
    """A learner uses pair 7, and is gone."""
    learner, use = Learner(), Use()
    pairs.lend(7, learner, use)
    act(use)
    assert pairs.free() == []
    del learner
    gc.collect()


def nothing(use: Use) -> None:
    """Its words and its transfers have all ended well."""
    with use.watching():
        pass
    use.said.append(Work())


def test_a_pair_is_free_when_its_learner_is_gone() -> None:
    pairs, pair = made()
    assert pairs.free() == []  # it was made for a learner
    for _ in range(2):
        used(pairs, nothing)
        assert pairs.free() == [7]
    learner = Learner()
    assert pairs.lend(7, learner, Use()) == pair
    assert pairs.free() == []


def fails(use: Use) -> None:
    with pytest.raises(KeyboardInterrupt), use.watching():
        raise KeyboardInterrupt


def speaks(*said: Work) -> Callable[[Use], None]:
    return lambda use: use.said.extend(said)


@pytest.mark.parametrize(
    "act",
    [fails, speaks(Work(is_completed=False)), speaks(Work(fault="reset"), Work())],
    ids=["a collective that raised", "a word on its way", "a word that was lost"],
)
def test_nobody_takes_over_a_pair_in_which_ranks_may_have_parted(
    act: Callable[[Use], None],
) -> None:
    pairs, pair = made()
    used(pairs, act)
    assert pairs.free() == []
    assert pair.words


def test_a_collective_that_was_over_at_once_is_over() -> None:
    use = Use()
    use.said.append(None)
    assert use.is_over()


def test_a_word_that_comes_late_frees_the_pair() -> None:
    pairs, pair = made()
    late = Work(is_completed=False)
    used(pairs, speaks(late))
    assert pairs.free() == []
    late._is_completed = True
    assert pairs.free() == [7]
    assert pair.words


def test_only_the_last_words_may_be_on_their_way() -> None:
    """Each word is said when the one before the last has been heard."""
    use = Use()
    use.said.extend([Work(is_completed=False), Work(), Work()])
    assert use.is_over()


@pytest.mark.parametrize("lost", [0, 1])
def test_a_pair_ends_with_its_world(lost: int) -> None:
    groups: list[Any] = [Group(), Group()]
    pairs = Pairs()
    pairs.add(7, Pair(*groups))
    used(pairs, nothing)
    del groups[lost]
    assert pairs.free() == []
    with pytest.raises(LookupError, match="the world of pair 7 has ended"):
        pairs.lend(7, Learner(), Use())
