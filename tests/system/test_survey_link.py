"""`mend check` on a wire whose speed the kernel limits: two network namespaces."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bench.cluster.namespaces import End, absent, joined

PORT, BACK = 29600, 29601
MBIT = 125_000
#: The kernel lets no more pass, but for what it lets pass at once; headers take a twentieth.
MOST, LEAST = 1.1, 0.5
LEARNER = """
import sys, torch
from mend_optim import MendOptimizer
inner = torch.optim.SGD(torch.nn.Linear(4, 1).parameters(), lr=0.1)
with MendOptimizer(inner, name="a", listen=sys.argv[1], insecure=True) as optimizer:
    optimizer.join()
    print("listens", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def permitted() -> None:
    if reason := absent():
        pytest.skip(reason)


def inside(end: End, *arguments: str) -> list[str]:
    """A command of Python in that namespace."""
    return ["nsenter", f"--net=/proc/{end.keeper}/ns/net", sys.executable, *arguments]


@contextmanager
def learner(end: End) -> Iterator[str]:
    """A learner that listens at that end; its address."""
    pipe, address = subprocess.PIPE, f"{end.address}:{PORT}"
    command = inside(end, "-c", LEARNER, address)
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout
        if process.stdout.readline() != "listens\n":
            raise RuntimeError(process.communicate()[1])
        yield address
        process.communicate()


def checked(end: End, *arguments: str) -> dict[str, Any]:
    """The findings of the command at that end."""
    command = inside(end, "-m", "mend_optim", "check", "--json", "--timeout", "60", *arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    told = json.loads(done.stdout)
    assert done.returncode == (not told["sound"])
    (found,) = told["addresses"]
    return dict(found)


def test_the_speed_of_each_direction_is_found_and_the_way_back() -> None:
    with joined() as (there, here), learner(there) as address:
        here.limit("4mbit")
        there.limit("16mbit")
        found = checked(here, address, "--listen", f":{BACK}")
        assert found["faults"] == []
        assert found["sees_you_as"] == here.address
        assert found["dials_back"] == "reached"
        assert abs(found["clock_offset_s"]) <= found["clock_bound_s"]
        assert LEAST * 4 * MBIT <= found["bytes_per_s_there"] <= MOST * 4 * MBIT
        assert LEAST * 16 * MBIT <= found["bytes_per_s_back"] <= MOST * 16 * MBIT
        # An address of this machine under which the learner does not see it.
        here.run("ip", "address", "add", "192.0.2.77/24", "dev", "wire")
        given = ("--listen", f":{BACK}", "--advertise", f"192.0.2.77:{BACK}", "--quick")
        found = checked(here, address, *given)
        assert found["dials_back"] is None
        (fault,) = found["faults"]
        assert f"it dials {here.address} alone" in fault["text"]
