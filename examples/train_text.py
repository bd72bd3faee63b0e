"""Teach a small transformer to write Python, one byte at a time, from the sources of Python's own
standard library.

Alone, with plain AdamW:

    python examples/train_text.py --solo

Together, any number of these, started at any time, on any machines that reach one another:

    python examples/train_text.py --name a --listen 127.0.0.1:29600 --shard 0/2
    python examples/train_text.py --name b --peers 127.0.0.1:29600 --shard 1/2

Several on this machine, with names, addresses and a secret that are found for them:

    mend run -n 3 -- python examples/train_text.py --shard {index}/{count}

The same by torchrun, whose store tells them of each other:

    torchrun --standalone --nproc-per-node 3 examples/train_text.py --peers env://

With `--checkpoint a.pt` it saves itself now and then, and goes on from there when it is started
again.
"""

import argparse
import hashlib
import json
import logging
import os
import sys
import sysconfig
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mend_optim import MendOptimizer

CONTEXT = 128  # bytes the model sees
WIDTH, LAYERS, HEADS = 96, 3, 4
HELD_OUT_WINDOWS = 256
WARMUP = 50  # steps
NOT_LIBRARY_CODE = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


def read_corpus(shard: int, shards: int) -> tuple[Tensor, Tensor]:
    """One learner's training bytes and everybody's held-out bytes; a hash of a file's path decides
    where it goes."""
    root = Path(sysconfig.get_paths()["stdlib"])
    train, held_out = bytearray(), bytearray()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if NOT_LIBRARY_CODE.intersection(name.parts):
            continue
        place = int.from_bytes(hashlib.sha256(name.as_posix().encode()).digest()[:4], "big")
        if place % 20 == 0:
            held_out += path.read_bytes()
        elif place % shards == shard:
            train += path.read_bytes()
    return torch.frombuffer(train, dtype=torch.uint8), torch.frombuffer(held_out, dtype=torch.uint8)


def windows(text: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Bytes to read and, one place further, bytes to predict: text_T, starts_B -> (x_BC, y_BC)."""
    batch = text[starts[:, None] + torch.arange(CONTEXT + 1)].long()
    return batch[:, :-1], batch[:, 1:]


class Block(nn.Module):
    """Causal attention, then a two-layer perceptron, each added to its normalised input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm2(x))


class TextModel(nn.Module):
    """A decoder-only transformer over bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.byte, self.place = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)
        for embedding in (self.byte, self.place):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = self.byte(x) + self.place.weight[: x.shape[1]]
        return F.cross_entropy(self.head(self.norm(self.blocks(hidden))).flatten(0, 1), y.flatten())


@torch.no_grad()
def evaluate(model: nn.Module, held_out: Tensor) -> float:
    """Mean loss, in nats per byte, over windows spread evenly over the held-out text."""
    starts = torch.linspace(0, len(held_out) - CONTEXT - 1, HELD_OUT_WINDOWS).long()
    return sum(
        model(*windows(held_out, part)).item() * len(part) for part in starts.split(32)
    ) / len(starts)


def content_digest(model: nn.Module) -> str:
    """SHA-256 of every weight's bytes: two learners print the same one only if their weights are
    bit-identical."""
    content = hashlib.sha256()
    for parameter in model.parameters():
        content.update(parameter.detach().numpy().tobytes())
    return content.hexdigest()


def say(args: argparse.Namespace, event: str, **facts: object) -> None:
    """One line for people, or one JSON object for examples/demo.py."""
    human = f"{args.name} {event}: " + ", ".join(f"{key} {value}" for key, value in facts.items())
    text = json.dumps({"event": event, **facts}) if args.progress == "json" else human
    # In one write: torchrun's processes share a pipe, and `print` writes the end of a line apart.
    print(f"{text}\n", end="", flush=True)


def standing(optimizer: torch.optim.Optimizer) -> dict[str, object]:
    """How far the rounds have come: how many, and who was in the last one."""
    if not isinstance(optimizer, MendOptimizer):
        return {"rounds": 0, "members": []}
    status = optimizer.status()
    members = [member.name for member in status.rounds[-1].members] if status.rounds else []
    return {"rounds": status.rounds_adopted, "members": members}


def batch(text: Tensor, args: argparse.Namespace, step: int) -> tuple[Tensor, Tensor]:
    """The windows of one step. They depend on its number alone: a learner that goes on at a later
    step has later windows."""
    draws = torch.Generator().manual_seed(args.seed * 1_000_003 + step)
    return windows(text, torch.randint(len(text) - CONTEXT, (args.batch,), generator=draws))


def restore(model: nn.Module, optimizer: torch.optim.Optimizer, args: argparse.Namespace) -> int:
    """Go on from the checkpoint, if there is one, and where the others are, if they are further.
    The steps done."""
    step = 0
    if args.checkpoint and args.checkpoint.exists():
        saved = torch.load(args.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    return optimizer.join().position if isinstance(optimizer, MendOptimizer) else step


def save(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, path: Path) -> None:
    """A crash while this writes leaves the checkpoint before."""
    new = path.with_name(path.name + ".new")
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, new
    )
    new.replace(path)


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, text: Tensor, args: argparse.Namespace
) -> None:
    start = restore(model, optimizer, args)
    if start:
        say(args, "continue", step=start)
    # The rate is the schedule's at this step of the whole run, whatever rate a checkpoint was saved
    # with.
    warmup = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: min(1.0, (start + done + 1) / WARMUP)
    )
    said_at, said_step = time.monotonic(), start
    for step in range(start, args.steps):
        loss = model(*batch(text, args, step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warmup.step()
        if args.checkpoint and ((step + 1) % args.save_every == 0 or step + 1 == args.steps):
            save(model, optimizer, step + 1, args.checkpoint)
        elapsed_s = time.monotonic() - said_at
        if elapsed_s >= 1 or step + 1 == args.steps:
            speed = round((step + 1 - said_step) * args.batch * CONTEXT / elapsed_s)
            said_at, said_step = time.monotonic(), step + 1
            if isinstance(optimizer, MendOptimizer):
                optimizer.report(loss=loss)
            say(
                args,
                "step",
                step=step + 1,
                loss=round(loss.item(), 3),
                tokens_per_s=speed,
                **standing(optimizer),
            )


def report(
    model: nn.Module, optimizer: torch.optim.Optimizer, held_out: Tensor, args: argparse.Namespace
) -> None:
    """Wait until everything learned is merged, then measure the weights that all learners share.
    A learner that is held may be asked again. Any other ends here, together with all others."""
    merging = isinstance(optimizer, MendOptimizer)
    tokens = optimizer.status().tokens if merging else args.steps * args.batch * CONTEXT
    result: dict[str, object] = {"name": args.name, "step": args.steps, "tokens": tokens}
    if merging:
        is_done = optimizer.synchronize(timeout=30) if args.hold else optimizer.finish()
        result["synchronized"] = bool(is_done)
        result["security"] = optimizer.status().security
    with optimizer.global_weights() if merging else nullcontext():
        fragments = optimizer.status().fragments if merging else ()
        result["lineages"] = [[f.index, f.tokens, f.version, f.digest] for f in fragments]
        result |= {"weights": content_digest(model), "held_out_loss": evaluate(model, held_out)}
    result |= standing(optimizer)
    say(args, "report", **result)
    if args.report:
        args.report.write_text(json.dumps(result, indent=2) + "\n")


def parse_arguments() -> argparse.Namespace:
    rank, ranks = os.environ.get("RANK"), os.environ.get("WORLD_SIZE", "1")  # of torchrun
    parser = argparse.ArgumentParser(
        description="Train a small language model on Python's standard library."
    )
    parser.add_argument("--solo", action="store_true", help="plain AdamW: no rounds, no network")
    parser.add_argument(
        "--name",
        default=os.environ.get("MEND_NAME", f"learner-{rank}" if rank else "learner"),
        help="this learner's name, different from all others'",
    )
    parser.add_argument("--listen", help="host:port to serve on")
    parser.add_argument(
        "--peers",
        type=lambda text: text.split(","),
        default=[],
        help="host:port,host:port,…; file:PATH; or env:// within torchrun",
    )
    parser.add_argument(
        "--shard",
        default=f"{rank or 0}/{ranks}",
        help="i/n: train on the i-th of n parts of the text, from 0",
    )
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=8, help="windows per step")
    parser.add_argument(
        "--sync-every",
        type=lambda text: text if text == "auto" else int(text),
        default="auto",
        help="inner steps between rounds; auto: as often as the link allows",
    )
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads for the model")
    parser.add_argument("--ledger", type=Path, help="write every round to this JSONL file")
    parser.add_argument(
        "--checkpoint", type=Path, help="save to this file, and go on from it where it exists"
    )
    parser.add_argument("--save-every", type=int, default=100, help="steps between checkpoints")
    parser.add_argument("--metrics", type=int, help="serve metrics for Prometheus on this port")
    parser.add_argument("--report", type=Path, help="write the final result to this JSON file")
    parser.add_argument("--progress", choices=["human", "json"], default="human")
    parser.add_argument(
        "--hold", action="store_true", help="report once per line on stdin, stay until stdin closes"
    )
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    # The library says who joins, dies and returns, and what is merged.
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        run(args)
    except KeyboardInterrupt:
        # The end of the `with` block has said goodbye to the others.
        say(args, "interrupted", signal="SIGINT")
        sys.exit(130)


def run(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    text, held_out = read_corpus(*map(int, args.shard.split("/")))
    model = TextModel()
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    if not args.solo:
        optimizer = MendOptimizer(
            optimizer,
            name=args.name,
            listen=args.listen,
            peers=args.peers,
            sync_every=args.sync_every,
            tokens_per_step=args.batch * CONTEXT,
            ledger=args.ledger,
        )
        if args.metrics is not None:
            from mend_optim.integrations.prometheus import serve_metrics

            say(args, "metrics", url=serve_metrics(optimizer, args.metrics).url)
    with nullcontext() if args.solo else optimizer:
        train(model, optimizer, text, args)
        say(args, "trained", step=args.steps)
        # A held learner stays in the roster, so that those who finish later still find a quorum.
        for _ in sys.stdin if args.hold else [""]:
            report(model, optimizer, held_out, args)


if __name__ == "__main__":
    main()
