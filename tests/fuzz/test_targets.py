"""Every decoder of bytes that a peer or a file controls keeps its law: on each file of the corpus,
and on what Hypothesis makes of them. `make fuzz` goes on for longer, guided by coverage."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.__main__ import CORPUS, main
from tests.fuzz.mutator import mutated
from tests.fuzz.target import LONGEST, Target, joined, parted
from tests.fuzz.targets import TARGETS
from tests.support.depth import many

ROOT = Path(__file__).parents[2]
each_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
#: Runs of each target on inputs that Hypothesis makes; a run of these takes longer.
EXAMPLES = many(60, 150)
SLOW = {"worker": many(30, 60), "engine": many(30, 60), "checkpoint": 25}


@cache
def corpus(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


@cache
def run_once(target: Target) -> None:
    """What the first run imports is no memory that its input takes up."""
    target.run(corpus(target.name)[0])


def run_within_memory(target: Target, data: bytes) -> bool:
    """Run the target, and hold it to its bound on memory."""
    run_once(target)
    tracemalloc.start()
    try:
        taken = target.run(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    most = (1 << 20) + target.growth * len(data)
    assert peak < most, f"{peak} bytes of memory for {len(data)} bytes; the limit is {most}"
    return taken


@each_target
def test_the_whole_corpus_breaks_no_law(target: Target) -> None:
    """The files of other targets are garbage to this one, and mostly close to what it takes."""
    for name in TARGETS:
        for data in corpus(name):
            target.run(data)


@each_target
def test_the_corpus_gets_through(target: Target) -> None:
    """Else it would have become stale: a later version of the project may take none of it."""
    assert len(corpus(target.name)) >= 2
    assert max(map(len, corpus(target.name))) <= LONGEST
    taken = [run_within_memory(target, data) for data in corpus(target.name)]
    assert sum(taken) >= 2
    assert all(target.run(seed) in (True, False) for seed in target.seeds())


def bytewise(data: bytes, chance: Random) -> bytes:
    """An input with a few bytes changed, put in or left out."""
    new = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randint(0, len(new))
        stop = at + chance.choice((0, 1, 1, 2, 4))
        new[at:stop] = chance.randbytes(chance.choice((0, 1, 1, 2, 4)))
    return bytes(new)


@each_target
def test_mutations_of_the_corpus_break_no_law(target: Target) -> None:
    inputs = st.sampled_from(corpus(target.name)) | st.binary(max_size=200)

    @settings(
        max_examples=SLOW.get(target.name, EXAMPLES),
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(inputs, st.randoms(use_true_random=False))
    def holds(data: bytes, chance: Random) -> None:
        for _ in range(chance.randint(1, 3)):
            data = mutated(target, data, chance, lambda part: bytewise(part, chance))
        run_within_memory(target, data[:LONGEST])

    holds()


@each_target
def test_mutations_get_through_and_are_refused(target: Target) -> None:
    """A mutator whose results are all garbage, or all fine, would find nothing."""
    chance, taken = Random(0), []
    for _ in range(SLOW.get(target.name, EXAMPLES)):
        data = chance.choice(corpus(target.name))
        data = mutated(target, data, chance, lambda part: bytewise(part, chance))
        taken.append(target.run(data[:LONGEST]))
    assert any(taken)
    assert not all(taken)


@given(st.lists(st.binary(max_size=9), max_size=5), st.binary(max_size=1))
def test_lists_come_back_and_anything_is_a_list(parts: list[bytes], more: bytes) -> None:
    assert parted(joined(parts) + more) == parts


def test_a_law_that_is_broken_is_found_and_can_be_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make fuzz` would say nothing if a target could not fail."""

    def broken(data: bytes) -> bool:
        raise AssertionError(f"{data!r} broke a law")

    crasher = tmp_path / "crasher"
    crasher.write_bytes(b"abc")
    monkeypatch.setitem(TARGETS, "want", TARGETS["want"]._replace(run=broken))
    monkeypatch.setattr(sys, "argv", ["fuzz", "--replay", str(crasher), "want"])
    with pytest.raises(AssertionError, match="b'abc' broke a law"):
        main()


@pytest.mark.skipif(find_spec("atheris") is None, reason="`make fuzz` installs the extra `fuzz`")
def test_each_target_runs_under_the_fuzzer() -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--minutes", "0.05", "want", "address"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    runs = [line.split()[1] for line in done.stdout.splitlines()]
    assert len(runs) == 2
    assert "0" not in runs
