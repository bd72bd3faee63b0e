"""What a checkpoint holds of a learner, as tensors and plain containers, and back; what is damaged
or another model's is refused before anything changes.

    {"format": 1, "model": [[field, value], …], "step": …, "tokens": …, "head_start": …, "weights": hex, "history": […],
     "fragments": [{"lineage": …, "claim": …, "pending": …, …, "tensors": {"anchor": …, …}}, …], "content": hex}

`fragments` is empty for a learner that has had no peers. `weights` are the `sketches` of the
parameters that the rest belongs to: progress is the difference between an anchor and exactly
those."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from mend_optim.codecs.packing import as_bytes
from mend_optim.engine.accounts import Totals
from mend_optim.engine.moment_schedule import ORDERS
from mend_optim.engine.pending import Pending
from mend_optim.engine.standing import Standing
from mend_optim.errors import UsageError
from mend_optim.model.layout import Fragment, Layout
from mend_optim.protocol.handshake import ADDED, first_difference
from mend_optim.protocol.lineage import DIGEST_BYTES, Claim, Lineage, PeerId, content_digest
from mend_optim.worker.correction import Correction, MomentCorrection, Reading
from mend_optim.worker.merge import finite
from mend_optim.worker.moment_means import LATEST, MEAN, NEWCOMER, OWN, flat, unflat

FORMAT = 1
LIMIT = 1 << 63  # of what fits a message
TENSORS = (
    "anchor",
    "velocity",
    "delta",
    "residual",
    "stayed",
    "lost",
    "rounding",
    "correction",
    "returned",
)
MEMORIES = ("memory", "returned_memory")  # a codec's, as long as it likes
MOMENTS = (OWN, LATEST, MEAN, NEWCOMER)  # and the moment's name
REMEDY = "load the checkpoint that belongs to this model, or `del state_dict['mend']` to take the inner state alone"

T = TypeVar("T")


@dataclass(frozen=True)
class Kept:
    """One fragment in a checkpoint. `tensors`: flat float32, those of `TENSORS` and `MEMORIES` that
    there are. `replace`: whether its correction, not yet applied, is to become the weights."""

    standing: Standing
    tensors: Mapping[str, Tensor]
    replace: bool = False


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A learner between two steps. `history`: the incarnations it has gone through, oldest
    first."""

    step: int = 0
    tokens: int = 0
    head_start: int = 0
    weights: str = ""
    history: tuple[str, ...] = ()
    fragments: tuple[Kept, ...] = ()

    @property
    def totals(self) -> Totals:
        return Totals(self.step, self.tokens)


def keep(standing: Standing, tensors: dict[str, Tensor], correction: Correction | None) -> Kept:
    """One fragment as the engine, the worker and the mailbox have it at one moment."""
    if not standing.pending:
        tensors = {
            n: t for n, t in tensors.items() if n not in ("delta", "lost") and not n.startswith(OWN)
        }
    if correction is None:
        return Kept(standing, tensors)
    moments = {
        (NEWCOMER if m.newcomer else MEAN) + m.moment: flat(Reading(*m[1:3]))
        for m in correction.moments
    }
    return Kept(
        standing,
        {**tensors, "correction": correction.values.clone(), **moments},
        correction.replace,
    )


def kept_correction(fragment: Fragment, kept: Kept, values: Tensor) -> Correction:
    """The correction in there, with its values in `values`."""
    moments = tuple(
        MomentCorrection(name.removeprefix(kind), *unflat(tensor, fragment.numel), kind == NEWCOMER)
        for name, tensor in kept.tensors.items()
        for kind in (NEWCOMER, MEAN)
        if name.startswith(kind)
    )
    return Correction(
        fragment.index, values.copy_(kept.tensors["correction"]), kept.replace, moments
    )


def anchored(kept: Kept) -> Kept:
    """The same for weights other than the saved ones: they are to become the anchor, and progress
    is dropped."""
    standing = replace(
        kept.standing,
        pending=None,
        correction_pending=True,
        adopt_at=None,
        has_unsent_residual=False,
    )
    tensors = {name: kept.tensors[name] for name in ("anchor", "velocity") if name in kept.tensors}
    return Kept(standing, {**tensors, "correction": tensors["anchor"].clone()}, replace=True)


def with_group(saved: Checkpoint, anchor: Tensor, sketch: str) -> Checkpoint:
    """The same with one more fragment, of a group that was added since; `anchor`: its parameters as
    they are."""
    first = saved.fragments[0].standing
    lineage = Lineage(
        tokens=0, version=0, digest=content_digest(as_bytes(anchor)), genesis=first.lineage.genesis
    )
    claim = Claim(first.claim.author, 0)
    standing = Standing(
        lineage=lineage,
        claim=claim,
        cycle_start=saved.step,
        settled=saved.totals,
        dropped_tokens=0,
        pending=None,
        correction_pending=False,
        adopt_at=None,
    )
    fragments = (*saved.fragments, Kept(standing, {"anchor": anchor}))
    return replace(saved, weights=f"{saved.weights} {sketch}", fragments=fragments)


def to_state(checkpoint: Checkpoint, layout: Layout) -> dict[str, Any]:
    """Tensors and plain containers, which `torch.load(weights_only=True)` accepts. `content` is a
    digest of them all: what became of an anchor in a file must not pass for the anchor that others
    have under its lineage."""
    state = {
        "format": FORMAT,
        "model": [list(pair) for pair in layout.fingerprint()],
        "step": checkpoint.step,
        "tokens": checkpoint.tokens,
        "head_start": checkpoint.head_start,
        "weights": checkpoint.weights,
        "history": list(checkpoint.history),
        "fragments": [_to_fragment(kept) for kept in checkpoint.fragments],
    }
    return {**state, "content": _content(state)}


def _content(state: Mapping[str, Any]) -> str:
    """A digest of all that is in there but of itself."""
    tensors: list[memoryview] = []

    def stand_in(tensor: Any) -> str:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{type(tensor).__name__} is neither a plain container nor a tensor")
        tensors.append(as_bytes(tensor.detach().cpu().contiguous()))
        return f"{tensor.dtype} {list(tensor.shape)}"

    plain = {key: value for key, value in state.items() if key != "content"}
    text = json.dumps(plain, default=stand_in, sort_keys=True)
    return content_digest(text.encode(), *tensors).hex()


def _to_fragment(kept: Kept) -> dict[str, Any]:
    standing = kept.standing
    pending = standing.pending
    return {
        "lineage": {
            "tokens": standing.lineage.tokens,
            "version": standing.lineage.version,
            "digest": standing.lineage.digest.hex(),
            "genesis": standing.lineage.genesis.hex(),
            "merged": [[*peer, seq] for peer, seq in sorted(standing.lineage.merged.items())],
        },
        "claim": _to_claim(standing.claim),
        "mark": standing.cycle_start,
        "banked": [standing.settled.step, standing.settled.tokens],
        "dropped_tokens": standing.dropped_tokens,
        "pending": _to_pending(pending) if pending else None,
        "untaken": standing.correction_pending,
        "adopt_at": standing.adopt_at,
        "averaged": dict(standing.averaged),
        "last": [standing.last.step, standing.last.tokens],
        "owes": standing.has_unsent_residual,
        "replace": kept.replace,
        "tensors": dict(kept.tensors),
    }


def _to_claim(claim: Claim) -> list[Any]:
    return [*claim.author, claim.settled]


def _to_pending(pending: Pending) -> dict[str, Any]:
    return {
        "claim": _to_claim(pending.claim),
        "seq": pending.seq,
        "step": pending.step,
        "tokens": pending.tokens,
        "steps": pending.steps,
        "follows": pending.follows,
        "due": pending.due,
        "missed": pending.missed,
        "closing": pending.flush,
        "again": [*reversed(pending.again)],
    }


# ── and back ──────────────────────────────────────────────────────────────────────────────────────


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
        found = _content(state)
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
