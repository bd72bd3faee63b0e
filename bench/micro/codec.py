"""Every codec on a transformer of 25 M parameters: bytes in both directions, memory, and time
compared with memory passes and matrix products of the same run; and the relative error on real
deltas of the text example."""

from __future__ import annotations

import ctypes
import gc
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.optim import AdamW

from bench.result import Result, compared, plain
from bench.watch import time_of
from examples.train_text import CONTEXT, TextModel, read_corpus, windows
from mend_optim import Float4, Int4, Int8, PowerSGD, Sparse
from mend_optim.codecs.buffers import Buffers
from mend_optim.codecs.packing import Shapes
from mend_optim.codecs.powersgd import as_matrix
from mend_optim.codecs.registry import CODECS, Codec, decode_packet, encode_packet, split
from mend_optim.model.copies import flat
from mend_optim.model.layout import Fragment, Layout
from mend_optim.protocol.lineage import Key, PeerId
from mend_optim.protocol.messages import Offer, Seal
from mend_optim.worker.feedback import Feedback
from mend_optim.worker.merge import weighted_mean
from mend_optim.worker.outer import delta
from mend_optim.worker.seal_payload import SealPayload, payload_digest

WIDTH, LAYERS, WORDS, PLACES = 512, 6, 11_500, 512
LAYER = [
    (3 * WIDTH, WIDTH),
    (3 * WIDTH,),
    (WIDTH, WIDTH),
    (WIDTH,),
    (4 * WIDTH, WIDTH),
    (4 * WIDTH,),
    (WIDTH, 4 * WIDTH),
    (WIDTH,),
    (WIDTH,),
    (WIDTH,),
    (WIDTH,),
    (WIDTH,),
]
SHAPES: list[tuple[int, ...]] = [(WORDS, WIDTH), (PLACES, WIDTH), *LAYER * LAYERS]
NUMEL = sum(map(math.prod, SHAPES))

MEASURED: dict[str, Codec] = {
    "bf16": CODECS["bf16"],
    "int8": Int8(),
    "int4": Int4(),
    "float4": Float4(),
    "sparse": Sparse(),
    "powersgd r4": PowerSGD(rank=4),
    "powersgd r8": PowerSGD(rank=8),
    "powersgd r16": PowerSGD(rank=16),
}
LEAST = {"bf16": ">= 1.99", "int8": ">= 3.9", "int4": ">= 7.5"}
PASSES = {"int8": "<= 2", "int4": "<= 2"}
REPEATS, WARM = 9, 1
STEPS, ROUNDS, BATCH = 32, 8, 16  # of the text example


def run() -> Iterator[Result]:
    torch.set_num_threads(1)
    values = torch.randn(NUMEL, generator=torch.Generator().manual_seed(0)) * 1e-3
    for name, codec in MEASURED.items():
        yield from sizes(name, codec, values)
        yield from times(name, codec, values)
        yield plain(
            "codec", f"{name}: peak memory of an encoding", "bytes/element", [peak(codec, values)]
        )
    yield from errors()


# ── bytes ─────────────────────────────────────────────────────────────────────────────────────────


def sizes(name: str, codec: Codec, values: Tensor) -> Iterator[Result]:
    """How many times smaller than float32: the offer, and the seal of two members."""
    up = [4 * NUMEL / encode_packet(codec, values, SHAPES)[0].nbytes]
    notes = f"{NUMEL / 1e6:.1f} M elements in {len(SHAPES)} tensors"
    yield compared(
        "codec",
        f"{name}: float32's bytes over an offer's",
        "",
        up,
        [1.0],
        goal=_least(name),
        notes=notes,
    )
    if isinstance(codec, PowerSGD):
        large = [
            (t.reshape(-1), tuple(t.shape))
            for t in split(values, SHAPES)
            if codec.rank_of(tuple(t.shape))
        ]
        raw = sum(t.nbytes for t, _ in large)
        packed, _ = encode_packet(
            codec, torch.cat([t for t, _ in large]), [shape for _, shape in large]
        )
        goal = ">= 60" if codec.rank == 4 else ""
        yield compared(
            "codec",
            f"{name}: the same, of its matrices",
            "",
            [raw / packed.nbytes],
            [1.0],
            goal=goal,
        )
    seal = sealed(codec, [values, values.flip(0)])
    sent = seal.without(seal.members[0].peer, seal.members[0].seq)
    down = [4 * NUMEL / sum(packet.nbytes for packet in sent.sections.values())]
    yield plain(
        "codec", f"{name}: float32's bytes over those that come back, two members", "", down
    )


def _least(name: str) -> str:
    return LEAST.get(name, "")


def fragment() -> Fragment:
    return Layout(
        [str(i) for i in range(len(SHAPES))], [torch.empty(shape) for shape in SHAPES], 1
    ).fragments[0]


def sealed(codec: Codec, deltas: Sequence[Tensor]) -> Seal:
    n = len(deltas)
    packets = [encode_packet(codec, values, SHAPES)[0] for values in deltas]
    offers = [
        Offer(
            peer=PeerId(str(i), 1),
            fragment=0,
            seq=1,
            tokens=1,
            steps=1,
            genesis=b"",
            key=Key(0, 0, b""),
            due=True,
            sections={"delta": packet},
        )
        for i, packet in enumerate(packets)
    ]
    weights = (1 / n,) * n
    sections = (
        SealPayload(codec, "mean", fragment(), Buffers())
        .merge(offers, weights, torch.empty(NUMEL))
        .sections
    )
    members = tuple(offer.entry for offer in offers)
    payload = payload_digest(sections, weights)
    return Seal(
        sealer=offers[0].peer,
        fragment=0,
        base=b"",
        key=Key(1, 1, b""),
        members=members,
        weights=weights,
        absent=(),
        reason="",
        payload=payload,
        sections=sections,
    )


# ── seconds ───────────────────────────────────────────────────────────────────────────────────────


def pairs(
    work: Callable[[], object], floor: Callable[[], object]
) -> tuple[list[float], list[float]]:
    """Both, side by side, `REPEATS` times."""
    found = [(time_of(work), time_of(floor)) for _ in range(WARM + REPEATS)][WARM:]
    return [w for w, _ in found], [f for _, f in found]


def times(name: str, codec: Codec, values: Tensor) -> Iterator[Result]:
    out, buffers = torch.empty(NUMEL), Buffers()
    packet, memory = encode_packet(codec, values, SHAPES)
    if isinstance(codec, PowerSGD):
        yield from _products(name, codec, values, memory)
    else:
        allocate = buffers.take_bytes  # as in training, which reuses memory
        one = pairs(
            lambda: encode_packet(codec, values, SHAPES, allocate=allocate),
            lambda: out.copy_(values),
        )
        yield compared("codec", f"{name}: encode over a copy", "s", *one, goal=PASSES.get(name, ""))
        one = pairs(lambda: decode_packet(packet, SHAPES, out), lambda: out.copy_(values))
        yield compared("codec", f"{name}: decode over a copy", "s", *one)
    deltas = [values, values.flip(0)]
    seal, way_back = sealed(codec, deltas), SealPayload(codec, "mean", fragment(), Buffers())
    merged = pairs(
        lambda: way_back.merged(seal, False, out)[0],
        lambda: weighted_mean(deltas, seal.weights, out),
    )
    yield compared(
        "codec", f"{name}: two members decoded and merged, over merging float32", "s", *merged
    )


def _products(
    name: str, codec: PowerSGD, values: Tensor, memory: Tensor | None
) -> Iterator[Result]:
    """Encode and decode over the matrix products and the QR that they need: A Qᵀ, QR, Pᵀ A, P Q."""
    out = torch.empty(NUMEL)
    large = [
        (t, codec.rank_of(tuple(t.shape)))
        for t in split(values, SHAPES)
        if codec.rank_of(tuple(t.shape))
    ]
    room = [torch.empty(as_matrix(tuple(t.shape))) for t, _ in large]
    starts = [torch.randn(r, r_m.shape[1]) for (_, r), r_m in zip(large, room, strict=True)]

    def floor() -> None:
        for (a, _), q, product in zip(large, starts, room, strict=True):
            a = a.view(product.shape)
            p = torch.linalg.qr(a @ q.t()).Q
            torch.mm(p, p.t() @ a, out=product)  # not (a.t() @ p).t(), which takes twice as long

    def work() -> None:
        packet, _ = encode_packet(codec, values, SHAPES, memory)
        decode_packet(packet, SHAPES, out)

    yield compared(
        "codec",
        f"{name}: encode and decode over products and QR",
        "s",
        *pairs(work, floor),
        goal="<= 1.15",
    )


# ── memory and loss ───────────────────────────────────────────────────────────────────────────────


def peak(codec: Codec, values: Tensor) -> float:
    """Peak memory of an encoding in bytes per element, including the packet."""
    # Memory that the first call loads is not the codec's.
    encode_packet(codec, torch.zeros(64 * 64), [(64, 64)])
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    # The peak is counted from here on.
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _resident("VmRSS")
    encode_packet(codec, values, SHAPES)
    return max(0, _resident("VmHWM") - before) * 1024 / NUMEL


def _resident(what: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what))


def errors() -> Iterator[Result]:
    """‖A − decode(encode(A))‖ / ‖A‖ on the text example's own deltas: of the first, and of Δ +
    residual after some rounds."""
    found: dict[str, list[float]] = {name: [] for name in MEASURED}
    deltas, shapes = text_deltas()
    for name, codec in MEASURED.items():
        feedback = Feedback(codec, shapes, Buffers())
        for change in deltas:
            whole = change if feedback.residual is None else change + feedback.residual
            packet = feedback.encode(change)
            found[name].append(float((whole - decode_packet(packet, shapes)).norm() / whole.norm()))
            feedback.commit()
        last = f"with error feedback, the last: {found[name][-1]:.3g}"
        notes = f"text example, {STEPS} steps of AdamW each; {last}"
        yield plain("codec", f"{name}: relative error", "", found[name], notes)


def text_deltas() -> tuple[list[Tensor], Shapes]:
    torch.manual_seed(0)
    model, (text, _) = TextModel(), read_corpus(0, 1)
    parameters = list(model.parameters())
    (whole,) = Layout([str(i) for i in range(len(parameters))], parameters, 1).fragments
    optimizer, deltas = AdamW(parameters, lr=1e-3), []
    for _ in range(ROUNDS):
        before = flat(whole, parameters)
        for _ in range(STEPS):
            starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,))
            x, y = windows(text, starts)
            model(x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
        deltas.append(delta(before, flat(whole, parameters)))
    return deltas, whole.shapes
