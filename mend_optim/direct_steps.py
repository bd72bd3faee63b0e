"""Steps that a script takes with the inner optimizer itself, which its wrapper does not see.

That is an easy slip where the two have names of their own: the loop goes on calling `inner.step()`,
everything seems to work, and nothing is ever merged."""

from __future__ import annotations

from typing import Any
from weakref import finalize, ref

from mend_optim.engine.ledger import Event
from mend_optim.model.unseen_moves import DIRECT
from mend_optim.training_run import TrainingRun


def heed_direct_steps(run: TrainingRun) -> None:
    """Let the run hear of each step that its inner optimizer takes. One that wraps another may have
    left out torch's constructor, and then it calls no hooks."""
    if hasattr(run.inner, "_optimizer_step_post_hooks"):
        hook = run.inner.register_step_post_hook(_Heed(run))
        # A script may wrap one inner optimizer again and again.
        finalize(run, hook.remove).atexit = False


class _Heed:
    """A hook of the inner optimizer, which may outlive the run."""

    def __init__(self, run: TrainingRun | None) -> None:
        self._run = None if run is None else ref(run)

    def __call__(self, *_: Any) -> None:
        run = self._run and self._run()
        learner = run and run.learner
        # The wrapper's own steps come here, too, and it begins the count anew after each.
        if run and learner and not learner.closed and run.unseen.moved(True):
            learner.tell(Event("unseen", DIRECT))

    def __reduce__(self) -> tuple[Any, ...]:
        """Optimizers that copy all of their attributes copy their hooks, too. A copy has no
        peers."""
        return type(self), (None,)
