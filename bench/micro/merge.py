"""Merging four offers of 10 M parameters, compared with the same arithmetic on whole vectors in
place."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from bench.result import Result, compared
from bench.watch import processor_time_of, time_of
from mend_optim.codecs.buffers import Buffers
from mend_optim.codecs.packing import Shapes, raw
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
# The same in tensors of whole blocks, which are encoded as one; and next to nothing in as many
# tensors, whose merge is calls alone.
WHOLE = [(NUMEL // TENSORS // 128 * 128,)] * TENSORS
TINY = [(1000,)] * TENSORS
REPEATS = {"mean": 15, "rda": 7, "trimmed_mean": 3, "median": 3, "centered_clip": 3, "job": 7}
REPEATS |= dict.fromkeys(("int8 packets", "int8 packets of whole blocks", "int8 calls"), 15)


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


def _int8(deltas: list[Tensor], shapes: Shapes) -> Callable[[], object]:
    """Merge int8 packets of the beginning of the deltas, in tensors of these shapes."""
    out = torch.empty(sum(map(math.prod, shapes)))
    packets = [encode_packet(Int8(), delta[: len(out)], shapes)[0] for delta in deltas]
    return lambda: weighted_mean_by_parts(
        (decoded(packet, shapes) for packet in packets), WEIGHTS, out
    )


def run() -> Iterator[Result]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    deltas = [1e-3 * torch.randn(NUMEL) for _ in range(MEMBERS)]
    out, floor_out = torch.empty(NUMEL), torch.empty(NUMEL)
    job = _job(deltas)

    def measure(
        name: str,
        work: Callable[[], object],
        goal: str = "",
        notes: str = "",
        timed: Callable[[Callable[[], object]], float] = time_of,
    ) -> Result:
        turns = [
            (timed(work), timed(lambda: _floor(deltas, floor_out)))
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
    notes = "decoded as they are merged"
    yield measure("int8 packets", _int8(deltas, SHAPES), "<= 1.5", notes)
    apart = {
        "int8 packets": (SHAPES, notes),
        "int8 packets of whole blocks": (WHOLE, notes),
        "int8 calls": (TINY, "100 tensors of 1,000 elements, over the floor of 100,000 each"),
    }
    for name, (shapes, notes) in apart.items():
        yield measure(
            name,
            _int8(deltas, shapes),
            notes=f"processor time; {notes}",
            timed=processor_time_of,
        )
