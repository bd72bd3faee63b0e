"""Mutants of the order in which bulky messages leave."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

ORDER = of("unit/transport/test_departures")
LOOPBACK = of("unit/transport/test_grpc_transport", "overtakes")

LANES = of("unit/transport/test_lanes")
DIALLED = of("unit/transport/test_grpc_transport", "connections_of_their_own")
STOPPED = of("unit/transport/test_grpc_transport", "that_stops_has_no_connection")


def lane_mutant(name: str, old: str, new: str) -> Mutant:
    return Mutant(name, 7, "transport/lanes", old, new, LANES)


DEPARTURE_MUTANTS = (
    lane_mutant("lanes-never-become-fewer", "        self._shrink(most)\n", ""),
    lane_mutant(
        "lanes-in-use-are-given-up", "(self._lanes) if not lane.streams]", "(self._lanes)]"
    ),
    lane_mutant("all-messages-share-one-lane", " and len(self._lanes) < most", " and False"),
    lane_mutant("each-message-has-a-lane-of-its-own", "lane.load and ", ""),
    lane_mutant("a-full-lane-gets-fuller", "key=lambda lane: lane.load, ", "key=id, "),
    lane_mutant(
        "a-stream-that-waits-blocks-its-lane",
        "sum(stream.moves for stream in self.streams)",
        "len(self.streams)",
    ),
    lane_mutant("a-lane-that-is-ready-grows-cold", "self._put_first(lane)", "pass"),
    Mutant(
        "an-exchange-never-rests",
        7,
        "transport/transfers",
        "            stream.rest()\n",
        "",
        of("unit/transport/test_transfers"),
    ),
    Mutant(
        "a-stream-never-rests",
        7,
        "transport/stream",
        "        self.moves = False\n",
        "        pass\n",
        DIALLED,
    ),
    lane_mutant(
        "a-broken-lane-is-taken-again",
        "                    self._lanes.remove(lane)\n                    self._retired.append(lane)\n",
        "                    pass\n",
    ),
    lane_mutant(
        "a-broken-lane-is-never-hung-up", "                    self._retired.append(lane)\n", ""
    ),
    lane_mutant(
        "a-lane-is-bad-whose-peer-ends-a-stream",
        " and not (isinstance(fault, RpcFailed) and fault.is_refusal):",
        ":",
    ),
    lane_mutant("any-number-of-retired-lanes", "resting[:-most]", "()"),
    lane_mutant(
        "a-message-under-way-is-cut", "in self._retired if not lane.load]", "in self._retired]"
    ),
    Mutant(
        "lanes-outlive-their-learner",
        7,
        "transport/grpc_transport",
        "                link.close_lanes()\n",
        "",
        STOPPED,
    ),
    lane_mutant("retired-lanes-stay", "                self._hang_up_retired()\n", ""),
    lane_mutant("retired-lanes-break-off", " if not lane.streams]:", "]:"),
    Mutant(
        "lanes-outlive-the-control-stream",
        7,
        "transport/link",
        "            self.lanes.retire()\n",
        "            pass\n",
        of("unit/transport/test_grpc_transport", "a_new_control_stream"),
    ),
    Mutant(
        "a-spoke-counts-its-own-links",
        7,
        "transport/grpc_transport",
        "most_lanes(self._handler.others())",
        "most_lanes(len(self._links))",
        of("unit/transport/test_grpc_transport", "few_connections"),
    ),
    lane_mutant(
        "a-lane-stays-busy",
        "                lane.streams.remove(stream)\n",
        "                pass\n",
    ),
    lane_mutant("each-of-many-peers-has-all-lanes", ", MOST_IN_ALL // max(1, peers)", ", MOST"),
    lane_mutant(
        "lanes-outlive-the-address",
        "        for connection in connections:\n            self._hang_up(connection)\n",
        "",
    ),
    Mutant(
        "a-peer-has-one-lane",
        7,
        "transport/grpc_transport",
        "most_lanes(self._handler.others())",
        "1",
        DIALLED,
    ),
    Mutant(
        "bulky-messages-share-the-link",
        7,
        "transport/transfers",
        "                await departure.turn()\n",
        "",
        LOOPBACK,
    ),
    Mutant(
        "offers-overtake-seals",
        7,
        "transport/departures",
        "case Seal():\n            return 0\n        case Offer():\n            return 1",
        "case Seal():\n            return 1\n        case Offer():\n            return 0",
        ORDER,
    ),
    Mutant(
        "whole-anchors-leave-beside-offers",
        7,
        "transport/departures",
        "            return 2\n",
        "            return 1\n",
        ORDER,
    ),
    Mutant(
        "equally-urgent-messages-wait-for-each-other",
        7,
        "transport/departures",
        "other.rank < rank",
        "other.rank <= rank",
        ORDER,
    ),
    Mutant(
        "a-paused-message-starves",
        7,
        "transport/departures",
        "min(self._all.busy_until(self.rank), ends_at)",
        "self._all.busy_until(self.rank)",
        ORDER,
    ),
    Mutant(
        "a-stuck-message-holds-the-others-back",
        7,
        "transport/departures",
        "other.moved_at + other.pause_s for other in ahead",
        "float('inf') for other in ahead",
        ORDER,
    ),
    Mutant(
        "a-message-that-has-left-goes-on-moving",
        7,
        "transport/departures",
        "            self._leaving.remove(departure)\n",
        "            pass\n",
        ORDER,
    ),
    Mutant(
        "a-message-leaves-without-a-word",
        7,
        "transport/departures",
        "            self._leaving.remove(departure)\n            self._wake()\n",
        "            self._leaving.remove(departure)\n",
        ORDER,
    ),
    Mutant(
        "one-order-for-all-peers",
        7,
        "transport/link",
        "self.departures = Departures()",
        "self.departures = vars(Departures).get('one') or Departures()\n"
        "        Departures.one = self.departures",
        ORDER,
    ),
    Mutant(
        "whole-anchors-starve-behind-seals",
        7,
        "transport/departures",
        "            other.overtaken += 1\n",
        "            pass\n",
        ORDER,
    ),
    Mutant(
        "a-message-is-overtaken-once",
        7,
        "transport/departures",
        "        self.overtaken = 0\n        self.moved_at",
        "        self.moved_at",
        ORDER,
    ),
    Mutant(
        "nobody-tells-the-overtaken",
        7,
        "transport/departures",
        "if any(other.overtaken >= OVERTAKES for other in behind):",
        "if False:",
        ORDER,
    ),
)
