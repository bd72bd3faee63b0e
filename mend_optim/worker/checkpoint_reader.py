"""A checkpoint out of plain containers: whatever is damaged, or another model's, is refused before
anything changes. See `checkpoint.py` for the format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from mend_optim.engine.accounts import Totals
from mend_optim.engine.moment_schedule import ORDERS
from mend_optim.engine.pending import Pending
from mend_optim.engine.standing import Standing
from mend_optim.errors import UsageError
from mend_optim.model.layout import Fragment, Layout
from mend_optim.protocol.handshake import ADDED, first_difference
from mend_optim.protocol.lineage import DIGEST_BYTES, Claim, Lineage, PeerId
from mend_optim.worker.checkpoint import (
    FORMAT,
    MEMORIES,
    MOMENTS,
    TENSORS,
    Checkpoint,
    Kept,
    state_digest,
)
from mend_optim.worker.merge import finite

LIMIT = 1 << 63  # of what fits a message
REMEDY = "load the checkpoint that belongs to this model, or `del state_dict['mend']` to take the inner state alone"

T = TypeVar("T")


class _Reader:
    """Takes values of the expected type out of a mapping that anybody may have written."""

    def __init__(self, where: str, values: object) -> None:
        self._where, self._values = where, values
        if not isinstance(values, Mapping):
            raise self.fault("", values, "a dict")

    def fault(self, key: str, value: object, bound: str) -> UsageError:
        shown = repr(value)[:80]
        return UsageError(
            f"{self._where}{f'[{key!r}]' if key else ''} must be {bound}, got {shown}; {REMEDY}"
        )

    def take(self, key: str, kind: type[T], optional: bool = False) -> T:
        assert isinstance(self._values, Mapping)
        if key not in self._values:
            raise UsageError(
                f"{self._where}[{key!r}] is missing: the checkpoint is damaged; {REMEDY}"
            )
        value = self._values[key]
        wrong = not isinstance(value, kind) or (isinstance(value, bool) and kind is int)
        if wrong and not (optional and value is None):
            raise self.fault(key, value, f"of type {kind.__name__}")
        return cast(T, value)

    def __contains__(self, key: str) -> bool:
        return isinstance(self._values, Mapping) and key in self._values

    def inside(self, key: str) -> _Reader:
        return _Reader(f"{self._where}[{key!r}]", self.take(key, dict))

    def flag(self, key: str) -> bool:
        """One that the first checkpoints of this format do not have, and whose learners had no such
        thing."""
        return key in self and self.take(key, bool)

    def count(self, key: str) -> int:
        value = self.take(key, int)
        if not 0 <= value < LIMIT:
            raise self.fault(key, value, "an int >= 0, in 63 bits")
        return value

    def pair(self, entry: object) -> Sequence[object]:
        if isinstance(entry, Sequence) and len(entry) == 2:
            return entry
        raise self.fault("model", entry, "a list of [field, value]")

    def digest(self, key: str) -> bytes:
        text = self.take(key, str)
        try:
            digest = bytes.fromhex(text)
        except ValueError:
            digest = b""
        if len(digest) != DIGEST_BYTES:
            raise self.fault(key, text, "a digest in hex")
        return digest

    def numbered(self, key: str) -> tuple[PeerId, int]:
        """[name, incarnation, number]"""
        return self.peer(key, self.take(key, list))

    def peer(self, key: str, entry: object) -> tuple[PeerId, int]:
        if isinstance(entry, Sequence) and [type(part) for part in entry] == [str, int, int]:
            name, incarnation, number = entry
            if 0 <= incarnation < LIMIT and 0 <= number < LIMIT:
                return PeerId(name, incarnation), number
        raise self.fault(key, entry, "[name, incarnation, number]")


def from_state(state: object, layout: Layout) -> Checkpoint:
    """The inverse of `to_state`, for the model of `layout`. Raises `UsageError` for what is damaged
    or foreign."""
    read = _Reader("state_dict['mend']", state)
    form = read.take("format", int)
    if form != FORMAT:
        raise read.fault("format", form, f"{FORMAT}, the one that this version writes")
    theirs = tuple(
        (str(field), str(value)) for field, value in map(read.pair, read.take("model", list))
    )
    ours = layout.fingerprint()
    here, there = (sum(name.startswith(ADDED) for name, _ in model) for model in (ours, theirs))
    if here != there:
        raise UsageError(
            f"state_dict must have the groups that were added after wrapping, {here} here, got {there}: wrap what was "
            f"wrapped, add the same groups with add_param_group(), then load; {REMEDY}"
        )
    different = first_difference(ours, theirs)
    if different:
        raise UsageError(
            f"state_dict must be of the same model, got another one: {different}; {REMEDY}"
        )
    entries = read.take("fragments", list)
    if entries and len(entries) != len(layout.fragments):
        raise UsageError(
            f"state_dict must have fragments={len(layout.fragments)}, got {len(entries)}: "
            f"pass the same `fragments` as the learner that saved it; {REMEDY}"
        )
    totals = Totals(read.count("step"), read.count("tokens"))
    kept = [
        _from_fragment(
            _Reader(f"state_dict['mend']['fragments'][{p}]", entry), layout.fragments[p], totals
        )
        for p, entry in enumerate(entries)
    ]
    checkpoint = Checkpoint(
        step=totals.step,
        tokens=totals.tokens,
        head_start=read.count("head_start"),
        weights=read.take("weights", str),
        history=tuple(map(str, read.take("history", list))),
        fragments=tuple(kept),
    )
    _check_content(read, cast(Mapping[str, Any], state))
    return checkpoint


def _check_content(read: _Reader, state: Mapping[str, Any]) -> None:
    saved_content = read.take("content", str)
    try:
        found = state_digest(state)
    except (TypeError, ValueError, RuntimeError) as error:
        raise read.fault("", f"({error})", "what state_dict() gave") from error
    if found != saved_content:
        raise read.fault(
            "content", found, f"{saved_content}, the digest of what was saved: it is damaged"
        )


def _numel(name: str, fragment: Fragment) -> int | None:
    """Of a tensor of that name; a moment has one more for each of its tensors."""
    if name.startswith(MOMENTS):
        return fragment.numel + len(fragment.tensors)
    return None if name in MEMORIES else fragment.numel


def _from_fragment(read: _Reader, fragment: Fragment, totals: Totals) -> Kept:
    origin = read.inside("lineage")
    merged = dict(origin.peer("merged", entry) for entry in origin.take("merged", list))
    lineage = Lineage(
        tokens=origin.count("tokens"),
        version=origin.count("version"),
        digest=origin.digest("digest"),
        genesis=origin.digest("genesis"),
        merged=merged,
    )
    pending = read.take("pending", dict, optional=True)
    last = Totals(*_counts(read, "last", totals)) if "last" in read else Totals()
    settled = _counts(read, "banked", totals)
    tensors = {
        name: _tensor(read, name, tensor, _numel(str(name), fragment))
        for name, tensor in read.take("tensors", dict).items()
        if name in (*TENSORS, *MEMORIES) or str(name).startswith(MOMENTS)
    }
    correction_pending = read.take("untaken", bool)
    needed = {
        "anchor",
        *(["delta"] if pending is not None else []),
        *(["correction"] if correction_pending else []),
    }
    if needed - set(tensors):
        raise UsageError(
            f"state_dict lacks the tensor {min(needed - set(tensors))!r}: it is damaged; {REMEDY}"
        )
    standing = Standing(
        lineage=lineage,
        claim=Claim(*read.numbered("claim")),
        cycle_start=read.take("mark", int),
        settled=Totals(*settled),
        dropped_tokens=read.count("dropped_tokens"),
        pending=_from_pending(read.inside("pending"), totals, last)
        if pending is not None
        else None,
        correction_pending=correction_pending,
        adopt_at=read.take("adopt_at", int, optional=True),
        averaged=_averaged(read.inside("averaged")),
        last=last,
        has_unsent_residual=read.flag("owes"),
    )
    return Kept(standing, tensors, read.take("replace", bool))


def _counts(read: _Reader, key: str, totals: Totals) -> list[int]:
    found = read.take(key, list)
    whole = [type(n) for n in found] == [int, int]
    if not whole or not (0 <= found[0] <= totals.step and 0 <= found[1] <= totals.tokens):
        raise read.fault(key, found, "[steps, tokens], no more than were trained")
    return found


def _averaged(read: _Reader) -> dict[str, int]:
    return {order: read.count(order) for order in ORDERS if order in read}


def _from_pending(read: _Reader, totals: Totals, last: Totals) -> Pending:
    counts = ("seq", "step", "tokens", "steps", "follows")
    seq, step, tokens, steps, follows = (read.count(name) for name in counts)
    claim, due = Claim(*read.numbered("claim")), read.take("due", bool)
    missed, flush = read.take("missed", bool), read.flag("closing")
    rest = (0, 0) if steps else (last.step, last.tokens)  # what it weighed by before that was kept
    step_again, tokens_again = _counts(read, "again", totals) if "again" in read else rest
    return Pending(
        claim=claim,
        seq=seq,
        step=step,
        tokens=tokens,
        steps=steps,
        due=due,
        missed=missed,
        flush=flush,
        follows=follows,
        again=(tokens_again, step_again),
    )


def _tensor(read: _Reader, name: str, value: object, numel: int | None) -> Tensor:
    bound = f"a dense float32 tensor of {'any number of' if numel is None else numel} elements"
    if not isinstance(value, Tensor):
        raise read.fault(name, value, bound)
    shape = (value.numel() if numel is None else numel,)
    if (value.dtype, tuple(value.shape), value.layout) != (
        torch.float32,
        shape,
        torch.strided,
    ) or value.is_meta:
        raise read.fault(
            name, f"{value.dtype} {list(value.shape)} {value.layout} on {value.device}", bound
        )
    values = value.detach().cpu()  # loaders move whatever is in a checkpoint to the model's device
    if not finite(values):
        raise read.fault(name, "NaN or infinity in it", "a tensor of finite values")
    return values
