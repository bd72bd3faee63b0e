"""A `MendOptimizer` inside the `Trainer` of transformers: its tokens, its log, its evaluation and
its end. The extra `transformers` installs that library.

    trainer = Trainer(model, args, optimizers=(optimizer, schedule), ...)
    MendTrainerCallback.attach(trainer)
    trainer.train()"""

from __future__ import annotations

from collections.abc import Mapping
from functools import wraps
from typing import Any

from mend_optim.errors import UsageError, require
from mend_optim.finish import Finish, check_timeout
from mend_optim.integrations.figures import scalars
from mend_optim.integrations.finding import require_found
from mend_optim.integrations.training_end import finish_all
from mend_optim.optimizer import MendOptimizer

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError(
        "this callback needs the package transformers; run pip install 'mend-optim[transformers]'"
    ) from error

#: The numbers of the Trainer's log that are reported to those who watch this learner.
REPORTED = ("loss", "eval_loss")
_UNATTACHED = (
    "MendTrainerCallback() must not be given in callbacks=, where trackers come before it; write "
    "MendTrainerCallback.attach(trainer) after you have made the trainer"
)


def _count_only_known_input(trainer: Any) -> None:
    """Turn the Trainer's count off again if it doesn't find the model's input in the first batch.
    It would count nothing, and warn of every batch."""
    draw = trainer.get_batch_samples

    @wraps(draw)
    def draw_and_look(*args: Any, **kwargs: Any) -> Any:
        drawn = draw(*args, **kwargs)
        batches = drawn[0]
        if batches:
            trainer.get_batch_samples = draw
            name = getattr(trainer.model, "main_input_name", "input_ids")
            if not isinstance(batches[0], Mapping) or name not in batches[0]:
                trainer.args.include_num_input_tokens_seen = "no"
        return drawn

    trainer.get_batch_samples = draw_and_look


class MendTrainerCallback(TrainerCallback):
    """Lets a `Trainer` train with a `MendOptimizer`. `attach(trainer)` makes one.

    - It counts the tokens of each step, which weigh its work: those that the Trainer counts. If
      the Trainer counts none, it turns that on (`include_num_input_tokens_seen="all"`). A model
      whose input the Trainer doesn't know counts `tokens_per_step`.
    - It adds the learner's figures to the Trainer's log, wherever a training loss is logged, so
      every tracker gets them, as "mend/steps" and so on.
    - It reports the loss and the evaluation's loss by `optimizer.report()`.
    - `trainer.evaluate()` evaluates the global weights.
    - At the end of training it calls `finish()`, so all learners that end together have the same
      weights.

    Attributes:
        finished: what `finish()` returned; None before the end.
    """

    def __init__(self) -> None:
        self.finished: Finish | None = None
        self._optimizer: MendOptimizer | None = None
        self._finishes = False
        self._timeout: float | None = None
        #: The Trainer's count of tokens at the last step.
        self._seen = 0
        self._is_evaluating = False

    @classmethod
    def attach(
        cls, trainer: Any, *, finish: bool = True, timeout: float | None = None
    ) -> MendTrainerCallback:
        """Attach a new callback to a trainer, before the trainer's trackers.

        Args:
            trainer: a `transformers.Trainer`.
            finish: whether `trainer.train()` ends with `finish()`. Say False if you train on
                afterwards, and call `optimizer.finish()` yourself.
            timeout: of that `finish()`, in seconds. None: as long as it takes.

        Raises:
            UsageError: the timeout is wrong, or the trainer has such a callback already, or would
                load its best checkpoint at the end, which `finish()` would take for progress.
        """
        check_timeout(timeout)
        callbacks = trainer.callback_handler.callbacks
        twice = any(isinstance(each, cls) for each in callbacks)
        require(
            not twice,
            "trainer",
            "one that has a MendTrainerCallback",
            "one without a MendTrainerCallback",
        )
        best = bool(finish and trainer.args.load_best_model_at_end)
        remedy = "finish() would take the jump to the best checkpoint for progress; or finish=False"
        require(not best, "load_best_model_at_end", True, "False with finish=True", remedy)
        callback = cls()
        callback._finishes, callback._timeout = finish, timeout
        if trainer.args.include_num_input_tokens_seen == "no":
            trainer.args.include_num_input_tokens_seen = "all"
            _count_only_known_input(trainer)
        trainer.evaluate = callback._of_global_weights(trainer.evaluate)
        callback._save_on_all_ranks(trainer)
        # The first one to hear of a log can add to it.
        callbacks.insert(0, callback)
        return callback

    def _of_global_weights(self, evaluate: Any) -> Any:
        """An `evaluate` of the global weights. It calls itself for each of several data sets."""

        @wraps(evaluate)
        def evaluate_global_weights(*args: Any, **kwargs: Any) -> Any:
            if self._optimizer is None or self._is_evaluating:
                return evaluate(*args, **kwargs)
            self._is_evaluating = True
            try:
                with self._optimizer.global_weights():
                    return evaluate(*args, **kwargs)
            finally:
                self._is_evaluating = False

        return evaluate_global_weights

    def _save_on_all_ranks(self, trainer: Any) -> None:
        """Let all ranks of a learner call `state_dict()` for a checkpoint. The Trainer does so on
        the one that writes the file, which would wait for the others for ever."""
        save = trainer._save_optimizer_and_scheduler

        @wraps(save)
        def save_together(*args: Any, **kwargs: Any) -> None:
            save(*args, **kwargs)
            # Those two have ways of their own to save, and take all ranks along.
            alone = not (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled)
            if self._optimizer is not None and alone and not trainer.args.should_save:
                self._optimizer.state_dict()

        trainer._save_optimizer_and_scheduler = save_together

    # ── the Trainer's events ──────────────────────────────────────────────────────────────────────

    def on_init_end(self, *_: Any, **__: Any) -> None:
        """The trainer was made, and has this callback from its constructor: refuse it."""
        raise UsageError(_UNATTACHED)

    def on_train_begin(self, args: Any, state: Any, control: Any, **facts: Any) -> None:
        """Training begins: find the optimizer."""
        self._optimizer = require_found(facts.get("optimizer"))
        self._seen = state.num_input_tokens_seen

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The optimizer is about to step: count the tokens since the last step."""
        tokens = state.num_input_tokens_seen - self._seen
        self._seen = state.num_input_tokens_seen
        if self._optimizer is not None and tokens > 0:
            # The Trainer counts the tokens of all ranks, and so does the optimizer.
            self._optimizer.count_tokens(tokens if state.is_world_process_zero else 0)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Something is logged: report the losses, and add the figures to a line of training."""
        if self._optimizer is None or logs is None:
            return
        losses = {name: logs[name] for name in REPORTED if name in logs}
        if losses:
            self._optimizer.report(**losses)
        if "loss" in logs:
            figures = scalars(self._optimizer.status())
            logs.update(figures)
            if state.log_history:
                state.log_history[-1].update(figures)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Training has ended: end the run together with the others."""
        if self._optimizer is not None and self._finishes:
            self.finished = finish_all([self._optimizer], self._timeout)[0]
