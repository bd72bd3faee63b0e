"""The gain of learners that miss rounds, with the whole of their work in the next offer, and with
the share of it that the rules offer.

All learners step in turn in one process, and each step is followed by a round. A *scene* says which
learners take part in which round. Offers, merges and anchors are the library's. There is no
network, and no learner is late. A learner that misses a round hears of it at once, unless it is
*away*: then it hears of nothing until it is back.

    python -m bench.cluster.absences --out absences.jsonl      everything, for about half an hour
    python -m bench.cluster.absences --report absences.jsonl   the table, and no runs

Each run appends a line to the file. A run that is in the file is not repeated."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from bench.cluster.lockstep import WARMUP
from bench.cluster.tasks import RATE, TASKS, Task
from mend_optim import Adoption, Nesterov
from mend_optim.codecs.buffers import Buffers
from mend_optim.codecs.registry import find_codec
from mend_optim.engine.absence import PRESENT, Absence
from mend_optim.engine.effects import Advance, Merge, Prepare
from mend_optim.engine.policies import weights
from mend_optim.model.layout import Layout
from mend_optim.protocol.lineage import Lineage, PeerId
from mend_optim.protocol.messages import Offer, Seal
from mend_optim.worker.anchors import Anchors

STEPS, BATCH, SEEDS = 200, 8, (0, 1, 2)
#: The held-out loss is taken after so many steps.
EVERY = 10
LEAVES, RETURNS = 50, 150
ALONE = "alone"
ARMS = {"whole": Adoption(share=1.0), "share": Adoption()}


class Scene(NamedTuple):
    """The learners that take part in each round."""

    text: str
    learners: int
    present: Callable[[int], Collection[int]]
    #: Whether learners that miss a round hear of it only when they take part again.
    away: bool = False


SCENES = {
    "all": Scene("all of 3 in every round", 3, lambda _: range(3)),
    "second": Scene("one of 3 in every 2nd", 3, lambda r: range(r % 2 == 0, 3)),
    "tenth": Scene("one of 3 in every 10th", 3, lambda r: range((r + 1) % 10 != 0, 3)),
    "turns": Scene("all of 3 but one, in turns", 3, lambda r: {0, 1, 2} - {r % 3}),
    "one of 2": Scene("one of 2, in turns", 2, lambda r: {r % 2}),
    "one of 4": Scene("one of 4, in turns", 4, lambda r: {r % 4}),
    "away": Scene("one of 3 away for 100", 3, lambda r: range(LEAVES <= r < RETURNS, 3), True),
    "apart": Scene(
        "two of 4 away for 100", 4, lambda r: range(2 * (LEAVES <= r < RETURNS), 4), True
    ),
}


class Learner:
    """A model in training, and its anchor."""

    def __init__(self, name: str, task: Task, kind: str, seed: int, stream: int) -> None:
        torch.manual_seed(seed)
        self.id = PeerId(name, 1)
        self.task = task
        self.model = task.model()
        self.inner = task.inner(self.model.parameters(), RATE[kind])
        self.warmup = LambdaLR(self.inner, lambda done: min(1.0, (done + 1) / WARMUP))
        self.generator = Generator().manual_seed(1000 * seed + stream)
        named = list(self.model.named_parameters())
        layout = Layout([n for n, _ in named], [p.detach() for _, p in named], 1)
        self.parameters = [named[i][1] for i in layout.fragments[0].tensors]
        self.anchors = Anchors(
            layout,
            [self.copy()],
            codec=find_codec("none"),
            outer=Nesterov(),
            scheme="norm_preserving",
            buffers=Buffers(),
        )
        self.tokens = 0
        self.absence = PRESENT
        #: The seals that it has not heard of yet.
        self.unheard: list[Seal] = []

    def copy(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.parameters])

    def train(self) -> None:
        x, y = self.task.draw(self.generator, BATCH)
        self.inner.zero_grad()
        self.model(x, y).backward()
        self.inner.step()
        self.warmup.step()
        self.tokens += 1

    def offer(self, number: int, lineage: Lineage, adoption: Adoption) -> Offer:
        share = adoption.share_of(self.absence, self.tokens)
        job = Prepare(fragment=0, seq=number, tensor=self.copy(), share=share)
        done, _ = self.anchors.perform(job)
        return Offer(
            peer=self.id,
            fragment=0,
            seq=number,
            tokens=self.tokens,
            steps=self.tokens,
            genesis=lineage.genesis,
            key=lineage.key,
            due=True,
            sections=done.sections,
        )

    def merge(self, offers: tuple[Offer, ...], lineage: Lineage) -> Seal:
        members = tuple(offer.entry for offer in offers)
        w = tuple(weights("tokens", members))
        done, _ = self.anchors.perform(Merge(fragment=0, base=lineage, offers=offers, weights=w))
        return Seal(
            sealer=self.id,
            fragment=0,
            base=lineage.digest,
            key=lineage.seal(members, done.digest).key,
            members=members,
            weights=w,
            absent=(),
            reason="all_present",
            payload=done.digest,
            sections=done.sections,
        )

    def adopt(self, seal: Seal, merged: bool) -> None:
        lineage = Lineage.fresh(b"bench")  # nobody here compares anchors
        job = Advance(seal=seal, lineage=lineage, merged_own_offer=merged)
        done, (correction,) = self.anchors.perform(job)
        if done.fault:
            raise RuntimeError(done.fault)
        parts = correction.values.split([p.numel() for p in self.parameters])
        with torch.no_grad():
            for parameter, change in zip(self.parameters, parts, strict=True):
                parameter.add_(change.view_as(parameter))
        if merged:
            self.tokens, self.absence = 0, PRESENT
        else:
            self.absence += Absence(1, sum(entry.tokens for entry in seal.members))

    def catch_up(self) -> None:
        for seal in self.unheard:
            self.adopt(seal, merged=False)
        self.unheard.clear()

    def held_out(self, shown: nn.Module) -> float:
        """The loss of its anchor."""
        theta = self.anchors.fragments[0].theta
        fill(shown, self.parameters, theta, self.model)
        return self.task.evaluate(shown)


def fill(shown: nn.Module, parameters: list[nn.Parameter], flat: Tensor, model: nn.Module) -> None:
    """Give a model the weights in a flat vector, in the order of these parameters of another."""
    pairs = zip(model.parameters(), shown.parameters(), strict=True)
    twin = {id(own): other for own, other in pairs}
    parts = flat.split([p.numel() for p in parameters])
    with torch.no_grad():
        for parameter, part in zip(parameters, parts, strict=True):
            twin[id(parameter)].copy_(part.view_as(parameter))


def run_alone(kind: str, task: Task, seed: int) -> list[float]:
    learner, losses = Learner("0", task, kind, seed, 0), []
    for step in range(STEPS):
        learner.train()
        if (step + 1) % EVERY == 0:
            losses.append(task.evaluate(learner.model))
    return losses


def run(kind: str, task: Task, scene: Scene, adoption: Adoption, seed: int) -> list[float]:
    """The held-out losses of the anchor."""
    learners = [Learner(str(i), task, kind, seed, i) for i in range(scene.learners)]
    shown, lineage, losses = task.model(), Lineage.fresh(b"bench"), []
    for number in range(STEPS):
        for learner in learners:
            learner.train()
        members = [learners[i] for i in sorted(scene.present(number))]
        for learner in members:
            learner.catch_up()
        offers = tuple(learner.offer(number + 1, lineage, adoption) for learner in members)
        seal = members[0].merge(offers, lineage)
        for learner in learners:
            if scene.away and learner not in members:
                learner.unheard.append(seal)
            else:
                learner.adopt(seal, learner in members)
        lineage = lineage.seal(seal.members, seal.payload)
        if (number + 1) % EVERY == 0:
            losses.append(members[0].held_out(shown))
    return losses


# ── the table ─────────────────────────────────────────────────────────────────────────────────────


def spread(values: Sequence[float]) -> str:
    return f"{mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def rise(losses: Sequence[float]) -> float:
    """The greatest rise from one loss to the next."""
    return max(after - before for before, after in itertools.pairwise(losses))


def report(records: Sequence[dict[str, object]], kind: str) -> str:
    """A table in Markdown: by scene and arm, the loss at the end of the run, and its greatest
    rise."""
    found: dict[tuple[str, str], list[list[float]]] = {}
    for record in records:
        if record["task"] == kind:
            key = (str(record["scene"]), str(record["arm"]))
            found.setdefault(key, []).append(record["held_out"])  # type: ignore[arg-type]
    alone = [losses[-1] for losses in found.get((ALONE, ALONE), [])]
    lines = [
        f"{kind}: alone {spread(alone)}, n = {len(alone)}" if alone else kind,
        "",
        "| rounds with | whole | share | greatest rise, whole | share |",
        "|---|---|---|---|---|",
    ]
    for name, scene in SCENES.items():
        arms = [found.get((name, arm), []) for arm in ARMS]
        if all(arms):
            ends = [spread([losses[-1] for losses in runs]) for runs in arms]
            rises = [spread([rise(losses) for losses in runs]) for runs in arms]
            lines.append(f"| {scene.text} | {' | '.join([*ends, *rises])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--out", type=Path, help="append every run to this file")
    parser.add_argument("--report", type=Path, help="only print the table of this file")
    parser.add_argument("--tasks", nargs="+", choices=tuple(TASKS), default=list(TASKS))
    parser.add_argument("--scenes", nargs="+", choices=tuple(SCENES), default=list(SCENES))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    source = args.report or args.out
    known = source.read_text().splitlines() if source and source.exists() else []
    records = [json.loads(line) for line in known]
    done = {(r["task"], r["scene"], r["arm"], r["seed"]) for r in records}
    for kind in [] if args.report else args.tasks:
        task = TASKS[kind]()
        for seed in args.seeds:
            arms = [(ALONE, ALONE), *itertools.product(args.scenes, ARMS)]
            for scene, arm in (each for each in arms if (kind, *each, seed) not in done):
                if arm == ALONE:
                    losses = run_alone(kind, task, seed)
                else:
                    losses = run(kind, task, SCENES[scene], ARMS[arm], seed)
                record = {"task": kind, "scene": scene, "arm": arm, "seed": seed}
                records.append({**record, "held_out": losses})
                print(f"{kind}, {scene}, {arm}, seed {seed}: {losses[-1]:.4f}", flush=True)
                if args.out:
                    with args.out.open("a") as file:
                        file.write(json.dumps(records[-1]) + "\n")
    print("\n\n".join(report(records, kind) for kind in args.tasks))


if __name__ == "__main__":
    main()
