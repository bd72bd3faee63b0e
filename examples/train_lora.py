"""Adapt a frozen GPT-2 by LoRA: `peft` adds the adapters, transformers' `Trainer` trains them, and
only they travel. The model is small, and its frozen weights are random: nothing is downloaded.

Together, any number of these, started at any time:

    python examples/train_lora.py --name a --listen 127.0.0.1:29600
    python examples/train_lora.py --name b --peers 127.0.0.1:29600

Two on this machine, with names and addresses that are found for them:

    mend run -n 2 -- python examples/train_lora.py
"""

import argparse
import json
import tempfile
import zlib

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from mend_optim import MendOptimizer
from mend_optim.integrations.transformers import MendTrainerCallback

SYMBOLS, LENGTH = 32, 16


def make_model() -> PeftModel:
    """The frozen weights never travel, so they must be the same on all learners: from one file or,
    as here, of one seed."""
    torch.manual_seed(0)
    shape = GPT2Config(vocab_size=SYMBOLS, n_positions=LENGTH, n_embd=128, n_layer=2, n_head=4)
    adapters = LoraConfig(
        r=4, target_modules=["c_attn", "c_fc", "c_proj"], fan_in_fan_out=True, task_type="CAUSAL_LM"
    )
    return get_peft_model(GPT2LMHeadModel(shape), adapters)


def texts(count: int, seed: int) -> list[dict[str, Tensor]]:
    """Sequences that count up from anywhere."""
    starts = torch.randint(SYMBOLS, (count,), generator=torch.Generator().manual_seed(seed))
    rows = [(first + torch.arange(LENGTH)) % SYMBOLS for first in starts]
    return [{"input_ids": row, "labels": row} for row in rows]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--name", help="this learner's, different from all others'")
    parser.add_argument("--listen", help="host:port to serve on")
    parser.add_argument("--peers", default="", help="host:port,host:port,…")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=8, help="texts per step")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(1)
    model = make_model()
    adapters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = MendOptimizer(
        torch.optim.AdamW(adapters, lr=1e-2), name=args.name, listen=args.listen, peers=args.peers
    )
    seed = zlib.crc32(optimizer.name.encode())  # each learner has texts of its own
    start = optimizer.join().position  # 0, or where the others are
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                max_steps=max(1, args.steps - start),
                per_device_train_batch_size=args.batch,
                save_strategy="no",
                use_cpu=True,
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=texts(512, seed),
            eval_dataset=texts(64, 0),  # the same on all learners
            optimizers=(optimizer, None),
        )
        callback = MendTrainerCallback.attach(trainer)
        first_loss = trainer.evaluate()["eval_loss"]
        trainer.train()  # at its end, all learners have the same adapters
        loss = trainer.evaluate()["eval_loss"]
    status = optimizer.status()
    report = {
        "learner": optimizer.name,
        "digest": callback.finished.digest,
        "tokens": dict(callback.finished.tokens),
        "numbers_in_model": sum(parameter.numel() for parameter in model.parameters()),
        "numbers_in_adapters": sum(parameter.numel() for parameter in adapters),
        "rounds": status.rounds_adopted,
        "bytes_sent": status.bytes_sent,
        "first_loss": round(first_loss, 4),
        "loss": round(loss, 4),
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
