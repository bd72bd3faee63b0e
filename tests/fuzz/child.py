"""One target under libFuzzer, in a process of its own: it ends with the first input that breaks a
law. `__main__.py` starts it, with libFuzzer's own arguments."""

from __future__ import annotations

import resource
import shlex
import sys
from pathlib import Path
from random import Random

import atheris  # the extra `fuzz`

with atheris.instrument_imports(include=["mend_optim"]):
    from tests.fuzz.mutator import mutated
    from tests.fuzz.targets import TARGETS

#: Memory that a run may ask for besides what is in use, in bytes. An input has 4 KiB.
ROOM = 1 << 30


def main(name: str, arguments: list[str]) -> None:
    target = TARGETS[name]

    def run(data: bytes) -> None:
        target.run(data)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        def plainly(part: bytes) -> bytes:
            return bytes(atheris.Mutate(part, max(1, min(most, len(part) + 64))))

        return mutated(target, data, Random(seed), plainly)[:most]

    # What is made on first use is no one input's memory, and what is imported then is guided, too.
    with atheris.instrument_imports(include=["mend_optim"]):
        for seed in target.seeds():
            target.run(seed)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    again = f"{shlex.quote(sys.executable)} -m tests.fuzz.child {name}"  # as a merge starts it
    atheris.Setup([again, *arguments], run, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
