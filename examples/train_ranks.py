"""The model of `train_text.py`, trained by several ranks that are one learner: FSDP2 inside, rounds
with other learners outside.

Start one per rack, with any number of ranks. On one machine:

    torchrun --standalone --nproc-per-node 2 examples/train_ranks.py --name a \\
        --listen 127.0.0.1:29600 --shard 0/2
    torchrun --standalone --nproc-per-node 2 examples/train_ranks.py --name b \\
        --peers 127.0.0.1:29600 --shard 1/2

`demo_ranks.py` does that, and compares the models that both end on.
"""

import argparse
import json

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from train_text import CONTEXT, TextModel, evaluate, read_corpus, windows

from mend_optim import MendOptimizer


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--name", required=True, help="of the learner")
    parser.add_argument("--listen", help="host:port to serve on")
    parser.add_argument("--peers", default="", help="addresses of other learners, comma separated")
    parser.add_argument("--shard", default="0/1", help="which part of the text is this learner's")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--sync-every", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8, help="windows per step and rank")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)  # all ranks begin with the same weights
    model = TextModel()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    inner = torch.optim.AdamW(model.named_parameters(), lr=3e-3)
    optimizer = MendOptimizer(  # the same line on every rank
        inner,
        name=args.name,
        listen=args.listen,
        peers=[peer for peer in args.peers.split(",") if peer],
        sync_every=args.sync_every,
    )

    # Each rank has its own part of the learner's text, and counts its own tokens.
    shard, shards = map(int, args.shard.split("/"))
    text, held_out = read_corpus(shard * ranks + rank, shards * ranks)
    draws = torch.Generator().manual_seed(rank)
    with optimizer:
        for _ in range(args.steps):
            starts = torch.randint(len(text) - CONTEXT, (args.batch,), generator=draws)
            optimizer.zero_grad()
            optimizer.count_tokens(args.batch * CONTEXT)
            model(*windows(text, starts)).backward()
            optimizer.step()
        rounds = optimizer.status().rounds_adopted
        finish = optimizer.finish(timeout=120)  # all learners end on one model
        loss = evaluate(model, held_out)  # all ranks, because each has a part of the weights

    if rank == 0:
        report = {
            "learner": args.name,
            "ranks": ranks,
            "agreed": finish.agreed,
            "digest": finish.digest,
            "tokens": dict(finish.tokens),
            "rounds": rounds,
            "loss": round(loss, 4),
        }
        print(json.dumps(report), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
