"""Mutants of the order of parameters: each check that another order does not hide behind equal
shapes, left out."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

NAMES, HELLO = of("unit/model/test_saved_order"), of("unit/protocol/test_handshake")
ORDER = of("together/test_parameter_order")
SAVED, SHAKE, WRAPPED = "model/saved_order", "protocol/handshake", "wrapped_parameters"


def mutant(name: str, room: str, old: str, new: str, tests: tuple[str, ...]) -> Mutant:
    return Mutant(name, 5, room, old, new, tests)


ORDER_MUTANTS = (
    mutant("positions-are-in-any-order", SAVED, "list(own) == list(listed)", "True", NAMES),
    mutant("names-are-positions", SAVED, "None if are_positions(own) else True", "True", NAMES),
    mutant(
        "the-order-of-names-is-not-compared",
        SHAKE,
        "        if name != other:",
        "        if False:",
        HELLO,
    ),
    mutant(
        "wrappers-may-change-the-order",
        SHAKE,
        "    if sorted(bare[0]) == sorted(bare[1]) and len(set(bare[0])) == len(bare[0]):",
        "    if False:",
        HELLO,
    ),
    mutant(
        "names-that-a-wrapper-makes-equal-are-one",
        SHAKE,
        " and len(set(bare[0])) == len(bare[0]):",
        ":",
        HELLO,
    ),
    mutant(
        "other-names-are-another-order",
        SHAKE,
        "    if sorted(here) != sorted(there):",
        "    if len(here) != len(there):",
        HELLO,
    ),
    mutant(
        "a-model-in-another-order-is-built-again",
        SHAKE,
        "    if kinds != kinds_there and sorted(kinds) == sorted(kinds_there):",
        "    if False:",
        HELLO,
    ),
    mutant(
        "equal-parameters-are-in-another-order",
        SHAKE,
        "    if kinds != kinds_there and sorted(kinds) == sorted(kinds_there):",
        "    if sorted(kinds) == sorted(kinds_there):",
        of("unit/protocol/test_messages"),
    ),
    mutant(
        "any-weights-show-the-order",
        WRAPPED,
        "keeps = belong_to(saved.weights, layout, self.mergeable())",
        "keeps = True",
        ORDER,
    ),
    mutant(
        "another-order-is-read",
        WRAPPED,
        "        if not keeps:\n",
        "        if False:\n",
        ORDER,
    ),
    mutant(
        "a-checkpoint-names-what-has-no-names",
        WRAPPED,
        '                group.pop("param_names", None)\n',
        "                pass\n",
        ORDER,
    ),
    mutant(
        "an-order-by-name-is-not-told",
        "wrapped_parameters",
        "as_listed=as_listed)",
        "as_listed=True)",
        ORDER,
    ),
    mutant(
        "who-has-no-names-meets-an-order-by-name",
        SHAKE,
        "    if order := _order_difference(mine.model, theirs.model):",
        '    if order := "":',
        HELLO,
    ),
    mutant(
        "every-order-by-name-is-another-one",
        SHAKE,
        "(unnamed[0] and ordered[1])",
        "ordered[1]",
        HELLO,
    ),
)
