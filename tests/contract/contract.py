"""The drop-in contract: every optimizer of torch with each documented option set, deterministic
training, and the table of results.

A check is a function that trains once over the bare optimizer and once over the wrapper, and
returns everything it has seen. `agree` demands that both have seen the same. If torch itself
refuses a case, the table shows a dash, provided that the wrapper refuses it with the same kind of
error or does better, and that the refusal is one of `REFUSALS`."""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from mend_optim import MendOptimizer

Wrap = Callable[[Optimizer], Any]
SHAPES = ((3, 2), (4,), (2, 2), (2, 3))
MATRICES = ((3, 2), (4, 1), (2, 2), (2, 3))
DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float64)
OTHER_LR = 0.003
# 20 searches in each step take too long
SHORT: dict[type[Optimizer], dict[str, Any]] = {LBFGS: {"max_iter": 3}}

REFUSALS = {  # the words of torch's error, and what it means
    "If capturable=True, params": "capturable=True: not on a CPU",
    "Expected exactly one param_group, but got 2": "LBFGS has one group",
    "'LBFGS' object has no attribute '_params'": "a copy of LBFGS cannot step",
    "modified by an inplace operation": "no gradient flows back through this option",
    "step() takes 1 positional argument but 2 were given": "its step() takes no closure",
}


class TorchRefuses(Exception):
    """The bare optimizer does not support this, and so neither does the wrapper."""


# ── rows ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Case:
    """An optimizer class with its options, and the kind of parameters that it needs."""

    optimizer: type[Optimizer]
    options: str = "default"
    variant: str = "plain"
    kwargs: dict[str, Any] = field(default_factory=dict)
    closure: bool = False
    sparse: bool = False
    groups: bool = True
    matrices: bool = False

    @property
    def name(self) -> str:
        return f"{self.optimizer.__name__}/{self.options}/{self.variant}"

    def lr(self) -> Any:
        """The second group's learning rate; a tensor if the first group's is one."""
        return torch.tensor(OTHER_LR) if isinstance(self.kwargs.get("lr"), Tensor) else OTHER_LR

    def parameters(self) -> list[Tensor]:
        """Parameters of several shapes and dtypes. A differentiable optimizer needs leaves without
        a gradient."""
        draws = torch.Generator().manual_seed(1)
        shapes = MATRICES if self.matrices else SHAPES
        dtypes = DTYPES if self.groups else [torch.float32] * len(SHAPES)
        made = [torch.randn(s, generator=draws).to(d) for s, d in zip(shapes, dtypes, strict=True)]
        return [p.requires_grad_(not self.kwargs.get("differentiable", False)) for p in made]

    def make(self, parameters: list[Tensor]) -> Optimizer:
        """An optimizer with two groups of different learning rates, if it supports groups."""
        several = [{"params": parameters[:2]}, {"params": parameters[2:], "lr": self.lr()}]
        make: Callable[..., Optimizer] = self.optimizer
        return make(several if self.groups else parameters, **copy.deepcopy(self.kwargs))

    def fill(self, parameters: Sequence[Tensor], step: int, scale: Tensor | float = 1.0) -> None:
        """Give the parameters the gradients of a quadratic loss that moves with the steps."""
        for i, away in enumerate(distances(parameters, step)):
            grad = away * ((1 + i) * scale)
            parameters[i].grad = without_row(grad, step % 4) if self.sparse else grad

    def loss(self, parameters: Sequence[Tensor], step: int) -> Tensor:
        """The work of a closure, which also computes the gradients."""
        self.fill(parameters, step)
        away = distances(parameters, step)
        return sum((0.5 * (1 + i) * a.square().sum() for i, a in enumerate(away)), torch.zeros(()))


def distances(parameters: Sequence[Tensor], step: int) -> list[Tensor]:
    return [p.detach() - target(p.shape, step % 3, p.dtype) for p in parameters]


@functools.cache
def target(shape: torch.Size, phase: int, dtype: torch.dtype) -> Tensor:
    return ((1 + phase) * torch.linspace(-1, 1, shape.numel()).reshape(shape)).to(dtype)


def without_row(grad: Tensor, missing: int) -> Tensor:
    rows = torch.tensor([row for row in range(len(grad)) if row != missing])
    return torch.sparse_coo_tensor(rows[None], grad[rows], grad.shape, check_invariants=True)


class Terse(Optimizer):
    """An optimizer whose `step` takes no argument, like many outside torch."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in (p for p in group["params"] if p.grad is not None):
                self.state[parameter]["last"] = parameter.grad.clone()
                parameter.sub_(group["lr"] * parameter.grad)


def catalogue() -> list[Any]:
    """torch's own list of its optimizers and their options, with stand-ins for the test-suite
    around it (slow to load, and it sets global flags). Empty if this torch has none."""

    def stand_in(name: str) -> ModuleType:
        module = ModuleType(name)
        module.__getattr__ = lambda attribute: MagicMock(name=attribute)  # type: ignore[method-assign]
        return module

    here = "torch.testing._internal."
    names = [here + n for n in ("common_device_type", "common_methods_invocations", "common_utils")]
    stand_ins = {name: stand_in(name) for name in names if name not in sys.modules}
    sys.modules.update(stand_ins)
    try:
        from torch.testing._internal.common_optimizers import optim_db

        return list(optim_db)
    except ImportError:
        return []
    finally:
        for name in [*stand_ins, here + "common_optimizers"]:
            sys.modules.pop(name, None)


def variants(info: Any, options: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The implementations that can be requested. A CPU has no capturable one: one row says so."""
    yield "plain", {}
    if "foreach" in info.supported_impls:
        yield from ((("for-loop", {"foreach": False}),) if options == "default" else ())
        yield "foreach", {"foreach": True}
    if "fused" in info.supported_impls and "cpu" in getattr(info, "supports_fused_on", ()):
        yield "fused", {"fused": True}
    if "differentiable" in info.supported_impls:
        yield "differentiable", {"differentiable": True}
    if options == "default" and getattr(info, "has_capturable_arg", False):
        yield "capturable", {"capturable": True}


def cases() -> Iterator[Case]:
    for info in catalogue():
        for options in info.optim_inputs_func(device="cpu"):
            for variant, more in variants(info, options.desc):
                yield Case(
                    info.optim_cls,
                    options.desc,
                    variant,
                    {**SHORT.get(info.optim_cls, {}), **options.kwargs, **more},
                    info.step_requires_closure,
                    info.only_supports_sparse_grads,
                    info.supports_param_groups,
                    info.optim_cls.__name__ == "Muon",
                )
    yield Case(Terse, "step() takes nothing")


# ── training and seeing ───────────────────────────────────────────────────────────────────────────


def bare(optimizer: Optimizer) -> Optimizer:
    return optimizer


def held(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def train(case: Case, optimizer: Optimizer, start: int, stop: int) -> None:
    for step in range(start, stop):
        advance(case, optimizer, step)


def advance(case: Case, optimizer: Any, step: int) -> None:
    if case.closure:
        optimizer.step(lambda: case.loss(held(optimizer), step))
    else:
        case.fill(held(optimizer), step)
        optimizer.step()


def trained(case: Case, wrap: Wrap, steps: int) -> tuple[list[Tensor], Any]:
    """New parameters and their optimizer, after some steps."""
    parameters = case.parameters()
    optimizer = wrap(case.make(parameters))
    train(case, optimizer, 0, steps)
    return parameters, optimizer


def snapshot(tree: Any) -> Any:
    """A copy that further steps do not change."""
    if isinstance(tree, dict):
        return {key: snapshot(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(snapshot(value) for value in tree)
    if isinstance(tree, Tensor):
        return (tree.detach().to_dense() if tree.is_sparse else tree.detach()).clone()
    return tree


def saved(optimizer: Any) -> dict[str, Any]:
    """The state_dict as torch knows it."""
    return {key: value for key, value in optimizer.state_dict().items() if key != "mend"}


def seen(optimizer: Optimizer) -> dict[str, Any]:
    """Everything that a step may change."""
    return {"params": snapshot(held(optimizer)), **snapshot(saved(optimizer))}


def options(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The options of each group, learning rate included."""
    return [
        snapshot({key: v for key, v in group.items() if key != "params"})
        for group in optimizer.param_groups
    ]


def differences(a: Any, b: Any, path: str = "") -> list[str]:
    """The places where two snapshots differ in any bit."""
    if type(a) is not type(b):
        return [f"{path}: {a!r} is not {b!r}"]
    if isinstance(a, dict):
        missing = [f"{path}.{key}: only one has it" for key in a.keys() ^ b.keys()]
        return missing + [
            d for key in a.keys() & b.keys() for d in differences(a[key], b[key], f"{path}.{key}")
        ]
    if isinstance(a, list | tuple):
        lengths = [] if len(a) == len(b) else [f"{path}: {len(a)} items, not {len(b)}"]
        each = enumerate(zip(a, b, strict=False))
        return lengths + [d for i, (x, y) in each for d in differences(x, y, f"{path}[{i}]")]
    alike = a.dtype == b.dtype and torch.equal(a, b) if isinstance(a, Tensor) else a == b
    return [] if alike else [f"{path}: {a!r} is not {b!r}"]


def agree(run: Callable[[Wrap], Any]) -> Any:
    """`run` sees the same over the wrapper as over the bare optimizer, refusals included."""
    try:
        expected = run(bare)
    except Exception as error:
        reason = next((reason for words, reason in REFUSALS.items() if words in str(error)), None)
        if reason is None:
            raise
        with suppress(type(error)):
            run(MendOptimizer)
        raise TorchRefuses(reason) from error
    found = run(MendOptimizer)
    assert differences(expected, found) == []
    return found


# ── the table ─────────────────────────────────────────────────────────────────────────────────────

CELL = "contract cell"  # the names of the properties that a test reports
DASH = "contract dash"


def fill_cell(
    record: Callable[[str, Any], None], table: str, row: str, column: str, check: Callable[[], None]
) -> None:
    """Run one check and say which cell it fills."""
    record(CELL, [table, row, column])
    try:
        check()
    except TorchRefuses as refusal:
        record(DASH, str(refusal))


def tables(reports: Iterable[tuple[bool, dict[str, Any]]]) -> list[str]:
    """The lines to print for all reports (whether the test passed, its properties); none without
    contract tests."""
    marks: dict[str, dict[str, dict[str, str]]] = {}
    dashes: dict[str, str] = {}
    for passed, properties in reports:
        if CELL not in properties:
            continue
        table, row, column = properties[CELL]
        mark = "FAIL" if not passed else "ok"
        if passed and DASH in properties:
            mark = "-" + dashes.setdefault(properties[DASH], str(len(dashes) + 1))
        marks.setdefault(table, {}).setdefault(row, {})[column] = mark
    lines = [line for table, rows in marks.items() for line in render(table, rows)]
    return lines + [f"-{number}: torch refuses: {reason}" for reason, number in dashes.items()]


def render(table: str, rows: dict[str, dict[str, str]]) -> list[str]:
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    first = max(map(len, [table, *rows]))
    cells = [mark for row in rows.values() for mark in row.values()]
    absent = sum(cell.startswith("-") for cell in cells)
    count = f"{cells.count('ok')} ok, {cells.count('FAIL')} FAIL, {absent} -"
    body = [
        "  ".join(
            [name.ljust(first), *(row.get(column, "").ljust(len(column)) for column in columns)]
        ).rstrip()
        for name, row in rows.items()
    ]
    return ["", "  ".join([table.ljust(first), *columns]), *body, f"{len(cells)} cells: {count}"]
