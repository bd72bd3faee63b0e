"""Whether this process is one rank of several that `torch.distributed` runs together."""

from __future__ import annotations

import torch.distributed as dist

from mend_optim.errors import UsageError, require

_REFUSAL = (
    "group must be None where torch.distributed runs {ranks} ranks, got 'auto'; a learner is one "
    "process: ranks that share one model (DDP, FSDP, tensor or pipeline parallelism) would count "
    "twice, or merge different parts of it into each other. If each rank holds a whole model that "
    "it trains by itself, pass group=None; else train without listen and peers"
)


def check_group(group: object) -> None:
    """Raise `UsageError` unless `group` is "auto" or None."""
    require(group is None or group == "auto", "group", group, "'auto' or None")


def refuse_ranks(group: str | None) -> None:
    """Raise `UsageError` if `group` is "auto" and this process is one of several ranks."""
    if group is None or not (dist.is_available() and dist.is_initialized()):
        return
    ranks = dist.get_world_size()
    if ranks > 1:
        raise UsageError(_REFUSAL.format(ranks=ranks))
