"""Teach a small convolutional network to tell the directions of stripes: batch norm, bf16, and a
`DataLoader` with workers.

Together, any number of these, started at any time:

    python examples/train_images.py --name a --listen 127.0.0.1:29600
    python examples/train_images.py --name b --peers 127.0.0.1:29600

Two on this machine, with names and addresses that are found for them:

    mend run -n 2 -- python examples/train_images.py
"""

import argparse
import hashlib
import json
import zlib

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from mend_optim import MendOptimizer

SIDE, CLASSES = 12, 4  # pixels; horizontal, vertical, and the two diagonals
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Stripes(Dataset):
    """Noisy images of stripes. Image and direction depend on the seed and the index alone."""

    def __init__(self, seed: int, size: int) -> None:
        self.seed, self.size = seed, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        draws = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        direction = int(torch.randint(CLASSES, (), generator=draws))
        down, right = ((1, 0), (0, 1), (1, 1), (1, -1))[direction]
        y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
        phase = 6.3 * torch.rand((), generator=draws)
        noise = torch.randn(1, SIDE, SIDE, generator=draws)
        return torch.sin(1.3 * (down * y + right * x) + phase) + noise, direction


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    ).to(DEVICE)


@torch.no_grad()
def evaluate(model: nn.Module) -> float:
    """The loss on images that nobody trains on. Batch norm uses its running statistics."""
    images, directions = next(iter(DataLoader(Stripes(0, 256), batch_size=256)))
    model.eval()
    loss = F.cross_entropy(model(images.to(DEVICE)), directions.to(DEVICE)).item()
    model.train()
    return round(loss, 4)


def content_digest(model: nn.Module) -> str:
    """SHA-256 of all weights and buffers."""
    content = hashlib.sha256()
    for tensor in model.state_dict().values():
        content.update(tensor.cpu().numpy().tobytes())
    return content.hexdigest()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--name", help="this learner's, different from all others'")
    parser.add_argument("--listen", help="host:port to serve on")
    parser.add_argument("--peers", default="", help="host:port,host:port,…")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=32, help="images per step")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)  # all begin with the same weights
    model = make_model()
    optimizer = MendOptimizer(
        torch.optim.AdamW(model.parameters(), lr=3e-3),
        name=args.name,
        listen=args.listen,
        peers=args.peers,
        tokens_per_step=args.batch,
        buffers=model,  # the running statistics are merged, too
    )
    seed = zlib.crc32(optimizer.name.encode())  # each learner has images of its own
    with optimizer:
        start = optimizer.join().position  # 0, or where the others are
        first_loss = evaluate(model)
        mine = Stripes(seed, args.batch * max(0, args.steps - start))
        for images, directions in DataLoader(mine, args.batch, num_workers=2):
            # The parameters stay float32, so that small updates count; the products are bf16.
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                loss = F.cross_entropy(model(images.to(DEVICE)), directions.to(DEVICE))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        finish = optimizer.finish()  # all learners end on one model, buffers included
    report = {
        "learner": optimizer.name,
        "digest": finish.digest,
        "tokens": dict(finish.tokens),
        "rounds": optimizer.status().rounds_adopted,
        "weights": content_digest(model),
        "first_loss": first_loss,
        "loss": evaluate(model),
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
