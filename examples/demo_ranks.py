"""Two racks of two ranks each train one model over loopback: `make demo-ranks`.

Each rack is a `torchrun` of `train_ranks.py`: FSDP2 inside, one learner to the other rack. The demo
exits with an error if they don't end on one model, or take too long.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

RANKS = 2
LIMIT_S = 240
SCRIPT = Path(__file__).with_name("train_ranks.py")


def start(arguments: list[str]) -> subprocess.Popen:
    """Start a rack, in a session of its own: Ctrl-C reaches the demo alone, which ends both."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    return subprocess.Popen(
        [sys.executable, *launcher, str(SCRIPT), *arguments],
        stdout=subprocess.PIPE,
        env={"OMP_NUM_THREADS": "1", **os.environ},
        text=True,
        start_new_session=True,
    )


def report_of(name: str, rack: subprocess.Popen, deadline: float) -> dict:
    """The last line that a rack has printed. Exits if the rack has failed."""
    try:
        printed, _ = rack.communicate(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        sys.exit(f"demo: rack {name} did not end within {LIMIT_S} s")
    if rack.returncode:
        sys.exit(f"demo: rack {name} ended with status {rack.returncode}: its errors are above")
    return json.loads(printed.splitlines()[-1])


def end(rack: subprocess.Popen) -> None:
    """Let a rack's launcher end its ranks, and itself; it kills those that don't listen."""
    if rack.poll() is None:
        rack.terminate()
        rack.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=300, help="of each rack")
    steps = str(parser.parse_args().steps)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    told = {
        "a": ["--name", "a", "--listen", address, "--shard", "0/2", "--steps", steps],
        "b": ["--name", "b", "--peers", address, "--shard", "1/2", "--steps", steps],
    }
    print(f"Two racks, a and b, of {RANKS} ranks each take {steps} steps ...", flush=True)
    racks = {name: start(arguments) for name, arguments in told.items()}
    deadline = time.monotonic() + LIMIT_S
    try:
        a, b = (report_of(name, rack, deadline) for name, rack in racks.items())
    finally:
        for rack in racks.values():
            end(rack)

    for report in (a, b):
        print(
            f"rack {report['learner']}: {report['ranks']} ranks, {report['rounds']} rounds, "
            f"held-out loss {report['loss']} nats per byte, digest {report['digest'][:16]}"
        )
    if not a["agreed"] or a["digest"] != b["digest"] or a["loss"] != b["loss"]:
        sys.exit("demo: the racks do not hold one model")
    merged = ", ".join(f"{count} of {name}" for name, count in sorted(a["tokens"].items()))
    print(f"Both racks hold one model, bit for bit, with the tokens of both: {merged}.")


if __name__ == "__main__":
    main()
