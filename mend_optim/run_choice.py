"""Which run is behind a `MendOptimizer`: that of a process by itself, or that of one rank."""

from __future__ import annotations

from mend_optim.ranks.guard import is_divided
from mend_optim.ranks.shards import Shards, check_shards
from mend_optim.settings import Settings
from mend_optim.training_run import TrainingRun
from mend_optim.wrapped_parameters import WrappedParameters


def new_run(settings: Settings, model: WrappedParameters, shards: Shards = None) -> TrainingRun:
    """The run of this process. Without peers, a rank trains as a process by itself does.

    Raises:
        UsageError: the parameters cannot be merged, `shards` is wrong, or the ranks don't agree.
    """
    check_shards(shards)
    if settings.place is None or not is_divided(settings.group):
        return TrainingRun(settings, model)
    # torch may have been built without what it needs.
    from mend_optim.rank_run import RankRun

    return RankRun(settings, model, shards)
