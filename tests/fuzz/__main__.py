"""Coverage-guided fuzzing of every decoder of bytes that a peer or a file controls.

    python -m tests.fuzz [TARGET...] [--minutes 10]     fuzz, one target after the other
    python -m tests.fuzz --replay FILE [TARGET]         run one input
    python -m tests.fuzz --seeds                        write the seeds into the corpus
    python -m tests.fuzz --keep [TARGET...]             and what was found and covers more

It needs the extra `fuzz` (atheris), except for replays and seeds. The corpus is in
`tests/fuzz/corpus/TARGET`, and every file of it is a test (`test_targets.py`). What a run finds
goes to `.fuzz/TARGET`, which the next run begins with. An input that breaks a law ends the run of
its target, is kept there, and belongs into the corpus once the fault is mended. The exit status is
1 if there was any."""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
from pathlib import Path

from tests.fuzz.target import LONGEST, Target
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).parent / "corpus"
FOUND = ROOT / ".fuzz"
#: Seconds that one input may take, on a machine that does other things as well.
SLOWEST_S = 20
_RUNS = re.compile(r"stat::number_of_executed_units: *(\d+)")
_COVERED = re.compile(r"cov: (\d+)")


def digest_of(data: bytes) -> str:
    """The name of an input in the corpus."""
    return hashlib.sha256(data).hexdigest()[:16]


def write_seeds(target: Target) -> None:
    """Write the target's seeds into its corpus, each under the digest of its bytes."""
    folder = CORPUS / target.name
    folder.mkdir(parents=True, exist_ok=True)
    for seed in target.seeds():
        (folder / digest_of(seed)).write_bytes(seed)


def fuzz(target: Target, seconds: int) -> bool:
    """Fuzz one target; whether no input broke a law."""
    folder = FOUND / target.name
    (folder / "corpus").mkdir(parents=True, exist_ok=True)
    before = set(folder.iterdir())
    options = {
        "max_total_time": seconds,
        "max_len": LONGEST,
        "timeout": SLOWEST_S,
        "rss_limit_mb": 0,  # the child has a limit of its own
        "print_final_stats": 1,
        "artifact_prefix": f"{folder}/",
    }
    command = [sys.executable, "-m", "tests.fuzz.child", target.name]
    command += [f"-{name}={value}" for name, value in options.items()]
    command += [str(folder / "corpus"), str(CORPUS / target.name)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace")
    output = done.stderr + done.stdout
    runs, covered = (int([0, *pattern.findall(output)][-1]) for pattern in (_RUNS, _COVERED))
    print(f"{target.name:13} {runs:>9,} runs, {covered} edges", flush=True)
    if done.returncode == 0:
        return True
    print(done.stderr[-2000:] + done.stdout[-4000:])
    for crasher in sorted(set(folder.iterdir()) - before):
        print(f"{target.name}: replay with python -m tests.fuzz --replay {crasher} {target.name}")
    return False


def keep(target: Target) -> None:
    """Add to the corpus what was found and covers code that nothing in it does: few inputs, short
    ones first."""
    command = [sys.executable, "-m", "tests.fuzz.child", target.name, "-merge=1", "-use_counters=0"]
    command += [str(CORPUS / target.name), str(FOUND / target.name / "corpus")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    for path in (CORPUS / target.name).iterdir():
        path.rename(path.with_name(digest_of(path.read_bytes())))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", choices=[*TARGETS, []])
    parser.add_argument("--minutes", type=float, default=10.0, help="for all targets together")
    parser.add_argument("--replay", type=Path, metavar="FILE")
    parser.add_argument("--seeds", action="store_true")
    parser.add_argument("--keep", action="store_true")
    told = parser.parse_args()
    chosen = [TARGETS[name] for name in told.targets or TARGETS]
    if told.replay:
        name = told.targets[0] if told.targets else told.replay.parent.name
        print("taken" if TARGETS[name].run(told.replay.read_bytes()) else "refused")
        return 0
    if told.seeds:
        for target in chosen:
            write_seeds(target)
        return 0
    if told.keep:
        for target in chosen:
            keep(target)
        return 0
    share = 60 * told.minutes / sum(target.weight for target in chosen)
    held = [fuzz(target, max(1, round(share * target.weight))) for target in chosen]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
