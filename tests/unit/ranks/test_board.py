"""The board of the ranks of one host. `tests/ranks` has real ranks that use it."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.ranks import board
from mend_optim.ranks.board import FRAMES, LETTER_BYTES, ROW_BYTES, Board, shared_board
from mend_optim.ranks.words import WIDTH

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there are boards on Linux alone")
ROOT = Path(board.__file__).parents[2]
NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)
WORDS = st.tuples(*[NUMBERS] * WIDTH)
TIMEOUT_S = 5.0
#: Rank 1, which writes a word, and lives until its input ends.
OTHER = f"""
import sys
from mend_optim.ranks.board import Board, _known_file
own = Board(_known_file(sys.argv[1], 2), 1, 2, {TIMEOUT_S})
own.say(range({WIDTH}))
print("said", flush=True)
sys.stdin.read()
"""


class Clock:
    """Time that passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        assert len(self.slept) < 10_000, "it waits for ever"
        self.now += seconds
        self.meanwhile()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(board, "time", clock)
    return clock


@contextmanager
def boards(size: int) -> Iterator[list[Board]]:
    """The ends of so many ranks, in one process: each finds the others alive or dead alike."""
    place, file = board._new_file(size)
    others = [board._known_file(place, size) for _ in range(size - 1)]
    yield [Board(each, rank, size, TIMEOUT_S) for rank, each in enumerate([file, *others])]


def word(first: int) -> tuple[int, ...]:
    return tuple(range(first, first + WIDTH))


@given(st.integers(1, 5).flatmap(lambda size: st.lists(st.tuples(*[WORDS] * size), max_size=9)))
def test_all_ranks_hear_the_words_of_all(rounds: list[tuple[tuple[int, ...], ...]]) -> None:
    size = len(rounds[0]) if rounds else 1
    with boards(size) as ranks:
        for number, words in enumerate(rounds, start=1):
            for rank, said in zip(ranks, words, strict=True):
                assert rank._words(number) is None
                assert rank.say(said) == number
            for rank in ranks:
                assert rank.hear(number) == list(words)


def test_a_word_lasts_while_others_are_ahead() -> None:
    """Rank a has heard the first words, said its second one and a last one, which waits for nobody.
    Rank b has not looked yet."""
    with boards(2) as (a, b):
        for first in range(10, 100, 10):
            number = b.say(word(-first))
            for ahead in range(3):
                a.say(word(first + ahead))
            assert b.hear(number) == [word(first), word(-first)]
            for ahead in (1, 2):
                b.say(word(-first))
                assert b.hear(number + ahead) == [word(first + ahead), word(-first)]


def test_a_rank_knows_who_has_not_said_a_word_and_what_these_said_before() -> None:
    with boards(3) as (a, b, c):
        for rank in (a, b, c):
            rank.say(word(1))
        number = a.say(word(2))
        assert a.unheard(number) == {1: word(1), 2: word(1)}
        c.say(word(3))
        assert a.unheard(number) == {1: word(1)}
        assert a.unheard(number - 1) == {}
        assert a.unheard(number + 1) == {0: word(2), 1: None, 2: word(3)}


def test_a_rank_sleeps_until_the_last_word_is_said(clock: Clock) -> None:
    with boards(3) as (a, b, c):
        number = a.say(word(1))
        c.say(word(3))

        def meanwhile() -> None:
            if len(clock.slept) == 20:
                b.say(word(2))

        clock.meanwhile = meanwhile
        looks: list[float] = []
        assert a.hear(number, looks.append) == [word(1), word(2), word(3)]
        assert not looks
    assert len(clock.slept) == 20
    assert clock.slept[0] == board.LEAST_S
    assert clock.slept == sorted(clock.slept)
    # A wait is at most a tenth longer than it must be.
    assert clock.slept[-1] <= max(board.LEAST_S, sum(clock.slept[:-1]) / 10)


def test_a_word_that_does_not_come_in_time(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Board, "_is_alive", lambda self, rank: True)
    looks: list[float] = []
    with boards(2) as (a, _), pytest.raises(TimeoutError, match=r"no word 1 within 5 s"):
        a.hear(a.say(word(1)), looks.append)
    assert 0.8 * TIMEOUT_S / board.ASK_S < len(looks) <= TIMEOUT_S / board.ASK_S
    assert board.ASK_S < looks[0] < looks[-1] <= TIMEOUT_S
    assert TIMEOUT_S < sum(clock.slept) <= TIMEOUT_S + board.MOST_S
    assert max(clock.slept) == board.MOST_S


@given(WORDS, WORDS, st.sets(st.integers(0, ROW_BYTES // 8 - 1)))
def test_a_row_of_which_a_part_is_there_is_not_heard(
    old: tuple[int, ...], new: tuple[int, ...], stored: set[int]
) -> None:
    """Other processes may see the stores of a row in any order."""
    with boards(2) as (a, b):
        for _ in range(FRAMES):
            b.say(old)
            a.say(old)
        start = b._frame(number := b._said + 1) + ROW_BYTES
        place = slice(start, start + ROW_BYTES)
        before = numbers_in(a._memory[place])
        b.say(new)
        whole = numbers_in(a._memory[place])
        a.say(new)
        part = [whole[i] if i in stored else before[i] for i in range(len(whole))]
        a._memory[place] = struct.pack(f"={len(part)}q", *part)
        assert a._words(number) == ([new, new] if part == whole else None)


def numbers_in(row: bytes) -> list[int]:
    """The numbers of a row, each of which is one store."""
    return [number for (number,) in struct.iter_unpack("=q", row)]


# ── letters ───────────────────────────────────────────────────────────────────────────────────────


def exchanged(ranks: list[Board], letters: list[bytes], clock: Clock) -> list[list[bytes]]:
    """The letters that each rank reads. The first rank waits for the second one, which waits for
    the third, and so on."""
    read: list[list[bytes]] = []

    def write(rank: int) -> None:
        if rank < len(ranks):
            clock.meanwhile = lambda: write(rank + 1)
            read.append(ranks[rank].exchange(letters[rank]))
            clock.meanwhile = lambda: None

    write(0)
    return read


LETTERS = st.binary(max_size=64) | st.binary(min_size=LETTER_BYTES, max_size=LETTER_BYTES)


@given(st.integers(1, 4).flatmap(lambda size: st.lists(st.tuples(*[LETTERS] * size), max_size=6)))
def test_all_ranks_read_the_letters_of_all(rounds: list[tuple[bytes, ...]]) -> None:
    size, clock = len(rounds[0]) if rounds else 1, Clock()
    with patch.object(board, "time", clock), boards(size) as ranks:
        for letters in rounds:
            # Words have numbers and rows of their own.
            numbers = [rank.say(word(7)) for rank in ranks]
            assert exchanged(ranks, list(letters), clock) == [list(letters)] * size
            assert [rank.hear(n) for rank, n in zip(ranks, numbers, strict=True)] == [
                [word(7)] * size
            ] * size


@given(st.binary(min_size=24, max_size=24), st.binary(max_size=40), st.sets(st.integers(0, 7)))
def test_a_letter_of_which_a_part_is_there_is_not_read(
    old: bytes, new: bytes, stored: set[int]
) -> None:
    clock = Clock()
    with patch.object(board, "time", clock), boards(2) as (a, b):
        for _ in range(FRAMES):
            exchanged([a, b], [old, old], clock)
        number = b._written + 1
        start = b._letter_frame(number, 1)
        place = slice(start, start + 64)
        before = a._memory[place]
        exchanged([a, b], [new, new], clock)
        whole = a._memory[place]
        words = [(whole if i in stored else before)[8 * i : 8 * i + 8] for i in range(8)]
        a._memory[place] = b"".join(words)
        length = 16 + len(new) + 8  # the bytes after the checksum count for nothing
        same = a._memory[place][:length] == whole[:length]
        assert a._letters(number) == ([new, new] if same else None)


def test_a_rank_that_goes_on_without_its_letter_is_not_waited_for(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was interrupted, and says that it has failed."""
    monkeypatch.setattr(Board, "_is_alive", lambda self, rank: True)
    with boards(2) as (a, b):
        b.say(word(1))
        a.hear(a.say(word(1)))
        b.say(word(2))
        with pytest.raises(ConnectionError, match="rank 1 has ended, or went on"):
            a.exchange(b"a letter")
        assert a.ahead() == {1: word(2)}
    assert board.ASK_S < sum(clock.slept) <= board.ASK_S + board.MOST_S


def test_the_last_word_of_a_rank_that_was_a_word_ahead_is_seen() -> None:
    """It was interrupted while it waited for the others' words of its step."""
    with boards(3) as (a, b, c):
        for each in (a, b, c):
            each.say(word(1))
        b.say(word(2))
        assert a.ahead() == c.ahead() == {1: word(2)}
        b.say(word(3))
        assert a.ahead() == {1: word(3)}
        c.say(word(4))
        assert a.ahead() == {1: word(3), 2: word(4)}
        assert c.ahead() == {1: word(3)}


def test_a_rank_that_goes_on_after_its_letter_is_read(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it does both while another one asks."""
    monkeypatch.setattr(board, "ASK_S", 0.0)
    with boards(2) as (a, b):

        def goes_on(self: Board, rank: int) -> bool:
            if not b._written:
                b.exchange(b"b's")
                b.say(word(1))
            return True

        monkeypatch.setattr(Board, "_is_alive", goes_on)
        assert a.exchange(b"a's") == [b"a's", b"b's"]


@contextmanager
def living(place: str) -> Iterator[Any]:
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER, place],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"said\n"
        yield other
    finally:
        other.kill()
        other.communicate()


def test_a_rank_that_ends_is_not_waited_for_and_its_last_word_is_heard(clock: Clock) -> None:
    place, file = board._new_file(2)
    own = Board(file, 0, 2, TIMEOUT_S)
    with living(place) as other:
        first, second = own.say(word(7)), own.say(word(8))
        with pytest.raises(TimeoutError):  # it lives
            own.hear(second)
        other.kill()
        other.wait()
        clock.slept.clear()
        with pytest.raises(ConnectionError, match="rank 1 has ended"):
            own.hear(second)
        assert board.ASK_S < sum(clock.slept) <= board.ASK_S + board.MOST_S
        assert own.hear(first) == [word(7), word(0)]


def test_a_word_that_is_said_while_a_rank_asks_is_heard(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last act of a rank is its word."""
    with boards(2) as (a, b):
        number = a.say(word(1))

        def ends(self: Board, rank: int) -> bool:
            b.say(word(2))
            return False

        monkeypatch.setattr(Board, "_is_alive", ends)
        assert a.hear(number) == [word(1), word(2)]


# ── how ranks come by one ─────────────────────────────────────────────────────────────────────────


class Others:
    """The other ranks: they tell nothing first, then these numbers of processes."""

    def __init__(self, *processes: str) -> None:
        self.processes = processes
        self.place = ""

    def __call__(self, data: bytes, nbytes: int) -> list[bytes]:
        others = ("",) * len(self.processes) if not self.place else self.processes
        self.place = self.place or data.decode() or "none"
        return [each.ljust(nbytes, b"\0") for each in (data, *map(str.encode, others))]


def test_a_board_has_no_name_at_any_time() -> None:
    """Nothing is left of it if all ranks are killed, even while they meet."""
    others = Others("17", "18")
    own = shared_board(others, 0, 3, TIMEOUT_S)
    assert own is not None
    process, number, _ = others.place.split("/")
    assert int(process) == os.getpid()
    assert os.fstat(int(number)).st_nlink == 0
    assert own._timeout_s == TIMEOUT_S


@pytest.mark.parametrize("processes", [("17", ""), ("17", "17"), ("own", "18")], ids=str)
def test_ranks_that_do_not_all_reach_it_have_none(processes: tuple[str, ...]) -> None:
    """Those on another host cannot; threads of one process would have each other's locks."""
    others = Others(*[each.replace("own", str(os.getpid())) for each in processes])
    assert shared_board(others, 0, 3, TIMEOUT_S) is None


def test_where_there_is_no_such_memory_there_is_no_board(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "MEMORY", Path("/nowhere"))
    assert shared_board(Others("17"), 0, 2, TIMEOUT_S) is None


def test_a_host_without_room_has_none_and_keeps_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def full(file: int, *_: Any) -> None:
        made.append(file)
        raise OSError("no space left")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert shared_board(Others("17"), 0, 2, TIMEOUT_S) is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(made[0])


def lead_of(place: str) -> Callable[[bytes, int], list[bytes]]:
    """The lead of two ranks has told this place; then all tell their processes."""
    told: list[list[bytes]] = [[place.encode(), b""]]
    return lambda data, nbytes: told.pop() if told else [b"17", data]


@pytest.fixture
def made() -> Iterator[tuple[str, int]]:
    """The file of a lead of two ranks."""
    place, file = board._new_file(2)
    yield place, file
    os.close(file)


def test_another_rank_finds_the_board_of_the_lead() -> None:
    place, file = board._new_file(2)
    lead = Board(file, 0, 2, TIMEOUT_S)
    own = shared_board(lead_of(place), 1, 2, TIMEOUT_S)
    assert own is not None
    lead.say(word(1))
    assert lead.hear(own.say(word(2))) == [word(1), word(2)]


def test_a_file_of_another_size_is_not_the_board(made: tuple[str, int]) -> None:
    """It would end the process to touch what is not there."""
    place, file = made
    os.truncate(file, os.fstat(file).st_size + 1)
    assert shared_board(lead_of(place), 1, 2, TIMEOUT_S) is None


def test_a_file_with_another_seal_is_not_the_board(made: tuple[str, int]) -> None:
    """On another host, the same process and descriptor are those of another learner."""
    place, file = made
    os.pwrite(file, b"x", os.fstat(file).st_size - 1)
    before = os.listdir("/proc/self/fd")
    assert shared_board(lead_of(place), 1, 2, TIMEOUT_S) is None
    assert os.listdir("/proc/self/fd") == before


def test_what_is_no_file_is_not_opened() -> None:
    """On another host, the same descriptor may be a pipe or a terminal."""
    reads, writes = os.pipe()
    assert shared_board(lead_of(f"{os.getpid()}/{reads}/00"), 1, 2, TIMEOUT_S) is None
    os.close(reads)
    os.close(writes)


def test_a_place_that_this_host_does_not_have() -> None:
    assert shared_board(lead_of("4194305/3/00"), 1, 2, TIMEOUT_S) is None
    assert shared_board(lead_of(""), 1, 2, TIMEOUT_S) is None


def test_a_file_of_another_user(made: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    place, file = made
    monkeypatch.setattr(os, "geteuid", lambda: os.fstat(file).st_uid + 1)
    assert shared_board(lead_of(place), 1, 2, TIMEOUT_S) is None
