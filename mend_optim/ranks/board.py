"""A board in shared memory, on which the ranks of one host write their words, and short letters.

A collective of gloo takes a hundred microseconds of processor time, because it wakes threads of its
own. On the board a word takes a few, and the words of the step before are usually there already.

Each rank has a row in each of a few frames, and only that rank writes into it. Word number n goes
into frame n mod `FRAMES`: a rank says word n + 1 only after it has heard all words n, so nobody is
two words ahead of a reader. A row ends in a checksum. Other processes may see its numbers in any
order, and a row whose checksum is wrong is not there yet. Letters have rows and numbers of their
own. Between two letters there is a word of every rank, and a rank writes its letter before its next
word.

A rank holds a lock while it lives, which the kernel releases with the process. So a rank that waits
for a word learns that it will not come."""

from __future__ import annotations

import mmap
import os
import stat
import struct
import sys
import time
import weakref
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from mend_optim.ranks.words import WIDTH

if sys.platform == "linux":
    import fcntl

T = TypeVar("T")
#: Memory that only the processes of this host share. Where it is absent, there is no board.
MEMORY = Path("/dev/shm")
#: Where a process finds the open files of another one.
PROCESSES = Path("/proc")
#: A word that is being heard, the next one, and a last one that nobody waits for (`Crew.fail`).
FRAMES = 4
# A row: the word's number and the word, then the checksum of these.
_SAID = struct.Struct(f"={1 + WIDTH}q")
_SUM = struct.Struct("=q")
_ROW = struct.Struct(f"={1 + WIDTH + 1}q")
ROW_BYTES = _ROW.size
# A letter: its number and its length, the bytes, the checksum of these.
_HEAD = struct.Struct("=qq")
#: The most bytes of a letter.
LETTER_BYTES = 2048
_LETTER_ROW_BYTES = _HEAD.size + LETTER_BYTES + _SUM.size
# Between two looks a rank sleeps a tenth of its wait so far: at least and at most so long.
LEAST_S, MOST_S = 20e-6, 2e-3
#: The most bytes that tell where a file is.
PLACE_BYTES = 64
#: A file ends in so many random bytes, by which other ranks know it.
SEAL_BYTES = 16
#: So long a rank waits until it asks whether the others live, and between two such questions.
ASK_S = 0.05


def _nothing(waited_s: float) -> None:
    """There is nothing to do while it waits."""


class Board:
    """This rank's end of the board.

    Args:
        file: the descriptor of the memory. The board closes it in the end; nobody else may, because
            the locks of a process end with the first close.
        rank: this process's number among the ranks.
        size: how many ranks there are.
        timeout_s: how long to wait for a word or a letter, in seconds.
    """

    def __init__(self, file: int, rank: int, size: int, timeout_s: float) -> None:
        self._file = file
        self._rank = rank
        self._size = size
        self._timeout_s = timeout_s
        # The numbers of this rank's last word and letter.
        self._said = 0
        self._written = 0
        weakref.finalize(self, os.close, file)
        self._memory = mmap.mmap(file, _length(size))
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)

    def say(self, word: Sequence[int]) -> int:
        """Write this rank's next word. Returns its number, for `hear`."""
        self._said += 1
        said = _SAID.pack(self._said, *word)
        start = self._frame(self._said) + self._rank * ROW_BYTES
        self._memory[start : start + ROW_BYTES] = said + _SUM.pack(zlib.crc32(said))
        return self._said

    def hear(
        self, number: int, meanwhile: Callable[[float], None] = _nothing
    ) -> list[tuple[int, ...]]:
        """The words of all ranks with this number. Waits for them, and tells `meanwhile` now
        and then for how many seconds.

        Raises:
            ConnectionError: a rank has ended without its word.
            TimeoutError: a rank has not said its word in time.
        """
        words = self._words(number)
        if words is not None:
            return words
        return self._await(
            lambda: self._words(number),
            lambda rank: self._has_said(rank, number) or self._is_alive(rank),
            f"word {number}",
            meanwhile,
        )

    def unheard(self, number: int) -> dict[int, tuple[int, ...] | None]:
        """The ranks that have not said the word with this number, and the word of each before it;
        None: it is gone."""
        return {
            rank: self._word(rank, number - 1)
            for rank in range(self._size)
            if not self._has_said(rank, number)
        }

    def ahead(self) -> dict[int, tuple[int, ...]]:
        """The ranks that have said more words than this one, and the last word of each. A rank that
        is a word ahead may say another one: that it has failed, and waits no more."""
        words: dict[int, tuple[int, ...]] = {}
        for number in (self._said + 1, self._said + 2):
            found = {rank: self._word(rank, number) for rank in range(self._size)}
            words |= {rank: word for rank, word in found.items() if word is not None}
        return words

    def exchange(self, letter: bytes) -> list[bytes]:
        """The letters of all ranks, of which this one's has at most `LETTER_BYTES`. Waits for them.

        Raises:
            ConnectionError: a rank has ended, or says its next word, without its letter.
            TimeoutError: a rank has not written its letter in time.
        """
        self._written += 1
        number, start = self._written, self._letter_frame(self._written, self._rank)
        data = _HEAD.pack(number, len(letter)) + letter
        data += _SUM.pack(zlib.crc32(data))
        self._memory[start : start + len(data)] = data
        return self._await(
            lambda: self._letters(number),
            lambda rank: (
                self._letter(rank, number) is not None
                or (self._is_alive(rank) and not self._has_said(rank, self._said + 1))
            ),
            f"letter {number}",
        )

    def _await(
        self,
        look: Callable[[], T | None],
        may_come: Callable[[int], bool],
        what: str,
        meanwhile: Callable[[float], None] = _nothing,
    ) -> T:
        """What `look` finds in the end. Raises if it takes too long, or may not come from a rank
        any more."""
        started = now = time.monotonic()
        ask_at = started + ASK_S
        while (found := look()) is None:
            if now - started > self._timeout_s:
                raise TimeoutError(f"no {what} within {self._timeout_s:g} s")
            if now > ask_at:
                self._require(may_come)
                meanwhile(now - started)
                ask_at = now + ASK_S
            time.sleep(min(MOST_S, max(LEAST_S, (now - started) / 10)))
            now = time.monotonic()
        return found

    def _require(self, may_come: Callable[[int], bool]) -> None:
        """Raise if nothing may come from a rank. Its last act may be what is waited for, which the
        second look finds."""
        for rank in range(self._size):
            if rank != self._rank and not may_come(rank) and not may_come(rank):
                raise ConnectionError(f"rank {rank} has ended, or went on")

    def _words(self, number: int) -> list[tuple[int, ...]] | None:
        """The words with this number; None: some are not there yet."""
        start = self._frame(number)
        rows = self._memory[start : start + self._size * ROW_BYTES]
        words = []
        for rank, row in enumerate(_ROW.iter_unpack(rows)):
            at = rank * ROW_BYTES
            if not _is_there(row, rows[at : at + _SAID.size], number):
                return None
            words.append(row[1:-1])
        return words

    def _frame(self, number: int) -> int:
        """The place at which the rows of this number begin."""
        return number % FRAMES * self._size * ROW_BYTES

    def _has_said(self, rank: int, number: int) -> bool:
        return self._word(rank, number) is not None

    def _word(self, rank: int, number: int) -> tuple[int, ...] | None:
        """The word of a rank with this number; None: it is not there."""
        start = self._frame(number) + rank * ROW_BYTES
        found = self._memory[start : start + ROW_BYTES]
        row = _ROW.unpack(found)
        return row[1:-1] if _is_there(row, found[: _SAID.size], number) else None

    def _letters(self, number: int) -> list[bytes] | None:
        """The letters with this number; None: some are not there yet."""
        letters = []
        for rank in range(self._size):
            letter = self._letter(rank, number)
            if letter is None:
                return None
            letters.append(letter)
        return letters

    def _letter(self, rank: int, number: int) -> bytes | None:
        """The letter of a rank with this number; None: it is not there yet."""
        start = self._letter_frame(number, rank)
        row = self._memory[start : start + _LETTER_ROW_BYTES]
        found, nbytes = _HEAD.unpack_from(row)
        end = _HEAD.size + nbytes
        if found != number or not _HEAD.size <= end <= _HEAD.size + LETTER_BYTES:
            return None
        if _SUM.unpack_from(row, end)[0] != zlib.crc32(row[:end]):
            return None
        return row[_HEAD.size : end]

    def _letter_frame(self, number: int, rank: int) -> int:
        """The place of a letter: after all words."""
        place = number % FRAMES * self._size + rank
        return FRAMES * self._size * ROW_BYTES + place * _LETTER_ROW_BYTES

    def _is_alive(self, rank: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, rank)
        except BlockingIOError:
            return True
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, rank)
        return False


def _is_there(row: tuple[int, ...], said: bytes, number: int) -> bool:
    """Whether a row has this number and is whole. `said` are its bytes before the checksum."""
    return row[0] == number and row[-1] == zlib.crc32(said)


def shared_board(
    tell: Callable[[bytes, int], list[bytes]], rank: int, size: int, timeout_s: float
) -> Board | None:
    """A board for these ranks, if all can reach the same memory; None: they are not on one host, or
    it has no room for one. All ranks call it together.

    Args:
        tell: tells all ranks some bytes, and returns those of each (`Group.tell`).
        rank: this process's number among the ranks.
        size: how many ranks there are.
        timeout_s: how long `Board.hear` waits, in seconds.
    """
    place, file, board = "", None, None
    with suppress(OSError):
        place, file = _new_file(size) if rank == 0 else ("", None)
    known = _text(tell(place.encode(), PLACE_BYTES)[0])
    with suppress(OSError):
        if known:
            file = _known_file(known, size) if file is None else file
            board = Board(file, rank, size, timeout_s)
    processes = set(map(_text, tell(str(os.getpid()).encode() if board else b"", PLACE_BYTES)))
    # Ranks that are threads of one process would have each other's locks.
    return board if len(processes) == size and "" not in processes else None


def _text(told: bytes) -> str:
    return told.rstrip(b"\0").decode()


def _length(size: int) -> int:
    """The bytes of a board for so many ranks."""
    return FRAMES * size * (ROW_BYTES + _LETTER_ROW_BYTES)


def _new_file(size: int) -> tuple[str, int]:
    """A new file: where other processes find it, and a descriptor. It has no name, so nothing is
    left of it when the last process that has it ends, in whatever way. Raises `OSError` where there
    is no memory for it."""
    if sys.platform != "linux":
        raise OSError("there are boards on Linux alone")
    flags = os.O_RDWR | os.O_TMPFILE | os.O_EXCL | os.O_CLOEXEC
    file = os.open(MEMORY, flags, 0o600)
    try:
        # To touch memory that is short would end the process.
        os.posix_fallocate(file, 0, _length(size) + SEAL_BYTES)
        seal = os.urandom(SEAL_BYTES)
        os.pwrite(file, seal, _length(size))
    except OSError:
        os.close(file)
        raise
    return f"{os.getpid()}/{file}/{seal.hex()}", file


def _known_file(place: str, size: int) -> int:
    """A descriptor of the file that the lead has made. Raises `OSError` where it is not to be
    found, as on another host. There, another file may be in its place."""
    process, number, seal = place.split("/")
    path = PROCESSES / process / "fd" / number
    found = os.stat(path)
    length = _length(size)
    kind = (stat.S_ISREG(found.st_mode), found.st_uid, found.st_size)
    if kind != (True, os.geteuid(), length + SEAL_BYTES):
        raise OSError(f"{path} is another file")
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    if os.pread(file, SEAL_BYTES, length).hex() != seal:
        os.close(file)
        raise OSError(f"{path} is another file")
    return file
