"""Mutants of what a learner owes to the script that drives it."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

ARGUMENTS = of("together/test_bad_input", "other_libraries or another_library")

SCRIPT_MUTANTS = (
    Mutant(
        "a-number-of-numpy-stays-what-it-is",
        7,
        "errors",
        "return float(value) if is_broken else index(value)",
        "return value",
        ARGUMENTS,
    ),
    Mutant(
        "two-threads-join-beside-each-other",
        7,
        "runtime/one_joiner",
        "nullcontext() if learner and learner.closed else self._lock",
        "nullcontext()",
        of("together/test_threads"),
    ),
)
