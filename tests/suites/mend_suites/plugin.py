"""The pytest plugin: `-p mend_suites.plugin --mend=alone --mend-report=FILE`.

It writes one JSON line for each test that ended: how, and what was wrapped in it. So a run that
crashes has told what it saw."""

from __future__ import annotations

import functools
import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import numpy
import pytest
import torch
from numpy.random import bit_generator
from torch.optim import Optimizer

from mend_optim import MendOptimizer
from mend_optim.training_run import TrainingRun

from .digest import StepDigest
from .partner import Partners, is_partner
from .wrapping import Wrapping

MODES = ("off", "alone", "live")
#: The worst phase of a test counts.
SEVERITY = ("passed", "xfailed", "skipped", "xpassed", "failed", "error")
#: What was constructed before the first test, while the suite was imported.
COLLECTION = "(collection)"
MESSAGE_LENGTH = 600
#: Declarations live as long as this object.
VISION = torch.library.Library("torchvision", "FRAGMENT")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mend")
    group.addoption("--mend", choices=MODES, default="off", help="what to put around optimizers")
    group.addoption("--mend-report", type=Path, help="a JSON line for each test goes here")
    group.addoption("--mend-every", type=int, default=1, help="run one test in so many")
    group.addoption("--mend-no-cuda", action="store_true", help="Tensor.cuda() stays on the CPU")
    group.addoption(
        "--mend-no-vision",
        action="store_true",
        help="torchvision is imported without its operators",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--mend-no-cuda"):
        torch.Tensor.cuda = lambda tensor, *_, **__: tensor  # type: ignore[method-assign]
    if config.getoption("--mend-no-vision"):
        _declare_vision()
    report = config.getoption("--mend-report")
    if report is not None:
        config.pluginmanager.register(Suite(config.getoption("--mend"), report), "mend-suite")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    every = config.getoption("--mend-every")
    config.hook.pytest_deselected(items=[item for i, item in enumerate(items) if i % every])
    items[:] = items[::every]


def _declare_vision() -> None:
    """Declare the operators that torchvision looks for when it is imported. Its builds for CUDA
    cannot load their operators beside torch's build for the CPU."""
    for name in ("nms", "qnms"):
        VISION.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def _outcome(report: Any) -> str:
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    if report.failed and report.when != "call":
        return "error"
    return str(report.outcome)


def _message(report: Any) -> str:
    """What went wrong, and in which line of which file."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return str(report.longrepr)[-MESSAGE_LENGTH:]
    return f"{Path(crash.path).name}:{crash.lineno}: {crash.message[:MESSAGE_LENGTH]}"


def seed_all() -> None:
    """Both runs of a test draw the same numbers, also from generators that take their seed from the
    operating system, as those of environments do."""
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    vars(bit_generator)["randbits"] = random.Random(0).getrandbits


class Suite:
    """One run of a suite.

    Args:
        mode: "off", "alone" or "live".
        path: where the lines go.
    """

    def __init__(self, mode: str, path: Path) -> None:
        self._mode = mode
        self._file = path.open("w", encoding="utf-8", buffering=1)
        self._partners = Partners(lambda: self._wrapping.suspended())
        self._wrapping = Wrapping(self._wrap)
        self._wrappers: WeakKeyDictionary[TrainingRun, ref[MendOptimizer]] = WeakKeyDictionary()
        #: Those whose `step()` is running.
        self._within: WeakSet[TrainingRun] = WeakSet()
        self._collected = False
        self._digest = StepDigest()
        self._steps = 0
        self._outcome = ("passed", "")
        self._stack = ExitStack()
        if mode != "off":
            self._stack.enter_context(self._wrapping.installed())
            self._around(MendOptimizer, "step", self._step)
            self._around(TrainingRun, "begin_step", self._begin)
            self._around(TrainingRun, "end_step", self._end)
        if mode == "live":
            self._around(MendOptimizer, "load_state_dict", self._load)

    def _wrap(self, inner: Optimizer) -> MendOptimizer:
        """What suites construct while they are imported has no test in which a partner could live
        and die."""
        has_partner = self._mode == "live" and self._collected
        wrapped = self._partners.wrap(inner) if has_partner else MendOptimizer(inner)
        self._wrappers[wrapped._run] = ref(wrapped)
        return wrapped

    def _around(self, kind: type, method: str, call: Any) -> None:
        """Replace a method of a class by `call(original, self, …)`."""
        original = getattr(kind, method)

        @functools.wraps(original)
        def replacement(called: Any, *args: Any, **kwargs: Any) -> Any:
            return call(original, called, *args, **kwargs)

        setattr(kind, method, replacement)
        self._stack.callback(setattr, kind, method, original)

    def _step(self, original: Any, optimizer: MendOptimizer, *args: Any, **kwargs: Any) -> Any:
        """Count the steps of all wrapped optimizers; their partners take them too."""
        taken = self._before_step(optimizer)
        result = original(optimizer, *args, **kwargs)
        self._after_step(optimizer, taken)
        return result

    def _begin(self, original: Any, run: TrainingRun, *args: Any) -> Any:
        """A method that only the inner optimizer has is about to step."""
        optimizer = self._outside_step(run)
        if optimizer is not None:
            self._before_step(optimizer)
            self._within.discard(run)
        return original(run, *args)

    def _end(self, original: Any, run: TrainingRun, begun: Any) -> None:
        taken = run.history.step
        original(run, begun)
        optimizer = self._outside_step(run)
        if optimizer is not None:
            self._after_step(optimizer, taken)

    def _outside_step(self, run: TrainingRun) -> MendOptimizer | None:
        """The wrapper of the run, unless its `step()` is running."""
        wrapped = self._wrappers.get(run)
        return None if wrapped is None or run in self._within else wrapped()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _before_step(self, optimizer: MendOptimizer) -> int:
        self._within.add(optimizer._run)
        if self._mode == "live":
            self._partners.before_step(optimizer)
        return optimizer.status().step

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _after_step(self, optimizer: MendOptimizer, taken: int) -> None:
        self._within.discard(optimizer._run)
        if optimizer.status().step == taken or is_partner(optimizer):
            return
        self._steps += 1
        if self._mode == "live":
            self._partners.after_step(optimizer)

    def _load(self, original: Any, optimizer: MendOptimizer, *args: Any, **kwargs: Any) -> Any:
        self._partners.forget(optimizer)
        return original(optimizer, *args, **kwargs)

    def _counts(self) -> Counter[str]:
        return Counter(
            wrapped=sum(self._wrapping.wrapped.values()),
            steps=self._steps,
            partners=self._partners.made,
            rounds=self._partners.rounds,
            **{f"bare: {reason}": count for reason, count in self._wrapping.bare.items()},
        )

    def _write(self, test: str, outcome: tuple[str, str], counts: Counter[str]) -> None:
        line = {
            "test": test,
            "outcome": outcome[0],
            "message": outcome[1],
            "digest": self._digest.take(),
            "counts": dict(counts),
            "partner_errors": self._partners.take_errors(),
        }
        self._file.write(json.dumps(line) + "\n")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = self._counts()
        self._outcome = ("passed", "")
        seed_all()
        result = yield
        self._partners.close()
        counts = self._counts()
        counts.subtract(before)
        self._write(item.nodeid, self._outcome, counts)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = _outcome(report)
        if SEVERITY.index(outcome) > SEVERITY.index(self._outcome[0]):
            self._outcome = (outcome, _message(report))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            outcome = "error" if report.failed else "skipped"
            self._write(report.nodeid, (outcome, _message(report)), Counter())

    def pytest_collection_finish(self) -> None:
        self._collected = True
        self._write(COLLECTION, ("passed", ""), self._counts())

    def pytest_unconfigure(self) -> None:
        self._partners.close()
        self._digest.close()
        self._stack.close()
        self._file.close()
