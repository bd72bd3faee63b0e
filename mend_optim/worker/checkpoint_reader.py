"""Reads a checkpoint from plain containers. A checkpoint that is damaged, or of another model, is
refused before anything changes. `checkpoint.py` describes the format.

The keys are older than today's field names: old checkpoints must load, so keys don't change."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from mend_optim.engine.absence import LEAST_SHARE, PRESENT, Absence
from mend_optim.engine.accounts import Totals
from mend_optim.engine.moment_schedule import ORDERS
from mend_optim.engine.pending import Pending
from mend_optim.engine.standing import Standing
from mend_optim.errors import PeerError, UsageError
from mend_optim.model.layout import BufferFragment, Fragment, Layout
from mend_optim.protocol.handshake import ADDED, BUFFER, PARAMETER, model_difference
from mend_optim.protocol.lineage import DIGEST_BYTES, INCARNATIONS, Claim, Lineage, PeerId, Rollback
from mend_optim.protocol.messages import SIZES
from mend_optim.protocol.peer_limits import COUNT_LIMIT, COUNTER_LIMIT, NAME_LIMIT, is_plain
from mend_optim.worker.checkpoint import (
    BUFFER_TENSORS,
    FACTORS,
    FORMAT,
    MEMORIES,
    MOMENTS,
    NUMBERS,
    TENSORS,
    Checkpoint,
    Kept,
    is_expanded,
    state_digest,
)
from mend_optim.worker.merge import finite
from mend_optim.worker.offer_sizes import SizeHistory

REMEDY = (
    "load the checkpoint that belongs to this model, or `del state_dict['mend']` to take the inner "
    "state alone"
)

T = TypeVar("T")
#: Shows a value however large it is.
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


class StateError(UsageError):
    """A state cannot be read. The remedy may be changed by whoever knows what the state is for.

    Args:
        fault: what is wrong.
        remedy: what the user can do about it.
    """

    def __init__(self, fault: str, remedy: str = REMEDY) -> None:
        super().__init__(fault)
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.args[0]}; {self.remedy}"


class OtherModelError(StateError):
    """The checkpoint is whole, but of another model."""

    #: Whether other parameters are all that differs, and it was saved before the first step. Then
    #: there is nothing to go on from, and nothing is lost if it is left out.
    is_blank = False


class _OtherParametersError(OtherModelError):
    """Its groups and buffers may be those of the model, its parameters are not."""


class _Reader:
    """Takes values of the expected type from a mapping that anybody may have written. `where` names
    the mapping in errors. All methods raise `UsageError`."""

    def __init__(self, where: str, values: object) -> None:
        self._where = where
        if not isinstance(values, Mapping):
            raise self.fault("", values, "a dict")
        self._values: Mapping[Any, Any] = values

    def fault(self, key: str, value: object, bound: str) -> UsageError:
        """The error for a value that is not `bound`."""
        shown = _SHORT.repr(value)[:80]
        place = f"{self._where}[{key!r}]" if key else self._where
        return StateError(f"{place} must be {bound}, got {shown}")

    def take(self, key: str, kind: type[T], optional: bool = False) -> T:
        """The value at `key`; None is allowed if it is `optional`."""
        if key not in self._values:
            raise StateError(f"{self._where}[{key!r}] is missing: the checkpoint is damaged")
        value = self._values[key]
        wrong = not isinstance(value, kind) or (isinstance(value, bool) and kind is int)
        if wrong and not (optional and value is None):
            raise self.fault(key, value, f"of type {kind.__name__}")
        return cast(T, value)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def inside(self, key: str) -> _Reader:
        """A reader of the dict at `key`."""
        return _Reader(f"{self._where}[{key!r}]", self.take(key, dict))

    def flag(self, key: str) -> bool:
        """A bool that the first checkpoints of this format lack; False there."""
        return key in self and self.take(key, bool)

    def count(self, key: str) -> int:
        """An int from 0 to 2⁶², the greatest that peers take."""
        value = self.take(key, int)
        if not 0 <= value <= COUNTER_LIMIT:
            raise self.fault(key, value, "an int from 0 to 2**62")
        return value

    def step(self, key: str, optional: bool = False) -> Any:
        """A number of steps, which may lie before the first: within 2⁶² either way."""
        value = self.take(key, int, optional)
        if value is not None and abs(value) > COUNTER_LIMIT:
            raise self.fault(key, value, "an int within 2**62 of 0")
        return value

    def rate(self, key: str) -> float:
        """A sum of learning rates, which the first checkpoints of this format lack; 0 there."""
        value = self.take(key, float) if key in self else 0.0
        if not (math.isfinite(value) and value >= 0):
            raise self.fault(key, value, "a finite float >= 0")
        return value

    def pair(self, entry: object) -> Sequence[object]:
        """An entry of the model's fingerprint."""
        if isinstance(entry, Sequence) and len(entry) == 2:
            return entry
        raise self.fault("model", entry, "a list of [field, value]")

    def digest(self, key: str) -> bytes:
        """A digest that is written in hex."""
        text = self.take(key, str)
        try:
            digest = bytes.fromhex(text)
        except ValueError:
            digest = b""
        if len(digest) != DIGEST_BYTES:
            raise self.fault(key, text, "a digest in hex")
        return digest

    def genesis(self, key: str) -> bytes:
        """A genesis that is written in hex: see `Rollback`."""
        text = self.take(key, str)
        if len(text) == 2 * DIGEST_BYTES:
            return self.digest(key)
        try:
            genesis = bytes.fromhex(text)
            rollback = Rollback.told_by(genesis)
        except ValueError:
            rollback = None
        name = rollback.by if rollback else ""
        if not 0 < len(name.encode()) <= NAME_LIMIT or not is_plain(name):
            raise self.fault(key, text, "a digest in hex, or that of a rollback")
        return genesis

    def numbered(self, key: str) -> tuple[PeerId, int]:
        """A peer and its number, from the list at `key`."""
        return self.peer(key, self.take(key, list))

    def peer(self, key: str, entry: object) -> tuple[PeerId, int]:
        """A peer and its number, from [name, incarnation, number]."""
        if isinstance(entry, Sequence) and [type(part) for part in entry] == [str, int, int]:
            name, incarnation, number = entry
            named = 0 < len(name.encode(errors="replace")) <= NAME_LIMIT and is_plain(name)
            if named and 0 <= incarnation < INCARNATIONS and 0 <= number <= COUNTER_LIMIT:
                return PeerId(name, incarnation), number
        raise self.fault(key, entry, "[name, incarnation, number]")


def from_state(state: object, layout: Layout | None) -> Checkpoint:
    """The inverse of `to_state`, for the model of `layout`.

    Raises:
        OtherModelError: the state is of another model. Without a layout, that is every state with
            anchors.
        UsageError: the state is damaged.
    """
    try:
        return _from_state(state, layout)
    except RecursionError as error:
        raise StateError(
            "state_dict['mend'] must be what state_dict() gave, got containers that are nested too "
            "deep"
        ) from error


def _from_state(state: object, layout: Layout | None) -> Checkpoint:
    read = _Reader("state_dict['mend']", state)
    form = read.take("format", int)
    if form != FORMAT:
        raise read.fault("format", form, f"{FORMAT}, the one that this version writes")
    entries = read.take("fragments", list)
    try:
        _check_model(read, layout, len(entries))
    except OtherModelError as error:
        # Damage may look like another model.
        _check_content(read, cast(Mapping[str, Any], state))
        if isinstance(error, _OtherParametersError):
            error.is_blank = not entries and not read.count("step")
        raise
    totals = Totals(read.count("step"), read.count("tokens"), read.rate("rate"))
    fragments = layout.fragments if layout else ()
    kept = [
        _from_fragment(_Reader(f"state_dict['mend']['fragments'][{p}]", entry), fragment, totals)
        for p, (entry, fragment) in enumerate(zip(entries, fragments, strict=False))
    ]
    checkpoint = Checkpoint(
        step=totals.step,
        tokens=totals.tokens,
        rate=totals.rate,
        head_start=read.count("head_start"),
        period=read.count("period") if "period" in read else 0,
        weights=read.take("weights", str),
        history=tuple(map(str, read.take("history", list))),
        fragments=tuple(kept),
    )
    _check_content(read, cast(Mapping[str, Any], state))
    return checkpoint


def _check_model(read: _Reader, layout: Layout | None, fragments: int) -> None:
    """Raise `OtherModelError` unless the checkpoint is of the layout's model. Without anchors, it
    may be of any model that has no layout."""
    entries = map(read.pair, read.take("model", list))
    saved = tuple((str(field), str(value)) for field, value in entries)
    if not fragments and not (layout and saved):
        return
    present = layout.fingerprint() if layout else ()
    here, there = (sum(name.startswith(ADDED) for name, _ in model) for model in (present, saved))
    if here != there:
        raise OtherModelError(
            f"state_dict must have the groups that were added after wrapping, {here} here, "
            f"got {there}: wrap what was wrapped, add the same groups with add_param_group(), "
            "then load"
        )
    here, there = (sum(name.startswith(BUFFER) for name, _ in model) for model in (present, saved))
    if fragments and here != there:
        raise OtherModelError(
            f"state_dict must have {here} buffers, got {there}: pass the same `buffers` as the "
            "learner that saved it"
        )
    different = model_difference(_shapes(present), _shapes(saved))
    if different:
        raise _OtherParametersError(
            f"state_dict must be of the same model, got another one: {different}"
        )
    if layout and fragments and fragments != len(layout.fragments):
        raise OtherModelError(
            f"state_dict must have fragments={len(layout.fragments)}, got {fragments}: "
            f"pass fragments={fragments} to a new MendOptimizer"
        )


def _shapes(model: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The fields of a model, with the shapes of its parameters but not their precision: anchors
    are float32, whatever the parameters are."""
    return tuple(
        (name, _shape(kind) if name.startswith(PARAMETER) else kind) for name, kind in model
    )


def _shape(kind: str) -> str:
    """The shape in "[2, 3] torch.float32", and whether the numbers are complex."""
    shape, _, dtype = kind.partition("] ")
    return f"{shape}] complex" if "complex" in dtype else f"{shape}]"


def _check_content(read: _Reader, state: Mapping[str, Any]) -> None:
    """Raise `UsageError` unless the state has the digest that it was saved with."""
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
    """The number of elements of the saved tensor of that name; None for any. A moment also has an
    update count for each of the fragment's tensors."""
    if name.startswith(MOMENTS):
        return fragment.numel + len(fragment.tensors)
    if name in NUMBERS:
        return 1
    if name == FACTORS:
        return len(fragment.tensors)
    return None if name in MEMORIES else fragment.numel


def _from_fragment(read: _Reader, fragment: Fragment, totals: Totals) -> Kept:
    lineage = _lineage(read.inside("lineage"))
    has_pending = read.take("pending", dict, optional=True) is not None
    last = Totals(*_counts(read, "last", totals)) if "last" in read else Totals()
    steps, tokens = _counts(read, "banked", totals)
    settled = Totals(steps, tokens, read.rate("banked_rate"))
    tensors = _tensors(read, fragment)
    for name in NUMBERS:
        if name in tensors and float(tensors[name]) < 0:
            raise read.fault(name, float(tensors[name]), "a tensor of a number >= 0")
    _check_sizes(read, tensors)
    correction_pending = read.take("untaken", bool)
    needed = {"anchor"}
    if has_pending:
        needed.add("delta")
    if correction_pending:
        needed.add("correction")
    disagrees = read.flag("disagrees")
    if disagrees and not isinstance(fragment, BufferFragment):
        needed.add("disagreement")
    if needed - set(tensors):
        raise StateError(
            f"state_dict lacks the tensor {min(needed - set(tensors))!r}: it is damaged"
        )
    standing = Standing(
        lineage=lineage,
        claim=Claim(*read.numbered("claim")),
        cycle_start=read.step("mark"),
        settled=settled,
        dropped_tokens=read.count("dropped_tokens"),
        pending=_from_pending(read.inside("pending"), totals, last) if has_pending else None,
        correction_pending=correction_pending,
        adopt_at=read.step("adopt_at", optional=True),
        averaged=_averaged(read.inside("averaged")),
        last=last,
        has_unsent_residual=read.flag("owes"),
        disagrees=disagrees,
        absence=_absence(read),
    )
    return Kept(standing, tensors, read.take("replace", bool))


def _check_sizes(read: _Reader, tensors: Mapping[str, Tensor]) -> None:
    if SIZES not in tensors:
        return
    try:
        SizeHistory().load(tensors[SIZES])
    except PeerError as error:
        raise read.fault(SIZES, tensors[SIZES].tolist(), "sizes of offers") from error


def _tensors(read: _Reader, fragment: Fragment) -> dict[str, Tensor]:
    """The tensors of a fragment, those of names that are known."""
    saved = read.take("tensors", dict)
    if isinstance(fragment, BufferFragment):
        # They may hold a mask, so not every number is finite.
        bound = f"a dense uint8 tensor of {fragment.nbytes} elements"
        kind = (torch.uint8, (fragment.nbytes,))
        return {n: _dense(read, n, saved[n], bound, kind) for n in BUFFER_TENSORS if n in saved}
    known = (*TENSORS, *NUMBERS, FACTORS, *MEMORIES)
    tensors = {
        name: _tensor(read, name, tensor, _numel(str(name), fragment))
        for name, tensor in saved.items()
        if name in known or str(name).startswith(MOMENTS)
    }
    for name, tensor in tensors.items():
        if name.startswith(MOMENTS):
            _check_updates(read, name, tensor[fragment.numel :])
    return tensors


def _check_updates(read: _Reader, name: str, updates: Tensor) -> None:
    """Raise `UsageError` if a moment has seen less than no update."""
    if bool((updates < 0).any()):
        raise read.fault(name, updates.tolist(), "a moment with update counts >= 0")


def _lineage(read: _Reader) -> Lineage:
    entries = read.take("merged", list)
    if len(entries) > COUNT_LIMIT:
        raise read.fault("merged", f"{len(entries)} authors", f"at most {COUNT_LIMIT} authors")
    merged = dict(read.peer("merged", entry) for entry in entries)
    return Lineage(
        tokens=read.count("tokens"),
        version=read.count("version"),
        digest=read.digest("digest"),
        genesis=read.genesis("genesis"),
        merged=merged,
    )


def _counts(read: _Reader, key: str, totals: Totals) -> list[int]:
    """[steps, tokens], no more than `totals`."""
    found = read.take(key, list)
    whole = [type(n) for n in found] == [int, int]
    if not whole or not (0 <= found[0] <= totals.step and 0 <= found[1] <= totals.tokens):
        raise read.fault(key, found, "[steps, tokens], no more than were trained")
    return found


def _averaged(read: _Reader) -> dict[str, int]:
    """The last averaged version of each order of moments."""
    return {order: read.count(order) for order in ORDERS if order in read}


def _absence(read: _Reader) -> Absence:
    """The rounds that were missed. The first checkpoints of this format don't have them."""
    if "missed_rounds" not in read:
        return PRESENT
    told = read.take("missed_rounds", list)
    known = [type(count) for count in told] == [int, int]
    if not known or not all(0 <= count <= COUNTER_LIMIT for count in told):
        raise read.fault("missed_rounds", told, "[rounds, tokens], each an int from 0 to 2**62")
    return Absence(*told)


def _share(read: _Reader) -> float:
    """The share of its delta that an offer has. An offer that has all of it doesn't say so."""
    share = read.take("share", float) if "share" in read else 1.0
    if not LEAST_SHARE <= share <= 1:
        raise read.fault("share", share, f"a float in [{LEAST_SHARE}, 1]")
    return share


def _from_pending(read: _Reader, totals: Totals, last: Totals) -> Pending:
    counts = ("seq", "step", "tokens", "steps", "follows")
    seq, step, tokens, steps, follows = (read.count(name) for name in counts)
    # The first checkpoints don't have "again". Their empty offers weighed by the last merged work.
    weighed = (0, 0) if steps else (last.step, last.tokens)
    step_again, tokens_again = _counts(read, "again", totals) if "again" in read else weighed
    return Pending(
        claim=Claim(*read.numbered("claim")),
        seq=seq,
        step=step,
        tokens=tokens,
        steps=steps,
        rate=read.rate("rate"),
        due=read.take("due", bool),
        missed=read.take("missed", bool),
        flush=read.flag("closing"),
        follows=follows,
        again=(tokens_again, step_again),
        share=_share(read),
        absence=_absence(read),
    )


def _tensor(read: _Reader, name: str, value: object, numel: int | None) -> Tensor:
    """A saved tensor, on the host."""
    bound = f"a dense float32 tensor of {'any number of' if numel is None else numel} elements"
    if numel is None and isinstance(value, Tensor):
        numel = value.numel()
    values = _dense(read, name, value, bound, (torch.float32, (numel,)))
    if not finite(values):
        raise read.fault(name, "NaN or infinity in it", "a tensor of finite values")
    return values


def _dense(
    read: _Reader, name: str, value: object, bound: str, kind: tuple[torch.dtype, tuple[int | None]]
) -> Tensor:
    """A saved tensor of this dtype and shape, on the host; else it is not `bound`."""
    if not isinstance(value, Tensor):
        raise read.fault(name, value, bound)
    is_dense = value.layout is torch.strided and not value.is_meta and not is_expanded(value)
    if (value.dtype, tuple(value.shape)) != kind or not is_dense:
        raise read.fault(
            name, f"{value.dtype} {list(value.shape)} {value.layout} on {value.device}", bound
        )
    # Loaders move all tensors of a checkpoint to the model's device.
    return value.detach().cpu()
