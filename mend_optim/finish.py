"""The results of `synchronize()` and `finish()`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mend_optim.engine.ending import Ended
from mend_optim.errors import is_number, require
from mend_optim.status import Status

NOBODY = "nobody is left to merge with; this learner's own parameters have the rest"
NOBODY_YET = "nobody else is here yet to merge with{}; this learner's own parameters have the work"
TOO_FEW = (
    "those who are left are no quorum, too few of them have an added group, nobody can dial any of "
    "them, or this learner's weights are not finite"
)
NO_QUORUM = (
    "quorum needs {} learners, and {} are left: their last work is not merged; pass a smaller "
    "quorum to all, or start the others, too"
)
UNSHARED = (
    "no other learner has the parameters of fragment {}, which were added here alone: they stay as "
    "this learner has trained them"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """How a run ended; `MendOptimizer.finish()` returns it. It is true if all live learners have
    agreed to end on one model.

    Attributes:
        agreed: whether all on this learner's roster ended together with it.
        digest: of the anchors, in hex. All learners that ended on this digest hold the same
            parameters, bit for bit. Empty if there was no agreement, and if this learner was the
            last one and its own parameters have work that is in no anchor.
        tokens: by name, the tokens of all learners that finished on these anchors. One that died
            after it had finished may be among them. One that was started again counts [those up to
            its checkpoint](operations.md#two-counts-after-a-restart), and those since.
        unmerged_tokens: own tokens that are in no anchor. If this learner was the last one, they
            are in its own parameters.
        dropped_tokens: own tokens whose work could not be kept.
        superseded_tokens: own tokens that were merged on a branch which the others left.
        reason: why there was no agreement, or why some tokens are in no anchor; else empty.

    Example:
        >>> finish = Finish(agreed=True, digest="5eed", tokens={"a": 640, "b": 320})
        >>> bool(finish), sorted(finish.tokens)
        (True, ['a', 'b'])
    """

    agreed: bool
    digest: str = ""
    tokens: Mapping[str, int] = field(default_factory=dict)
    unmerged_tokens: int = 0
    dropped_tokens: int = 0
    superseded_tokens: int = 0
    reason: str = ""

    def __bool__(self) -> bool:
        return self.agreed


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The outcome of `MendOptimizer.synchronize()`. It is true if all that this learner has trained
    is merged.

    Attributes:
        merged: whether everything is merged, and nobody was seen to have a greater anchor.
        unmerged_tokens: own tokens that are in no anchor.
        reason: why something is not merged; else empty.

    Example:
        >>> settled = Settled(merged=False, unmerged_tokens=295, reason="nobody is left")
        >>> bool(settled), settled.unmerged_tokens
        (False, 295)
    """

    merged: bool
    unmerged_tokens: int = 0
    reason: str = ""

    def __bool__(self) -> bool:
        return self.merged


def finished(
    status: Status, ended: Ended | None, unmet: str | None, timeout_s: float | None
) -> Finish:
    """The end of a learner with this last status: who ended with it, or nobody in that time.
    `unmet` is where nobody has ever been, and why (None: it had company)."""
    reason = ""
    if ended and status.unmerged_tokens:
        reason = _nobody(unmet) if ended.alone else why_unmerged(ended)
    elif not ended:
        others = ", ".join(peer.name for peer in status.roster) or "nobody"
        reason = f"not all had finished after {timeout_s:g} s; on the roster: {others}"
    return Finish(
        agreed=ended is not None and ended.agreed,
        digest=ended.digest if ended and ended.agreed and not ended.keeps_own else "",
        tokens=ended.tokens if ended else {},
        unmerged_tokens=status.unmerged_tokens,
        dropped_tokens=status.dropped_tokens,
        superseded_tokens=status.superseded_tokens,
        reason=reason,
    )


def settled(
    status: Status, in_time: bool, alone: bool, unmet: str | None, timeout_s: float
) -> Settled:
    """The outcome of waiting so long until all was merged, for a learner that is alone or not.
    `unmet` is where nobody has ever been, and why (None: it had company)."""
    reasons = [] if in_time else [f"it took longer than {timeout_s:g} s"]
    if alone and (status.unmerged_tokens or not in_time):
        reasons.append(_nobody(unmet))
    reason = ": ".join(reasons)
    return Settled(merged=not reason, unmerged_tokens=status.unmerged_tokens, reason=reason)


def why_unmerged(ended: Ended) -> str:
    """Why those who end together leave work out of their model."""
    if ended.here < ended.needed:
        return NO_QUORUM.format(ended.needed, ended.here)
    if not ended.unshared:
        return TOO_FEW
    return UNSHARED.format(", ".join(map(str, ended.unshared)))


def _nobody(unmet: str | None) -> str:
    if unmet is None:
        return NOBODY
    return NOBODY_YET.format(f" at {unmet}" if unmet else "")


def check_timeout(timeout: float | None) -> None:
    """Check the argument of either call. Raises `UsageError`."""
    waits = timeout is None or (is_number(timeout) and timeout >= 0)
    require(waits, "timeout", timeout, "None or a number of seconds >= 0")
