"""Mutants of the warning that large messages don't get through."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

LAW = 4
ROOM = "engine/passages"
TESTS = of("unit/engine/test_passages")


def mutant(name: str, old: str, new: str, room: str = ROOM) -> Mutant:
    return Mutant(name, LAW, room, old, new, TESTS)


PASSAGE_MUTANTS = (
    mutant("one-failure-is-told", "for_s >= self._patience_s", "for_s + 1e9 >= self._patience_s"),
    mutant(
        "a-failure-is-told-each-time",
        "for_s >= self._patience_s and (peer, way) not in self._told:",
        "for_s >= self._patience_s:",
    ),
    Mutant(
        "a-late-failure-of-another-ends-a-want",
        LAW,
        "engine/pulling",
        " for wanted in asked if wanted.peer == peer), None)",
        " for wanted in asked), None)",
        of("unit/engine/test_pulling"),
    ),
    mutant("slow-failures-are-far-apart", "if began - failure.last", "if now - failure.last"),
    mutant("failures-far-apart-are-one", "LASTING = 2", "LASTING = 1000"),
    mutant("a-stop-counts-as-a-failure", "self.state.stops.awake_s(now)", "now"),
    mutant("suspects-are-told-of", "if peer not in self.state.roster.alive() or not", "if not"),
    mutant("newcomers-are-told", " or not self.state.joined:", ":"),
    mutant(
        "what-failed-before-a-peer-was-gone-counts",
        "            if peer in alive\n",
        "            if roster.find(peer)\n",
    ),
    mutant(
        "a-suspicion-ends-the-news-for-ever",
        "for peer, way in self._told if roster.find(peer)}",
        "for peer, way in self._told if peer in alive}",
    ),
    mutant(
        "the-network-is-to-blame-for-everything",
        "_REMEDIES[fault.cause]",
        "_REMEDIES[Cause.BROKEN]",
    ),
    Mutant(
        "damage-is-a-broken-way",
        LAW,
        "transport/transfers",
        "        case DamagedError():\n            return TransferFault(Cause.DAMAGED)\n",
        "",
        of("unit/transport/test_transfers"),
    ),
    Mutant(
        "another-authority-is-a-broken-way",
        LAW,
        "transport/transfers",
        "        case RpcFailed() if is_distrust(fault):\n"
        "            return TransferFault(Cause.UNTRUSTED)\n",
        "",
        of("unit/transport/security/test_renewal", "another_authority"),
    ),
    Mutant(
        "a-peers-words-are-about-its-certificate",
        LAW,
        "transport/diagnosis",
        'text.startswith("unavailable") and ',
        "",
        of("unit/transport/test_diagnosis", "only_grpc_says"),
    ),
    Mutant(
        "damage-at-the-peer-is-a-broken-way",
        LAW,
        "transport/stream",
        'self.status == "DATA_LOSS"',
        "False",
        of("unit/transport/test_grpc_transport", "device_on_the_way"),
    ),
    Mutant(
        "a-fault-of-the-peer-is-a-broken-way",
        LAW,
        "transport/stream",
        '            "UNKNOWN",\n',
        "",
        of("unit/transport/test_stream"),
    ),
    Mutant(
        "a-peer-gives-its-faults-no-reason",
        LAW,
        "transport/server",
        "grpc.StatusCode.UNKNOWN",
        "grpc.StatusCode.INTERNAL",
        of("unit/transport/test_grpc_transport", "no_memory"),
    ),
    Mutant(
        "a-refusal-is-a-broken-way",
        LAW,
        "transport/transfers",
        "case RpcFailed() if fault.is_refusal:",
        "case RpcFailed() if False:",
        of("unit/transport/test_grpc_transport", "must_not_accept"),
    ),
    Mutant(
        "a-refusal-during-a-write-is-lost",
        LAW,
        "transport/stream",
        "            await self._raise_if_over()\n",
        "",
        of("unit/transport/test_stream"),
    ),
    Mutant(
        "a-refusal-of-a-message-on-its-way-is-a-broken-way",
        LAW,
        "transport/stream",
        "self.is_unexplained or ",
        "",
        of("unit/transport/test_stream"),
    ),
    Mutant(
        "a-pull-without-an-answer-is-a-broken-way",
        LAW,
        "transport/transfers",
        "case UnansweredError():",
        "case UnansweredError() if False:",
        of("unit/transport/test_grpc_transport", "nobody_answers"),
    ),
    mutant(
        "a-lone-learner-that-evaluates-is-told-of",
        "if way is Way.FROM and step",
        "if False and step",
    ),
    mutant("a-learner-that-evaluates-hides-lost-offers", "if way is Way.FROM and step", "if step"),
    mutant(
        "an-all-clear-of-nothing",
        (
            "if (peer, way) in self._told and not self._fails(now, peer, way):\n            self._told.remove"
        ),
        "if not self._fails(now, peer, way):\n            self._told.discard",
    ),
    mutant("no-all-clear", "if (peer, way) in self._told and not", "if False and not"),
    mutant("a-small-fragment-is-an-all-clear", " and not self._fails(now, peer, way):", ":"),
    mutant("a-small-fragment-is-a-sign", "pop((peer, way, p), None)", "clear()"),
    mutant("what-failed-once-fails-for-ever", " and now - failure.last <= self._lasting_s", ""),
    mutant("both-ways-are-one", "setdefault((peer, way, p), ", "setdefault((peer, Way.TO, p), "),
    mutant(
        "an-offer-that-arrived-has-failed",
        "if pending.sent_to is not None and not pending.delivered:",
        "if pending.sent_to is not None:",
        "engine/offers",
    ),
    mutant(
        "an-offer-that-arrives-is-no-sign",
        "        self.passages.passed(now, pending.sent_to, Way.TO, pending.offer.fragment)\n",
        "",
        "engine/offers",
    ),
    mutant(
        "a-seal-is-no-sign",
        "        self.passages.passed(now, seal.sender, Way.FROM, seal.fragment)\n",
        "",
        "engine/adoption",
    ),
    mutant(
        "a-state-is-no-sign",
        "        self.passages.passed(now, anchor.peer, Way.FROM, anchor.fragment)\n",
        "",
        "engine/adoption",
    ),
    mutant(
        "a-want-that-fails-is-no-sign",
        "        self.passages.failed(now, peer, Way.FROM, p, began=began, fault=fault)\n",
        "",
        "engine/pulling",
    ),
)
