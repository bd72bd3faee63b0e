"""Teach a small GAN to draw points of a ring. Its two optimizers share no parameters, so each is a
learner of a run of its own, with its own name, port and peers.

Together, any number of these, started at any time:

    python examples/train_gan.py --name a --listen 127.0.0.1:29600 127.0.0.1:29601
    python examples/train_gan.py --name b --peers 127.0.0.1:29600 127.0.0.1:29601
"""

import argparse
import json
import zlib

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mend_optim import MendOptimizer

NOISE, WIDTH = 4, 64
NETWORKS = ("generator", "discriminator")


def ring(count: int, draws: torch.Generator) -> Tensor:
    """Real points: about 1 from the origin, in any direction."""
    points = F.normalize(torch.randn(count, 2, generator=draws))
    return points + 0.05 * torch.randn(count, 2, generator=draws)


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, WIDTH),
        nn.LeakyReLU(0.2),
        nn.Linear(WIDTH, WIDTH),
        nn.LeakyReLU(0.2),
        nn.Linear(WIDTH, outputs),
    )


@torch.no_grad()
def energy_distance(generator: nn.Module) -> float:
    """2 E|x-y| - E|x-x'| - E|y-y'| of real and drawn points: 0 if they are distributed alike."""
    draws = torch.Generator().manual_seed(0)  # the same points on all learners
    x, y = ring(512, draws), generator(torch.randn(512, NOISE, generator=draws))
    distance = 2 * torch.cdist(x, y).mean() - torch.cdist(x, x).mean() - torch.cdist(y, y).mean()
    return round(distance.item(), 4)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--name", default="learner", help="different from all others'")
    both = {"nargs": 2, "metavar": ("GENERATOR", "DISCRIMINATOR")}
    parser.add_argument("--listen", default=(None, None), help="two of host:port", **both)
    parser.add_argument("--peers", default=("", ""), help="two of host:port,host:port,…", **both)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=64, help="points per step")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)  # all begin with the same pair of networks
    models = network(NOISE, 2), network(2, 1)
    generator, discriminator = models
    optimizers = [
        MendOptimizer(
            torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.5, 0.9)),
            name=f"{args.name}-{role}",
            listen=listen,
            peers=peers,
        )
        for model, role, listen, peers in zip(
            models, NETWORKS, args.listen, args.peers, strict=True
        )
    ]
    for_generator, for_discriminator = optimizers
    first_loss = energy_distance(generator)
    draws = torch.Generator().manual_seed(zlib.crc32(args.name.encode()))  # each has its own points

    start = min(optimizer.join().position for optimizer in optimizers)
    for _ in range(start, args.steps):
        real, noise = ring(args.batch, draws), torch.randn(args.batch, NOISE, generator=draws)
        fake = generator(noise)
        verdicts = discriminator(fake.detach()) - discriminator(real)
        for_discriminator.zero_grad()
        F.softplus(verdicts).mean().backward()
        for_discriminator.step()

        verdicts = discriminator(real) - discriminator(fake)
        for_generator.zero_grad()
        F.softplus(verdicts).mean().backward()
        for_generator.step()

    # In the same order on all learners: each call waits for all of them.
    finishes = [optimizer.finish() for optimizer in optimizers]
    report = {
        "learner": args.name,
        "digests": [finish.digest for finish in finishes],
        "tokens": [dict(finish.tokens) for finish in finishes],
        "first_loss": first_loss,
        "loss": energy_distance(generator),
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
