"""Three learners train one model over loopback, beside two that share nothing: `make demo`.

Every learner is a process of its own: `train_text.py` on its third of the text. The learners share
a new secret, so that their links are mutual TLS, as they would be between machines. When all have
trained, the launcher asks them to synchronize and report, compares what they hold, and prints what
merging was worth. It exits with an error if the learners' anchors differ, or if merging did not
beat training alone for the same number of steps.

Two more processes show the limits between which that lies. One trains alone on the first third. The
other one stands for data parallel training: each of its steps has the batches of all three, as if
they had exchanged their gradients at every step.
"""

import argparse
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

LEARNERS = ("a", "b", "c")
ALONE, PARALLEL = "alone", "parallel"
SILENCE_LIMIT_S = 90  # a learner speaks every second, and waits at most 30 s to synchronize
REPORT_TRIES = 3
LEAVE_LIMIT_S = 20
BAR_WIDTH = 12
PLAIN_LINES_EVERY_S = 10


class DemoError(Exception):
    """The demo did not show what it promises; the message says what happened instead."""


class Child:
    """One training process. The lines it prints go to the inbox, what it complains about to a log
    file."""

    def __init__(
        self, name: str, arguments: list[str], secret: Path, folder: Path, inbox: queue.Queue
    ) -> None:
        self.name = name
        self.latest: dict = {"step": 0, "members": []}
        self.trained = False
        self.report: dict | None = None
        self.log = folder / f"{name}.log"
        script = Path(__file__).with_name("train_text.py")
        with self.log.open("w") as log:
            # A session of its own: Ctrl-C reaches the launcher alone, which then ends its children
            # in order.
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    script,
                    "--name",
                    name,
                    "--hold",
                    "--progress",
                    "json",
                    *arguments,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "MEND_SECRET_FILE": str(secret)},
                text=True,
                start_new_session=True,
            )
        threading.Thread(target=self._read, args=(inbox,), daemon=True).start()

    def _read(self, inbox: queue.Queue) -> None:
        for line in self.process.stdout:
            inbox.put((self, line))
        inbox.put((self, ""))

    def note(self, line: str) -> None:
        """Take in one line. Nobody may end before it is told to, so an end is a failure."""
        if not line:
            tail = "\n".join(self.log.read_text().splitlines()[-20:])
            raise DemoError(
                f"learner {self.name} ended early, with exit status {self.process.wait()}\n{tail}"
            )
        message = json.loads(line)
        self.latest |= message
        self.trained |= message["event"] == "trained"
        if message["event"] == "report":
            self.report = message

    def ask_report(self) -> None:
        """A held learner synchronizes and reports once for every line it reads."""
        self.report = None
        # it has ended: its last line, already on the way, says so better
        with suppress(BrokenPipeError):
            self.process.stdin.write("report\n")
            self.process.stdin.flush()

    def leave(self) -> None:
        """Closing its input lets a held learner say goodbye and end."""
        self.process.stdin.close()

    def await_end(self) -> None:
        try:
            status = self.process.wait(LEAVE_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise DemoError(
                f"learner {self.name} did not end within {LEAVE_LIMIT_S} s of being told to"
            ) from None
        if status:
            raise DemoError(
                f"learner {self.name} failed while leaving, with exit status {status}; "
                f"see {self.log}"
            )

    def stop(self) -> None:
        """End it whatever it does. Safe to repeat, and after it has ended."""
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Screen:
    """One line per child: redrawn in place on a terminal, printed every few seconds anywhere
    else."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.live = sys.stdout.isatty()
        self.drawn = 0
        self.next_at = 0.0

    def show(self, children: list[Child], last: bool = False) -> None:
        now = time.monotonic()
        if now < self.next_at and not last:
            return
        self.next_at = now + (0.2 if self.live else PLAIN_LINES_EVERY_S)
        width = shutil.get_terminal_size().columns
        if self.live and self.drawn:
            print(f"\x1b[{self.drawn}F", end="")
        for child in children:
            # A line longer than the terminal would wrap, and the next redraw would start too low.
            print(f"\x1b[2K{self.line(child)[: width - 1]}" if self.live else self.line(child))
        if not self.live:
            print()
        sys.stdout.flush()
        self.drawn = len(children)

    def line(self, child: Child) -> str:
        seen = child.latest
        bar = ("#" * (BAR_WIDTH * seen["step"] // self.steps)).ljust(BAR_WIDTH, ".")
        start = f"{child.name:<9}{bar} {seen['step']:>5}/{self.steps}"
        if not seen["step"]:
            return start
        rounds = (
            f"  {seen['rounds']:>3} rounds ({'+'.join(seen['members'])})" if seen["members"] else ""
        )
        return f"{start}  loss {seen['loss']:.3f}  {seen['tokens_per_s']:>7,} tok/s{rounds}"


def held_ports(count: int) -> list[socket.socket]:
    """Sockets with ports that the system had free. On Linux they keep these from all others until
    the learners listen, which takes them seconds."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        each.bind(("127.0.0.1", 0))
    return sockets


def make_secret(folder: Path) -> Path:
    """Make a new secret, as the page on security says to."""
    secret = folder / "cluster.secret"
    secret.unlink(missing_ok=True)
    command = [sys.executable, "-m", "mend_optim.certs", "secret", str(secret)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return secret


def arguments_of(
    name: str, addresses: dict[str, str], folder: Path, args: argparse.Namespace
) -> list[str]:
    """Everyone starts from the same weights; the one alone trains on what the first learner has."""
    common = [
        "--steps",
        args.steps,
        "--batch",
        args.batch * (len(LEARNERS) if name == PARALLEL else 1),
        "--seed",
        args.seed,
        "--report",
        folder / f"{name}.json",
    ]
    if name == ALONE:
        own = ["--solo", "--shard", f"0/{len(LEARNERS)}"]
    elif name == PARALLEL:
        own = ["--solo"]
    else:
        peers = ",".join(address for peer, address in addresses.items() if peer != name)
        own = ["--listen", addresses[name], "--peers", peers, "--sync-every", args.sync_every]
        own += [
            "--shard",
            f"{LEARNERS.index(name)}/{len(LEARNERS)}",
            "--ledger",
            folder / f"{name}.jsonl",
        ]
    return [str(argument) for argument in common + own]


def listen_until(
    done: Callable[[], bool], children: list[Child], inbox: queue.Queue, screen: Screen
) -> None:
    while not done():
        try:
            child, line = inbox.get(timeout=SILENCE_LIMIT_S)
        except queue.Empty:
            raise DemoError(f"no learner said anything for {SILENCE_LIMIT_S} s") from None
        child.note(line)
        screen.show(children)


def agreed(learners: list[Child]) -> bool:
    """Synchronized, on the same lineage, with the same bits in every weight."""
    held = {
        (json.dumps(learner.report["lineages"]), learner.report["weights"]) for learner in learners
    }
    return len(held) == 1 and all(learner.report["synchronized"] for learner in learners)


def run(children: list[Child], inbox: queue.Queue, screen: Screen) -> None:
    """Train, then report until all learners hold the same: one that asks early may miss what
    another still gave."""
    learners = [child for child in children if child.name in LEARNERS]
    listen_until(lambda: all(child.trained for child in children), children, inbox, screen)
    screen.show(children, last=True)
    asked = children
    for _ in range(REPORT_TRIES):
        for child in asked:
            child.ask_report()
        listen_until(lambda: all(child.report for child in children), children, inbox, screen)
        if agreed(learners):
            return
        asked = learners
    facts = ("synchronized", "lineages", "weights")
    held = "".join(
        f"\n  {child.name}: " + str({fact: child.report[fact] for fact in facts})
        for child in learners
    )
    raise DemoError(
        f"the learners' anchors still differ after {REPORT_TRIES} times synchronize():{held}"
    )


def tokens_merged(folder: Path) -> Counter[str]:
    """Tokens of every learner in the anchor: the rounds in all ledgers, each counted once."""
    rounds = {}
    for ledger in folder.glob("*.jsonl"):
        for record in map(json.loads, ledger.read_text().splitlines()):
            rounds[record["fragment"], record["version"], record["digest"]] = record
    merged: Counter[str] = Counter()
    for record in rounds.values():
        for member in record["members"]:
            merged[member["name"]] += member["tokens"]
    return merged


def print_result(children: list[Child], merged: Counter[str]) -> None:
    print(
        f"\n{'':<9}{'steps':>7}{'tokens':>12}{'of them merged':>16}{'rounds':>8}"
        f"{'held-out loss':>15}"
    )
    for child in children:
        report = child.report
        rounds = (
            (f"{merged[child.name]:,}", report["rounds"]) if child.name in LEARNERS else ("-", "-")
        )
        row = f"{child.name:<9}{report['step']:>7}{report['tokens']:>12,}"
        row += f"{rounds[0]:>16}{rounds[1]:>8}"
        print(f"{row}{report['held_out_loss']:>15.4f}")
    first = children[0].report
    print(f"\nAfter synchronize() {', '.join(LEARNERS)} hold the same anchor, bit for bit:")
    for fragment, tokens, version, digest in first["lineages"]:
        print(
            f"  fragment {fragment}: version {version}, {tokens:,} tokens, "
            f"lineage digest {digest[:16]}"
        )
    print(f"  all weights: SHA-256 {first['weights'][:16]}")
    print(f"Their links: {first['security']}")


def judge(children: list[Child]) -> str:
    loss = {child.name: child.report["held_out_loss"] for child in children}
    together, alone = max(loss[name] for name in LEARNERS), loss[ALONE]
    losses = f"held-out loss {together:.4f} together, {alone:.4f} alone"
    losses += f", {loss[PARALLEL]:.4f} with data parallel steps"
    compared = f"{losses}, after the same number of steps each"
    if not together < alone:
        raise DemoError(f"merging did not beat training alone: {compared}")
    return f"Merging helped: {compared}."


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Three learners train one model, beside two that share nothing."
    )
    parser.add_argument("--steps", type=int, default=500, help="inner steps of every learner")
    parser.add_argument("--sync-every", default="auto", help="inner steps between rounds, or auto")
    parser.add_argument("--batch", type=int, default=8, help="windows of text per step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out",
        type=Path,
        help="folder for ledgers, reports and logs; default: a new temporary one",
    )
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    folder = args.out or Path(tempfile.mkdtemp(prefix="mend-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.jsonl"):  # ledgers are appended to
        old.unlink()
    # SIGTERM must not orphan the children: an exception unwinds through `finally`, a signal does
    # not.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("demo stopped"))
    held = held_ports(len(LEARNERS))
    addresses = {
        name: f"127.0.0.1:{each.getsockname()[1]}"
        for name, each in zip(LEARNERS, held, strict=True)
    }
    if sys.platform != "linux":
        for each in held:  # it would keep out the learner, too
            each.close()
    inbox: queue.Queue = queue.Queue()
    children: list[Child] = []
    try:
        secret = make_secret(folder)
        for name in (*LEARNERS, ALONE, PARALLEL):
            arguments = arguments_of(name, addresses, folder, args)
            children.append(Child(name, arguments, secret, folder, inbox))
        run(children, inbox, Screen(args.steps))
        for child in children:
            child.leave()
        for child in children:
            child.await_end()
        print_result(children, tokens_merged(folder))
        print(f"Ledgers, reports and logs are in {folder}\n\n{judge(children)}")
    except DemoError as error:
        sys.exit(f"demo failed: {error}\n(logs in {folder})")
    except KeyboardInterrupt:
        sys.exit("demo stopped")
    finally:
        for interruption in (signal.SIGINT, signal.SIGTERM):
            # a second Ctrl-C must not leave half of them running
            signal.signal(interruption, signal.SIG_IGN)
        for child in children:
            child.stop()


if __name__ == "__main__":
    main()
