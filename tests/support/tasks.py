"""Tasks of the benches, made small for tests."""

from __future__ import annotations

from dataclasses import replace

from bench.cluster.tasks import Task, text_task


def small_text() -> Task:
    """The task "text" with next to no held-out text, on which most of a tiny run would be spent."""
    task = text_task()
    x, y = task.held_out[0]
    return replace(task, held_out=((x[:4], y[:4]),))
