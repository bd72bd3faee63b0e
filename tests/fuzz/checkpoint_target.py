"""Checkpoints that anybody may have written. An input is a list of edits of a real one: torch reads
the file itself, and gives tensors and plain containers. Only `UsageError` is raised. What is taken
is saved to the same again, and a learner goes on from it."""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mend_optim.codecs.buffers import Buffers
from mend_optim.codecs.packing import MOST
from mend_optim.codecs.powersgd import PowerSGD
from mend_optim.engine.accounts import Totals
from mend_optim.engine.effects import Export, Prepare, Reoffer
from mend_optim.engine.pending import Pending
from mend_optim.engine.standing import Standing, resumed, standing_of
from mend_optim.errors import UsageError
from mend_optim.model.layout import Layout
from mend_optim.protocol.lineage import INCARNATIONS, Claim, Lineage, PeerId
from mend_optim.protocol.messages import SIZES
from mend_optim.protocol.peer_limits import COUNTER_LIMIT
from mend_optim.worker.anchors import Anchors
from mend_optim.worker.checkpoint import MOMENTS as CHECKPOINT_MOMENTS
from mend_optim.worker.checkpoint import (
    TENSORS,
    Checkpoint,
    Kept,
    kept_correction,
    newest,
    state_digest,
    to_state,
)
from mend_optim.worker.checkpoint_reader import from_state
from mend_optim.worker.outer import Nesterov
from tests.fuzz.payload_targets import BUFFERS, MOMENTS, WEIGHTS, buffer_values, drawn
from tests.fuzz.target import Target, joined, parted, same

ME = PeerId("me", 2**61)
AUTHOR = PeerId("a", 7)
#: The largest number of edits of one input.
EDITS = 16


@cache
def layout() -> Layout:
    tensors = [torch.zeros(shape) for shape in WEIGHTS.values()]
    return Layout(list(WEIGHTS), tensors, 2, buffers=list(BUFFERS.items()))


def anchors() -> Anchors:
    starts = [drawn(fragment.numel) for fragment in layout().fragments[:2]]
    return Anchors(
        layout(),
        [*starts, buffer_values()],
        codec=PowerSGD(rank=2, min_ratio=1.0, back="same"),
        outer=Nesterov(),
        scheme="norm_preserving",
        buffers=Buffers(),
        moments=MOMENTS[:2],
    )


def _standing(has_pending: bool) -> Standing:
    lineage = Lineage(tokens=50, version=3, digest=b"d" * 16, genesis=b"g" * 16, merged={AUTHOR: 2})
    claim = Claim(AUTHOR, 2)
    pending = Pending(claim=claim, seq=3, step=8, tokens=40, steps=4, due=True, rate=0.5)
    return Standing(
        lineage=lineage,
        claim=claim,
        cycle_start=4,
        settled=Totals(4, 40, 0.25),
        dropped_tokens=1,
        pending=pending if has_pending else None,
        correction_pending=True,
        adopt_at=9,
        averaged={"first": 1, "second": 2},
        last=Totals(2, 20),
        has_unsent_residual=True,
        disagrees=True,
    )


@cache
def original() -> dict[str, Any]:
    """A checkpoint that has all there can be."""
    kept = []
    for fragment in layout().fragments[:2]:
        n, k = fragment.numel, len(fragment.tensors)
        tensors = {name: drawn(n, seed) for seed, name in enumerate(TENSORS)}
        tensors |= {"velocity_rate": torch.tensor([0.5]), "scale": torch.full((k,), 1.5)}
        tensors |= {"memory": drawn(12), "returned_memory": drawn(3)}
        tensors[SIZES] = torch.tensor([1.0, 0.5, 2.0, 0.25, 4.0])
        counted = torch.cat((drawn(n).abs_(), torch.full((k,), 3.0)))
        tensors |= {f"{kind}exp_avg_sq": counted for kind in CHECKPOINT_MOMENTS}
        kept.append(Kept(_standing(True), tensors))
    values = {name: buffer_values() for name in ("anchor", "delta", "correction", "base")}
    kept.append(Kept(replace(_standing(True), disagrees=False), values, replace=True))
    whole = Checkpoint(
        step=10,
        tokens=100,
        rate=1.5,
        head_start=5,
        period=4,
        weights="00ff 11",
        history=("a#7", "b#1"),
        fragments=tuple(kept),
    )
    return to_state(whole, layout())


# ── edits ─────────────────────────────────────────────────────────────────────────────────────────


def places(inside: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to everything in containers, the containers too."""
    keyed = inside.items() if isinstance(inside, dict) else ()
    keyed = enumerate(inside) if isinstance(inside, list) else keyed
    for key, value in keyed:
        yield (*at, key)
        yield from places(value, (*at, key))


@cache
def all_places() -> list[tuple[Any, ...]]:
    return list(places(original()))


def at(state: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        state = state[key]
    return state


def _numbers(payload: bytes) -> list[float]:
    return [number for (number,) in struct.iter_unpack("<f", payload[: len(payload) // 4 * 4])]


def _integer(payload: bytes) -> int:
    return int.from_bytes(payload[:10], "little", signed=True)


def _nested(payload: bytes) -> Any:
    value: Any = []
    for _ in range(40 * len(payload)):
        value = [value]
    return value


def _one_number(old: Any, payload: bytes) -> Any:
    """The tensor with one number changed; one that only says that it is huge stays as it is."""
    if not isinstance(old, Tensor) or old.numel() == 0 or len(payload) < 5:
        return old
    if not old.is_contiguous():
        return old
    new = old.clone()
    place = payload[0] % old.numel()
    new[place] = _numbers(payload[1:5])[0] if new.is_floating_point() else payload[1]
    return new


#: New values, made of the old one and the bytes of the edit. An edit says which by its place here.
VALUES: tuple[Callable[[Any, bytes], Any], ...] = (
    lambda old, payload: _integer(payload),
    lambda old, payload: payload.decode(errors="surrogateescape"),
    lambda old, payload: None,
    lambda old, payload: bool(payload),
    lambda old, payload: [],
    lambda old, payload: {},
    lambda old, payload: torch.tensor(_numbers(payload)),
    lambda old, payload: torch.tensor(_numbers(payload)).double(),
    lambda old, payload: torch.zeros(1).expand(1 << 36),
    lambda old, payload: torch.zeros(len(payload), device="meta"),
    lambda old, payload: next(iter(_numbers(payload)), 0.5),
    lambda old, payload: [payload[8:].decode(errors="replace"), _integer(payload[:8]), 3],
    _one_number,
    lambda old, payload: [*old, *old] if isinstance(old, list) else old,
    lambda old, payload: _nested(payload),
    lambda old, payload: payload,
)


def _edit_entry(container: Any, key: Any, old: Any, edit: bytes) -> None:
    """Remove an entry of a dict or a list, put it under another name, or change its value."""
    if edit[2] == 0xFF:
        del container[key]
    elif edit[2] == 0xFE and isinstance(container, dict):
        container[edit[3:].decode(errors="replace")] = old
    else:
        container[key] = VALUES[edit[2] % len(VALUES)](old, edit[3:])


def edited(data: bytes) -> dict[str, Any]:
    """The checkpoint after the edits. The first byte says whether its digest is made right."""
    state = copy.deepcopy(original())
    for edit in parted(data[1:])[:EDITS]:
        if len(edit) < 3:
            continue
        *above, key = all_places()[int.from_bytes(edit[:2], "little") % len(all_places())]
        try:
            container = at(state, tuple(above))
            old = container[key]
        except (LookupError, TypeError):
            continue  # an earlier edit took the place away
        if isinstance(container, dict | list):
            _edit_entry(container, key, old, edit)
    if data[:1] == b"\1":
        with suppress(TypeError, ValueError, RuntimeError, RecursionError):
            state["content"] = state_digest(state)
    return state


def go_on(checkpoint: Checkpoint) -> None:
    """A learner goes on from a checkpoint, as far as its bytes decide what happens."""
    mine = anchors()
    newest("a", checkpoint)
    for p, kept in enumerate(checkpoint.fragments):
        progress = resumed(ME, p, kept.standing, checkpoint.totals)
        standing_of(progress)
        mine.load(p, kept.tensors)
        fragment = layout().fragments[p]
        if kept.standing.correction_pending:
            like = buffer_values() if p == 2 else torch.empty(fragment.numel)
            kept_correction(fragment, kept, like)
        if kept.standing.pending:
            mine.perform(Reoffer(fragment=p, seq=1))
        tensor = buffer_values() if p == 2 else drawn(fragment.numel, 9)
        mine.perform(Prepare(fragment=p, seq=2, tensor=tensor))
        mine.perform(Export(p, kept.standing.lineage))
        mine.save(p)


def check_told(checkpoint: Checkpoint) -> None:
    """Whatever peers would be told of is within their limits."""
    for kept in checkpoint.fragments:
        lineage, claim = kept.standing.lineage, kept.standing.claim
        for peer, seq in (*lineage.merged.items(), (claim.author, claim.settled)):
            assert 0 <= peer.incarnation < INCARNATIONS
            assert 0 <= seq <= COUNTER_LIMIT
        assert lineage.tokens <= COUNTER_LIMIT
        assert lineage.version <= COUNTER_LIMIT


def checkpoint(data: bytes) -> bool:
    """A checkpoint after some edits."""
    state = edited(data)
    try:
        taken = from_state(state, layout())
    except UsageError:
        return False
    check_told(taken)
    again = from_state(to_state(taken, layout()), layout())
    for field in fields(Checkpoint):
        if field.name != "fragments":
            same(getattr(again, field.name), getattr(taken, field.name), field.name)
    same(
        [kept.standing for kept in again.fragments],
        [kept.standing for kept in taken.fragments],
        "there and back",
    )
    assert all(
        bool((tensor.abs() <= MOST * 4).all())
        for kept in taken.fragments[:2]
        for tensor in kept.tensors.values()
    )
    go_on(taken)
    return True


def _edit(path: tuple[Any, ...], kind: int, payload: bytes = b"") -> bytes:
    return all_places().index(path).to_bytes(2, "little") + bytes([kind]) + payload


def seeds() -> Iterator[bytes]:
    yield b"\1"
    yield b"\0" + joined([_edit(("step",), 3)])
    fragment = ("fragments", 0)
    yield b"\1" + joined([_edit(("step",), 0, b"\x40"), _edit(("tokens",), 0, b"\0\x40")])
    yield b"\1" + joined([_edit((*fragment, "pending"), 2), _edit((*fragment, "adopt_at"), 2)])
    yield b"\1" + joined([_edit((*fragment, "tensors", "memory"), 6, struct.pack("<2f", 1, 2))])
    changed = struct.pack("<Bf", 3, 0.5)
    for name in ("anchor", "latest exp_avg_sq", "mean exp_avg_sq", SIZES):
        yield b"\1" + joined([_edit((*fragment, "tensors", name), 12, changed)])
    fewer = struct.pack("<Bf", original()["fragments"][0]["tensors"]["anchor"].numel(), -5)
    yield b"\1" + joined([_edit((*fragment, "tensors", "latest exp_avg_sq"), 12, fewer)])
    yield b"\1" + joined([_edit((*fragment, "tensors", "own exp_avg_sq"), 0xFE, b"own exp_avg")])
    yield b"\1" + joined([_edit((*fragment, "owes"), 0xFF)])
    yield b"\1" + joined([_edit((*fragment, "claim"), 11, b"\7" + bytes(7) + b"name")])
    yield b"\1" + joined([_edit(("history",), 13)])


TARGETS = (Target("checkpoint", checkpoint, seeds, weight=5, before_list=1, growth=400),)
