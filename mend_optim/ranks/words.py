"""The words of the ranks, and the decisions of all from the table of them.

Two ranks that take different branches wait for each other for ever. So no branch that leads to a
collective is decided by what one rank knows. Each rank says a word; all ranks get the table of all
words; and every decision is a function of that table, which is the same on all of them.

R1  Two threads never share a group: the orders of their collectives would differ. Words are the
    training threads', tensors the couriers'.
R2  A branch that leads to a collective is decided from the table alone.
R3  A transfer begins because the table said so, in the table's order.
R4  A word says in which call and at which step the rank is: ranks that are in two different calls
    learn of it, instead of taking one's answer for the other's.
R5  What a rank must do to its weights, it has whole before any rank does it.
R6  A training thread waits for a transfer only in a call that all ranks are in.
R7  The group waits for the network only where one process would: to join, in `synchronize()`, in
    `finish()` and under `adopt_after`.
R8  A transfer is of one fragment at a time: that bounds its memory.
R9  All ranks make their groups in the same order.
R10 Collectives write into tensors that the caller gives them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple


class Call(IntEnum):
    """The call that a rank is in."""

    CONSTRUCTOR = 0
    STEP = 1
    JOIN = 2
    SYNCHRONIZE = 3
    FINISH = 4
    GLOBAL_WEIGHTS = 5
    STATE_DICT = 6
    LOAD_STATE_DICT = 7
    RESET_PROGRESS = 8
    ROLLBACK = 9
    FIRST_STATE = 10
    CLOSE = 11


class Word(NamedTuple):
    """The word of one rank at one step."""

    #: Where it is.
    call: Call
    #: Its own steps so far, with the one that it says the word in.
    step: int
    #: Whether it cannot go on, and will raise.
    failed: bool = False
    #: The tokens of that step.
    tokens: int = 0
    #: An answer to a question that the call asks of all ranks. The lead says in a step whether all
    #: shall meet at the end of the next one.
    answer: bool = False
    #: How many bytes it has to say besides.
    nbytes: int = 0
    #: The lead says in a step which fragment all copy at the end of the next one; -1: none.
    copy: int = -1
    #: Which moments go with it: a bit for each, in the order of the settings.
    moments: int = 0
    #: The lead says in a step that a correction comes, and how many bytes tell about it; 0: none.
    comes: int = 0
    #: How many corrections that came in steps this rank has whole.
    staged: int = 0
    #: Whether its courier has found that copies differ, as all couriers do.
    differs: bool = False


#: How many numbers (int64) a word is.
WIDTH = len(Word._fields)
# Where a rank is, and whether it can go on, come first.
_FAILED, _TOKENS, _ANSWER, _NBYTES, _COPY, _MOMENTS, _COMES, _STAGED, _DIFFERS = range(2, WIDTH)


def encode_word(word: Word) -> list[int]:
    """A row of the table: `WIDTH` numbers."""
    return list(map(int, word))


def decode_word(row: Sequence[int]) -> Word:
    """The inverse of `encode_word`."""
    word = Word._make(row)
    return word._replace(
        call=Call(word.call),
        failed=bool(word.failed),
        answer=bool(word.answer),
        differs=bool(word.differs),
    )


class Table:
    """The words of all ranks, which all of them have. Rank 0 is the lead.

    It is read at every step, mostly after a pause in which its code has left the caches. So it
    reads few numbers, and makes no `Word` unless it is asked for.

    Args:
        rows: one for each rank, as `encode_word` makes them.
    """

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        self._rows = rows

    def _column(self, place: int) -> list[int]:
        return [row[place] for row in self._rows]

    @property
    def words(self) -> tuple[Word, ...]:
        """One for each rank."""
        return tuple(map(decode_word, self._rows))

    @property
    def tokens(self) -> int:
        """The tokens of the step: each rank counts its own."""
        return sum(self._column(_TOKENS))

    @property
    def any_answer(self) -> bool:
        """Whether any rank answers yes."""
        return any(self._column(_ANSWER))

    @property
    def meets(self) -> bool:
        """Whether all meet at the end of the next step, as the lead says."""
        return bool(self._rows[0][_ANSWER])

    @property
    def nbytes(self) -> int:
        """The most bytes that a rank has to say besides."""
        return max(self._column(_NBYTES))

    @property
    def copy(self) -> int:
        """The fragment that all copy at the end of the next step, as the lead says; -1: none."""
        return self._rows[0][_COPY]

    @property
    def moments(self) -> int:
        """Which moments go with it: a bit for each, in the order of the settings."""
        return self._rows[0][_MOMENTS]

    @property
    def comes(self) -> int:
        """How many bytes tell about a correction that comes, as the lead says; 0: none comes."""
        return self._rows[0][_COMES]

    @property
    def staged(self) -> int:
        """How many corrections all ranks have whole: these may be added, and no others (R5)."""
        return min(self._column(_STAGED))

    @property
    def differs(self) -> bool:
        """Whether all ranks know that copies differ, so that all can raise at one step."""
        return all(self._column(_DIFFERS))

    @property
    def failed(self) -> tuple[int, ...]:
        """The ranks that cannot go on."""
        return tuple(rank for rank, row in enumerate(self._rows) if row[_FAILED])

    @property
    def is_whole(self) -> bool:
        """Whether all ranks are in the same call at the same step, and can go on."""
        heads = {(*row[: _FAILED + 1],) for row in self._rows}
        return len(heads) == 1 and not heads.pop()[_FAILED]

    def parting(self) -> str:
        """Which ranks are in which call. Call it if they are not all in the same one at the same
        step."""
        ranks: defaultdict[tuple[Call, int], list[int]] = defaultdict(list)
        for rank, word in enumerate(self.words):
            ranks[word.call, word.step].append(rank)
        return ", ".join(f"{_named(who)} in {_placed(*where)}" for where, who in ranks.items())


def _named(ranks: Sequence[int]) -> str:
    """The ranks in words: at most four of them by number."""
    if len(ranks) == 1:
        return f"rank {ranks[0]} is"
    shown = ", ".join(map(str, ranks[:4]))
    return f"ranks {shown}{', …' if len(ranks) > 4 else ''} are"


def _placed(call: Call, step: int) -> str:
    if call is Call.STEP:
        return f"step {step}"
    if call is Call.CONSTRUCTOR:
        return "the constructor"
    if call is Call.FIRST_STATE:
        return f"the beginning of step {step + 1}"
    return f"{call.name.lower()}() after step {step}"


def waits(rank: int, at: tuple[Call, int], missing: Mapping[int, Word | None]) -> str:
    """The place of a rank that waits for the others, and where these were before.

    Args:
        rank: the one that waits.
        at: its call and step.
        missing: the ranks that it waits for, with their last words, as far as they are known.
    """
    others = [
        f"rank {other}" + (f", which was last in {_placed(*word[:2])}" if word else "")
        for other, word in missing.items()
    ]
    named = "; ".join(others[:4]) + ("; …" if len(others) > 4 else "")
    return f"rank {rank} is in {_placed(*at)} and waits for {named or 'the others'}"
