"""Checkpoints that older code wrote, in format 1, load here with nothing lost, and learners go on
from them.

The files are `tests/fixtures/CASE-LEARNER.pt`, written once. `write_checkpoints.py` beside them
shows how commit c6632d9 wrote them, and where each learner stood; `write_late_checkpoints.py` wrote
those of learners that adopt late and choose their period, from commit bb59863. They stay as they
are: if you change the format, write new ones beside them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import AdamW, Optimizer

from mend_optim import (
    AutoPeriod,
    DiLoCoNesterov,
    Int4,
    MendOptimizer,
    MomentSchedule,
    Nesterov,
    PowerSGD,
    UsageError,
)
from tests.support.checkpoints import Saved, adam, anchors, assert_alike, load, newcomer, stored
from tests.support.learners import (
    Watch,
    cluster,
    descent,
    drive,
    parameters,
    same,
    settle,
    start,
    wave,
    weights,
)

FIXTURES = Path(__file__).parents[1] / "fixtures"
STEPS = 6  # that learners go on for


def narrow() -> Optimizer:
    return AdamW([Parameter(torch.zeros(7).bfloat16()), Parameter(torch.zeros(5))], lr=0.1)


def plain() -> Optimizer:
    return descent(0.0)


@dataclass(frozen=True)
class Old:
    """Two learners' files, of one model and of these options. `tokens`: of each fragment, those
    that are in the anchor, those that are in none yet, and those that will have been `dropped`."""

    make: Callable[[], Optimizer]
    tokens: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)
    names: str = "ab"
    groups: tuple[int, ...] = (0, 0)  # that each added
    dropped: int = 0


HALVES: dict[str, Any] = {"sync_every": 4, "adopt_after": 3, "fragments": 2, "tokens_per_step": 10}
STILL: dict[str, Any] = {"sync_every": 1000}
MOVING: dict[str, Any] = {"outer": DiLoCoNesterov(lr=0.7, momentum=0.9), "codec": "bf16"}
STAYS, STAYS_BACK = (PowerSGD(rank=1, min_ratio=1, back=back) for back in ("exact", "same"))
OFTEN, ALWAYS = (MomentSchedule(first=1, second=second) for second in (2, 1))
OLD = {
    "momentum": Old(adam, (190, 190), {**HALVES, **MOVING, "moments": OFTEN}),
    "int4": Old(adam, (190, 190), {**HALVES, "codec": Int4(back="same")}),
    "powersgd": Old(adam, (190, 190), {**HALVES, "codec": STAYS_BACK}),
    "rounding": Old(narrow, (14,), {"sync_every": 3, "adopt_after": 2}),
    # From here on not in lockstep: after a rest, a seal that was missed, or a group that a learner
    # has yet to fetch, boundaries are at different steps, and one would wait for the other.
    "closing": Old(adam, (22,), {"sync_every": 8, "codec": STAYS}),
    "missed": Old(plain, (14,), {"sync_every": 2}),
    "added": Old(plain, (14, 10, 0), {"sync_every": 2}, groups=(2, 1)),
    "dropped": Old(plain, (38,), {"sync_every": 4}, dropped=3),
    "inherited": Old(plain, (9,), {"sync_every": 4}),
    "replaced": Old(adam, (17,), {**STILL, "moments": ALWAYS}, names="bc", dropped=4),
    "offline": Old(plain, (17,), STILL),
    "alone": Old(adam, (42, 42), STILL, groups=(1, 0)),  # and a newcomer
}
GENTLE = Nesterov(gain=0.9, momentum=0.5)
LATER = {
    "late": Old(adam, (190, 190), {**HALVES, "outer": GENTLE}),
    "chosen": Old(adam, (12,), {"sync_every": AutoPeriod(most=4)}),
}
CASES = {**OLD, **LATER}
FILES = sorted(path.stem for path in FIXTURES.glob("*.pt"))
NAMED = {f"{case}-{name}" for case, old in CASES.items() for name in old.names} - {"alone-b"}


def read_file(content: bytes) -> Saved:
    whole = torch.load(io.BytesIO(content), weights_only=True)
    return whole["weights"], whole["optimizer"]


@cache
def content_of(file: str) -> bytes:
    return (FIXTURES / f"{file}.pt").read_bytes()


def saved_in(file: str) -> Saved:
    return read_file(content_of(file))


def fragments_in(file: str) -> list[dict[str, Any]]:
    fragments: list[dict[str, Any]] = saved_in(file)[1]["mend"]["fragments"]
    return fragments


def add_groups(optimizer: MendOptimizer, count: int) -> None:
    for _ in range(count):
        optimizer.add_param_group({"params": weights(0.0), "lr": 2.0})


def loader(file: str, listens: bool = False) -> MendOptimizer:
    """An optimizer for what is in that file, not loaded yet: alone, or one that others may call.
    Close it."""
    case, name = file.split("-")
    old = CASES[case]
    make = partial(newcomer, name=name) if listens else MendOptimizer
    optimizer: MendOptimizer = make(old.make(), **old.options)
    add_groups(optimizer, old.groups[old.names.index(name)])
    return optimizer


# ── what is in the files ──────────────────────────────────────────────────────────────────────────

TENSORS = {
    "anchor",
    "velocity",
    "delta",
    "residual",
    "stayed",
    "lost",
    "rounding",
    "correction",
    "returned",
    "memory",
    "returned_memory",
    "own exp_avg",
    "latest exp_avg",
    "latest exp_avg_sq",
    "mean exp_avg",
    "mean exp_avg_sq",
    "newcomer exp_avg",
    "newcomer exp_avg_sq",
}
WHOLE = {
    "format",
    "model",
    "step",
    "tokens",
    "head_start",
    "weights",
    "history",
    "fragments",
    "content",
}
FRAGMENT = {
    "lineage",
    "claim",
    "mark",
    "banked",
    "dropped_tokens",
    "pending",
    "untaken",
    "adopt_at",
    "averaged",
    "last",
    "owes",
    "replace",
    "tensors",
}
PENDING = {
    "claim",
    "seq",
    "step",
    "tokens",
    "steps",
    "follows",
    "due",
    "missed",
    "closing",
    "again",
}


#: The entries that came with late adoption. They are left out where they are 0, or empty.
LATER_WHOLE = {"rate", "period"}
LATER_FRAGMENT = {"banked_rate", "disagrees"}
LATER_PENDING = {"rate"}
LATER_TENSORS = {"disagreement", "scale", "velocity_rate"}


def told(value: Any) -> bool:
    """Whether it is more than what stands for nothing."""
    return any(value) if isinstance(value, list) else bool(value)


def test_the_files_hold_all_that_the_format_has() -> None:
    """Every field and tensor, each with something in it, so that it is seen to be read."""
    assert sorted(NAMED) == FILES
    first = [file for file in FILES if file.split("-")[0] in OLD]
    wholes, fragments, pendings = entries_in(first)
    for entries, keys in ((wholes, WHOLE), (fragments, FRAGMENT), (pendings, PENDING)):
        assert all(entry.keys() == keys for entry in entries)
        assert {key for entry in entries for key in keys if told(entry[key])} == keys
    tensors = [named for entry in fragments for named in entry["tensors"].items()]
    assert {name for name, tensor in tensors if tensor.any()} == TENSORS
    assert {entry["due"] for entry in pendings} == {True, False}
    assert {len(whole["fragments"]) for whole in wholes} == {0, 1, 2, 3}
    inherited = [
        "{}#{:x}".format(*entry["pending"]["claim"]) != whole["history"][-1]
        for whole in wholes
        for entry in whole["fragments"]
        if entry["pending"]
    ]
    assert set(inherited) == {True, False}  # the work of this process, and of its former one
    assert sum(len(content_of(file)) for file in FILES) < 200_000


def entries_in(files: Iterable[str]) -> tuple[list[Any], list[Any], list[Any]]:
    """Of these files: the learners, their fragments, and the pending offers of those."""
    wholes = [saved_in(file)[1]["mend"] for file in files]
    fragments = [entry for whole in wholes for entry in whole["fragments"]]
    return wholes, fragments, [entry["pending"] for entry in fragments if entry["pending"]]


def test_the_later_files_hold_all_that_came_with_late_adoption() -> None:
    kinds = entries_in(sorted(NAMED - {file for file in FILES if file.split("-")[0] in OLD}))
    _, fragments, _ = kinds
    bases = (WHOLE, FRAGMENT, PENDING)
    more = (LATER_WHOLE, LATER_FRAGMENT, LATER_PENDING)
    for entries, base, added in zip(kinds, bases, more, strict=True):
        assert {
            key for entry in entries for key in entry.keys() - base if told(entry[key])
        } == added
    tensors = [named for entry in fragments for named in entry["tensors"].items()]
    assert {name for name, tensor in tensors if tensor.any()} >= LATER_TENSORS


# ── there and back ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("listens", [False, True], ids=["alone", "with peers"])
@pytest.mark.parametrize("file", FILES)
def test_what_was_loaded_is_saved_again_to_the_bit(file: str, listens: bool) -> None:
    """All of it, the digest of it all included, until the first step."""
    with closing(loader(file, listens)) as optimizer:
        load(optimizer, saved_in(file))
        assert_alike(stored(optimizer.state_dict()), saved_in(file)[1])
        whole, status = saved_in(file)[1]["mend"], optimizer.status()
        assert (status.step, status.tokens) == (whole["step"], whole["tokens"])


def begun(entry: dict[str, Any], step: int) -> dict[str, Any]:
    """One fragment of a checkpoint as a learner that has gone on from it holds it, before its first
    step: a correction that waits for no step is applied; the claim on what is trained from now on
    is its own, so only that on what was trained before and is in no offer is left."""
    offered = entry["pending"]["steps"] if entry["pending"] else 0
    claimed = step - entry["banked"][0] > offered
    held = {key: value for key, value in entry.items() if claimed or key != "claim"}
    if held["untaken"] and held["adopt_at"] is None:
        assert not held["replace"]
        held["untaken"] = False
        held["tensors"] = {name: t for name, t in held["tensors"].items() if name != "correction"}
    return held


@pytest.mark.parametrize("file", [f for f in FILES if not f.startswith(("alone", "replaced"))])
def test_a_learner_that_went_on_from_it_holds_all_of_it(file: str) -> None:
    """In its engine, its worker and its mailbox. The offers are encoded again, and
    lose the same part again."""
    saved = saved_in(file)
    with closing(loader(file, listens=True)) as optimizer:
        load(optimizer, saved)
        optimizer.join()
        state = stored(optimizer.state_dict())
        kept, old = state.pop("mend"), saved[1].pop("mend")
        assert same(parameters(optimizer), saved[0])
        assert_alike(state, saved[1])
        assert kept["history"][:-1] == old["history"]
        # Files of today tell the sketch of narrow weights in float32.
        rest = WHOLE - {"history", "fragments", "content", "weights"}
        is_wide = all(p.dtype == torch.float32 for p in parameters(optimizer))
        assert (kept["weights"] == old["weights"]) is is_wide
        assert_alike({key: kept[key] for key in rest}, {key: old[key] for key in rest})
        for now, then in zip(kept["fragments"], old["fragments"], strict=True):
            expected = begun(then, old["step"])
            assert_alike({key: now[key] for key in expected}, expected)
            assert now.keys() == then.keys()


# ── going on ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("case", CASES)
def test_learners_go_on_from_it_and_every_token_counts_once(case: str) -> None:
    old, watches = CASES[case], [Watch(), Watch()]
    files = [f"{case}-{name}" for name in old.names]
    each = [{"name": name, "on_event": watches[i]} for i, name in enumerate(old.names)]
    with cluster(old.make(), old.make(), each=each, started=False, **old.options) as made:
        for optimizer, file, groups in zip(made, files, old.groups, strict=True):
            add_groups(optimizer, groups)
            if file in FILES:
                load(optimizer, saved_in(file))
            add_groups(optimizer, max(old.groups) - groups)
        steps = [optimizer.status().step for optimizer in made]
        start(made)
        for file, watch in zip(files, watches, strict=True):
            if file in FILES:
                assert watch.until("restored")[0].facts["intact"]
        drive(made, STEPS, wave)
        settle(made)
        statuses = [optimizer.status() for optimizer in made]
        assert [s.step - step for s, step in zip(statuses, steps, strict=True)] == [STEPS] * 2
        assert [(s.unmerged_tokens, s.superseded_tokens) for s in statuses] == [(0, 0)] * 2
        assert sum(s.dropped_tokens for s in statuses) == old.dropped
        more = 2 * STEPS * old.options.get("tokens_per_step", 1)
        ours, theirs = (s.fragments for s in statuses)
        assert [f.tokens + old.dropped for f in ours] == [tokens + more for tokens in old.tokens]
        assert [f.digest for f in ours] == [f.digest for f in theirs]
        assert same(anchors(made[0]), anchors(made[1]))


# ── damaged ───────────────────────────────────────────────────────────────────────────────────────


def with_a_wrong_bit(content: bytes, tensor: Tensor) -> bytes:
    """The file with the lowest bit of the tensor's first element changed: no NaN, no other size,
    hardly another value. `torch.load` does not notice."""
    values = tensor.numpy().tobytes()
    assert values in content
    return content.replace(values, bytes([values[0] ^ 1]) + values[1:])


@pytest.mark.parametrize("file", [file for file in FILES if fragments_in(file)])
def test_one_wrong_bit_in_a_tensor_is_refused_and_nothing_changes(file: str) -> None:
    tensors = [tensor for entry in fragments_in(file) for tensor in entry["tensors"].values()]
    with closing(loader(file)) as optimizer:
        before = [p.clone() for p in parameters(optimizer)], stored(optimizer.state_dict())
        for tensor in tensors:
            if not tensor.any():
                continue  # zeros are everywhere in a file
            _, state = read_file(with_a_wrong_bit(content_of(file), tensor))
            with pytest.raises(UsageError, match="digest of what was saved: it is damaged"):
                optimizer.load_state_dict(state)
        assert_alike((parameters(optimizer), stored(optimizer.state_dict())), before)
