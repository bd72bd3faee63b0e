"""Mutants of what a signal may do within a step."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

HELD = of("unit/runtime/test_interrupts")
ENDS = of("together/test_interrupts", "ctrl_c_ends")


def unheld(name: str, text: str, instead: str) -> Mutant:
    """No accident of the script stops a learner (law 7)."""
    return Mutant(name, 7, "runtime/interrupts", text, instead, HELD)


SIGNAL_MUTANTS = (
    unheld("only-ctrl-c-is-held-back", "for number in NUMBERS:", "for number in NUMBERS[:1]:"),
    unheld("a-signal-takes-effect-at-once", "        self._within = True\n", ""),
    unheld(
        "a-signal-that-came-is-lost",
        "self._within = False\n            self._deliver()\n",
        "self._within = False\n",
    ),
    unheld(
        "a-handler-that-raises-loses-the-other-signals",
        "(number, frame)\n        finally:\n            self._deliver()",
        "(number, frame)\n        finally:\n            pass",
    ),
    unheld(
        "a-handler-that-raises-at-the-beginning-keeps-others",
        "            self.__exit__()\n            raise\n",
        "            raise\n",
    ),
    unheld(
        "a-handler-is-called-while-it-is-replaced",
        "    self._within = True\n        try:\n            for number in NUMBERS:",
        "    try:\n            for number in NUMBERS:",
    ),
    unheld(
        "a-handler-that-was-set-within-is-undone",
        "if _signal.getsignal(number) == self._hold:",
        "if True:",
    ),
    unheld("a-killed-worker-of-a-loader-stops-a-step", '    "CHLD",\n', ""),
    unheld(
        "ctrl-c-at-the-end-keeps-handlers",
        "that is back has raised\n            self._restore()\n",
        "that is back has raised\n",
    ),
    Mutant(
        "a-signal-parts-a-learners-count-from-its-runs",
        7,
        "training_run",
        "with Uninterrupted():  # the learner counts it, too, or neither does",
        "if True:",
        of("together/test_interrupts"),
    ),
    Mutant(
        "ctrl-c-leaves-a-half-made-learner",
        7,
        "training_run",
        "with Uninterrupted():\n            self.learner = ",
        "if True:\n            self.learner = ",
        of("together/test_interrupts", "starts"),
    ),
    Mutant(
        "a-learner-that-starts-is-not-closed",
        7,
        "training_run",
        "if self._is_closed and self.learner:",
        "if False:",
        of("together/test_threads", "starts"),
    ),
    Mutant(
        "ctrl-c-in-its-goodbye-leaves-a-learner-open-for-ever",
        7,
        "runtime/learner",
        "with Uninterrupted(), ExitStack() as parts:",
        "with ExitStack() as parts:",
        ENDS,
    ),
    Mutant(
        "ctrl-c-at-the-end-keeps-the-loop",
        7,
        "runtime/learner",
        "            parts.callback(self.network.loop.release)\n",
        "",
        ENDS,
    ),
    unheld("a-handler-that-was-kept-holds-back-for-ever", "            self._within = False\n", ""),
)
