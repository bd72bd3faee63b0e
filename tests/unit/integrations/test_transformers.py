"""The callback of the transformers Trainer, alone: what it refuses, and what it leaves as it was.
Two learners with it are in `clients/test_integrations.py`."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from mend_optim import MendOptimizer, UsageError

transformers = pytest.importorskip("transformers", reason="pip install '.[transformers]'")
pytest.importorskip("accelerate", reason="pip install '.[transformers]'")

from mend_optim.integrations.transformers import MendTrainerCallback  # noqa: E402


class Net(nn.Module):
    """A model whose input is no text."""

    main_input_name = "inputs"

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.fails = fails

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        if self.fails and not self.training:
            raise MemoryError("in evaluation")
        return {"loss": (self.linear(inputs)[:, 0] - labels).square().mean()}


def trainer_of(net: nn.Module, optimizer: Optimizer, folder: Path, **options: Any) -> Any:
    told = {"max_steps": 4, "logging_steps": 2, "save_strategy": "no", **options}
    args = transformers.TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        per_device_train_batch_size=2,
        **told,
    )
    data = [{"inputs": torch.ones(3) * i, "labels": torch.tensor(float(i))} for i in range(8)]
    return transformers.Trainer(
        model=net, args=args, train_dataset=data, eval_dataset=data, optimizers=(optimizer, None)
    )


def wrapped(net: nn.Module, **options: Any) -> MendOptimizer:
    return MendOptimizer(SGD(net.parameters(), lr=0.01), name="a", **options)


def test_without_peers_it_logs_and_ends(tmp_path: Path) -> None:
    net = Net()
    optimizer = wrapped(net, tokens_per_step=5)
    trainer = trainer_of(net, optimizer, tmp_path)
    callback = MendTrainerCallback.attach(trainer)
    trainer.train()
    lines = [line for line in trainer.state.log_history if "loss" in line]
    assert [line["mend/steps"] for line in lines] == [2, 4]
    # 2 rows of 3 numbers a step: the Trainer counts the elements of the model's input.
    assert optimizer.status().tokens == 4 * 2 * 3
    assert callback.finished is not None
    assert callback.finished.agreed
    assert optimizer.status().reported["loss"] == lines[-1]["loss"]


def test_a_model_whose_input_is_unknown_counts_tokens_per_step(tmp_path: Path) -> None:
    net = Net()
    net.main_input_name = "pixels"
    optimizer = wrapped(net, tokens_per_step=5)
    trainer = trainer_of(net, optimizer, tmp_path)
    MendTrainerCallback.attach(trainer)
    trainer.train()
    assert optimizer.status().tokens == 4 * 5


@pytest.mark.parametrize(
    ("name", "counted", "warns"),
    [("inputs", "no", False), ("pixels", "no", False), ("pixels", "all", True)],
)
def test_the_trainer_warns_of_an_unknown_input_only_where_the_user_counts_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    counted: str,
    warns: bool,
) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)  # caplog sees it
    net = Net()
    net.main_input_name = name
    trainer = trainer_of(net, wrapped(net), tmp_path, include_num_input_tokens_seen=counted)
    MendTrainerCallback.attach(trainer)
    trainer.train()
    assert any("number of tokens seen" in line for line in caplog.messages) == warns
    seen = any("num_input_tokens_seen" in line for line in trainer.state.log_history)
    assert seen == (name == "inputs" or counted == "all")


def test_of_several_ranks_the_first_counts_what_the_trainer_counts_of_all(tmp_path: Path) -> None:
    class Counted(MendOptimizer):
        """Keeps what it is told."""

        told: ClassVar[list[int]] = []

        def count_tokens(self, n: int) -> None:
            self.told.append(n)

    net = Net()
    trainer = trainer_of(net, Counted(SGD(net.parameters(), lr=0.01), name="a"), tmp_path)
    callback = MendTrainerCallback.attach(trainer)
    trainer.train()
    assert Counted.told == [6] * 4
    state = SimpleNamespace(num_input_tokens_seen=99, is_world_process_zero=False)
    callback.on_pre_optimizer_step(trainer.args, state, trainer.control)
    assert Counted.told[4:] == [0]
    callback.on_pre_optimizer_step(trainer.args, state, trainer.control)
    assert Counted.told[5:] == []  # nothing new was trained on


def test_the_users_own_way_of_counting_stays(tmp_path: Path) -> None:
    net = Net()
    trainer = trainer_of(net, wrapped(net), tmp_path, include_num_input_tokens_seen="non_padding")
    MendTrainerCallback.attach(trainer)
    assert trainer.args.include_num_input_tokens_seen == "non_padding"


def test_it_may_leave_the_end_to_the_user(tmp_path: Path) -> None:
    net = Net()
    trainer = trainer_of(net, wrapped(net), tmp_path)
    callback = MendTrainerCallback.attach(trainer, finish=False)
    trainer.train()
    assert callback.finished is None


def test_a_closed_optimizer_trains_to_the_end(tmp_path: Path) -> None:
    net = Net()
    optimizer = wrapped(net, listen="127.0.0.1:0")
    optimizer.close()
    trainer = trainer_of(net, optimizer, tmp_path)
    callback = MendTrainerCallback.attach(trainer)
    trainer.train()
    assert callback.finished is None
    assert optimizer.status().step == 4


def test_an_evaluation_that_fails_puts_the_own_weights_back(tmp_path: Path) -> None:
    net = Net(fails=True)
    optimizer = wrapped(net)
    trainer = trainer_of(net, optimizer, tmp_path, eval_strategy="steps", eval_steps=2)
    MendTrainerCallback.attach(trainer)
    with pytest.raises(MemoryError, match="in evaluation"):
        trainer.train()
    optimizer.synchronize()  # would be refused inside global_weights()
    net.fails = False
    assert trainer.evaluate()["eval_loss"] >= 0


def test_the_first_callback_hears_of_a_log_before_trackers(tmp_path: Path) -> None:
    net = Net()
    trainer = trainer_of(net, wrapped(net), tmp_path)
    callback = MendTrainerCallback.attach(trainer)
    assert trainer.callback_handler.callbacks[0] is callback


def test_it_must_be_attached(tmp_path: Path) -> None:
    net = Net()
    args = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    with pytest.raises(UsageError, match=r"write MendTrainerCallback\.attach\(trainer\)"):
        transformers.Trainer(model=net, args=args, callbacks=[MendTrainerCallback()])


def test_it_is_attached_once(tmp_path: Path) -> None:
    net = Net()
    trainer = trainer_of(net, wrapped(net), tmp_path)
    MendTrainerCallback.attach(trainer)
    with pytest.raises(UsageError, match="trainer must be one without a MendTrainerCallback"):
        MendTrainerCallback.attach(trainer)


def test_the_best_checkpoint_is_not_taken_for_progress(tmp_path: Path) -> None:
    net = Net()
    best = {"load_best_model_at_end": True, "save_strategy": "steps", "eval_strategy": "steps"}
    trainer = trainer_of(net, wrapped(net), tmp_path, save_steps=2, eval_steps=2, **best)
    with pytest.raises(UsageError, match=r"load_best_model_at_end must be False .*got True"):
        MendTrainerCallback.attach(trainer)
    MendTrainerCallback.attach(trainer, finish=False)


def test_an_optimizer_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    net = Net()
    trainer = trainer_of(net, SGD(net.parameters(), lr=0.1), tmp_path)
    MendTrainerCallback.attach(trainer)
    with pytest.raises(UsageError, match="the trainer's optimizer must be a MendOptimizer"):
        trainer.train()


@pytest.mark.parametrize("timeout", [-1, "long", True])
def test_a_wrong_timeout_is_refused_at_once(tmp_path: Path, timeout: Any) -> None:
    net = Net()
    trainer = trainer_of(net, wrapped(net), tmp_path)
    with pytest.raises(UsageError, match="timeout must be"):
        MendTrainerCallback.attach(trainer, timeout=timeout)
