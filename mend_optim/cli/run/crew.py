"""The fate of learners that end: started again, given up, or ended together. A state machine
without processes: its caller tells it what happened and when, and does what it answers.

    RUNNING ──ended with 0──▶ DONE
       │  ▲
       │  └── the pause is over ── PAUSING
       │                              ▲
       ├──ended otherwise─────────────┘
       └──ended otherwise, too often──▶ GIVEN_UP

Once the crew is told to stop, nobody is started again. Nor is anybody once each learner has failed
`HOPELESS` times, and none has ever joined: then the fault is in the script."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

#: A learner that has run for so long is well: its earlier ends count no more.
CALM_S = 60.0
#: How often each learner fails before none is started again, if none has ever joined.
HOPELESS = 3
#: A learner that wraps an optimizer, and steps the inner one, looks as if all were well.
NEVER_JOINED = "is done, and has never joined: does its script step a MendOptimizer?"
#: The longest pause before a learner is started again.
LONGEST_PAUSE_S = 30.0


class Phase(Enum):
    """The state of a learner."""

    RUNNING = "running"
    PAUSING = "pausing"
    DONE = "done"
    GIVEN_UP = "given up"


@dataclass(frozen=True, slots=True)
class Start:
    """Start the learner with this number."""

    index: int


@dataclass(frozen=True, slots=True)
class Pass:
    """Send a signal to the learner with this number."""

    index: int
    signal: int


@dataclass(frozen=True, slots=True)
class Say:
    """Tell the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Show:
    """Show the last lines of the learner with this number once more."""

    index: int


Action = Start | Pass | Say | Show


@dataclass(slots=True)
class _Member:
    name: str
    phase: Phase = Phase.PAUSING
    #: How often in a row it has ended by itself, and not well.
    ends: int = 0
    #: The same, but for any time that it ran.
    fails: int = 0
    has_joined: bool = False
    #: When it was started; or when it is to be.
    since: float = 0.0
    #: How its last process ended: its status, or a signal's number below 0.
    code: int = 0


class Crew:
    """The learners of one `mend run`.

    Args:
        names: of the learners.
        restarts: how often in a row a learner is started again.
        pause_s: before the first time; each further pause is twice as long.
        grace_s: from the signal to stop until learners are killed.
    """

    def __init__(self, names: Sequence[str], restarts: int, pause_s: float, grace_s: float) -> None:
        self._members = [_Member(name) for name in names]
        self._restarts = restarts
        self._pause_s = pause_s
        self._grace_s = grace_s
        #: The signal by which the crew was told to stop.
        self._stopped_by = 0
        self._kill_at: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether nobody runs, and nobody will be started."""
        return all(m.phase in (Phase.DONE, Phase.GIVEN_UP) for m in self._members)

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped the crew."""
        return self._stopped_by != 0

    @property
    def wake_at(self) -> float | None:
        """When `tick` has something to do next; None if only an event can bring that."""
        times = [m.since for m in self._members if m.phase is Phase.PAUSING]
        if self._kill_at is not None:
            times.append(self._kill_at)
        return min(times, default=None)

    @property
    def status(self) -> int:
        """The exit status of the command: 0 if all learners ended well; as a shell has it if a
        signal stopped the command; else that of the first learner that did not end well."""
        if self._stopped_by:
            return 128 + self._stopped_by
        codes = [m.code for m in self._members if m.code]
        return _status_of(codes[0]) if codes else 0

    def tick(self, now: float) -> Iterator[Action]:
        """Time has passed."""
        for index, member in enumerate(self._members):
            if member.phase is Phase.PAUSING and member.since <= now:
                member.phase = Phase.RUNNING
                member.since = now
                yield Start(index)
        if self._kill_at is not None and self._kill_at <= now:
            yield from self._kill(f"did not end within {self._grace_s:g} s")

    def ended(
        self, index: int, code: int, now: float, joined: Collection[int] = ()
    ) -> Iterator[Action]:
        """A learner's process has ended, with this status, or by the signal -code. `joined`: the
        numbers of all learners that have ever joined; some of them may run."""
        member = self._members[index]
        member.code = code
        for number in joined:
            self._members[number].has_joined = True
        ran_s = now - member.since
        how = f"was ended by {_signal_name(-code)}" if code < 0 else f"ended with status {code}"
        if not code or self._stopped_by:
            member.phase = Phase.DONE
            done = "is done" if member.has_joined or self._stopped_by else NEVER_JOINED
            yield Say(f"{member.name} {how if code else done}")
            return
        if ran_s >= CALM_S:
            member.ends = 0
        member.ends += 1
        member.fails += 1
        told = f"{member.name} {how} after {ran_s:.1f} s"
        if member.ends > self._restarts:
            member.phase = Phase.GIVEN_UP
            yield Say(f"{told}; it is not started again")
            return
        if self._is_hopeless:
            yield from self._give_up(index, told)
            return
        pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2 ** min(member.ends - 1, 30))
        member.phase = Phase.PAUSING
        member.since = now + pause_s
        yield Say(f"{told}; it starts again in {pause_s:g} s ({member.ends} of {self._restarts})")

    @property
    def _is_hopeless(self) -> bool:
        return all(
            m.fails >= HOPELESS and not m.has_joined and m.phase is not Phase.DONE
            for m in self._members
        )

    def _give_up(self, index: int, told: str) -> Iterator[Action]:
        """Start nobody again. Those that run may still go on."""
        for member in self._members:
            if member.phase is Phase.PAUSING:
                member.phase = Phase.GIVEN_UP
        self._members[index].phase = Phase.GIVEN_UP
        yield Say(f"{told}; no learner has joined in {HOPELESS} starts, so none is started again")
        if self.is_over:
            yield Say(f"the last lines of {self._members[index].name} were:")
            yield Show(index)

    def told(self, number: int, now: float) -> Iterator[Action]:
        """The command got a signal to stop. The first one is passed on, the second one kills."""
        if self._stopped_by:
            yield from self._kill("are killed by the second signal")
            return
        self._stopped_by = number
        self._kill_at = now + self._grace_s
        yield Say(f"{_signal_name(number)}: the learners are told to end; once more kills them")
        for index, member in enumerate(self._members):
            if member.phase is Phase.PAUSING:
                member.phase = Phase.DONE
            elif member.phase is Phase.RUNNING:
                yield Pass(index, number)

    def noted(self, number: int) -> Iterator[Action]:
        """The command got a signal that means something to the script alone: it is passed on."""
        yield Say(f"{_signal_name(number)}: passed on to the learners")
        for index, member in enumerate(self._members):
            if member.phase is Phase.RUNNING:
                yield Pass(index, number)

    def _kill(self, why: str) -> Iterator[Action]:
        self._kill_at = None
        left = [i for i, m in enumerate(self._members) if m.phase is Phase.RUNNING]
        if left:
            yield Say(f"{', '.join(self._members[i].name for i in left)} {why}")
        for index in left:
            yield Pass(index, signal.SIGKILL)


def _status_of(code: int) -> int:
    return 128 - code if code < 0 else code


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
