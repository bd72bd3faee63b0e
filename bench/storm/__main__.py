"""`python -m bench.storm [--scenario storm|partition|soak]`: run the scenario, then print the
figures from its journal."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.storm.report import report
from bench.storm.scenarios import SCENARIOS
from bench.storm.supervisor import Supervisor

NAMES = "abcdefghijklmnopqrstuvwxyz"


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.storm", description="Real learners in bad weather."
    )
    parser.add_argument("--scenario", choices=list(SCENARIOS), default="storm")
    parser.add_argument(
        "--learners", type=int, help="default: 8 in a storm, else 4; in a soak one more is a guest"
    )
    parser.add_argument("--minutes", type=float, help="of storm or soak; default 10, or 30")
    parser.add_argument(
        "--faults-per-hour", type=float, default=120.0, help="on all learners together"
    )
    parser.add_argument("--seed", type=int, default=0, help="of weather, weights and data")
    parser.add_argument(
        "--quorum", type=int, help="fewest offers in a seal; default: the library's, a majority"
    )
    parser.add_argument(
        "--sync-every", type=int, help="inner steps per round; default 128; storm 64, soak 16"
    )
    parser.add_argument(
        "--pace-ms", type=float, help="sleep before each step; default 25, in a storm 100"
    )
    parser.add_argument("--grace-s", type=float, help="default: the library's")
    parser.add_argument("--beat-s", type=float, default=1.0)
    parser.add_argument("--evict-after-s", type=float, default=30.0)
    parser.add_argument(
        "--warm-up-s", type=float, default=60.0, help="without faults, before anything else"
    )
    parser.add_argument("--partition-s", type=float, default=60.0)
    parser.add_argument("--settle-s", type=float, default=60.0, help="after a partition")
    parser.add_argument(
        "--out", type=Path, help="folder for journal, ledgers, figures, picture; default: a new one"
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="DIR",
        help="run nothing; report on the journal in there again",
    )
    options = parser.parse_args(argv)
    if options.report:
        return options
    fewest = {"storm": 3, "partition": 2, "soak": 2}[options.scenario]
    options.learners = options.learners or (8 if options.scenario == "storm" else 4)
    options.minutes = options.minutes or (30.0 if options.scenario == "soak" else 10.0)
    options.sync_every = (
        options.sync_every or {"storm": 64, "partition": 128, "soak": 16}[options.scenario]
    )
    # many learners on few cores: the scheduler should not be the one to slow a survivor
    if options.pace_ms is None:
        options.pace_ms = 100.0 if options.scenario == "storm" else 25.0
    if not fewest <= options.learners < len(NAMES):
        parser.error(f"--learners must be {fewest} to {len(NAMES) - 1}, got {options.learners}")
    return options


def supervisor_of(options: argparse.Namespace, out: Path) -> Supervisor:
    own: dict[str, Any] = {"sync_every": options.sync_every}
    if options.quorum is not None:
        own["quorum"] = options.quorum
    if options.grace_s is not None:
        own["grace"] = options.grace_s
    timing = {"beat_s": options.beat_s, "evict_after_s": options.evict_after_s}
    names = NAMES[: options.learners + (options.scenario == "soak")]
    return Supervisor(
        names, out, seed=options.seed, pace_s=options.pace_ms / 1e3, options=own, timing=timing
    )


async def run(options: argparse.Namespace, out: Path) -> None:
    """Run the scenario until it is over, something fails, or a signal arrives. All its processes
    are ended."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with supervisor_of(options, out) as supervisor:
        shown = {
            key: str(value) if isinstance(value, Path) else value
            for key, value in vars(options).items()
        }
        supervisor.journal.say("run", options=shown, environment=supervisor.environment)
        work = asyncio.ensure_future(SCENARIOS[options.scenario](supervisor, options))
        try:
            await asyncio.wait({work, supervisor.failed}, return_when=asyncio.FIRST_COMPLETED)
            (work if work.done() else supervisor.failed).result()
        finally:
            work.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await work


def attempt(options: argparse.Namespace, out: Path) -> str:
    """Run; returns why the run did not reach its end, or an empty text. The journal holds
    everything up to then."""
    try:
        asyncio.run(run(options, out.absolute()))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return "interrupted"
    except Exception:
        traceback.print_exc()
        return "the run failed"
    return ""


def main() -> None:
    options = parse_arguments()
    out = options.report or options.out or Path(tempfile.mkdtemp(prefix="storm-"))
    if not options.report:
        out.mkdir(parents=True, exist_ok=True)
        if (out / "journal.jsonl").exists():
            sys.exit(f"{out} holds the journal of another run")
    failure = "" if options.report else attempt(options, out)
    if (out / "journal.jsonl").exists():
        report(out)
    sys.exit(failure or None)


if __name__ == "__main__":
    main()
