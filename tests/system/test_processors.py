"""Learners whose processors differ hold the same bits. Kernels for old processors and for new ones
sum and round in other ways, and what all learners compute must not depend on that."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.addresses import free_addresses
from tests.support.alongside import run_alongside

#: The newest kernels that this processor has, and the oldest, of torch and of what it calls.
NEW: dict[str, str] = {}
OLD = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
}

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64")
    or torch.backends.cpu.get_cpu_capability() == "DEFAULT",
    reason="needs an x86 processor with newer kernels than the oldest",
)


SETTINGS: list[dict[str, Any]] = [
    {"codec": "none", "merge": "rda"},
    {"codec": "int4, back exact"},
    {"codec": "sparse", "merge": "trimmed_mean"},
    {"codec": "powersgd", "fragments": 3},
    {"codec": "powersgd, back same"},
]


def test_learners_with_other_kernels_end_on_the_same_bits(tmp_path: Path) -> None:
    orders: dict[str, list[dict[str, Any]]] = {name: [] for name in "abc"}
    for options in SETTINGS:
        addresses = free_addresses(3)
        for seed, (name, address) in enumerate(zip("abc", addresses, strict=True)):
            peers = [other for other in addresses if other != address]
            own = {"name": name, "seed": seed, "address": address, "peers": peers}
            orders[name].append({**own, **options})
    files = [tmp_path / name for name in orders]
    for file, lines in zip(files, orders.values(), strict=True):
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    commands = [["-m", "tests.system.processor_learner", str(file)] for file in files]
    outputs = run_alongside(commands, tmp_path, [OLD, NEW, OLD], apart=True)
    told = [[json.loads(line) for line in output.splitlines()] for output in outputs]
    kernels = [lines.pop(0) for lines in told]
    assert kernels[0] == kernels[2] == "DEFAULT" != kernels[1]
    for options, ended in zip(SETTINGS, zip(*told, strict=True), strict=True):
        assert all(one["agreed"] and one["rounds"] > 3 for one in ended), options
        for kind in ("weights", "buffers"):
            assert len({one[kind] for one in ended}) == 1, (kind, options)
