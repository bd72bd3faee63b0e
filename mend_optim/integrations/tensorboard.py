"""A learner's figures and events in TensorBoard. You make the writer; this library imports nothing
of it.

    board = StatusWriter(SummaryWriter("runs/a"))
    optimizer = MendOptimizer(AdamW(model.parameters()), on_event=board.on_event, ...)
    for step, batch in enumerate(data):
        ...
        if step % 50 == 0:
            board.write(optimizer)"""

from __future__ import annotations

from typing import Any

from mend_optim.engine.ledger import Event, RoundRecord
from mend_optim.errors import require
from mend_optim.integrations.figures import PREFIX, scalars
from mend_optim.optimizer import MendOptimizer


class StatusWriter:
    """Writes the figures of a learner, the numbers that its script reports, and its events.

    Args:
        writer: a `torch.utils.tensorboard.SummaryWriter`, or what has its `add_scalar` and
            `add_text`. You close it.

    Raises:
        UsageError: the writer has no such methods.
    """

    def __init__(self, writer: Any) -> None:
        has_both = all(callable(getattr(writer, name, None)) for name in ("add_scalar", "add_text"))
        bound = "a SummaryWriter, with add_scalar() and add_text()"
        require(has_both, "writer", writer, bound, "make it by SummaryWriter('runs/a')")
        self._writer = writer
        #: The step that was written last: events don't know theirs.
        self._step = 0

    def write(self, optimizer: MendOptimizer, step: int | None = None) -> None:
        """Write the figures of this moment as scalars, "mend/steps" and so on, and the reported
        numbers as "mend/reported/loss" and so on.

        Args:
            optimizer: the learner's.
            step: to write them at. None: the learner's position, which goes on after a restart.
        """
        status = optimizer.status()
        self._step = status.position if step is None else step
        reported = {f"{PREFIX}/reported/{name}": n for name, n in status.reported.items()}
        for tag, number in (scalars(status) | reported).items():
            self._writer.add_scalar(tag, number, self._step)

    def on_event(self, event: Event) -> None:
        """Write an event as text, and a round as scalars. Give it to `MendOptimizer(on_event=…)`,
        which calls it on a background thread."""
        record = event.facts.get("round")
        if isinstance(record, RoundRecord):
            self._write_round(record)
        else:
            # Indented text is shown as it is: a peer may have chosen some of it.
            self._writer.add_text(f"{PREFIX}/events/{event.kind}", f"    {event.text}", self._step)

    def _write_round(self, record: RoundRecord) -> None:
        """Write how many took part in a round, at the version of the anchor that it made."""
        at = f"{PREFIX}/fragment_{record.fragment}"
        self._writer.add_scalar(f"{at}/tokens", record.tokens, record.version)
        if record.members:
            self._writer.add_scalar(f"{at}/members", len(record.members), record.version)
            self._writer.add_scalar(f"{at}/absent", len(record.absent), record.version)
