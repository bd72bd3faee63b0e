"""A learner for the tests: it reads orders from stdin and writes events to stdout, one JSON object
a line.

    learn      fork a process that is a learner, and wait for its end; it takes the other orders
    run        take steps, up to number `steps` (null: until told to pause)
    pause      take no more steps
    ruin       multiply a matrix of its weights by `factor`
    report     print a status report
    gaps       print the longest gaps between two steps since the last such order: see `Gaps`
    synchronize
    save       write model, optimizer and place in the data to `path`; "learn" with `restore` goes
               on from there
    cut        die by SIGKILL when the next seal of its own making has reached some peers
    leave      end: by "close", by the end of a "with" block, or "plain", without either
    fail       raise in the training loop
    finish     finish the run, and print what it ends on
    handle     handle SIGTERM itself from now on
    signal_inside
               get SIGTERM at some moment: see `MOMENTS`
    exit       end at the next round, out of `on_event`: see ENDINGS
    children   name the processes that it has forked

Importing torch takes longer than most tests do. So the first process only imports, and every
learner is a fork of it, made before there is any thread. Learners train a small network on a fixed
problem, so their losses can be compared."""

from __future__ import annotations

import gc
import hashlib
import json
import multiprocessing
import os
import random
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bench.cluster.namespaces import End
from mend_optim import Credentials, Event, MendOptimizer, Timing
from mend_optim.engine.boundaries import Boundaries
from mend_optim.protocol.messages import Seal
from mend_optim.runtime.learner import Learner as Learners
from mend_optim.runtime.network_loop import NetworkLoop
from mend_optim.runtime.network_side import NetworkSide
from mend_optim.transport.grpc_transport import Transport
from mend_optim.transport.wire import encode_hello
from tests.support.gaps import Gaps, without_core_s

INPUTS, EXAMPLES, BATCH = 16, 1024, 32
ENDINGS: dict[str, Callable[[], object]] = {
    "sys.exit": lambda: sys.exit(3),
    "os._exit": lambda: os._exit(3),
    "Ctrl-C": lambda: os.kill(os.getpid(), signal.SIGINT),
    "raise": lambda: int("a bug of the user's"),
}
# Functions that the training thread calls, and what it does then.
MOMENTS: dict[str, tuple[Any, str, str]] = {
    "counts a step": (Boundaries, "with the mutex held", "stepped"),
    "takes its tasks": (Boundaries, "with the mutex held", "fragments_to_copy"),
    "hands effects out": (Learners, "with the mutex held", "dispatch_effects"),
    "finishes": (Learners, "with the mutex held", "_may_end"),
    "synchronizes": (Learners, "with the mutex held", "_has_news"),
    "closes": (NetworkSide, "while it closes", "stop"),
}
END_OF_COMPLAINTS = "── ended ──\n"
Order = dict[str, Any]


class Console:
    """Orders in, events out. Waiting for an order also paces the training."""

    def __init__(self) -> None:
        self.over = False
        self._unread = b""

    def say(self, event: str, **facts: object) -> None:
        """Write an event, on any thread. A pipe that has room takes a line whole.

        There is no lock: SIGTERM may come where the main thread holds it, and `on_event`, which the
        goodbye waits for, would wait for it too."""
        line = json.dumps({"event": event, **facts}, default=str) + "\n"
        os.write(1, line.encode())

    def next(self, within_s: float | None) -> Order | None:
        """The next order; None if none comes in time. The end of the input is an order to exit."""
        while b"\n" not in self._unread:
            if not select.select([0], [], [], within_s)[0]:
                return None
            chunk = os.read(0, 65536)
            if not chunk:
                self.over = True
                return {"do": "leave", "how": "close"}
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        order: Order = json.loads(line)
        return order


def digest(model: nn.Module) -> str:
    content = hashlib.sha256()
    for parameter in model.parameters():
        content.update(parameter.detach().numpy().tobytes())
    return content.hexdigest()


def problem() -> TensorDataset:
    """The problem that all learners train on: a fixed random function."""
    draws = torch.Generator().manual_seed(7)
    inputs = torch.randn(EXAMPLES, INPUTS, generator=draws)
    return TensorDataset(inputs, inputs @ torch.randn(INPUTS, 4, generator=draws))


def batches(seed: int, workers: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches; with `workers`, forked processes make the batches of each epoch."""
    fork = {"num_workers": workers, "multiprocessing_context": "fork"} if workers else {}
    draws = torch.Generator().manual_seed(seed)
    loader: DataLoader[Any] = DataLoader(problem(), BATCH, shuffle=True, generator=draws, **fork)  # type: ignore[arg-type]
    while True:
        yield from loader


class Learner:
    """The life of one optimizer."""

    def __init__(self, console: Console, order: Order) -> None:
        self.console, self.order = console, order
        self.pace_s, self.until = order["pace_s"], order["steps"]
        torch.manual_seed(order["seed"])
        width = order["width"]
        self.model = nn.Sequential(
            nn.Linear(INPUTS, width), nn.Tanh(), nn.Linear(width, width), nn.Linear(width, 4)
        )
        self.batches = batches(order["data_seed"], order["workers"])
        self.chance = random.Random(order["data_seed"])
        self.step = self.drawn = 0
        self.between_steps = Gaps()
        self.ending = ""
        options = dict(order["options"])
        if "secret" in options:
            options["credentials"] = Credentials.secret(options.pop("secret"))
        if "certificates" in options:
            files = options.pop("certificates")
            options["credentials"] = Credentials.files(files, signed=True)
        clock, behind_ns = time.time_ns, int(1e9 * order["clock_behind_s"])
        time.time_ns = lambda: clock() - behind_ns
        self.optimizer = MendOptimizer(
            torch.optim.SGD(self.model.parameters(), lr=0.05),
            timing=Timing(**order["timing"]),
            on_event=self.tell,
            **options,
        )
        if order["restore"]:
            self.restore(order["restore"])
        console.say("open", address=self.optimizer.status().address, weights=digest(self.model))

    def tell(self, event: Event) -> None:
        facts = dict(event.facts)
        if event.kind == "round":
            facts = asdict(facts["round"])
        self.console.say(event.kind, text=event.text, **facts)
        if event.kind == "round" and self.ending:
            ENDINGS[self.ending]()

    def live(self) -> None:
        """Train and obey until told to leave."""
        with self.optimizer if self.order["managed"] else nullcontext():
            while (how := self._serve()) is None:
                pass
        if how == "close":
            self.optimizer.close()
        if how != "plain":
            self.console.say(
                "left behind", threads=[thread.name for thread in threading.enumerate()]
            )

    def _serve(self) -> str | None:
        """Obey an order or take a step. Returns how to leave, if that was the order."""
        training = self.until is None or self.step < self.until
        order = self.console.next(self.pace_s if training else None)
        if order is None:
            self.train()
        elif order["do"] == "leave":
            return str(order["how"])
        else:
            getattr(self, order.pop("do"))(**order)
            self.between_steps.excuse()
        return None

    def draw(self) -> tuple[Tensor, Tensor]:
        """The next batch, and how many tokens it counts as."""
        self.drawn, self.tokens = self.drawn + 1, self.chance.randint(*self.order["tokens"])
        return next(self.batches)

    def train(self) -> None:
        inputs, targets = self.draw()
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        self.optimizer.zero_grad()
        loss.backward()
        before = digest(self.model) if not self.step else ""
        self.optimizer.count_tokens(self.tokens)
        self.optimizer.step()
        if before and not self.optimizer.status().step:
            self.console.say("took over", weights=digest(self.model))
            return
        if before:
            self.console.say("first", weights=before)
        self.step += 1
        self.between_steps.note(time.monotonic(), without_core_s())
        self.console.say("step", step=self.step, loss=loss.item().hex())

    def save(self, path: str) -> None:
        """If the process dies while it writes, the previous file is still there."""
        parts = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        state = {**parts, "step": self.step, "drawn": self.drawn}
        torch.save(state, path + ".new")
        os.replace(path + ".new", path)
        self.console.say("saved", step=self.step)

    def restore(self, path: str) -> None:
        """Restore everything, or start afresh."""
        try:
            state = torch.load(path, weights_only=True)
        except Exception as error:
            self.console.say("unreadable", error=type(error).__name__)
            return
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        while self.drawn < state["drawn"]:
            self.draw()
        self.step = state["step"]

    def ruin(self, factor: float) -> None:
        """Multiply a matrix of the weights, as an accident would."""
        with torch.no_grad():
            self.model[0].weight.mul_(factor)  # type: ignore[operator]

    def run(self, steps: int | None = None, pace_s: float | None = None) -> None:
        self.until, self.pace_s = steps, self.pace_s if pace_s is None else pace_s

    def pause(self) -> None:
        self.until = 0
        self.console.say("paused", step=self.step)

    def synchronize(self, timeout: float) -> None:
        self.console.say("synchronized", done=bool(self.optimizer.synchronize(timeout)))

    def report(self) -> None:
        status = self.optimizer.status()
        # Anchors move in the background: look again until none has moved meanwhile.
        while True:
            with self.optimizer.global_weights():
                anchors = digest(self.model)
            before, status = status, self.optimizer.status()
            if before.fragments == status.fragments:
                break
        facts = asdict(status)
        learner = self.optimizer._learner
        assert learner is not None
        del facts["rounds"]
        self.console.say(
            "report",
            anchors=anchors,
            genesis=learner.engine.state.genesis.hex(),
            hello=encode_hello(learner.network.hello()).hex(),
            **facts,
        )

    def gaps(self) -> None:
        self.console.say("gaps", **self.between_steps.take()._asdict())

    def children(self) -> None:
        self.console.say(
            "children", pids=[child.pid for child in multiprocessing.active_children()]
        )

    def fail(self) -> None:
        raise RuntimeError("a bug in the training loop")

    def finish(self) -> None:
        self.console.say("finishing")
        finish = self.optimizer.finish()
        self.console.say("finished", weights=digest(self.model), **asdict(finish))

    def handle(self) -> None:
        """Handle SIGTERM as a script does that wants to save its work first."""
        former = signal.getsignal(signal.SIGTERM)

        def note(number: int, frame: Any) -> None:
            if callable(former):
                former(number, frame)
            # Not by the console, whose lock this thread may hold.
            os.write(1, b'{"event": "terminated"}\n')

        signal.signal(signal.SIGTERM, note)
        self.console.say("handles")

    def signal_inside(self, moment: str) -> None:
        """Get SIGTERM in the middle of the next call of this function, on this thread."""
        owner: Any
        owner, _, name = MOMENTS[moment]
        function = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                setattr(owner, name, function)
                # Launchers may send it twice.
                os.kill(os.getpid(), signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGTERM)
            return function(*args, **kwargs)

        setattr(owner, name, call)

    def exit(self, how: str) -> None:
        self.ending = how

    def cut(self, reached: int) -> None:
        """At the next seal of its own, die after it went out to `reached` peers."""
        send, left = Transport.send, reached
        loop = NetworkLoop._shared.loop  # type: ignore[union-attr]

        def die() -> None:
            self.console.say("cut", reached=reached - left)
            os.kill(os.getpid(), signal.SIGKILL)

        def send_or_die(transport: Transport, to: Any, message: Any, reply: str) -> None:
            nonlocal left
            if isinstance(message, Seal) and left == 0:
                loop.call_later(0.05 if reached else 0, die)  # what was sent leaves first
                return
            send(transport, to, message, reply)
            if isinstance(message, Seal):
                left -= 1
                if left == 0:
                    loop.call_later(0.05, die)

        Transport.send = send_or_die  # type: ignore[method-assign]


def give_birth(console: Console, order: Order) -> bool:
    """Fork a learner. Returns true in the new process, once the learner has ended; false in the old
    one, after that."""
    child = os.fork()
    if not child:
        console.say("born", pid=os.getpid())
        if order["net"]:
            End(order["net"], "").enter()
        Learner(console, order).live()
        return True
    _, status = os.waitpid(child, 0)
    os.write(2, END_OF_COMPLAINTS.encode())
    console.say("ended", status=os.waitstatus_to_exitcode(status))
    return False


def main() -> None:
    torch.set_num_threads(1)
    # ignored, where the tests run in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.optim.SGD([torch.zeros(1)])  # torch imports much at the first optimizer
    gc.collect()
    # Else every learner that ends searches all of torch for garbage, and copies it for that. But
    # Triton, in builds of torch for CUDA, takes what is frozen for leaked, and says so at the end.
    if "triton" not in sys.modules:
        gc.freeze()
    console = Console()
    while True:
        order = console.next(None)
        assert order is not None
        if order["do"] == "learn" and give_birth(console, order):
            return
        if console.over:
            return


if __name__ == "__main__":
    main()
