"""Which run is behind a `MendOptimizer`: that of a process by itself, or that of one rank."""

from __future__ import annotations

from collections.abc import Mapping

from torch.optim import Optimizer

from mend_optim.direct_steps import heed_direct_steps
from mend_optim.errors import require
from mend_optim.ranks.guard import is_divided
from mend_optim.ranks.shards import Shards, check_shards
from mend_optim.settings import Settings
from mend_optim.training_run import TrainingRun
from mend_optim.wrapped_parameters import WrappedParameters

ONE = (
    "give one optimizer the parameters of all parts, as in "
    "AdamW([pair for part in parts for pair in part.named_parameters()])"
)


def new_run(settings: Settings, model: WrappedParameters, shards: Shards = None) -> TrainingRun:
    """The run of this process. Without peers, a rank trains as a process by itself does.

    Raises:
        UsageError: the parameters cannot be merged, `shards` is wrong, or the ranks don't agree.
    """
    check_shards(shards)
    if settings.place is None:
        return TrainingRun(settings, model)
    _refuse_container(model.inner)
    run = _run_with_peers(settings, model, shards)
    heed_direct_steps(run)
    return run


def _run_with_peers(settings: Settings, model: WrappedParameters, shards: Shards) -> TrainingRun:
    if not is_divided(settings.group):
        return TrainingRun(settings, model)
    # torch may have been built without what it needs.
    from mend_optim.rank_run import RankRun

    return RankRun(settings, model, shards)


def _refuse_container(inner: Optimizer) -> None:
    """Raise `UsageError` if this optimizer only passes calls on to others, as torchtitan's does. It
    has no state of its own, so no moment of its parts would be averaged."""
    kept = getattr(inner, "optimizers", ())
    listed = list(kept.values()) if isinstance(kept, Mapping) else kept
    parts = listed if isinstance(listed, list | tuple) else ()
    others = [part for part in parts if isinstance(part, Optimizer) and part is not inner]
    kind = f"a {type(inner).__name__} of {len(others)}"
    require(not others, "inner", kind, "an optimizer that holds no others", ONE)
