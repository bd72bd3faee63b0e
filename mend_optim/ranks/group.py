"""The ranks of one learner, and the two collectives that they use: the only module here that calls
any.

`say` and `tell` are all-gathers of small words, `transfer` is an all-to-all of tensors. They run on
gloo groups of this library's own, on tensors of the host: the user's groups have their own order of
collectives, and their own timeouts. One group is the training threads', for words. The other one is
the couriers', for tensors and for what is told of them (`tell_along`). Learners of the same ranks
that come one after another have the same two groups (`pairs.py`). Ranks that are all on one host
say their words on a board in shared memory instead."""

from __future__ import annotations

import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from mend_optim.errors import MendError, UsageError
from mend_optim.ranks.board import LETTER_BYTES, Board, shared_board
from mend_optim.ranks.pairs import Pair, Pairs, Use
from mend_optim.ranks.words import WIDTH, Table, Word, decode_word, encode_word

T = TypeVar("T")
#: So long the constructor waits for the other ranks', and then at most as long to connect to them.
MEET_S = 60.0
#: So long the collectives wait if torch does not tell for how long the user's do.
WAIT = timedelta(minutes=30)
#: A rank that waits for words looks up so often.
LOOK_UP = timedelta(seconds=1)
#: Between two looks for the other ranks' constructors it sleeps a tenth of its wait so far: at
#: least and at most so long.
SHORTEST_NAP_S, LONGEST_NAP_S = 1e-3, 0.1
LOST = (
    "another rank of this learner ended, failed or did not answer, and a learner goes on only as a "
    "whole: start all its ranks again; the error of that rank tells why"
)
ABSENT = (
    "group must be ranks that all make their MendOptimizer, got none on rank {ranks} within "
    "{seconds:g} s; construct it on every rank, with the same arguments"
)
OLD_STORE = (
    "init_process_group must be given a new store for a new world, got that of an earlier one, "
    "where torch may find the addresses of groups that have ended; pass store= a TCPStore of "
    "another port, or start all processes again"
)
#: How a meeting ends.
MET, GIVEN_UP = "met", "given up"
# By the ranks of a group, how often these have met, and the pairs that they have made. All of them
# do so in the same order (R9), so the numbers agree; ranks of other groups may have met more often.
_met: Counter[tuple[int, ...]] = Counter()
_pairs: defaultdict[tuple[int, ...], Pairs] = defaultdict(Pairs)
# The world that these are of.
_worlds: list[weakref.ref[Any]] = []
# Newer versions of torch warn of the older name.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class _Rows:
    """Memory for a table. To make tensors anew at every step would take a third of its time."""

    def __init__(self, size: int) -> None:
        self.own = torch.zeros(WIDTH, dtype=torch.int64, device="cpu")
        self.all = torch.zeros(size * WIDTH, dtype=torch.int64, device="cpu")
        self.view_of_own = self.own.numpy()
        self.view_of_all = self.all.numpy().reshape(size, WIDTH)


def _nothing(waited_s: float) -> None:
    """There is nothing to do while it waits."""


class Pending(NamedTuple):
    """A table that is on its way."""

    #: Waits for the rows of the table, and tells its argument now and then for how many seconds.
    #: It holds the rows, because they must live as long as the collective that writes into them.
    hear: Callable[[Callable[[float], None]], Sequence[Sequence[int]]]
    #: The ranks whose words are not there, and the word of each before; None: it cannot be told.
    unheard: Callable[[], Mapping[int, Sequence[int] | None]] | None = None

    def wait(self, meanwhile: Callable[[float], None] = _nothing) -> Table:
        """The table, as soon as all ranks have said their words. `meanwhile` is told now and
        then for how many seconds it has waited.

        Raises:
            MendError: a rank is lost.
        """
        return Table(_begun(self.hear, meanwhile))

    def missing(self) -> dict[int, Word | None]:
        """The ranks whose words are not there, with the word of each before, where it is known.
        Empty if it cannot be told."""
        rows = {} if self.unheard is None else self.unheard()
        return {rank: None if row is None else decode_word(row) for rank, row in rows.items()}


class Group:
    """This rank's end of the group of one learner's ranks.

    Args:
        ranks: a `ProcessGroup` that this process is in; None: all ranks.
        meet_s: how long to wait for the other ranks' constructors, in seconds.

    Raises:
        UsageError: some of the ranks have not come by then, or the store is that of an earlier
            world.
        MendError: a rank has ended since it came.
    """

    def __init__(self, ranks: Any = None, meet_s: float = MEET_S) -> None:
        world = ranks if ranks is not None else dist.group.WORLD
        members = dist.get_process_group_ranks(world)
        #: The ranks of the world that are in the group, the lead first.
        self.members = tuple(members)
        #: This process's number among the ranks. Rank 0 is the lead.
        self.rank = dist.get_rank(world)
        #: How many ranks there are.
        self.size = len(members)
        timeout = _timeout_of(world)
        self._use = Use()
        _enter(dist.group.WORLD)
        pairs = _pairs[self.members]
        number, free = _meet(members, self.rank, meet_s, pairs.free() if _can_change() else ())
        if free:
            number = min(free)
        else:
            pairs.add(number, Pair(*(_new_group(members, meet_s, timeout) for _ in range(2))))
        self._words, self._tensors = pairs.lend(number, self, self._use)
        # A rank that has given up may be among those that have come.
        _set_timeout(self._words, _meeting_time(meet_s, timeout))
        self._say = _quick_gather(self._words)
        # A word that is on its way and a last one that nobody waits for (`Crew.fail`) are all that
        # there are at one time.
        self._rows = [_Rows(self.size) for _ in range(2)]
        # The ranks meet at a board by the collective.
        self._board: Board | None = None
        #: For how many seconds a rank waits for the word of another one.
        self.patience_s = (timeout or WAIT).total_seconds()
        self._board = shared_board(self.tell, self.rank, self.size, self.patience_s)
        _set_timeout(self._words, timeout)
        _set_timeout(self._tensors, timeout)

    @property
    def is_lead(self) -> bool:
        """Whether this rank is the lead."""
        return self.rank == 0

    def say(self, word: Word) -> Pending:
        """Say this rank's word, and go on. The word before the last must have been heard."""
        if self._board is not None:
            number = self._board.say(word)
            hear = partial(self._board.hear, number)
            return Pending(partial(_watched, self._use, hear), partial(self._board.unheard, number))
        rows = self._rows[0]
        self._rows.reverse()
        rows.view_of_own[:] = encode_word(word)
        with self._use.watching():
            work = _begun(self._say, rows.all, rows.own)
        self._use.said.append(work)
        return Pending(partial(_watched, self._use, partial(_heard, work, rows)))

    def tell(self, data: bytes, nbytes: int) -> list[bytes]:
        """The bytes that every rank tells, at most `nbytes` bytes each; shorter ones end in zeros.

        Args:
            data: this rank's.
            nbytes: the same on all ranks; at least `len(data)` of each.

        Raises:
            MendError: a rank is lost.
        """
        if self._board is not None and nbytes <= LETTER_BYTES:
            with self._use.watching():
                letters = _begun(self._board.exchange, data)
            return [letter.ljust(nbytes, b"\0") for letter in letters]
        return self._told(self._words, data, nbytes)

    def failed(self) -> tuple[int, ...]:
        """The ranks that have said that they cannot go on, in a word that this one has no answer
        to yet. Empty if it is not known."""
        ahead = {} if self._board is None else self._board.ahead()
        return tuple(rank for rank, row in ahead.items() if decode_word(row).failed)

    def tell_along(self, data: bytes, nbytes: int) -> list[bytes]:
        """The same as `tell`, between two transfers."""
        return self._told(self._tensors, data, nbytes)

    def _told(self, group: Any, data: bytes, nbytes: int) -> list[bytes]:
        own = torch.zeros(nbytes, dtype=torch.uint8, device="cpu")
        if data:
            own[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        rows = torch.empty(self.size * nbytes, dtype=torch.uint8, device="cpu")
        with self._use.watching():
            _finished(_begun(_gathered, rows, own, group))
        return [row.numpy().tobytes() for row in rows.view(self.size, nbytes)]

    def transfer(self, given: Tensor, to: Sequence[int], taken: Tensor, of: Sequence[int]) -> None:
        """Give each rank some elements, and take some of each.

        Args:
            given: flat, on the host: the elements for rank 0, to rank 1, and so on.
            to: how many elements go to each rank.
            taken: receives what comes from rank 0, from rank 1, and so on; of the same dtype.
            of: how many elements come from each rank; what that rank gives this one.

        Raises:
            MendError: a rank is lost.
        """
        with self._use.watching():
            _finished(_begun(self._all_to_all, taken, given, list(of), list(to)))

    def _all_to_all(self, taken: Tensor, given: Tensor, of: list[int], to: list[int]) -> Any:
        return dist.all_to_all_single(taken, given, of, to, group=self._tensors)


def _watched(
    use: Use, hear: Callable[[Callable[[float], None]], T], meanwhile: Callable[[float], None]
) -> T:
    with use.watching():
        return hear(meanwhile)


def _heard(work: Any, rows: _Rows, meanwhile: Callable[[float], None]) -> list[list[int]]:
    waited_s = 0.0
    while work is not None and not _is_finished(work):
        waited_s += LOOK_UP.total_seconds()
        meanwhile(waited_s)
    table: list[list[int]] = rows.view_of_all.tolist()
    return table


def _gathered(rows: Tensor, row: Tensor, group: Any, later: bool = False) -> Any:
    return _all_gather(rows, row, group=group, async_op=later)


def _quick_gather(group: Any) -> Callable[[Tensor, Tensor], Any]:
    """An all-gather that returns at once. torch's own function checks and records much in each
    call: that takes as long as the collective. Only that function is public, so it stands in where
    a version of torch has nothing below it."""
    c10d: Any = distributed_c10d
    try:
        backend = group._get_backend(torch.device("cpu"))
        options = c10d.AllgatherOptions()
        gather = backend._allgather_base
    except (AttributeError, RuntimeError):
        return lambda rows, row: _gathered(rows, row, group, later=True)
    return lambda rows, row: gather(rows, row, options)


def _begun(collective: Any, *args: Any) -> Any:
    """Call a collective, or the board. If a rank is gone, torch raises a RuntimeError."""
    try:
        return collective(*args)
    except (RuntimeError, ConnectionError, TimeoutError) as error:
        raise MendError(LOST) from error


def _finished(work: Any) -> None:
    """Wait for a collective that was begun; None: it is over already."""
    if work is not None:
        _begun(work.wait)


def _is_finished(work: Any) -> bool:
    """Wait a while for a collective. torch waits in C++, where Ctrl-C is not noticed."""
    try:
        work.wait(LOOK_UP)
    except RuntimeError:
        if not work.is_completed():
            return False
        _begun(work.wait)  # the time ended as it did: it may have gone well
    return True


def _timeout_of(group: Any) -> timedelta | None:
    """How long the collectives of the user's group wait. A new group would not ask that, but wait
    half an hour. None: torch does not tell."""
    try:
        options: Any = group._get_backend(group._device_types[0]).options
    except (AttributeError, IndexError, RuntimeError):
        return None
    timeout = getattr(options, "_timeout", None)
    return timeout if isinstance(timeout, timedelta) else None


def _new_group(members: list[int], meet_s: float, timeout: timedelta | None) -> Any:
    """A gloo group of these ranks. To connect, nobody waits for a rank that has ended since it came
    as long as in the user's collectives. Other ranks of the world may not know of the group."""
    local = len(members) < dist.get_world_size()
    meet = _meeting_time(meet_s, timeout)
    make = partial(dist.new_group, backend="gloo", use_local_synchronization=local)
    return _begun(partial(make, members, timeout=meet if _can_change() else timeout))


def _meeting_time(meet_s: float, timeout: timedelta | None) -> timedelta:
    """How long the first collectives of ranks that have come wait for one another."""
    return min(timedelta(seconds=meet_s), timeout or WAIT)


def _can_change() -> bool:
    """Whether this version of torch can change for how long the collectives of a group wait."""
    return hasattr(getattr(dist, "ProcessGroupGloo", None), "_set_default_timeout")


def _set_timeout(group: Any, timeout: timedelta | None) -> None:
    """Let the collectives of a group wait as long as the user's, if torch can change that."""
    if _can_change():
        group._get_backend(torch.device("cpu"))._set_default_timeout(timeout or WAIT)


def _enter(world: Any) -> None:
    """In a new world nobody has met: some of its processes may be others than in the last one."""
    if not any(known() is world for known in _worlds):
        _worlds[:] = [weakref.ref(world)]
        _met.clear()
        _pairs.clear()


def _meet(
    members: Sequence[int], rank: int, meet_s: float, free: Collection[int] = ()
) -> tuple[int, set[int]]:
    """Wait until all ranks are here. `new_group` would wait half an hour, and name nobody.

    Args:
        members: the ranks of the world that meet.
        rank: this process's number among them.
        meet_s: how long to wait, in seconds.
        free: the numbers of the pairs of groups that this rank does not use.

    Returns:
        The number of this meeting, and the pairs that no rank uses.

    Raises:
        UsageError: some of them have not come, or the store is that of an earlier world.
        MendError: the rank that keeps the store is lost.
    """
    told: list[str] | None = None
    while told is None:
        number = _met[tuple(members)]
        _met[tuple(members)] += 1
        told = _meet_once(members, rank, number, meet_s, ",".join(["here", *map(str, free)]))
    told_free = [here.split(",")[1:] for here in told]
    return number, set.intersection(*(set(map(int, numbers)) for numbers in told_free))


def _meet_once(
    members: Sequence[int], rank: int, number: int, meet_s: float, here: str
) -> list[str] | None:
    """The words of all ranks at the meeting of this number, of which this one says `here`; None if
    all have come, but one has given that meeting up before. Raises as `_meet` does, and then this
    rank has given it up.

    One rank may see all others at the moment in which another one has waited for long enough. The
    first word in the store decides for all."""
    store: Any = distributed_c10d._get_default_store()
    meeting = f"mend_optim/{'-'.join(map(str, members))}/{number}"
    keys = [f"{meeting}/{member}" for member in members]

    def conclude(outcome: str) -> str:
        return _begun(store.compare_set, meeting, "", outcome).decode()  # type: ignore[no-any-return]

    if _begun(store.check, [keys[rank]]):
        raise UsageError(OLD_STORE)
    _begun(store.set, keys[rank], here.encode())
    try:
        absent = _await(store, keys, meet_s)
    except BaseException:
        with suppress(MendError):
            conclude(GIVEN_UP)
        raise
    if conclude(GIVEN_UP if absent else MET) == GIVEN_UP:
        if absent:
            raise UsageError(ABSENT.format(ranks=", ".join(map(str, absent)), seconds=meet_s))
        return None
    return [_begun(store.get, key).decode() for key in keys]


def _await(store: Any, keys: list[str], meet_s: float) -> list[int]:
    """Wait until all keys are there. torch's own `wait` would not notice Ctrl-C. Returns the
    numbers of those that have not come. Raises `MendError` as `_meet` does."""
    started = now = time.monotonic()
    while not _begun(store.check, keys):
        if now - started > meet_s:
            return [at for at, key in enumerate(keys) if not _begun(store.check, [key])]
        time.sleep(min(LONGEST_NAP_S, max(SHORTEST_NAP_S, (now - started) / 10)))
        now = time.monotonic()
    return []
