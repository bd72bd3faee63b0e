"""A learner's checkpoint, and its form as tensors and plain containers.
`checkpoint_reader.py` reads that form.

    {"format": 1, "model": [[field, value], …], "step": …, "tokens": …, "head_start": …,
     "period": …,
     "weights": hex, "history": […],
     "fragments": [{"lineage": …, "claim": …, "pending": …, …, "tensors": {"anchor": …, …}}, …],
     "content": hex}

`fragments` is empty for a learner that has had no peers. `weights` are the `sketches` of the
parameters that the rest belongs to: progress is the difference between an anchor and exactly those
parameters. `_told` has the entries that are left out where they are 0. The keys are older than
today's field names. They don't change, because old checkpoints must load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mend_optim.codecs.packing import as_bytes
from mend_optim.engine.absence import PRESENT, Absence
from mend_optim.engine.accounts import Totals
from mend_optim.engine.pending import Pending
from mend_optim.engine.standing import Standing
from mend_optim.model.layout import BufferFragment, Fragment, Layout
from mend_optim.protocol.lineage import Claim, Lineage, PeerId, content_digest
from mend_optim.protocol.messages import SIZES
from mend_optim.worker.correction import BufferCorrection, Correction, MomentCorrection, Reading
from mend_optim.worker.moment_means import LATEST, MEAN, NEWCOMER, OWN, flat, unflat
from mend_optim.worker.scale import HEADWAY
from mend_optim.worker.velocity import VELOCITY, VELOCITY_RATE

FORMAT = 1
#: The names of a fragment's flat tensors.
TENSORS = (
    "anchor",
    VELOCITY,
    "delta",
    "residual",
    "stayed",
    "lost",
    "rounding",
    "correction",
    "returned",
    "disagreement",
)
#: The names of tensors of one element.
NUMBERS = (VELOCITY_RATE, HEADWAY)
#: The name of the factors of the last round, one for each of the fragment's tensors: see `scale`.
FACTORS = "scale"
#: The names of tensors of any size: codecs' memories, and the sizes of offers.
MEMORIES = ("memory", "returned_memory", SIZES)
#: The base of a correction of buffers: what they rested on, or what was offered.
BASE, OFFERED = "base", "offered"
#: The names of the tensors of buffers, which are bytes.
BUFFER_TENSORS = ("anchor", "delta", "correction", BASE, OFFERED)
#: Prefixes of tensors of a moment; the moment's name follows.
MOMENTS = (OWN, LATEST, MEAN, NEWCOMER)


@dataclass(frozen=True)
class Kept:
    """One fragment in a checkpoint. `tensors` are flat float32, those of `TENSORS`, `NUMBERS`,
    `FACTORS`, `MEMORIES` and `MOMENTS` that exist; of buffers, those of `BUFFER_TENSORS`, flat
    bytes. `replace` says whether its correction, not yet applied, replaces the weights."""

    standing: Standing
    tensors: Mapping[str, Tensor]
    replace: bool = False


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A learner between two steps. `history` lists its incarnations, oldest first."""

    step: int = 0
    tokens: int = 0
    rate: float = 0.0
    head_start: int = 0
    period: int = 0
    weights: str = ""
    history: tuple[str, ...] = ()
    fragments: tuple[Kept, ...] = ()

    @property
    def totals(self) -> Totals:
        return Totals(self.step, self.tokens, self.rate)


def newest(name: str, checkpoint: Checkpoint) -> int:
    """The greatest incarnation of a learner of this name in the checkpoint; 0 if there is none. A
    learner that goes on from it must be another process than all of them."""
    found = [0]
    for entry in checkpoint.history:
        who, _, incarnation = entry.rpartition("#")
        if who == name and set(incarnation) <= set("0123456789abcdef"):
            found.append(int(incarnation or "0", 16))
    for kept in checkpoint.fragments:
        authors = [*kept.standing.lineage.merged, *_authors_of(kept)]
        found += [author.incarnation for author in authors if author.name == name]
    return max(found)


def is_past(id: PeerId, checkpoint: Checkpoint) -> bool:
    """Whether the checkpoint has a process of this one's name that is the same, or a later one."""
    return id.incarnation <= newest(id.name, checkpoint)


def keep(standing: Standing, tensors: dict[str, Tensor], correction: Correction | None) -> Kept:
    """One fragment as the engine, the worker and the mailbox have it at one moment.

    Args:
        standing: the engine's part.
        tensors: the worker's part.
        correction: the one that the training thread has not applied yet, if any.
    """
    if not standing.pending:
        tensors = {
            name: tensor
            for name, tensor in tensors.items()
            if name not in ("delta", "lost") and not name.startswith(OWN)
        }
    if correction is None:
        return Kept(standing, tensors)
    moments = {
        (NEWCOMER if m.newcomer else MEAN) + m.moment: flat(Reading(m.values, m.updates))
        for m in correction.moments
    }
    tensors = {**tensors, "correction": correction.values.clone(), **moments}
    if isinstance(correction, BufferCorrection) and correction.base is not None:
        tensors[OFFERED if correction.is_offer else BASE] = correction.base.clone()
    return Kept(standing, tensors, correction.replace)


def kept_correction(fragment: Fragment, kept: Kept, values: Tensor) -> Correction:
    """The saved correction, with its values copied into `values`."""
    values.copy_(kept.tensors["correction"])
    if isinstance(fragment, BufferFragment):
        is_offer = OFFERED in kept.tensors
        base = kept.tensors.get(OFFERED if is_offer else BASE)
        return BufferCorrection(fragment.index, values, kept.replace, base=base, is_offer=is_offer)
    moments = tuple(
        MomentCorrection(name.removeprefix(kind), *unflat(tensor, fragment.numel), kind == NEWCOMER)
        for name, tensor in kept.tensors.items()
        for kind in (NEWCOMER, MEAN)
        if name.startswith(kind)
    )
    return Correction(fragment.index, values, kept.replace, moments)


def is_of(name: str, kept: Kept) -> bool:
    """Whether the unmerged work of a saved fragment is that of a learner of this name."""
    return all(author.name == name for author in _authors_of(kept))


def _authors_of(kept: Kept) -> list[PeerId]:
    """The processes whose unmerged work a saved fragment has."""
    standing = kept.standing
    claims = [standing.claim, standing.pending.claim if standing.pending else standing.claim]
    return [claim.author for claim in claims]


def anchored(kept: Kept) -> Kept:
    """The saved fragment for weights other than the saved ones, or for a learner that must not
    offer its work: the anchor replaces the weights, and progress is dropped."""
    standing = replace(
        kept.standing,
        pending=None,
        correction_pending=True,
        adopt_at=None,
        has_unsent_residual=False,
        disagrees=False,
        absence=PRESENT,
    )
    tensors = anchor_tensors(kept)
    return Kept(standing, {**tensors, "correction": tensors["anchor"].clone()}, replace=True)


def anchor_tensors(kept: Kept) -> dict[str, Tensor]:
    """The tensors of a saved fragment that belong to its anchor, and not to the learner that saved
    it."""
    names = ("anchor", VELOCITY, *NUMBERS, FACTORS, SIZES)
    return {
        name: tensor
        for name, tensor in kept.tensors.items()
        if name in names or name.startswith(LATEST)
    }


def seal_residual(kept: Kept) -> Tensor | None:
    """The residual of the saved learner's seals, which `anchored` gives up; flat float32."""
    return kept.tensors.get("returned")


def with_group(saved: Checkpoint, anchor: Tensor, sketch: str) -> Checkpoint:
    """The checkpoint with one more fragment, of a group that was added since.

    Args:
        saved: the checkpoint, with at least one fragment.
        anchor: the group's parameters as they are.
        sketch: the group's `sketch`.
    """
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


def to_state(checkpoint: Checkpoint, layout: Layout | None) -> dict[str, Any]:
    """The checkpoint as tensors and plain containers, for `torch.load(weights_only=True)`.

    Without a layout, `model` is empty: a learner without peers may train what cannot be merged.

    `content` is a digest of them all. An anchor that was damaged in a file must not pass for the
    anchor that other learners have under the same lineage."""
    state = {
        "format": FORMAT,
        "model": [list(pair) for pair in layout.fingerprint()] if layout else [],
        "step": checkpoint.step,
        "tokens": checkpoint.tokens,
        **_told(rate=checkpoint.rate),
        "head_start": checkpoint.head_start,
        **_told(period=checkpoint.period),
        "weights": checkpoint.weights,
        "history": list(checkpoint.history),
        "fragments": [_to_fragment(kept) for kept in checkpoint.fragments],
    }
    return {**state, "content": state_digest(state)}


def state_digest(state: Mapping[str, Any]) -> str:
    """The digest of a whole state, without its own entry. Raises `TypeError` for anything but
    tensors and plain containers."""
    tensors: list[memoryview] = []

    def stand_in(tensor: Any) -> str:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{type(tensor).__name__} is neither a plain container nor a tensor")
        if is_expanded(tensor):
            raise TypeError(f"a tensor {list(tensor.shape)} is larger than its bytes in the file")
        tensors.append(as_bytes(tensor.detach().cpu().contiguous()))
        return f"{tensor.dtype} {list(tensor.shape)}"

    plain = {key: value for key, value in state.items() if key != "content"}
    text = json.dumps(plain, default=stand_in, sort_keys=True)
    return content_digest(text.encode(), *tensors).hex()


def is_expanded(tensor: Tensor) -> bool:
    """Whether a dense tensor has more elements than its storage holds: a file of a kilobyte may
    bring one that fills the memory once it is copied."""
    if tensor.layout is not torch.strided or tensor.is_meta:
        return False
    return tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes()


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
        **_told(banked_rate=standing.settled.rate),
        "dropped_tokens": standing.dropped_tokens,
        "pending": _to_pending(pending) if pending else None,
        "untaken": standing.correction_pending,
        "adopt_at": standing.adopt_at,
        "averaged": dict(standing.averaged),
        "last": [standing.last.step, standing.last.tokens],
        "owes": standing.has_unsent_residual,
        **_told(disagrees=standing.disagrees),
        **_told_absence(standing.absence),
        "replace": kept.replace,
        "tensors": dict(kept.tensors),
    }


def _told(**entries: float) -> dict[str, float]:
    """Those of these entries that are not 0. The first checkpoints of this format have none of
    them, and readers take 0 for what is missing."""
    return {key: value for key, value in entries.items() if value}


def _told_absence(absence: Absence) -> dict[str, list[int]]:
    return {"missed_rounds": [absence.rounds, absence.tokens]} if absence.rounds else {}


def _to_claim(claim: Claim) -> list[Any]:
    return [*claim.author, claim.settled]


def _to_pending(pending: Pending) -> dict[str, Any]:
    return {
        "claim": _to_claim(pending.claim),
        "seq": pending.seq,
        "step": pending.step,
        "tokens": pending.tokens,
        "steps": pending.steps,
        **_told(rate=pending.rate),
        "follows": pending.follows,
        "due": pending.due,
        "missed": pending.missed,
        "closing": pending.flush,
        "again": [*reversed(pending.again)],
        **({"share": pending.share} if pending.share < 1 else {}),
        **_told_absence(pending.absence),
    }
