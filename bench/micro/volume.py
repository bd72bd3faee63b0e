"""The bytes of a cycle for each learner, in either direction, over its own packets, for different
numbers of learners: real packets of random deltas, each learner the sealer of one fragment.

    up = down = (M − 1) offers for the fragments of others + M − 1 copies of its own fragment's seal
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

import torch

from bench.cluster.learners import transformer
from bench.result import Result, plain
from mend_optim import PowerSGD
from mend_optim.codecs.buffers import Buffers
from mend_optim.codecs.packing import BACK
from mend_optim.codecs.registry import CODECS, Codec, encode_packet
from mend_optim.model.layout import Layout
from mend_optim.protocol.lineage import Key, PeerId
from mend_optim.protocol.messages import Offer, nbytes
from mend_optim.worker.seal_payload import SealPayload

WIDTH, LAYERS = 256, 4  # 3.2 M elements
MEMBERS = (2, 4, 8, 16, 32)
MEASURED: dict[str, Codec] = {**CODECS, "powersgd": PowerSGD(rank=16)}
GOAL = 2.2


def _offers(codec: Codec, layout: Layout, members: int) -> list[Offer]:
    fragment = layout.fragments[0]
    generator = torch.Generator().manual_seed(members)
    return [
        Offer(
            peer=PeerId(f"{i:02}", 1),
            fragment=0,
            seq=1,
            tokens=1,
            steps=1,
            genesis=b"g",
            key=Key(0, 0, b""),
            due=True,
            sections={
                "delta": encode_packet(
                    codec, torch.randn(fragment.numel, generator=generator), fragment.shapes
                )[0]
            },
        )
        for i in range(members)
    ]


def _volume(codec: Codec, layout: Layout, members: int) -> float:
    """The bytes of a learner over those of its packets."""
    fragment, offers = layout.fragments[0], _offers(codec, layout, members)
    payload = SealPayload(codec, "norm_preserving", fragment, Buffers())
    found = payload.merge(offers, [1 / members] * members, torch.empty(fragment.numel))
    packet = nbytes(offers[0].sections)
    own = found.sections["0"].nbytes if "0" in found.sections else 0
    seal = nbytes(found.sections) - own
    return (members - 1) * (packet + seal) / (members * packet)


def run() -> Iterator[Result]:
    torch.set_num_threads(1)
    parameters = transformer(WIDTH, LAYERS)
    layout = Layout([str(i) for i in range(len(parameters))], parameters, 1)
    for name, codec in MEASURED.items():
        for members in MEMBERS:
            others = {back: _volume(how, layout, members) for back, how in _ways(codec).items()}
            notes = [f'with back="{back}": {found:.2f}' for back, found in others.items()]
            yield plain(
                "volume",
                f"{name}, {members} learners, up or down over the own packets",
                "ratio",
                [_volume(codec, layout, members)],
                "; ".join([f"back={codec.back!r}", *notes]),
                goal=f"<= {GOAL}",
            )


def _ways(codec: Codec) -> dict[str, Codec]:
    """The codec with the other ways back that it has, by their names."""
    if not any(field.name == "back" for field in fields(codec)):  # type: ignore[arg-type]
        return {}
    others = [back for back in BACK if back != codec.back]
    return {back: replace(codec, back=back) for back in others}  # type: ignore[type-var]
