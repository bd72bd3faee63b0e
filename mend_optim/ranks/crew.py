"""How the ranks of a learner agree: this rank's words, and what follows from the table of all."""

from __future__ import annotations

import logging
import math
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from mend_optim.errors import ClosedError, MendError, UsageError
from mend_optim.ranks.group import Pending
from mend_optim.ranks.words import Call, Table, Word, waits

log = logging.getLogger("mend_optim")
#: Seconds between two lines of one wait, and before the first.
LINE_EVERY_S = 10.0
WAITS = "%s, after %.0f s; all ranks must make the same calls, also state_dict()"
PARTED = (
    "all ranks of a learner must make the same calls in the same order, got: {parting}; call "
    "step(), join(), synchronize(), finish(), global_weights(), state_dict(), reset_progress(), "
    "rollback() and close() on every rank"
)
FAILED = "rank {ranks} of this learner failed, and its own error tells why: start all ranks again"
LEFT = (
    "the ranks of a learner go separate ways at close() unless they have called finish(): call "
    "state_dict(), load_state_dict() and global_weights() before close()"
)
FORKED = (
    "a forked process is no rank of the learner that it has inherited: make this call in the "
    "process that trains"
)
OVER = (
    "this learner's ranks no longer agree, as an earlier error of this process tells: start them "
    "all again"
)


class Talk(Protocol):
    """The methods of a `Group` that a crew needs."""

    rank: int
    size: int

    def say(self, word: Word) -> Pending:
        """See `Group.say`."""
        ...

    def tell(self, data: bytes, nbytes: int) -> list[bytes]:
        """See `Group.tell`."""
        ...

    def failed(self) -> tuple[int, ...]:
        """See `Group.failed`."""
        ...


_crews: weakref.WeakSet[Crew] = weakref.WeakSet()


class Crew:
    """This rank among the ranks of its learner.

    After an error that the ranks do not share, each call raises: a learner goes on only as a whole.

    Args:
        talk: the group.
    """

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        # The words of the last step, which nobody has waited for yet.
        self._posted: Pending | None = None
        # Where this rank was when it said its last word.
        self._at = (Call.CONSTRUCTOR, 0)
        # Where all ranks were when they last agreed.
        self._met: tuple[Call, int] | None = None
        # Words that nobody here waits for: they must live as long as their collective.
        self._last: tuple[Pending | None, ...] = ()
        #: Whether the ranks no longer agree.
        self.is_over = False
        # Whether this rank has left the others, and nothing was wrong.
        self._has_left = False
        #: Whether this process has only inherited the rank, by a fork. Its parent is the rank.
        self.is_inherited = False
        _crews.add(self)

    @property
    def is_lead(self) -> bool:
        """Whether this rank decides."""
        return self._talk.rank == 0

    def post(self, word: Word) -> None:
        """Say a word, which `posted` waits for."""
        assert self._posted is None
        self._posted = self._said(word)

    def posted(self) -> Table | None:
        """The words that were posted last; None if there are none.

        Raises:
            UsageError: the ranks are in different calls. Alike on all ranks.
            MendError: a rank failed or is lost.
        """
        self._require_whole()
        pending, self._posted = self._posted, None
        return None if pending is None else self._checked(pending)

    def agree(self, word: Word) -> Table:
        """Say a word, and wait for those of all ranks. Raises as `posted` does."""
        return self._checked(self._said(word))

    def _said(self, word: Word) -> Pending:
        self._require_whole()
        self._at = (word.call, word.step)
        try:
            return self._talk.say(word)
        except MendError:
            self.is_over = True
            raise

    def tell(self, call: Call, step: int, data: bytes = b"") -> list[bytes]:
        """The bytes that each rank tells. They end in zeros where another rank told more. Raises as
        `posted` does."""
        table = self.agree(Word(call=call, step=step, nbytes=len(data)))
        if not table.nbytes:
            return [b""] * self._talk.size
        with self.telling_of_faults(call, step):
            return self._talk.tell(data, table.nbytes)

    @contextmanager
    def telling_of_faults(self, call: Call, step: int) -> Iterator[None]:
        """If this rank cannot go on, the other ranks learn of it.

        Raises:
            MendError: another rank has said before that it cannot go on. An error of this rank
                that is no `UsageError` most likely comes from that.
        """
        try:
            yield
        except BaseException as error:
            if isinstance(error, MendError) and not isinstance(error, UsageError):
                self._raise_failure(error)
            self.fail(call, step)
            raise

    def _raise_failure(self, error: MendError) -> None:
        """Raise if another rank has said that it cannot go on. This rank says nothing then, so that
        a third one learns which of them was the first."""
        failed = () if self.is_over else self._talk.failed()
        if failed:
            self.is_over = True
            raise MendError(FAILED.format(ranks=_listed(failed))) from error

    def fail(self, call: Call, step: int) -> None:
        """Tell the others, who may be waiting, that this rank cannot go on. Waits for nobody."""
        self._say_last(Word(call=call, step=step, failed=True))

    def leave(self, step: int) -> None:
        """Tell ranks that go on without this one. Waits for nobody."""
        self._has_left = self._has_left or not self.is_over
        self._say_last(Word(call=Call.CLOSE, step=step))

    def abandon(self) -> None:
        """In a forked child: say nothing. The board is the parent's, and so are the connections."""
        self.is_inherited = self.is_over = True

    def _say_last(self, word: Word) -> None:
        if self.is_over:
            return
        self.is_over = True
        with suppress(MendError):  # this rank's own error says more
            self._last = (self._posted, self._talk.say(word))

    def _checked(self, pending: Pending) -> Table:
        try:
            table = pending.wait(self._line_writer(pending))
        except MendError as error:
            self.is_over = True
            where = waits(self._talk.rank, self._at, pending.missing())
            raise MendError(f"{error}; {where}") from error.__cause__
        except BaseException:  # Ctrl-C: the others go on with words that this rank has not heard
            self._posted = pending
            self.fail(*self._at)
            raise
        if table.is_whole:
            self._met = self._at
            return table
        self.is_over = True
        if table.failed:
            raise MendError(FAILED.format(ranks=_listed(table.failed)))
        raise UsageError(PARTED.format(parting=table.parting()))

    def _line_writer(self, pending: Pending) -> Callable[[float], None]:
        """A function that writes a line now and then while the others have not come. It is told for
        how long they have not. Once they are in a call together, the lead may well wait for the
        network, and says so itself."""
        due_s = math.inf if self._at == self._met else LINE_EVERY_S

        def write(waited_s: float) -> None:
            nonlocal due_s
            if waited_s >= due_s:
                due_s = waited_s + LINE_EVERY_S
                where = waits(self._talk.rank, self._at, pending.missing())
                log.warning(WAITS, where, waited_s)

        return write

    def _require_whole(self) -> None:
        if self.is_inherited:
            raise ClosedError(FORKED)
        if self._has_left:
            raise ClosedError(LEFT)
        if self.is_over:
            raise MendError(OVER)


def _abandon_all() -> None:
    for crew in list(_crews):
        crew.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
