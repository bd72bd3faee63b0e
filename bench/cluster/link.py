"""The cost of slow links: two learners in two network namespaces, on a wire that the kernel limits
to 10 or 1 Mbit/s.

The learners train the example's model at a fixed pace: for some seconds on the bare wire, then at
10 Mbit/s, then at 1 Mbit/s. A ratio compares each part with the bare wire. After each part the wire
is freed and everything is merged, so no part inherits work from another. Parts begin and end at a
boundary, and their clock starts a round later, when rounds are in full swing. Work that is still on
its way at the end of a part is not counted as merged in it. Bytes are counted by the kernel, and
compared with the bytes that the ledgers report.

"overlapped" adopts an anchor when it is ready: training never waits, and a slow link makes rounds
rarer and anchors older. "in lockstep" adopts `OVERLAP` steps after each boundary: a round that
takes longer stops training until it is there."""

from __future__ import annotations

import argparse
import multiprocessing
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.optim import AdamW

from bench.cluster.learners import Seat, run_learners
from bench.cluster.namespaces import End, joined
from bench.result import Result, compared
from examples.train_text import CONTEXT, TextModel, windows
from mend_optim import Event, MendOptimizer, RoundRecord, Status

CODECS = ("none", "int8", "powersgd")
# A boundary comes every 0.8 s, and a round has 0.4 s of overlap.
SYNC_EVERY, OVERLAP, STEP_S = 32, 16, 0.025
BATCH = 2  # small, so the pace and not the cores determines how long a step takes
FREE, MIDDLING, SLOW = "", "10mbit", "1mbit"
LEAST_S = {FREE: 4.0, MIDDLING: 4.0, SLOW: 8.0}
CAP_S = 30.0  # the longest that a part waits for its rounds, unless it says otherwise
GOALS = {("powersgd", MIDDLING): ">= 0.97"}
# Headers, acknowledgements and beats cost less than this. More means that something is sent twice.
OVERHEAD = "<= 1.25"
NEVER, LEAD = 2**62, 8  # LEAD: fewest steps between the decision to stop and the stop
PORT, LOOK_S, SETTLE_S = 29600, 0.1, 30.0


class Part(NamedTuple):
    """The speed of the wire, and how long to train on it: at least so many seconds and so many
    rounds, but no longer than `cap_s`."""

    rate: str
    least_s: float
    least_rounds: int
    cap_s: float = CAP_S


class Setting(NamedTuple):
    codec: str
    adopt_after: int | None
    sync_every: int = SYNC_EVERY
    step_s: float = STEP_S


class Board(NamedTuple):
    """Shared by both learners: the step to stop at, and the newest version that either of them
    has."""

    goal: Any
    newest: Any


class Outcome(NamedTuple):
    """The results of learner `name` in one part: in `seconds` it trained on `trained` tokens and
    adopted `adopted` anchors with `merged` more tokens, of both learners.

    The other fields are of the whole part, with the merging of the rest: its rounds, the bytes that
    its interface sent and received, how many of how many `looks` at its roster showed the peer
    alive, the anchor at the end, and which learners it found slow, by name and cause."""

    name: str
    seconds: float
    trained: int
    adopted: int
    merged: int
    rounds: list[RoundRecord]
    sent: int
    received: int
    looks: int
    alive: int
    digest: str
    slow: list[tuple[str, str]]


Pair = tuple[Outcome, Outcome]


# ── in the learners' processes ────────────────────────────────────────────────────────────────────


class Watch:
    """Looks at the roster now and then, on a thread of its own, because the training thread may be
    waiting."""

    def __init__(self, optimizer: MendOptimizer) -> None:
        self.looks = self.alive = 0
        self._optimizer, self._over = optimizer, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            self.alive += [peer.state for peer in self._optimizer.status().roster] == ["alive"]
            self.looks += 1

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()


class Trainer:
    """The example's model on some text, with a step every `step_s`."""

    def __init__(self, seat: Seat, ends: Sequence[End], setting: Setting, port: int) -> None:
        torch.manual_seed(seat.rank)
        self.seat, self.end, self.setting = seat, ends[seat.rank], setting
        self.model = TextModel()
        self.events: list[Event] = []
        self.text = torch.frombuffer(
            bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8
        )
        self.optimizer = MendOptimizer(
            AdamW(self.model.parameters(), lr=2e-3),
            name=f"learner{seat.rank}",
            listen=f"{self.end.address}:{port}",
            peers=[f"{ends[1 - seat.rank].address}:{port}"],
            insecure=True,  # nobody else is on that network
            sync_every=setting.sync_every,
            adopt_after=setting.adopt_after,
            codec=setting.codec,
            tokens_per_step=BATCH * CONTEXT,
            on_event=self.events.append,
        )

    def step(self) -> None:
        due = time.monotonic() + self.setting.step_s
        starts = torch.randint(len(self.text) - CONTEXT, (BATCH,))
        self.optimizer.zero_grad()
        self.model(*windows(self.text, starts)).backward()
        time.sleep(max(0.0, due - time.monotonic()))
        self.optimizer.step()

    def train(self, part: Part, goal: Any) -> tuple[float, Status, Status]:
        """Step until the common goal. Returns for how long the clock ran, and the status of this
        learner before and after.

        The first learner sets the goal: a boundary some steps ahead, which nobody has passed in
        lockstep."""
        begun = clock = time.monotonic()
        status = before = start = self.optimizer.status()
        first = self._boundary(status.step + 1)
        while (status := self.optimizer.status()).step < goal.value:
            if status.step == first:
                clock, before = time.monotonic(), status
            if self.seat.rank == 0 and goal.value == NEVER and status.step >= first:
                rounds, spent_s = (
                    status.rounds_adopted - start.rounds_adopted,
                    time.monotonic() - begun,
                )
                if spent_s >= part.cap_s or (
                    spent_s >= part.least_s and rounds >= part.least_rounds
                ):
                    goal.value = self._boundary(status.step + LEAD)
            self.step()
        return time.monotonic() - clock, before, status

    def _boundary(self, step: int) -> int:
        """The first boundary from that step on."""
        return -(-step // self.setting.sync_every) * self.setting.sync_every

    def settle(self, newest: Any) -> Status:
        """Merge everything, and wait for the last anchor: a learner with nothing left to offer may
        not have heard of it yet."""
        if not self.optimizer.synchronize(SETTLE_S):
            raise TimeoutError(f"not all was merged within {SETTLE_S:g} s on the bare wire")
        with newest.get_lock():
            newest.value = max(newest.value, self.version)
        self.seat.meet()
        deadline = time.monotonic() + SETTLE_S
        while self.version < newest.value:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"version {newest.value} has not come within {SETTLE_S:g} s on the bare wire"
                )
            time.sleep(0.01)
            self.optimizer.synchronize(SETTLE_S)
        self.seat.meet()
        return self.optimizer.status()

    @property
    def version(self) -> int:
        return self.optimizer.status().fragments[0].version

    def play(self, part: Part, board: Board) -> Outcome:
        """Play one part, on a wire as slow as the part says; then merge what is left."""
        board.goal.value, board.newest.value = NEVER, 0
        heard = len(self.events)
        self.end.limit(part.rate)
        self.seat.meet()
        version, counted = self.version, self.end.counters()
        with Watch(self.optimizer) as watch:
            seconds, before, after = self.train(part, board.goal)
        # The other learner may still wait for bytes: these must come over the slow wire.
        self.seat.meet()
        self.end.limit(FREE)
        settled, recount = self.settle(board.newest), self.end.counters()
        self.seat.meet()
        return Outcome(
            self.optimizer.name,
            seconds,
            after.tokens - before.tokens,
            after.rounds_adopted - before.rounds_adopted,
            after.fragments[0].tokens - before.fragments[0].tokens,
            [r for r in settled.rounds if r.version > version],
            recount.sent - counted.sent,
            recount.received - counted.received,
            watch.looks,
            watch.alive,
            settled.fragments[0].digest,
            [(e.facts["peer"], e.facts["cause"]) for e in self.events[heard:] if e.kind == "slow"],
        )


def _learn(
    ends: Sequence[End],
    settings: Sequence[Setting],
    parts: Sequence[Part],
    board: Board,
    seat: Seat,
) -> list[list[Outcome]]:
    ends[seat.rank].enter()
    outcomes = []
    for i, setting in enumerate(settings):
        trainer = Trainer(seat, ends, setting, PORT + i)
        with closing(trainer.optimizer) as optimizer:
            optimizer.join()
            outcomes.append([trainer.play(part, board) for part in parts])
    return outcomes


# ── in the bench's own process ────────────────────────────────────────────────────────────────────


def measure(settings: Sequence[Setting], parts: Sequence[Part]) -> list[list[Pair]]:
    """Both learners' outcomes of every part, for each setting."""
    context = multiprocessing.get_context("spawn")
    board = Board(goal=context.Value("q", NEVER), newest=context.Value("q", 0))
    with joined() as ends:
        learners = run_learners(partial(_learn, ends, settings, parts, board), 2)
    return [list(zip(*of_both, strict=True)) for of_both in zip(*learners, strict=True)]


def ledger_bytes(sender: Outcome, receiver: Outcome) -> int:
    """The bytes from one learner to the other, by their ledgers: its offers that the other sealed,
    and the seals that it made."""
    offers = sum(r.offer_bytes for r in sender.rounds if r.sealer == receiver.name)
    return offers + sum(r.merged_bytes for r in receiver.rounds if r.sealer == sender.name)


def by_sealer(pair: Pair) -> tuple[Outcome, Outcome]:
    """The learner that offers, then the learner that seals. With two learners that know each other
    the sealer is always the same."""
    one, other = pair
    # A record without a sealer is of an anchor that was pulled whole.
    sealers = [record.sealer for record in one.rounds + other.rounds if record.sealer]
    return (one, other) if sealers[-1] == other.name else (other, one)


def per_s(pair: Pair, counts: Sequence[float]) -> list[float]:
    """A rate of both learners, by the clock of the slower one: in lockstep the other cannot go on
    without it."""
    seconds = max(outcome.seconds for outcome in pair)
    return [count / seconds for count in counts]


def _parts(setting: Setting) -> list[Part]:
    rounds = 2 if setting.adopt_after is None else 1
    return [Part(rate, least_s, rounds) for rate, least_s in LEAST_S.items()]


def _kept(what: str, setting: Setting, slow: Pair, free: Pair, goal: str) -> Iterator[Result]:
    """Tokens and rounds per second, over those on the bare wire."""
    rounds = f"{min(x.adopted for x in slow)} rounds in {max(x.seconds for x in slow):.0f} s"
    pace = f"a boundary each {setting.sync_every} steps of {1e3 * setting.step_s:.0f} ms"
    trained, floor = (per_s(pair, [x.trained for x in pair]) for pair in (slow, free))
    yield compared(
        "link",
        f"tokens trained, {what}",
        "1/s",
        trained,
        floor,
        goal=goal,
        notes=f"{rounds}; {pace}",
    )
    both, floor = (per_s(pair, [x.merged for x in pair]) for pair in (slow, free))
    # Without lockstep the last round may come just before the end or just after it.
    exact = setting.adopt_after is not None
    yield compared(
        "link",
        f"tokens merged, {what}",
        "1/s",
        both,
        floor,
        goal=goal if exact else "",
        notes=f"of both; {rounds}",
    )
    often, floor = (per_s(pair, [x.adopted for x in pair]) for pair in (slow, free))
    yield compared("link", f"rounds, {what}", "1/s", often, floor)


def _bytes(what: str, pair: Pair) -> Iterator[Result]:
    """The bytes of a round in either direction, counted by the kernel, over the bytes in the
    ledgers."""
    offers, seals = by_sealer(pair)
    for way, sender, receiver in (("to", offers, seals), ("from", seals, offers)):
        n = len(sender.rounds)
        kernel, ledger = [sender.sent / n], [ledger_bytes(sender, receiver) / n]
        pulled = sum(r.reason == "pulled" for r in receiver.rounds)
        notes = (
            f"the ledgers' bytes, these are the kernel's; {n} rounds, {pulled} anchors pulled whole"
        )
        yield compared(
            "link",
            f"bytes a round {way} the sealer, {what}",
            "B",
            kernel,
            ledger,
            goal=OVERHEAD,
            notes=notes,
        )


def _alive(what: str, pair: Pair) -> Result:
    looks, alive = [x.looks for x in pair], [x.alive for x in pair]
    missed = sum(looks) - sum(alive)
    notes = f"{missed} of {sum(looks)} looks at the roster found the peer suspected or gone"
    return compared(
        "link",
        f"looks that find the peer alive, {what}",
        "1",
        alive,
        looks,
        goal=">= 1",
        notes=notes,
    )


def _report(setting: Setting, pairs: dict[str, Pair]) -> Iterator[Result]:
    mode = "overlapped" if setting.adopt_after is None else "in lockstep"
    for rate in (MIDDLING, SLOW):
        what = f"{setting.codec} at {rate}, {mode}"
        yield from _kept(
            what, setting, pairs[rate], pairs[FREE], GOALS.get((setting.codec, rate), "")
        )
        yield from _bytes(what, pairs[rate])
        yield _alive(what, pairs[rate])


def run() -> Iterator[Result]:
    for setting in [
        Setting(codec, adopt_after) for codec in CODECS for adopt_after in (None, OVERLAP)
    ]:
        parts = _parts(setting)
        (pairs,) = measure([setting], parts)
        yield from _report(setting, dict(zip([part.rate for part in parts], pairs, strict=True)))
