"""Merging four offers of 10 M parameters, compared with the same arithmetic on whole vectors in
place."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from bench.result import Result, compared
from bench.watch import time_of
from mend_optim.codecs.buffers import Buffers
from mend_optim.codecs.packing import raw
from mend_optim.codecs.registry import Dense, Int8, decoded, encode_packet
from mend_optim.engine.effects import Merge
from mend_optim.model.layout import Layout
from mend_optim.protocol.lineage import Lineage, PeerId
from mend_optim.protocol.messages import Offer
from mend_optim.worker.anchors import Anchors
from mend_optim.worker.merge import merge, weighted_mean_by_parts
from mend_optim.worker.outer import Nesterov

NUMEL, TENSORS, MEMBERS = 10_000_000, 100, 4
WARM = 1
WEIGHTS = (0.1, 0.2, 0.3, 0.4)
OFFSETS = tuple(range(0, NUMEL + 1, NUMEL // TENSORS))
SHAPES = [(NUMEL // TENSORS,)] * TENSORS
REPEATS = {"mean": 15, "rda": 7, "trimmed_mean": 3, "median": 3, "centered_clip": 3, "job": 7}
REPEATS["int8 packets"] = 15


def _floor(deltas: list[Tensor], out: Tensor) -> None:
    torch.mul(deltas[0], WEIGHTS[0], out=out)
    for delta, weight in zip(deltas[1:], WEIGHTS[1:], strict=True):
        out.add_(delta, alpha=weight)


def _job(deltas: list[Tensor]) -> Callable[[], object]:
    """The whole job of a sealer's worker: read the packets, merge, digest the result."""
    model = [nn.Parameter(torch.empty(NUMEL))]
    anchors = Anchors(
        Layout(["0"], model, 1),
        [torch.zeros(NUMEL)],
        codec=Dense(),
        outer=Nesterov(),
        scheme="mean",
        buffers=Buffers(),
    )
    base = Lineage.fresh(anchors.genesis())
    offers = tuple(
        Offer(
            peer=PeerId(str(i), 1),
            fragment=0,
            seq=1,
            tokens=1,
            steps=1,
            genesis=base.genesis,
            key=base.key,
            due=True,
            sections={"delta": raw(delta)},
        )
        for i, delta in enumerate(deltas)
    )
    job = Merge(fragment=0, base=base, offers=offers, weights=WEIGHTS)
    return lambda: anchors.perform(job)


def run() -> Iterator[Result]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    deltas = [1e-3 * torch.randn(NUMEL) for _ in range(MEMBERS)]
    out, floor_out = torch.empty(NUMEL), torch.empty(NUMEL)
    job = _job(deltas)

    def measure(name: str, work: Callable[[], object], goal: str = "", notes: str = "") -> Result:
        turns = [
            (time_of(work), time_of(lambda: _floor(deltas, floor_out)))
            for _ in range(WARM + REPEATS[name])
        ]
        took, floors = ([1e3 * s for s in column] for column in zip(*turns[WARM:], strict=True))
        return compared("merge", f"{name}, 4 x 10 M", "ms", took, floors, goal=goal, notes=notes)

    yield measure(
        "mean",
        lambda: merge("mean", deltas, WEIGHTS, out, OFFSETS),
        "<= 1.2",
        "floor = mul + 3 add_",
    )
    for scheme in ("rda", "trimmed_mean", "median", "centered_clip"):
        yield measure(scheme, lambda scheme=scheme: merge(scheme, deltas, WEIGHTS, out, OFFSETS))  # type: ignore[misc]
    yield measure("job", job, notes="mean and digest, as a sealer's worker does it")
    packets = [encode_packet(Int8(), delta, SHAPES)[0] for delta in deltas]
    yield measure(
        "int8 packets",
        lambda: weighted_mean_by_parts(
            (decoded(packet, SHAPES) for packet in packets), WEIGHTS, out
        ),
        "<= 1.5",
        notes="decoded as they are merged",
    )
