"""Whether weights were replaced between two steps, by a `load_state_dict` for one.

A miss does little harm, but a warning that is wrong costs trust. Many scripts move parameters a
little between steps: they clip them, normalise them, or draw them to slower ones. Others move them
far and put them back: EMA weights, `global_weights()`. So a jump counts only if it is still there
at the next step, and moves most of the tensors that are looked at by more than three times as much
as 16 steps of training did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

#: Elements that are looked at in each of at most so many tensors.
LOOKED_AT = 32
TENSORS = 3
#: A jump is more than so many times what `SPAN` steps of training have done. The samples may be
#: `SPAN` steps old themselves.
JUMP = 3.0
SPAN = 16
#: By how much a former greater movement counts less with every span: a walk to and fro may by
#: chance end where it began.
FADES = 0.9


class WeightsWatch:
    """Looks at a few elements of some parameters. Only the training thread calls it.

    Args:
        parameters: the model's parameters, in order.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        fit = [p for p in parameters if p.requires_grad and _is_dense(p)]
        places = {0, len(fit) // 2, len(fit) - 1} if fit else set[int]()
        self._tensors = [fit[place] for place in sorted(places)[:TENSORS]]
        self._sizes = [p.numel() for p in self._tensors]
        #: Samples of at most `SPAN` steps ago, with all later corrections of this library in them.
        self._base = self._sample()
        #: How far `SPAN` steps of training move each sample; empty before they are over.
        self._trained: list[Tensor] = []
        # In-place operations count the versions of a tensor: the first thing to look at.
        self._versions = self._present_versions()
        self._steps = 0
        # How often the weights were touched without a jump. If a script touches them between all
        # steps, they are looked at ever more rarely.
        self._touched = 0
        self._found = False

    def _present_versions(self) -> list[int]:
        return [p._version for p in self._tensors]

    @torch.no_grad()
    def _sample(self) -> list[Tensor]:
        return [_sample(p).float() for p in self._tensors]

    def _give_up_if_reshaped(self) -> None:
        """Watch no more if a parameter has got memory of another size, or with gaps, by
        `p.data = …`. The layout refuses it when it is copied."""
        sizes = zip(self._tensors, self._sizes, strict=True)
        if not all(p.numel() == size and _is_dense(p) for p, size in sizes):
            self._tensors, self._sizes, self._base, self._trained = [], [], [], []
            self._versions = []

    def stepped(self) -> None:
        """One more step was taken. From here on, nobody should move the weights until the next."""
        self._steps += 1
        self._versions = self._present_versions()

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Surround what this library does to the weights: it is neither training nor a jump."""
        self._give_up_if_reshaped()
        is_as_left = not self._steps and self._present_versions() == self._versions
        before = self._sample()
        yield
        after = self._sample()
        # Sums would round what is compared to the bit before the first step.
        moved = zip(self._base, before, after, strict=True)
        self._base = after if is_as_left else [base + (new - old) for base, old, new in moved]
        self._versions = self._present_versions()

    def restarted(self) -> None:
        """The user has put other weights in the place of the former, and has told so."""
        self._give_up_if_reshaped()
        self._base = self._sample()
        self._versions = self._present_versions()

    def replaced(self) -> bool:
        """Before the next step: whether the weights were replaced since the last one. True at most
        once."""
        if self._found:
            return False
        if self._present_versions() != self._versions:
            self._touched += 1
            self._give_up_if_reshaped()
            is_power_of_2 = not self._touched & (self._touched - 1)
            self._found = is_power_of_2 and bool(self._trained) and self._jumped()
        if self._steps % SPAN == 0 and self._steps:
            self._measure()
        return self._found

    def replaced_at_end(self) -> bool:
        """Whether the weights were replaced since the last step, and no other one follows. Before
        the first step, whatever has moved them was no training."""
        if self._present_versions() == self._versions:
            return False
        self._give_up_if_reshaped()
        if self._steps:
            return bool(self._trained) and self._jumped()
        return not all(map(torch.equal, self._base, self._sample()))

    @torch.no_grad()
    def _measure(self) -> None:
        """Take new samples. What a script does to the weights between steps is in them, so that it
        passes for training if it does so always."""
        self._give_up_if_reshaped()
        before, self._base = self._base, self._sample()
        moved = [(new - old).norm() for old, new in zip(before, self._base, strict=True)]
        pairs = zip(moved, self._trained or moved, strict=True)
        self._trained = [torch.maximum(now, FADES * known) for now, known in pairs]

    def _jumped(self) -> bool:
        jumps = 0
        for base, now, trained in zip(self._base, self._sample(), self._trained, strict=True):
            jumps += bool(trained > 0) and bool((now - base).norm() > JUMP * trained)
        return 2 * jumps > len(self._tensors)


def _sample(parameter: Tensor) -> Tensor:
    """A copy of some elements, in the order in which they are in memory."""
    count = min(LOOKED_AT, parameter.numel())
    stride = parameter.numel() // count
    return torch.as_strided(parameter.detach(), (count,), (stride,)).clone()


def _is_dense(parameter: Tensor) -> bool:
    """Whether the elements lie side by side in memory, in whatever order."""
    if type(parameter) not in (Tensor, torch.nn.Parameter) or parameter.layout != torch.strided:
        return False
    last = sum((n - 1) * step for n, step in zip(parameter.shape, parameter.stride(), strict=True))
    return parameter.is_floating_point() and 0 < parameter.numel() == last + 1
