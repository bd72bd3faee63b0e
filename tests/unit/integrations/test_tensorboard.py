"""Figures and events in TensorBoard: what is written, and, where it is installed, what it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mend_optim import Event, MendOptimizer, UsageError
from mend_optim.integrations.figures import FIGURES
from mend_optim.integrations.tensorboard import StatusWriter
from tests.support.learners import Watch, cluster, descent, drive, start, wave


class Pages:
    """Stands for a SummaryWriter."""

    def __init__(self) -> None:
        self.scalars: dict[tuple[str, int], float] = {}
        self.texts: list[tuple[str, str, int]] = []

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.scalars[tag, global_step] = scalar_value

    def add_text(self, tag: str, text_string: str, global_step: int) -> None:
        self.texts.append((tag, text_string, global_step))


def test_figures_and_reported_numbers_stand_at_the_learners_position() -> None:
    pages = Pages()
    board, optimizer = StatusWriter(pages), MendOptimizer(descent(0.0), name="a")
    for _ in range(3):
        optimizer.step()
    optimizer.report(loss=0.5)
    board.write(optimizer)
    assert pages.scalars["mend/steps", 3] == 3
    assert pages.scalars["mend/reported/loss", 3] == 0.5
    assert len(pages.scalars) == 1 + sum(not figure.labels for figure in FIGURES)


def test_the_user_may_say_at_which_step() -> None:
    pages = Pages()
    board = StatusWriter(pages)
    board.write(MendOptimizer(descent(0.0), name="a"), step=70)
    board.on_event(Event("met", "b *met*"))
    assert pages.scalars["mend/steps", 70] == 0
    assert pages.texts == [("mend/events/met", "    b *met*", 70)]


def test_rounds_are_scalars_and_other_events_texts() -> None:
    pages, watch = Pages(), Watch()
    board = StatusWriter(pages)

    def both(event: Event) -> None:
        board.on_event(event)
        watch(event)

    told = ({"on_event": both}, {})
    with cluster(descent(0.0), descent(0.0), each=told, sync_every=2) as pair:
        start(pair)
        drive(pair, 8, wave)
        watch.until("round")
    merged = [r for e in watch.of("round") if (r := e.facts["round"]).members]
    assert merged
    for record in merged:
        at = record.version
        assert pages.scalars["mend/fragment_0/members", at] == len(record.members)
        assert pages.scalars["mend/fragment_0/absent", at] == len(record.absent)
        assert pages.scalars["mend/fragment_0/tokens", at] == record.tokens
    kinds = {tag.rpartition("/")[2] for tag, _, _ in pages.texts}
    assert kinds == {event.kind for event in watch.events} - {"round"}


@pytest.mark.parametrize("writer", [None, "runs/a", {}])
def test_what_cannot_write_is_refused(writer: Any) -> None:
    with pytest.raises(UsageError, match="writer must be a SummaryWriter"):
        StatusWriter(writer)


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="pip install '.[clients]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        board, optimizer = StatusWriter(writer), MendOptimizer(descent(0.0), name="a")
        optimizer.report(loss=0.5)
        board.on_event(Event("met", "b met"))
        for _ in range(2):
            optimizer.step()
            board.write(optimizer)
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert [(each.step, each.value) for each in read.Scalars("mend/steps")] == [(1, 1.0), (2, 2.0)]
    assert [each.value for each in read.Scalars("mend/reported/loss")] == [0.5, 0.5]
    (text,) = read.Tensors("mend/events/met/text_summary")
    assert text.tensor_proto.string_val == [b"    b met"]
