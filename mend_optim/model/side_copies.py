"""Copies between a GPU and the host that pass training by.

    snapshot     training stream: parameters → room on the GPU     worker: room → host
    correction   worker: host → GPU                                training stream: one addition

A copy inside of a GPU is some thirty times faster than one to the host. So the training stream
gives up one copy inside of the GPU and one addition per sync, and neither it nor the training
thread waits for the bus. The room is one fragment in float32.

The worker moves the bytes through two small pieces of pinned memory. To pin all host memory of the
rounds would take it from the system, and would hold up launches for as long as pinning takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from mend_optim.model.copies import Ready
from mend_optim.model.graph_capture import beside_captures

#: Bytes of each of the two pieces of pinned memory.
PIECE = 16 << 20
#: Before torch says that memory is too little, it waits for the GPU and gives back all that it has
#: kept. So it is asked again only after so many copies.
PATIENCE = 64
#: Copies that may be on their way to the host at a time. Else all of a model would be when it is
#: founded, and the user's next step could find too little memory.
ROOMS = 4


class _Snapshot(NamedTuple):
    """A copy in the room on the GPU, complete at the event, and its place on the host."""

    room: Tensor
    out: Tensor
    event: torch.cuda.Event


class SideCopies:
    """The ways between one GPU and the host. The training thread calls it, unless a method says
    otherwise.

    Args:
        device: the GPU. Parameters may be on others, too.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # To the host, from it, and both ways for what was rounded away.
        self._outward, self._inward, self._beside = (_stream(device) for _ in range(3))
        self._snapshots: list[_Snapshot] = []
        # The rooms whose copies are not on the host yet. The worker takes them out again.
        self._taken: deque[Tensor] = deque()
        # For how many copies room is not asked for again.
        self._patience = 0

    # ── snapshots ─────────────────────────────────────────────────────────────────────────────────

    def room(self, numel: int, dtype: torch.dtype = torch.float32) -> Tensor | None:
        """Room on the GPU for a copy; None if there is too little memory, or much is taken. The
        training stream may fill it at once."""
        if self._patience or len(self._taken) >= ROOMS:
            self._patience = max(0, self._patience - 1)
            return None
        try:
            with torch.inference_mode(False):
                return torch.empty(numel, dtype=dtype, device=self._device)
        except torch.cuda.OutOfMemoryError:
            self._patience = PATIENCE
            return None

    def take_out(self, room: Tensor, out: Tensor, plus: Tensor | None = None) -> None:
        """Copy the values that the training stream puts into `room` to the host: see `ready`.

        Args:
            room: on the GPU.
            out: on the host; of the same size.
            plus: on the host, in pinned memory; is added to the copy.
        """
        self._taken.append(room)
        self._follow()
        with torch.cuda.stream(self._beside), torch.no_grad():
            if plus is not None:
                room.add_(plus.to(self._device, non_blocking=True))
            self._snapshots.append(_Snapshot(room, out, _mark(self._beside)))
        room.record_stream(self._beside)

    def ready(self) -> Ready:
        """A function that makes all copies to the host that nobody has been given yet. It is for
        another thread than the training thread."""
        snapshots, self._snapshots = self._snapshots, []

        def make() -> None:
            while snapshots:
                _carry_out(snapshots.pop(0), self._outward)
                self._taken.popleft()

        return make

    # ── corrections ───────────────────────────────────────────────────────────────────────────────

    def bring(self, tensors: Iterable[Tensor]) -> list[Tensor] | None:
        """Copies of host tensors on the GPU, which are complete; None if there is too little
        memory. Waits for them: any other thread than the training thread may call it. Pass the
        copies to `use` before you read them."""
        try:
            return [_carried_in(tensor, self._inward) for tensor in tensors]
        except torch.cuda.OutOfMemoryError:
            return None

    def use(self, brought: Iterable[Tensor]) -> None:
        """The training stream reads these tensors from here on: their memory is used again only
        after that."""
        training = torch.cuda.current_stream(self._device)
        for tensor in brought:
            tensor.record_stream(training)

    # ── what was rounded away ─────────────────────────────────────────────────────────────────────

    def take_in(self, lost: Tensor) -> Tensor | None:
        """A copy of pinned host memory on the GPU, which the training stream waits for; None if
        there is too little memory."""
        try:
            with torch.inference_mode(False), torch.cuda.stream(self._beside):
                there = lost.to(self._device, non_blocking=True)
        except torch.cuda.OutOfMemoryError:
            return None
        self.join()
        there.record_stream(torch.cuda.current_stream(self._device))
        return there

    def put_back(self, there: Tensor, lost: Tensor) -> None:
        """Copy what the training stream makes of `there` back to pinned host memory; see
        `settle`."""
        self._follow()
        with torch.cuda.stream(self._beside):
            lost.copy_(there, non_blocking=True)
        there.record_stream(self._beside)

    def _follow(self) -> None:
        self._beside.wait_stream(torch.cuda.current_stream(self._device))

    def join(self) -> None:
        """Let the training stream wait for what was put back so far."""
        torch.cuda.current_stream(self._device).wait_stream(self._beside)

    def settle(self) -> None:
        """Wait until the host has all that was put back."""
        self._beside.synchronize()


# ── through pinned memory ─────────────────────────────────────────────────────────────────────────


@contextmanager
def _on(stream: torch.cuda.Stream) -> Iterator[None]:
    """Use a stream, and its device. A thread of its own would otherwise go back to the first GPU,
    and take memory there."""
    with beside_captures(), torch.cuda.device(stream.device), torch.cuda.stream(stream):
        yield


def _carry_out(snapshot: _Snapshot, stream: torch.cuda.Stream) -> None:
    # Each piece of pinned memory is emptied while the other one fills.
    underway: list[tuple[Tensor, Tensor, torch.cuda.Event]] = []
    with _on(stream):
        stream.wait_event(snapshot.event)
        pieces = _pieces(snapshot.room)
        for number, (start, stop) in enumerate(_spans(snapshot.room)):
            if len(underway) == len(pieces):
                _land(underway.pop(0))
            piece = pieces[number % len(pieces)][: stop - start]
            piece.copy_(snapshot.room[start:stop], non_blocking=True)
            underway.append((piece, snapshot.out[start:stop], _mark(stream)))
        for each in underway:
            _land(each)


def _land(moved: tuple[Tensor, Tensor, torch.cuda.Event]) -> None:
    piece, out, event = moved
    event.synchronize()
    out.copy_(piece)


def _carried_in(tensor: Tensor, stream: torch.cuda.Stream) -> Tensor:
    with _on(stream):
        pieces = _pieces(tensor)
        there = torch.empty_like(tensor, device=stream.device)
        empty: list[torch.cuda.Event] = []
        for number, (start, stop) in enumerate(_spans(tensor)):
            if len(empty) == len(pieces):
                empty.pop(0).synchronize()
            piece = pieces[number % len(pieces)][: stop - start]
            piece.copy_(tensor[start:stop])
            there[start:stop].copy_(piece, non_blocking=True)
            empty.append(_mark(stream))
        stream.synchronize()
    return there


def _pieces(flat: Tensor) -> list[Tensor]:
    """Two pieces of pinned memory. torch keeps such memory for the next time."""
    numel = min(max(1, flat.numel()), PIECE // flat.element_size())
    return [torch.empty(numel, dtype=flat.dtype, device="cpu", pin_memory=True) for _ in range(2)]


def _spans(flat: Tensor) -> list[tuple[int, int]]:
    step, numel = PIECE // flat.element_size(), flat.numel()
    return [(start, min(start + step, numel)) for start in range(0, numel, step)]


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _mark(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """An event that is over once the stream has done all that it was given so far."""
    # A thread that waits for a blocking event leaves its core to others.
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event
