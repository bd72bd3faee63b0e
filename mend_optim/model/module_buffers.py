"""The buffers of modules, such as batch-norm statistics, and copies between them and flat buffers.

Buffers are values that the forward pass observes. They are no sum of updates, as parameters are. So
learners offer the values themselves, and the mean of values is a value that fits: no running
variance becomes negative, whichever rounds a learner misses. Only *persistent* buffers count, those
that a module's `state_dict` has: the others are constants that every process computes for itself.

Only the training thread calls this module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from mend_optim.errors import UsageError, items_of
from mend_optim.model.layout import BufferFragment

#: By its size, a dtype of the same bits as an integer or a bool. Few operations are made for
#: unsigned ones.
SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def read_modules(buffers: Module | Iterable[Module] | None) -> tuple[Module, ...]:
    """The modules of the argument `buffers`. Raises `UsageError`."""
    if buffers is None:
        return ()
    items = None if isinstance(buffers, Module) else items_of(buffers)
    listed = (buffers,) if items is None else tuple(items)
    for module in listed:
        if not isinstance(module, Module):
            raise UsageError(
                "buffers must be None, a torch.nn.Module or several of them, got "
                f"{type(module).__name__}: pass the model itself"
            )
    return listed


class _Place(NamedTuple):
    """Where a buffer is. Modules may assign another tensor to the same name at any time."""

    name: str
    module: Module
    key: str

    def tensor(self) -> Tensor:
        """The present tensor. Raises `UsageError` if it is gone."""
        found = getattr(self.module, self.key, None)
        if not isinstance(found, Tensor):
            raise UsageError(
                f"buffers: {self.name} must stay a tensor while it trains with peers, got "
                f"{type(found).__name__}; close() this optimizer and make a new one for the "
                "changed model"
            )
        return found


class ModuleBuffers:
    """The persistent buffers of some modules. One that modules share is counted once.

    Args:
        modules: the modules; their submodules belong to them.
    """

    def __init__(self, modules: Sequence[Module]) -> None:
        self.modules = tuple(modules)
        self._fixed: list[_Place] | None = None

    def fix(self) -> None:
        """From here on, the buffers are those that the modules have now."""
        self._fixed = self._places()

    def named(self) -> list[tuple[str, Tensor]]:
        """The present tensors, with their names. Raises `UsageError` if one is gone."""
        return [(place.name, place.tensor()) for place in self._places()]

    def tensors(self) -> list[Tensor]:
        """The present tensors. Raises `UsageError` if one is gone."""
        return [place.tensor() for place in self._places()]

    def _places(self) -> list[_Place]:
        if self._fixed is not None:
            return self._fixed
        places: list[_Place] = []
        modules: set[Module] = set()
        tensors: set[object] = set()
        for number, root in enumerate(self.modules):
            prefix = f"{number}" if len(self.modules) > 1 else ""
            for path, module in root.named_modules(modules, prefix):
                local = getattr(module, "_non_persistent_buffers_set", ())
                for key, tensor in module.named_buffers(recurse=False):
                    identity = _identity(tensor)
                    if key not in local and identity not in tensors:
                        tensors.add(identity)
                        places.append(_Place(_plain(f"{path}.{key}"), module, key))
        return places


def _identity(tensor: Tensor) -> object:
    """Equal for two tensors that are one, or views of all of the same memory."""
    if torch.nn.parameter.is_lazy(tensor) or tensor.is_meta or tensor.layout != torch.strided:
        return id(tensor)
    if not tensor.numel() or hasattr(tensor, "device_mesh"):
        return id(tensor)
    return tensor.device, tensor.data_ptr(), tensor.numel()


def _plain(name: str) -> str:
    """The name without the parts that `torch.compile` and `DistributedDataParallel` add."""
    return name.removeprefix(".").replace("_orig_mod.", "").removeprefix("module.")


# ── copies ────────────────────────────────────────────────────────────────────────────────────────


def _real(buffer: Tensor) -> Tensor:
    plain = buffer.detach()
    return torch.view_as_real(plain) if plain.is_complex() else plain


@torch.no_grad()
def gather_buffers(fragment: BufferFragment, tensors: Sequence[Tensor], out: Tensor) -> None:
    """Copy the buffers' bytes into a flat buffer.

    Args:
        fragment: the fragment of these buffers.
        tensors: the buffers.
        out: receives the copy; uint8, `fragment.nbytes` elements, on the host or on a GPU.
    """
    out.zero_()
    for place, tensor in enumerate(tensors):
        fragment.view(place, out).copy_(_real(tensor))


@torch.no_grad()
def move_buffers(
    fragment: BufferFragment, tensors: Sequence[Tensor], anchor: Tensor, base: Tensor | None
) -> None:
    """Let the buffers follow an anchor in place. Those that no learner changed are not written.

    A floating-point element moves by A − B, but never past A. So it stays between its present value
    and the anchor's: whatever interval both are in, such as the numbers from 0, it is in. One that
    still is B becomes A. So does an integer or a bool that the anchor has otherwise than B: it has
    no half-way.

    Args:
        fragment: the fragment of these buffers.
        tensors: the buffers.
        anchor: A: flat bytes, on the host.
        base: B: what the buffers were when the anchor was made of them, or what they rest on. None:
            they become the anchor, whatever they are.
    """
    for place, tensor in enumerate(tensors):
        target = _real(tensor)
        new = fragment.view(place, anchor)
        old = None if base is None else fragment.view(place, base)
        if old is not None and _same_bytes(new, old):
            continue
        there = new.to(target.device)
        if old is None:
            target.copy_(there)
            continue
        before = old.to(target.device)
        if target.is_floating_point():
            target.copy_(_moved(target, there, before))
        else:
            target.copy_(_replaced(target, there, before))


def _moved(now: Tensor, anchor: Tensor, base: Tensor) -> Tensor:
    """The present values, moved by anchor − base, but not past the anchor."""
    wide = torch.float64 if now.dtype == torch.float64 else torch.float32
    here, there, before = now.to(wide), anchor.to(wide), base.to(wide)
    moved = here + (there - before)
    between = moved.clamp(torch.minimum(here, there), torch.maximum(here, there))
    # Equal infinities have no difference.
    kept = torch.where(there == before, here, between)
    return torch.where(here == before, there, kept)


def _replaced(now: Tensor, anchor: Tensor, base: Tensor) -> Tensor:
    """The anchor where it is not what the base is, and else the present values."""
    bits = SIGNED[now.dtype.itemsize]
    here, there, before = now.view(bits), anchor.view(bits), base.view(bits)
    return torch.where(there == before, here, there).view(now.dtype)


def _same_bytes(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same bits, NaN included."""
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
