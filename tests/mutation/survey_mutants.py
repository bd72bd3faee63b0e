"""Mutants of surveys: their limits, whom a learner dials back, and the arithmetic of clocks and
rates."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

TURNS = of("unit/transport/test_surveying")
SURVEYOR = of("unit/transport/test_survey")
WIRE = of("unit/transport/test_wire_survey")
ARITHMETIC = of("unit/protocol/test_surveyed")
WAY = of("unit/cli/test_check_way")
OTHERS = of("together/test_survey", "an_address_of_others")
STRANGERS = of("together/test_survey", "strangers")


def mutant(name: str, room: str, old: str, new: str, tests: tuple[str, ...] = TURNS) -> Mutant:
    """Nobody can use a learner, or keep it busy (law 8)."""
    return Mutant(name, 8, room, old, new, tests)


SURVEY_MUTANTS = (
    mutant(
        "those-that-only-ask-are-news",
        "transport/control",
        "if is_told and theirs.only_asks:",
        "if False:",
        of("together/test_check", "hardly_notices"),
    ),
    mutant(
        "no-refusal-is-news",
        "transport/control",
        "if is_told and theirs.only_asks:",
        "if is_told:",
        of("unit/transport/test_grpc_transport", "refused"),
    ),
    mutant(
        "surveys-have-no-rest",
        "transport/surveying",
        "now + max(LEAST_REST_S, REST * busy_s)",
        "now + LEAST_REST_S",
    ),
    mutant(
        "short-surveys-have-no-rest",
        "transport/surveying",
        "now + max(LEAST_REST_S, REST * busy_s)",
        "now + REST * busy_s",
    ),
    mutant(
        "surveys-come-together",
        "transport/surveying",
        "        self._is_taken = True\n        return 0.0",
        "        self._is_taken = False\n        return 0.0",
    ),
    mutant(
        "questions-have-no-end",
        "transport/surveying",
        "check(self._asks <= TURN_ASKS,",
        "check(self._asks > 0,",
    ),
    mutant(
        "bytes-down-have-no-end",
        "transport/surveying",
        "        _check_turn(self._sent)\n",
        "",
    ),
    mutant(
        "bytes-up-have-no-end",
        "transport/surveying",
        "        _check_turn(self._taken)\n",
        "",
    ),
    mutant(
        "more-comes-than-was-announced",
        "transport/surveying",
        "check(left >= 0,",
        "check(left is not None,",
    ),
    mutant(
        "a-surveyor-is-dialled-again",
        "transport/surveying",
        "        self._has_dialled = True\n",
        "",
    ),
    mutant(
        "a-transfer-that-is-broken-off-costs-nothing",
        "transport/surveying",
        "self._moved_s + (_now() - since if since is not None else 0.0)",
        "self._moved_s",
    ),
    mutant(
        "strangers-survey",
        "transport/surveying",
        "            self._security.check_caller(context, caller.name)\n",
        "",
        STRANGERS,
    ),
    mutant(
        "names-are-dialled-back",
        "transport/dial_back",
        "        raise PeerError(",
        "        return\n        raise PeerError(",
    ),
    mutant(
        "groups-are-dialled-back",
        "transport/dial_back",
        "not (target.is_multicast or target.is_unspecified)",
        "not target.is_unspecified",
    ),
    mutant(
        "whoever-answers-is-the-surveyor",
        "transport/dial_back",
        "DialBack.REACHED if said == token else",
        "DialBack.REACHED if said else",
    ),
    mutant(
        "any-port-is-dialled-back",
        "transport/wire_survey",
        "check(LEAST_PORT <= told.dial <= MOST_PORT, fault)",
        "check(told.dial <= MOST_PORT, fault)",
        WIRE,
    ),
    mutant(
        "any-size-is-sent",
        "transport/wire_survey",
        '            check_size("the transfer", told.send, MOST_BYTES)\n',
        "",
        WIRE,
    ),
    mutant(
        "an-address-of-others-is-asked-for",
        "transport/survey",
        "wish.ips is None or self._found.seen_ip in wish.ips",
        "True",
        OTHERS,
    ),
    mutant(
        "a-learner-keeps-its-surveyor-waiting",
        "transport/survey",
        "if not found.wait_s or _now() + found.wait_s > until:",
        "if not found.wait_s:",
        SURVEYOR,
    ),
    mutant(
        "a-learner-that-drips-keeps-its-surveyor",
        "transport/survey",
        "await within(self._find_out(stream), patience_s + TURN_S)",
        "await within(self._find_out(stream), 100 * (patience_s + TURN_S))",
        SURVEYOR,
    ),
    mutant(
        "the-bound-of-a-clock-is-a-quarter",
        "protocol/surveyed",
        "-(-self.travel_ns // 2) + 1",
        "-(-self.travel_ns // 4) + 1",
        ARITHMETIC,
    ),
    mutant(
        "the-bound-of-a-clock-is-the-whole-way",
        "protocol/surveyed",
        "-(-self.travel_ns // 2) + 1",
        "self.travel_ns + 1",
        ARITHMETIC,
    ),
    mutant(
        "a-clock-is-read-one-way",
        "protocol/surveyed",
        "return (there + back) // 2",
        "return there",
        ARITHMETIC,
    ),
    mutant(
        "the-longest-trip-is-read",
        "protocol/surveyed",
        "return min(possible,",
        "return max(possible,",
        ARITHMETIC,
    ),
    mutant(
        "an-impossible-trip-is-read",
        "protocol/surveyed",
        "[trip for trip in trips if trip.is_possible]",
        "list(trips)",
        ARITHMETIC,
    ),
    mutant(
        "a-rate-has-no-end",
        "protocol/surveyed",
        "max(self.took_s - self.round_trip_s, self.took_s / 2, 1e-9)",
        "max(self.took_s - self.round_trip_s, 1e-9)",
        ARITHMETIC,
    ),
    mutant(
        "transfers-grow-on-a-slow-link",
        "protocol/surveyed",
        "if last.is_enough or spent_s >= SPENT_S or",
        "if last.is_enough or",
        ARITHMETIC,
    ),
    mutant(
        "clocks-that-may-agree-are-a-fault",
        "cli/check/way",
        "surely_ns = abs(trip.offset_ns) - trip.bound_ns",
        "surely_ns = abs(trip.offset_ns)",
        WAY,
    ),
    mutant(
        "a-learner-that-did-not-dial-is-no-fault",
        "cli/check/way",
        "    if back:\n        yield from _back_faults(found, back)\n",
        "",
        WAY,
    ),
)
