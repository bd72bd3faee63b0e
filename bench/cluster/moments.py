"""Averaging Adam's moments, or not: the loss after equal steps of the text example, and the cost in
bytes.

As in `convergence.py` the learners are threads in lockstep, and two runs of one seed differ only in
the periods."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bench.cluster.convergence import SEEDS, STEPS, SYNC_EVERY, final_losses
from bench.result import Result, compared
from examples.train_text import read_corpus
from mend_optim import MomentSchedule
from mend_optim.codecs.registry import CODECS

TOLD = {"3 and 6": MomentSchedule(), "1 and 1": MomentSchedule(first=1, second=1)}


def run() -> Iterator[Result]:
    torch.set_num_threads(1)
    for learners in (2, 4):
        texts = [read_corpus(i, learners) for i in range(learners)]
        floors = [final_losses(CODECS["none"], seed, texts, moments=None).closed for seed in SEEDS]
        for name, periods in TOLD.items():
            losses = [
                final_losses(CODECS["none"], seed, texts, moments=periods).closed for seed in SEEDS
            ]
            notes = (
                f"{STEPS} steps of AdamW each, {SYNC_EVERY} between rounds; a pair for each seed"
            )
            setting = f"{learners} learners, moments every {name} rounds"
            what = f"{setting}: held-out loss over that of local moments"
            yield compared("moments", what, "nats/byte", losses, floors, notes=notes)
