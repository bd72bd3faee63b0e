"""Faults of one rank of a learner in a test, and how each is seen to have happened."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from torch import Tensor

from mend_optim import rank_run
from mend_optim.ranks import board, crew, group
from mend_optim.ranks.group import Group, Pending
from mend_optim.ranks.words import Call, Word
from tests.ranks.cast import Cast

#: The transfers of a fault in a step: after some rounds, the one of a copy or of a correction.
STEP_TRANSFERS = 5
#: Steps before a fault between two steps.
STEPS = 9
MEET_S = 1.0


class Mishap(Exception):
    """An exception of the user's own code, after which the process ends as a user's does."""


class Fault(NamedTuple):
    """A fault: its kind, its rank, and its place."""

    #: "kill", "freeze" or "interrupt" (the test does that, while the rank waits). "kill all": the
    #: rank stops, and the test kills both. "raise" in the user's code, or there in a `with`
    #: statement of the optimizer ("raise within"). A mistake: "skip" a step, or make no optimizer
    #: at all ("absent").
    deed: str
    rank: int
    #: "join" or "step", in a transfer; "entry", before the first word of joining; or "between" two
    #: steps. While the ranks meet: before a "group" is made, or before the others learn where the
    #: "board" is.
    place: str = ""
    #: "apart": the ranks have no board, as on hosts of their own.
    hosts: str = ""


class Doom:
    """The fault of this rank, which it waits for."""

    def __init__(self, cast: Cast, fault: Fault) -> None:
        self._cast = cast
        self._fault = fault
        self._call = Call.CONSTRUCTOR
        self._transfers = 0
        self._steps = 0
        self._group: Group | None = None
        patch.object(rank_run, "Group", self._make_group).start()
        if fault.hosts:
            patch.object(board, "MEMORY", Path("/nowhere")).start()
        if self._is_mine:
            self._prepare()

    def _prepare(self) -> None:
        match self._fault.place:
            case "join" | "step" | "entry":
                self._watch()
            case "group":
                self._strike_before(group, "_new_group")
            case "board":
                self._strike_before(group, "shared_board")
        if self._fault.deed == "interrupt":
            patch.object(crew, "LINE_EVERY_S", 0.0).start()
            patch.object(group, "LOOK_UP", timedelta(seconds=0.05)).start()
            patch.object(crew.log, "warning", lambda *_: self._cast.say("waits")).start()

    def _strike_before(self, place: Any, name: str) -> None:
        """It happens when this function is first called."""
        patch.object(place, name, lambda *_: self.strike()).start()

    def _make_group(self, ranks: Any) -> Group:
        """Nobody waits a minute for a rank that makes no optimizer."""
        self._group = Group(ranks, MEET_S)
        return self._group

    @property
    def _is_mine(self) -> bool:
        return self._fault.rank == self._cast.rank

    def _watch(self) -> None:
        say, transfer = Group.say, Group.transfer
        wanted = (Call.JOIN, 1) if self._fault.place == "join" else (Call.STEP, STEP_TRANSFERS)
        at_entry = self._fault.place == "entry"

        def watched_say(group: Group, word: Word) -> Pending:
            self._call = word.call
            if at_entry and self._call is Call.JOIN:
                self.strike()
            return say(group, word)

        def watched_transfer(group: Group, given: Tensor, to: Any, taken: Tensor, of: Any) -> None:
            self._transfers += self._call is wanted[0]
            if (self._call, self._transfers) == wanted:
                self.strike()
            transfer(group, given, to, taken, of)

        patch.object(Group, "say", watched_say).start()
        patch.object(Group, "transfer", watched_transfer).start()

    @property
    def is_within(self) -> bool:
        """Whether this rank trains in a `with` statement."""
        return self._is_mine and self._fault.deed == "raise within"

    @property
    def is_absent(self) -> bool:
        """Whether this rank makes no optimizer."""
        return self._is_mine and self._fault.deed == "absent"

    def skips(self, step: int) -> bool:
        """Whether this rank leaves out this step."""
        return self._is_mine and self._fault.deed == "skip" and step == STEPS

    def between(self, step: int) -> None:
        """So many steps are taken."""
        self._steps = step
        if self._is_mine and self._fault.place == "between" and step == STEPS:
            self.strike()

    def strike(self) -> None:
        """Let it happen, and say so."""
        has_board = self._group is not None and self._group._board is not None
        self._cast.say(
            "struck",
            call=self._call.name,
            transfers=self._transfers,
            steps=self._steps,
            has_board=has_board,
        )
        match self._fault.deed:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "freeze" | "kill all":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "raise":
                raise Mishap("the data is gone")
            case "raise within":
                raise RuntimeError("the data is gone")
