"""Whether this process is one rank of several that `torch.distributed` runs together."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from mend_optim.errors import UsageError, require

_LATE = (
    "group must be known when the MendOptimizer is made, got {ranks} ranks that met afterwards; "
    "call torch.distributed.init_process_group() first, or pass group=None if each rank holds a "
    "whole model that it trains by itself"
)


def check_group(group: object) -> None:
    """Raise `UsageError` unless `group` is "auto", None or a `ProcessGroup` that this process is
    in."""
    is_group = dist.is_available() and isinstance(group, dist.ProcessGroup)
    known = group is None or is_group or (isinstance(group, str) and group == "auto")
    require(known, "group", group, "'auto', None or a ProcessGroup")
    if is_group:
        member = dist.get_rank(group) >= 0  # type: ignore[arg-type]
        require(member, "group", group, "a ProcessGroup that this process is in")


def is_divided(group: Any) -> bool:
    """Whether a learner with this `group` has several ranks."""
    return _ranks(group) > 1


def refuse_late_ranks(group: Any) -> None:
    """Raise `UsageError` if a learner of one process has become one rank of several."""
    ranks = _ranks(group)
    if ranks > 1:
        raise UsageError(_LATE.format(ranks=ranks))


def _ranks(group: Any) -> int:
    if group is None or not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size(None if isinstance(group, str) else group)
