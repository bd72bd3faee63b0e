"""`python -m bench [NAME…] [--out FILE]`: run benches, print one JSON line per number."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.cluster import (
    afar,
    behind,
    buffers,
    convergence,
    crowd,
    delay,
    divided,
    failslow,
    hostile,
    learning,
    liars,
    link,
    moments,
    namespaces,
    newcomer,
    pace,
    slow,
    straggler,
    weak,
    wire,
    zones,
)
from bench.micro import (
    alone,
    busy,
    checkpoint,
    codec,
    exchange,
    gpu,
    memory,
    merge,
    messages,
    ranks,
    signatures,
    step,
    sync,
    tls,
    volume,
)
from bench.peers import faults
from bench.result import Result, environment, line

BENCHES: dict[str, Callable[[], Iterator[Result]]] = {
    "sync": sync.run,
    "sync250": sync.run_large,
    "step": step.run,
    "busy": busy.run,
    "exchange": exchange.run,
    "tls": tls.run,
    "merge": merge.run,
    "codec": codec.run,
    "convergence": convergence.run,
    "moments": moments.run,
    "buffers": buffers.run,
    "learning": learning.run,
    "liars": liars.run,
    "hostile": hostile.run,
    "crowd": crowd.run,
    "alone": alone.run,
    "checkpoint": checkpoint.run,
    "ranks": ranks.run,
    "messages": messages.run,
    "signatures": signatures.run,
    "volume": volume.run,
    "memory": memory.run,
    "gpu": gpu.run,
    "slow": slow.run,
    "straggler": straggler.run,
    "failslow": failslow.run,
    "delay": delay.run,
    "link": link.run,
    "pace": pace.run,
    "fragments": divided.run,
    "afar": afar.run,
    "wire": wire.run,
    "zones": zones.run,
    "weak": weak.run,
    "behind": behind.run,
    "newcomer": newcomer.run,
    "torchft": faults.run,
}
# why a bench cannot run here
ABSENT = {
    "sync250": sync.absent_large,
    "gpu": gpu.absent,
    "link": namespaces.absent,
    "pace": namespaces.absent,
    "fragments": namespaces.absent,
    "afar": namespaces.absent,
    "wire": namespaces.absent,
    "zones": namespaces.absent,
    "weak": namespaces.absent,
    "behind": namespaces.absent,
    "newcomer": namespaces.absent,
    "hostile": hostile.absent,
    "torchft": faults.absent,
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure: one JSON line per number."
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"any of {', '.join(BENCHES)}; default: all"
    )
    parser.add_argument("--out", type=Path, help="append the lines to this file, too")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(BENCHES))
    if unknown:
        parser.error(f"no bench is called {unknown[0]!r}; there are {', '.join(BENCHES)}")
    return arguments


def publish(text: str, out: Path | None) -> None:
    print(text, flush=True)
    if out:
        with out.open("a", encoding="utf-8") as file:
            file.write(text + "\n")


def main() -> None:
    arguments = parse_arguments()
    machine = environment()
    for name in arguments.names or BENCHES:
        if reason := ABSENT[name]() if name in ABSENT else "":
            print(f"{name}: skipped: {reason}", file=sys.stderr)
            continue
        started = time.monotonic()
        for result in BENCHES[name]():
            publish(line(result, machine), arguments.out)
        print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
