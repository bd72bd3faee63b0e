"""The calls in which all ranks of a learner are together: the lead orders, and all ranks do."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NamedTuple, TypeVar

from mend_optim.engine.schedule import Schedule
from mend_optim.errors import ClosedError, MendError, UsageError
from mend_optim.finish import Finish, Settled
from mend_optim.rank_traffic import RankTraffic
from mend_optim.ranks.crew import Crew
from mend_optim.ranks.orders import Deed, Order, decode_order, encode_order
from mend_optim.ranks.words import Call
from mend_optim.runtime.held_copies import falls_due
from mend_optim.runtime.learner import Learner, is_wanted_in
from mend_optim.shared_tensors import RankDeeds

T = TypeVar("T")
# Errors of the lead that all ranks raise alike.
ERRORS = {kind.__name__: kind for kind in (UsageError, ClosedError, MendError)}


def has_failed(learner: Learner | None) -> bool:
    """Whether an error has ended the learner that no step has raised yet: all ranks meet for it."""
    return learner is not None and learner.guard.error is not None


class Outlook(NamedTuple):
    """The end of a call, as all ranks know it."""

    result: Any = None
    #: Whether the ranks meet at the end of the next step.
    meets: bool = False
    #: Whether the learner takes part in rounds no more.
    closed: bool = False
    #: The cluster's inner steps before this learner's first.
    head_start: int = 0


class Meetings:
    """One rank's part of the calls that all ranks are in.

    Args:
        crew: the ranks.
        deeds: what this rank does at an order.
        traffic: what is on its way while no call is.
        schedule: the learner's.
        pulse_s: the lead tells the others at least so often, in seconds, that it still waits for
            the network. They give up after a longer silence.
    """

    def __init__(
        self,
        crew: Crew,
        deeds: RankDeeds,
        traffic: RankTraffic,
        schedule: Schedule,
        *,
        pulse_s: float,
    ) -> None:
        self._crew = crew
        self._deeds = deeds
        self._traffic = traffic
        self._schedule = schedule
        self._pulse_s = pulse_s
        self._outlook = Outlook()
        # On the lead: whether the others wait for its orders, and since when for a word of it.
        self._leads = False
        self._silent_since: float | None = None

    @property
    def closed(self) -> bool:
        """Whether the learner takes part in rounds no more."""
        return self._outlook.closed or self._crew.is_inherited

    @property
    def head_start(self) -> int:
        """The cluster's inner steps before this learner's first."""
        return self._outlook.head_start

    def close(self) -> None:
        """From here on, this rank is alone."""
        self._outlook = self._outlook._replace(closed=True)

    def take_appointment(self) -> bool:
        """At the end of a step: whether the ranks have agreed in their last call to meet there."""
        meets = self._outlook.meets
        self._outlook = self._outlook._replace(meets=False)
        return meets

    def hold(
        self, at: tuple[Call, int], body: Callable[[], T], learner: Callable[[], Learner | None]
    ) -> T | Any:
        """Let the lead do `body` while the other ranks do what it orders.

        Args:
            at: the call that all ranks are in, and their step.
            body: called on the lead.
            learner: the lead's, which `body` may replace; None elsewhere.

        Returns:
            The result of `body` on the lead, and on other ranks that result as JSON keeps it.

        Raises:
            UsageError: `body` raises it.
            MendError: a rank failed or is lost.
        """
        self._deeds.at = at
        with self._crew.telling_of_faults(*at):
            self._traffic.recall(learner())
        if not self._crew.is_lead:
            return self._follow()
        self._leads, self._silent_since = True, None
        try:
            result = body()
        except BaseException as error:
            if not self._crew.is_over:
                self._tell_of(error)
            raise
        finally:
            self._leads = False
        self._end(result, learner())
        return result

    def _tell_of(self, error: BaseException) -> None:
        """Let the other ranks raise the lead's error."""
        kind = next((name for name, k in ERRORS.items() if isinstance(error, k)), "")
        text = str(error)
        if not kind:
            text = f"rank 0 has raised {type(error).__name__}" + (f": {text}" if text else "")
        try:
            self._tell(Deed.RAISE, kind=kind, text=text)
        except MendError:
            if kind:
                raise
            # Ctrl-C comes to all ranks at once. The lead's script may wait for its own exception.

    def still_waits(self, now: float) -> None:
        """On the lead, which waits for the network: let the others know that it is there. A large
        model comes over a slow link for longer than their group may be silent."""
        if not self._leads:
            return
        if self._silent_since is None:
            self._silent_since = now
        if now - self._silent_since >= self._pulse_s:
            self._silent_since = now
            self._tell(Deed.WAIT)

    def _end(self, result: object, learner: Learner | None) -> None:
        """The lead's call is over."""
        told = asdict(result) if isinstance(result, Finish | Settled) else result
        self._outlook = Outlook(
            result=told if isinstance(told, dict | bool) else None,
            meets=self._will_meet(learner),
            closed=(learner is None or learner.closed) and not has_failed(learner),
            head_start=0 if learner is None else learner.head_start(),
        )
        self._tell(Deed.OVER, **self._outlook._asdict())

    def _will_meet(self, learner: Learner | None) -> bool:
        """Whether there will be something to do at the end of the next step."""
        if learner is None or learner.closed:
            return has_failed(learner)
        if not self._schedule.lockstep:
            return is_wanted_in(learner, 1)
        # Where each step waits for its anchor, the ranks meet at every one.
        return self._schedule.adopt_after == 0 or falls_due(learner, 1)

    def _tell(self, deed: Deed, **facts: Any) -> None:
        self._crew.tell(*self._deeds.at, encode_order(Order(deed=deed, facts=facts)))

    def _follow(self) -> Any:
        """Do what the lead orders until its call is over. Returns the result, as JSON has it."""
        while True:
            order = decode_order(self._crew.tell(*self._deeds.at)[0])
            if order.deed is Deed.RAISE:
                raise ERRORS.get(order.facts["kind"], MendError)(order.facts["text"])
            if order.deed is Deed.WAIT:
                continue
            if order.deed is Deed.OVER:
                self._outlook = Outlook(**order.facts)
                return self._outlook.result
            self._deeds.perform(order)


def pulse_of(meetings: Meetings) -> Callable[[float], None]:
    """`Meetings.still_waits`, for the guard of a learner to which these meetings lead: a circle
    would keep the groups and the parameters until Python looks for such."""
    still_waits = weakref.WeakMethod(meetings.still_waits)

    def pulse(now: float) -> None:
        if there := still_waits():
            there(now)

    return pulse
