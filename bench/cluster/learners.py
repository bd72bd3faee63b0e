"""Learners in processes of their own, on loopback, and the model that they train."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from bench.cluster.namespaces import End
from mend_optim import MendOptimizer
from mend_optim.cli.run.held_ports import held_addresses
from mend_optim.protocol.messages import Message, Offer

LIMIT_S = 900.0  # no bench takes half as long
MEET_S = 300.0


class Still(Optimizer):
    """An inner optimizer that does nothing, so all the time of `step()` is spent in mend_optim."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        return None


def transformer(width: int, layers: int) -> list[nn.Parameter]:
    """The parameters of the blocks of a transformer, twelve tensors each: 12 · width² · layers
    elements, and a few more."""
    shapes = [
        (width,),
        (width,),
        (3 * width, width),
        (3 * width,),
        (width, width),
        (width,),
        (width,),
        (width,),
        (4 * width, width),
        (4 * width,),
        (width, 4 * width),
        (width,),
    ]
    torch.manual_seed(0)
    return [nn.Parameter(0.02 * torch.randn(shape)) for _ in range(layers) for shape in shapes]


def delay_offers(optimizer: MendOptimizer, delay_s: float) -> None:
    """From now on, offers reach this learner so much later than they do."""
    learner = optimizer._learner
    assert learner is not None
    receive, loop = learner.network.receive, learner.network.loop.loop

    def late(message: Message) -> None:
        loop.call_later(delay_s if isinstance(message, Offer) else 0.0, receive, message)

    learner.network.receive = late  # type: ignore[method-assign]


@dataclass(frozen=True)
class Seat:
    """One process among `count`, by its rank; `meeting` lets all of them start something at
    once."""

    rank: int
    addresses: tuple[tuple[str, ...], ...]  # of every cluster: one for every rank
    meeting: Any

    def meet(self) -> None:
        self.meeting.wait(MEET_S)

    def join(self, inner: Optimizer, cluster: int = 0, **options: Any) -> MendOptimizer:
        """This rank's learner in that cluster, with one fragment unless the options say otherwise.
        Its first `step()` waits for the others."""
        addresses = self.addresses[cluster]
        options = {"fragments": 1, **options}
        peers = [address for address in addresses if address != addresses[self.rank]]
        return MendOptimizer(
            inner, name=f"learner{self.rank}", listen=addresses[self.rank], peers=peers, **options
        )


def learner_at(
    ends: Sequence[End],
    port: int,
    seat: Seat,
    model: Sequence[Tensor],
    *,
    momentum: float = 0.0,
    listens: bool = True,
    **options: Any,
) -> MendOptimizer:
    """This rank's learner at its end of a switch, which the process enters for good. All learners
    that listen do so on that port, and every gradient is random and stays as it is."""
    end = ends[seat.rank]
    end.enter()
    draws = torch.Generator().manual_seed(seat.rank)
    for parameter in model:
        parameter.grad = torch.randn(parameter.shape, generator=draws)
    return MendOptimizer(
        SGD(model, lr=1e-3, momentum=momentum),
        name=f"learner{seat.rank}",
        listen=f"{end.address}:{port}" if listens else None,
        peers=[f"{other.address}:{port}" for other in ends if other is not end],
        insecure=True,  # nobody else is on that network
        **options,
    )


def run_learners(
    work: Callable[[Seat], Any], count: int, clusters: int = 1, preload: Sequence[str] = ()
) -> list[Any]:
    """The results of `work(seat)` in `count` processes, in rank order. Ends all of them. Many of
    them start sooner if they are forks of a process that has imported the modules to `preload`."""
    os.environ["OMP_NUM_THREADS"] = "1"  # inherited: a learner has one core for its tensor work
    context = multiprocessing.get_context("forkserver" if preload else "spawn")
    if preload:
        context.set_forkserver_preload(list(preload))
    meeting = context.Barrier(count)
    pipes = [context.Pipe(duplex=False) for _ in range(count)]
    with held_addresses("127.0.0.1", count * clusters, None) as held:
        addresses = tuple(tuple(held[c * count : (c + 1) * count]) for c in range(clusters))
        seats = [Seat(rank, addresses, meeting) for rank in range(count)]
        processes = [
            context.Process(target=_work, args=(work, seat, pipe), daemon=True)
            for seat, (_, pipe) in zip(seats, pipes, strict=True)
        ]
        try:
            for process in processes:
                process.start()
            return _collect([pipe for pipe, _ in pipes])
        finally:
            _end(processes)


def _collect(pipes: list[Connection]) -> list[Any]:
    """The answers of all processes. Raises as soon as one of them fails, because the others may
    wait for it."""
    answers: dict[Connection, Any] = {}
    while len(answers) < len(pipes):
        ready = wait([pipe for pipe in pipes if pipe not in answers], LIMIT_S)
        if not ready:
            raise TimeoutError(f"no learner answered for {LIMIT_S:g} s")
        for pipe in ready:
            assert isinstance(pipe, Connection)
            answers[pipe], fault = pipe.recv()
            if fault:
                raise RuntimeError(f"a learner failed:\n{fault}")
    return [answers[pipe] for pipe in pipes]


def _work(work: Callable[[Seat], Any], seat: Seat, pipe: Connection) -> None:
    torch.set_num_threads(1)
    try:
        answer, fault = work(seat), ""
    except BaseException:
        answer, fault = None, traceback.format_exc()
    pipe.send((answer, fault))


def _end(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        if process.pid is not None:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
