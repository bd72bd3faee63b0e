"""The cost of mutual TLS in a dense exchange of 25 M parameters between two learners, from the
boundary to the correction.

Two clusters of the same two processes take turns: the links of one are in plaintext, and those of
the other are secured by a secret that both learners share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, redirect_stdout
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from bench.cluster.learners import Seat, Still, run_learners, transformer
from bench.micro.rounds import ADOPTABLE, LAYERS, WIDTH, instrument, take_round, took, train
from bench.result import Result, compared
from bench.watch import Span
from mend_optim import Credentials
from mend_optim.certs import main as certs

WARM, ROUNDS = 2, 10
GOAL = "<= 1.2"


class Lap(NamedTuple):
    """A round in plaintext and one with TLS, as one learner saw them."""

    plain: Span
    secured: Span


def _learn(seat: Seat, secret: str) -> list[Lap]:
    watch = instrument()
    settings: tuple[dict[str, Any], ...] = ({}, {"credentials": Credentials.secret(secret)})
    with ExitStack() as stack:
        learners = []
        for cluster, security in enumerate(settings):
            parameters = transformer(WIDTH, LAYERS)
            optimizer = seat.join(Still(parameters), cluster, sync_every=2, **security)
            stack.enter_context(closing(optimizer))
            optimizer.step()  # joins
            learners.append((optimizer, parameters))
        laps = []
        for _ in range(WARM + ROUNDS):
            spans = []
            for optimizer, parameters in learners:
                watch.take()
                train(parameters, seat.rank)
                seat.meet()
                boundary, seen = take_round(optimizer, watch)
                seat.meet()
                spans.append((boundary, seen[ADOPTABLE][-1][1]))
            laps.append(Lap(*spans))
        seat.meet()
    return laps[WARM:]


def run() -> Iterator[Result]:
    with TemporaryDirectory() as folder:
        secret = Path(folder) / "cluster.secret"
        with redirect_stdout(sys.stderr):
            certs(["secret", str(secret)])
        learn = partial(_learn, secret=str(secret))
        laps = list(zip(*run_learners(learn, 2, clusters=2), strict=True))
    plain = [1e3 * took([lap.plain for lap in pair]) for pair in laps]
    secured = [1e3 * took([lap.secured for lap in pair]) for pair in laps]
    setting = "25.2 M float32, 2 learners, mutual TLS; floor = the same in plaintext"
    yield compared("tls", "boundary to adoptable", "ms", secured, plain, goal=GOAL, notes=setting)
