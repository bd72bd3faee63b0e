"""The ranks come together; `tests/ranks` has real ones."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from mend_optim import MendError, UsageError
from mend_optim.ranks import group
from mend_optim.ranks.board import LETTER_BYTES
from mend_optim.ranks.words import Call, Word


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The store by which ranks find each other."""
    store = dist.HashStore()
    monkeypatch.setattr(distributed_c10d, "_get_default_store", lambda: store)
    return store


def test_nobody_waits_long_for_a_rank_that_is_not_there(store: Any) -> None:
    with pytest.raises(
        UsageError, match=r"none on rank 1, 2 within 0\.05 s; construct it on every"
    ):
        group._meet([4, 5, 6], 0, meet_s=0.05)


def test_ranks_that_are_there_are_not_waited_for(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although one of them has met other ranks before."""
    store.set("mend_optim/4-5/7/5", "here")
    monkeypatch.setattr(group, "_met", Counter({(4, 5): 7, (3, 4): 2}))
    group._meet([4, 5], 0, meet_s=0.05)
    group._meet([4], 0, meet_s=0.05)


def test_the_store_of_an_earlier_world_is_refused(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a rank would take one that is not there for one that is."""
    for _ in range(2):
        group._meet([4], 0, meet_s=0.05)
    store.set("mend_optim/4-5/0/5", "here")
    group._meet([4, 5], 0, meet_s=0.05)
    monkeypatch.setattr(group, "_met", Counter())
    for members in ([4], [4, 5]):
        with pytest.raises(UsageError, match="got that of an earlier one, where torch may"):
            group._meet(members, 0, meet_s=0.05)


@contextmanager
def as_process(monkeypatch: pytest.MonkeyPatch, met: Counter[tuple[int, ...]]) -> Iterator[None]:
    """Be another process, which has met other ranks as often as it says."""
    with monkeypatch.context() as patch:
        patch.setattr(group, "_met", met)
        yield


@pytest.mark.parametrize("end", [UsageError, KeyboardInterrupt])
def test_ranks_meet_after_one_of_them_has_given_up(
    end: type[BaseException], store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The late rank once took the word of the early one for that of a rank that waits."""
    early, late = Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()
    with as_process(monkeypatch, early), monkeypatch.context() as patch:
        if end is KeyboardInterrupt:
            patch.setattr(group.time, "sleep", Mock(side_effect=end))
        with pytest.raises(end):
            group._meet([4, 5], 0, meet_s=0.05)
    with as_process(monkeypatch, late), pytest.raises(UsageError, match="none on rank 0 within"):
        group._meet([4, 5], 1, meet_s=0.05)
    found = []

    def come_late(nap_s: float) -> None:
        with as_process(monkeypatch, late), monkeypatch.context() as patch:
            patch.setattr(group.time, "sleep", Mock(side_effect=AssertionError))
            found.append(group._meet([4, 5], 1, meet_s=60.0))

    with as_process(monkeypatch, early), monkeypatch.context() as patch:
        patch.setattr(group.time, "sleep", come_late)
        found.append(group._meet([4, 5], 0, meet_s=60.0))
    assert found == [(2, set()), (2, set())]


def test_a_rank_that_sees_all_when_one_gives_up_waits_for_the_next_meeting(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for that one in the collectives."""
    check = store.check

    class Racing:
        """Rank 1 gives up after rank 0 has seen it."""

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def check(self, keys: list[str]) -> bool:
            if len(keys) == 2 and not check(keys):
                store.set(keys[1], "here")
                store.set(keys[1].rpartition("/")[0], group.GIVEN_UP)
                return True
            return bool(check(keys))

    monkeypatch.setattr(distributed_c10d, "_get_default_store", Racing)
    met = Counter[tuple[int, ...]]()
    with as_process(monkeypatch, met), monkeypatch.context() as patch:
        patch.setattr(group.time, "sleep", Mock(side_effect=AssertionError))
        store.set("mend_optim/4-5/1/5", "here")  # and comes again
        assert group._meet([4, 5], 0, meet_s=60.0) == (1, set())


class OtherStore:
    """A store whose process has ended after some calls, or where keys come after some looks."""

    def __init__(self, lasts: int, looks: int = 1) -> None:
        self.lasts = lasts
        self.looks = looks

    def set(self, key: str, value: bytes) -> None:
        self._call()

    def check(self, keys: list[str]) -> bool:
        self._call()
        self.looks -= 1
        return self.looks < 0

    def get(self, key: str) -> bytes:
        self._call()
        return b"here"

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        self._call()
        return desired.encode()

    def _call(self) -> None:
        self.lasts -= 1
        if self.lasts < 0:
            raise dist.DistNetworkError("Broken pipe")

    def wait(self, *args: Any) -> None:
        raise AssertionError("torch waits in C++, where Ctrl-C is not noticed")


@pytest.mark.parametrize("lasts", range(6))
def test_the_end_of_the_rank_that_keeps_the_store_is_told(
    lasts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed_c10d, "_get_default_store", lambda: OtherStore(lasts))
    with pytest.raises(MendError, match="another rank of this learner ended"):
        group._meet([4, 5], 0, meet_s=0.05)


def test_a_rank_looks_up_while_it_waits_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    store = OtherStore(lasts=12, looks=4)
    monkeypatch.setattr(distributed_c10d, "_get_default_store", lambda: store)
    group._meet([4, 5], 0, meet_s=60.0)
    assert store.looks == -1


def test_ranks_that_come_at_the_last_moment_have_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the last look for all and that for each."""
    store = OtherStore(lasts=12, looks=3)
    monkeypatch.setattr(distributed_c10d, "_get_default_store", lambda: store)
    group._meet([4, 5], 0, meet_s=0.0)


@pytest.mark.parametrize(
    ("free", "common"),
    [([(3, 5, 12), (12, 3, 40)], {3, 12}), ([(3,), ()], set()), ([(), ()], set())],
)
def test_ranks_that_meet_know_which_pairs_none_of_them_uses(
    free: list[tuple[int, ...]], common: set[int], store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.set("mend_optim/7-8/9/7", ",".join(["here", *map(str, free[0])]))
    monkeypatch.setattr(group, "_met", Counter({(7, 8): 9}))
    assert group._meet([7, 8], 1, meet_s=0.05, free=free[1]) == (9, common)


def check_words(own: group.Group) -> None:
    """Words arrive, one after another, and a last one beside one that nobody has heard."""
    words = [Word(call=Call.STEP, step=step, tokens=7 * step, copy=-1) for step in range(5)]
    for word in words:
        assert own.say(word).wait().words == (word,)
    pending = own.say(words[3])
    last = own.say(words[4])
    assert pending.wait().words == (words[3],)
    assert last.wait().words == (words[4],)


def check_letters(own: group.Group) -> None:
    """Short bytes go by the board, where there is one; long ones by the collective."""
    written: list[bytes] = []
    if own._board is not None:
        exchange = own._board.exchange
        own._board.exchange = lambda letter: written.append(letter) or exchange(letter)  # type: ignore
    for length in (3, LETTER_BYTES, LETTER_BYTES + 1):
        assert own.tell(b"abc", length) == [b"abc".ljust(length, b"\0")]
    assert own.tell(b"x" * LETTER_BYTES, LETTER_BYTES) == [b"x" * LETTER_BYTES]
    assert len(written) == (3 if own._board else 0)


class Work:
    """A collective that takes longer than a rank waits at a time."""

    def __init__(self, looks: int, fault: str = "") -> None:
        self.looks = looks
        self.fault = fault

    def is_completed(self) -> bool:
        return self.looks <= 0

    def wait(self, *timeout: timedelta) -> None:
        self.looks -= 1
        if self.looks >= 0 and timeout:
            raise RuntimeError("Operation timed out!")
        if self.fault:
            raise RuntimeError(self.fault)


def test_a_rank_looks_up_while_it_waits_for_a_collective() -> None:
    rows, looks = group._Rows(1), list[float]()
    heard = group.Pending(partial(group._heard, Work(3), rows))
    assert heard.wait(looks.append).tokens == 0
    assert looks == [1, 2]  # the third time it was over as the time ended
    with pytest.raises(MendError, match="another rank of this learner ended"):
        group.Pending(partial(group._heard, Work(3, "reset"), rows)).wait()
    assert heard.missing() == {}


def test_where_torch_has_nothing_below_its_own_function_that_one_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[tuple[Any, ...]] = []
    monkeypatch.setattr(group, "_gathered", lambda *args, later: called.append((*args, later)))
    gather: Any = group._quick_gather("a group")
    gather("rows", "row")
    assert called == [("rows", "row", "a group", True)]


def test_the_groups_wait_as_long_as_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{tmp_path / 'store'}",
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=7),
    )
    try:
        assert group._timeout_of(dist.group.WORLD) == timedelta(seconds=7)
        waits: list[timedelta] = []
        make = dist.new_group

        def watched(*args: Any, timeout: timedelta, **named: Any) -> Any:
            waits.append(timeout)
            return make(*args, timeout=timeout, **named)

        monkeypatch.setattr(dist, "new_group", watched)
        own = group.Group(meet_s=5.0)
        assert group._timeout_of(own._words) == timedelta(seconds=7)
        assert group._timeout_of(own._tensors) == timedelta(seconds=7)
        check_words(own)
        check_letters(own)
        # But not for ranks that have ended before they are connected.
        assert waits == [timedelta(seconds=5)] * 2
        group.Group(meet_s=60.0)
        # Where torch cannot change that later, they wait so long at once.
        monkeypatch.delattr(dist, "ProcessGroupGloo")
        assert group._timeout_of(group.Group(meet_s=5.0)._words) == timedelta(seconds=7)
        assert waits[2:] == [timedelta(seconds=7)] * 4
        # As with a version of torch that has nothing below its public function.
        own._say = partial(group._gathered, group=own._words, later=True)
        check_words(own)
    finally:
        dist.destroy_process_group()
    assert group._timeout_of(object()) is None


@pytest.fixture
def world(tmp_path: Path) -> Iterator[None]:
    """One rank."""
    store = f"file://{tmp_path / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def groups_there() -> int:
    return len(distributed_c10d._world.pg_map)


@pytest.mark.usefixtures("world")
def test_learners_one_after_another_have_the_same_groups() -> None:
    first = group.Group()
    check_words(first)
    check_letters(first)
    own, there = (first._words, first._tensors), groups_there()
    first._board = None  # the words of ranks on several hosts
    last = first.say(Word(call=Call.CLOSE, step=9))
    del first
    last.wait()
    gc.collect()
    short = dist.new_group([0], timeout=timedelta(seconds=9))
    second = group.Group(short)
    assert (second._words, second._tensors) == own
    assert [group._timeout_of(each) for each in own] == [timedelta(seconds=9)] * 2
    check_words(second)
    check_letters(second)
    assert groups_there() == there + 1  # the user's


@pytest.mark.usefixtures("world")
def test_nobody_waits_long_in_groups_that_are_taken_over_for_a_rank_that_has_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[timedelta | None] = []
    meet = group.shared_board

    def watched(tell: Any, *args: Any) -> Any:
        waits.append(group._timeout_of(tell.__self__._words))
        return meet(tell, *args)

    monkeypatch.setattr(group, "shared_board", watched)
    for _ in range(2):
        own = group.Group(meet_s=5.0)
        assert own.patience_s > 5.0
        del own
        gc.collect()
    assert waits == [timedelta(seconds=5)] * 2


@pytest.mark.usefixtures("world")
def test_learners_side_by_side_have_groups_of_their_own() -> None:
    first, second = group.Group(), group.Group()
    assert not {first._words, first._tensors} & {second._words, second._tensors}


@pytest.mark.usefixtures("world")
def test_nobody_takes_over_the_groups_of_a_learner_that_was_lost() -> None:
    lost: Any = group.Group()
    own = (lost._words, lost._tensors)
    lost._all_to_all = lambda *_: Work(1, "reset")
    with pytest.raises(MendError, match="another rank of this learner ended"):
        lost.transfer(torch.zeros(1), [1], torch.zeros(1), [1])
    del lost
    gc.collect()
    after = group.Group()
    assert not {after._words, after._tensors} & set(own)


def test_the_groups_end_with_their_world(tmp_path: Path) -> None:
    """A later world has groups of its own."""
    for turn in range(2):
        store = f"file://{tmp_path / str(turn)}"
        dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        try:
            own = group.Group()
            check_words(own)
        finally:
            dist.destroy_process_group()
        ends = [weakref.ref(each) for each in (own._words, own._tensors)]
        del own
        gc.collect()
        assert [end() for end in ends] == [None, None]
