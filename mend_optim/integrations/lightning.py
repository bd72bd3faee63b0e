"""`MendOptimizer`s inside the `Trainer` of Lightning: their tokens, the log, validation and the
end. The extra `lightning` installs that library.

    trainer = Trainer(callbacks=[MendCallback()], ...)
    trainer.fit(module, data)"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from operator import index
from typing import Any

from mend_optim.errors import require
from mend_optim.finish import Finish, check_timeout
from mend_optim.integrations.batch_tokens import tokens_in
from mend_optim.integrations.figures import scalars
from mend_optim.integrations.finding import find_optimizer, found_in
from mend_optim.integrations.training_end import finish_all
from mend_optim.optimizer import MendOptimizer

try:
    from lightning.pytorch import Callback
except ImportError:
    # The same library under its other name. The trainers of both take callbacks of either.
    try:
        from pytorch_lightning import Callback
    except ImportError as error:
        raise ImportError(
            "this callback needs the package lightning; run pip install 'mend-optim[lightning]'"
        ) from error

#: Callbacks that put an average of the weights into the model at the end. The older versions of the
#: library lack the first one.
_AVERAGING = ("WeightAveraging", "StochasticWeightAveraging")


class MendCallback(Callback):
    """Lets a `Trainer` train with `MendOptimizer`s.

    - It counts the tokens of each step's batches, which weigh its work.
    - It gives the learners' figures to the trainer's loggers, every `log_every_n_steps`, as
      "mend/steps" and so on; of several optimizers, as "mend/NAME/steps".
    - It reports the loss by `optimizer.report()`, as often.
    - Validation is of the global weights.
    - At the end of `fit` it calls `finish()`, so all learners that end together have the same
      weights.

    Args:
        count: returns the tokens in a batch. None: those that the attention mask or the input ids
            of a mapping tell; a step on other batches counts `tokens_per_step`.
        finish: whether `fit` ends with `finish()`. Say False if you fit again afterwards, and call
            `optimizer.finish()` yourself.
        timeout: of that `finish()`, in seconds. None: as long as it takes.

    Attributes:
        finished: what `finish()` returned, by learner; empty before the end.

    Raises:
        UsageError: an argument is wrong; in `fit`, there is no `MendOptimizer`, or a callback that
            averages weights comes before this one.
    """

    def __init__(
        self,
        *,
        count: Callable[[Any], int] | None = None,
        finish: bool = True,
        timeout: float | None = None,
    ) -> None:
        require(count is None or callable(count), "count", count, "None or a function of a batch")
        check_timeout(timeout)
        self.finished: Mapping[str, Finish | None] = {}
        self._count = tokens_in if count is None else count
        self._finishes = finish
        self._timeout = timeout
        self._optimizers: list[MendOptimizer] = []
        #: Tokens of batches that no step of the optimizer has used yet, by its `id`.
        self._uncounted: dict[int, int] = {}
        #: The step that was logged last.
        self._logged_at = -1
        self._evaluation = ExitStack()

    # ── the trainer's events ──────────────────────────────────────────────────────────────────────

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Fitting begins: find the optimizers."""
        self._optimizers = found_in(trainer.optimizers)
        kinds = [type(each).__name__ for each in trainer.optimizers]
        remedy = "return MendOptimizer(AdamW(…), …) from configure_optimizers()"
        require(bool(self._optimizers), "optimizers", kinds, "one MendOptimizer or more", remedy)
        if self._finishes:
            _check_order(trainer.callbacks, self)
        self._uncounted = {id(each): 0 for each in self._optimizers}
        self._logged_at = -1

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """A batch is about to be trained on: count its tokens."""
        tokens = _whole(self._count(batch))
        for key in self._uncounted:
            self._uncounted[key] += tokens

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """The optimizer is about to step: tell it the tokens since its last step."""
        found = find_optimizer(optimizer)
        if found is not None and (tokens := self._uncounted.get(id(found), 0)):
            self._uncounted[id(found)] = 0
            found.count_tokens(tokens)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A batch was trained on: log, if it is time."""
        step = trainer.global_step
        is_due = step > 0 and step % max(1, trainer.log_every_n_steps) == 0
        if not is_due or step == self._logged_at:
            return
        self._logged_at = step
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        figures: dict[str, float] = {}
        for optimizer in self._optimizers:
            if loss is not None:
                optimizer.report(loss=loss)
            figures |= self._figures(optimizer)
        for logger in trainer.loggers:
            logger.log_metrics(figures, step=step)

    def _figures(self, optimizer: MendOptimizer) -> dict[str, float]:
        figures = scalars(optimizer.status())
        if len(self._optimizers) == 1:
            return figures
        return {key.replace("/", f"/{optimizer.name}/", 1): n for key, n in figures.items()}

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Validation begins, with the global weights."""
        for optimizer in self._optimizers:
            self._evaluation.enter_context(optimizer.global_weights())

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Validation has ended: the learner's own weights come back."""
        self._evaluation.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Training has failed, perhaps in validation: the learner's own weights come back."""
        self._evaluation.close()
        self._optimizers = []

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Fitting has ended: end the runs together with the others."""
        if self._finishes:
            ended = finish_all(self._optimizers, self._timeout)
            names = [each.name for each in self._optimizers]
            self.finished = dict(zip(names, ended, strict=True))

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """The trainer lets go of the optimizers, and so does this callback."""
        self._optimizers = []


def _check_order(callbacks: Sequence[Any], own: MendCallback) -> None:
    """Raise `UsageError` if one that averages weights comes before ours. At the end, it puts the
    average into the model, and `finish()` would put the anchor in its place."""
    names = [type(each).__name__ for each in callbacks]
    # Where another callback passes the events on, ours is not listed.
    place = next((i for i, each in enumerate(callbacks) if each is own), 0)
    for each, name in zip(callbacks[:place], names, strict=False):
        averages = any(base.__name__ in _AVERAGING for base in type(each).__mro__)
        bound = f"with MendCallback before {name}"
        require(not averages, "callbacks", names, bound, "the average would be lost at the end")


def _whole(tokens: Any) -> int:
    """The number that the user's function has returned. Raises `UsageError`."""
    try:
        whole = -1 if isinstance(tokens, bool) else index(tokens)
    except TypeError:
        whole = -1
    require(whole >= 0, "count", tokens, "a function that returns an int >= 0")
    return whole
