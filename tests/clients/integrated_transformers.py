"""The Trainer of transformers with our callback: it counts tokens, logs, evaluates the global
weights, and finishes."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import AdamW
from transformers import GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from mend_optim.integrations.transformers import MendTrainerCallback
from tests.clients.integrated import Evaluations, Tokens, finished
from tests.clients.session import STEPS, Facts, Session, serve
from tests.clients.transformers_trainer import MICRO_BATCHES, TOKENS, model

EVERY = 8
LOGGED = 3


class Tracker(TrainerCallback):  # type: ignore[misc]
    """Stands for a tracker: it keeps what the Trainer logs."""

    def __init__(self) -> None:
        self.lines: list[dict[str, float]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.lines.append({**logs, "at": state.global_step})


class Steps(TrainerCallback):  # type: ignore[misc]
    """Tells when own weights must be in place."""

    def __init__(self, evaluations: Evaluations) -> None:
        self.evaluations = evaluations

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.evaluations.stepped()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.evaluations.goes_on()


def padded(session: Session) -> list[dict[str, torch.Tensor]]:
    """Numbers that count up, of several lengths, padded to one. Each learner has others."""
    draws = torch.Generator().manual_seed(session.me)
    rows = []
    for _ in range(64):
        start = int(torch.randint(0, 24, (1,), generator=draws))
        length = int(torch.randint(3 + session.me, TOKENS + 1, (1,), generator=draws))
        mask = (torch.arange(TOKENS) < length).long()
        ids = ((start + torch.arange(TOKENS)) % 32) * mask
        rows.append({"input_ids": ids, "attention_mask": mask, "labels": ids})
    return rows


def train(session: Session, counted: str, steps: int, **options: Any) -> Facts:
    net: GPT2LMHeadModel = model(0)
    optimizer = session.wrap(AdamW(net.parameters(), lr=0.01), **options)
    evaluations, tracker = Evaluations(net, optimizer), Tracker()
    tokens = Tokens(net, "attention_mask" if counted == "non_padding" else "input_ids")
    data = padded(session)
    trainer = Trainer(
        model=net,
        args=TrainingArguments(
            output_dir=str(session.folder),
            max_steps=steps,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=MICRO_BATCHES,
            include_num_input_tokens_seen=counted,
            eval_strategy="steps",
            eval_steps=EVERY,
            save_strategy="no",
            logging_steps=LOGGED,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            seed=session.me,
        ),
        train_dataset=data,
        # Each of several sets is evaluated in a call of its own.
        eval_dataset={"one": data[:4], "other": data[4:8]},
        optimizers=(optimizer, None),
        callbacks=[tracker, Steps(evaluations)],
    )
    callback = MendTrainerCallback.attach(trainer)
    trainer.train()
    assert callback.finished is not None
    after = trainer.evaluate()  # the weights are the anchors now
    trained = [line for line in tracker.lines if "loss" in line]
    return {
        **finished(session, net, callback.finished),
        "expected_tokens": tokens.seen,
        "evaluations": evaluations.seen,
        "resumed": evaluations.resumed,
        "logged": [(line["at"], line["mend/steps"], line["mend/tokens"]) for line in trained],
        "history": [entry["mend/steps"] for entry in trainer.state.log_history if "loss" in entry],
        "losses": [line["loss"] for line in trained],
        "evaluated": [
            line["eval_other_loss"] for line in tracker.lines if "eval_other_loss" in line
        ],
        "evaluated_after": after["eval_other_loss"],
    }


def non_padding(session: Session) -> Facts:
    """One learner has more to train than the other."""
    return train(session, "non_padding", STEPS + 6 * session.me)


def by_default(session: Session) -> Facts:
    """The Trainer counts nothing of its own, before the callback asks for it."""
    return train(session, "no", STEPS)


if __name__ == "__main__":
    serve(non_padding, by_default)
