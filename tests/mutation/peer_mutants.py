"""Mutants of the checks of what a peer says: each left out."""

from __future__ import annotations

from tests.mutation.mutant_list import RATES, SIZES, WIRE, Mutant, of

FRAMES, OPTIONS = of("unit/transport/test_frames"), of("unit/transport/test_grpc_options")
TRANSFERS, GRPC = of("unit/transport/test_transfers"), of("unit/transport/test_grpc_transport")
EVIDENCE = of("unit/transport/security/test_evidence")
STOPS = of("unit/engine/test_stops")
LATE_BEATS = of("unit/engine/test_late_beats")
NOTARY = of("unit/transport/security/test_notary")
PACKING, SPARSE = of("unit/codecs/test_packing"), of("unit/codecs/test_sparse")
BLOCKS, CODECS = of("unit/codecs/test_blockwise"), of("unit/codecs/test_registry")
MOMENTS, PAYLOAD = of("unit/worker/test_moment_packet"), of("unit/worker/test_seal_payload")
BUFFERS, ANCHORS = of("unit/worker/test_buffer_anchor"), of("unit/worker/test_anchors")


def unchecked(name: str, room: str, check: str, tests: tuple[str, ...], law: int = 8) -> Mutant:
    """A mutant for which this condition of a check always holds."""
    return Mutant(name, law, room, f"check({check},", "check(True,", tests)


def never(name: str, room: str, flaw: str, tests: tuple[str, ...], law: int = 8) -> Mutant:
    """A mutant that finds this flaw nowhere."""
    return Mutant(name, law, room, f"if {flaw}:", "if False:", tests)


CALLERS = of("unit/transport/test_callers")
UNDIALLED = of(
    "unit/membership/test_roster", "seals_no_more or hearsay_tells or without_an_address"
)

PEER_MUTANTS = (
    # The end beside peers that may come back, and groups that nobody seals.
    Mutant(
        "the-end-does-not-wait-for-suspects",
        11,
        "engine/ending",
        "not (roster.address or roster.able(p))",
        "roster.sealer(p) is None",
        of("unit/engine/test_ending"),
    ),
    Mutant(
        "one-group-without-a-sealer-ends-all-rounds",
        11,
        "engine/ending",
        "return len(self._unmergeable()) < len(state.fragments)",
        "return not self._unmergeable()",
        of("unit/engine/test_ending"),
    ),
    Mutant(
        "the-end-waits-for-a-group-without-a-sealer",
        11,
        "engine/ending",
        "self.boundaries.settled(self._unmergeable())",
        "self.boundaries.settled()",
        of("unit/engine/test_ending"),
    ),
    Mutant(
        "the-end-waits-for-a-group-below-quorum",
        11,
        "engine/ending",
        "if having < needed or not",
        "if not",
        of("virtual/test_endings", "of_some_learners"),
    ),
    # Peers that others tell of.
    Mutant(
        "beats-are-for-phantoms-too",
        7,
        "membership/roster",
        "if self.size <= FANOUT or not p.is_hearsay",
        "if True",
        of("virtual/test_phantoms"),
    ),
    Mutant(
        "only-who-sends-beats-gets-any",
        7,
        "membership/peer",
        "return not self.heard and not self.linked",
        "return not self.heard",
        of("unit/membership/test_roster", "that_no_beat_reaches"),
    ),
    Mutant(
        "a-stream-that-stands-is-forgotten",
        7,
        "membership/roster",
        "            linked=id in self._streams and not lost,\n",
        "",
        of("unit/membership/test_roster", "stream"),
    ),
    Mutant(
        "a-lost-peer-has-its-stream-still",
        7,
        "membership/roster",
        "in self._streams and not lost",
        "in self._streams",
        of("unit/membership/test_roster", "stream"),
    ),
    Mutant(
        "a-broken-stream-stands",
        7,
        "membership/roster",
        "(self._streams.add if up else self._streams.discard)(id)",
        "self._streams.add(id)",
        of("unit/membership/test_roster", "stream"),
    ),
    # Learners that nobody can dial.
    Mutant(
        "an-address-that-nobody-dials-is-kept",
        10,
        "transport/callers",
        "        self.is_shown = not self.is_shown\n        return True\n",
        "        return False\n",
        CALLERS,
    ),
    Mutant(
        "an-address-is-given-up-although-somebody-dials-it",
        10,
        "transport/callers",
        "if reaches and not self._open else",
        "if reaches else",
        CALLERS,
    ),
    Mutant(
        "an-address-that-was-dialled-once-is-kept-for-good",
        10,
        "transport/callers",
        "        self._open -= 1\n",
        "",
        CALLERS,
    ),
    Mutant(
        "callers-that-hang-up-are-still-there",
        10,
        "transport/server",
        "        finally:\n            self._hung_up()\n",
        "        finally:\n            pass\n",
        of("unit/transport/test_grpc_transport", "shown_no_more"),
    ),
    Mutant(
        "that-nobody-dials-any-more-is-told-once",
        10,
        "transport/callers",
        "self.has_hidden, self.is_shown = False, True",
        "self.is_shown = True",
        CALLERS,
    ),
    Mutant(
        "a-stopped-learner-gives-its-address-up",
        10,
        "transport/callers",
        "min(max(0.0, now - self._looked_at), AT_ONCE * self._timing.beat_s)",
        "max(0.0, now - self._looked_at)",
        CALLERS,
    ),
    Mutant(
        "who-reaches-nobody-gives-its-address-up",
        10,
        "transport/callers",
        "self._waited_s + passed_s if reaches and not self._open else 0.0",
        "0.0 if self._open else self._waited_s + passed_s",
        CALLERS,
    ),
    Mutant(
        "a-hidden-address-is-never-tried-again",
        10,
        "transport/callers",
        "            return self._pause_beats * beat_s",
        '            return float("inf")',
        CALLERS,
    ),
    Mutant(
        "a-trial-of-an-address-has-no-end",
        10,
        "transport/callers",
        "        if self.has_hidden:\n            return",
        "        if False:\n            return",
        CALLERS,
    ),
    Mutant(
        "trials-never-become-rarer",
        10,
        "transport/callers",
        "min(2 * self._pause_beats, LONGEST_BEATS)",
        "self._pause_beats",
        CALLERS,
    ),
    Mutant(
        "a-hello-tells-a-hidden-address",
        10,
        "transport/grpc_transport",
        'self._address if self._callers.is_shown else ""\n        return',
        "self._address\n        return",
        of("unit/transport/test_grpc_transport", "shown_no_more"),
    ),
    Mutant(
        "an-address-that-was-given-up-is-dialled",
        10,
        "transport/link",
        '            self.close_connection()\n            self.address = ""\n',
        "            pass\n",
        of("unit/transport/test_grpc_transport", "shown_no_more"),
    ),
    Mutant(
        "an-address-that-works-is-given-up",
        10,
        "transport/control",
        "if not message.address and not link.dialled:",
        "if not message.address:",
        of("unit/transport/test_grpc_transport", "was_dialled"),
    ),
    Mutant(
        "a-peer-that-has-moved-is-dialled-where-it-was",
        10,
        "transport/link",
        "        self.host = self.moved_to or self.host\n",
        "",
        of("unit/transport/test_grpc_transport", "has_moved"),
    ),
    Mutant(
        "a-peer-is-dialled-where-a-proxy-calls-from",
        10,
        "transport/link",
        'if self.calls_from not in ("", host):',
        "if True:",
        of("unit/transport/test_grpc_transport", "has_moved"),
    ),
    Mutant(
        "whoever-cannot-be-dialled-seals-on",
        10,
        "membership/roster",
        "peer.beat, peer.address, peer.sign_at = beat, beat.address, now",
        "peer.beat, peer.sign_at = beat, now",
        UNDIALLED,
    ),
    Mutant(
        "hearsay-brings-an-address-back",
        10,
        "membership/roster",
        "        if not known.heard:\n            known.address = news.address\n",
        "        known.address = news.address or known.address\n",
        UNDIALLED,
    ),
    Mutant(
        "a-hello-without-an-address-tells-nothing",
        10,
        "membership/roster",
        "known.address = address\n",
        "known.address = address or known.address\n",
        UNDIALLED,
    ),
    Mutant(
        "a-shorter-last-block-is-not-decoded",
        9,
        "codecs/blockwise",
        "((start, whole), (whole, stop))",
        "((start, whole),)",
        BLOCKS,
    ),
    # Silence.
    Mutant(
        "a-stopped-learner-evicts-all",
        4,
        "engine/presence",
        "            self._slept(now, stopped_s)\n",
        "            pass\n",
        of("unit/engine/test_engine"),
    ),
    Mutant(
        "whoever-is-late-was-stopped",
        4,
        "membership/stops",
        "return seconds > self._timing.suspect_after_s",
        "return True",
        of("unit/engine/test_engine"),
    ),
    Mutant(
        "a-suspended-machine-shows-no-gap",
        4,
        "runtime/clock",
        "return partial(time.clock_gettime, boottime)",
        "return time.monotonic",
        of("unit/runtime/test_clock"),
    ),
    Mutant(
        "the-network-loop-looks-at-a-clock-that-stands-still",
        4,
        "runtime/network_side",
        "self._engine.tick(clock.now())",
        "self._engine.tick(asyncio.get_running_loop().time())",
        of("together/test_clocks", "suspended"),
    ),
    Mutant(
        "a-learner-has-a-clock-that-stands-still",
        4,
        "runtime/learner",
        "import os\nimport threading\n",
        "import os\nimport threading\nimport time\n",
        of("house/test_architecture", "clocks_threads"),
    ),
    # Beats that come late.
    Mutant(
        "one-peer-that-is-stopped-makes-beats-late",
        4,
        "engine/late_beats",
        "len(late) >= max(1, LATE_SHARE * len(peers))",
        "late",
        LATE_BEATS,
    ),
    Mutant(
        "a-net-that-was-parted-makes-beats-late",
        4,
        "engine/late_beats",
        "if len(found) >= FEWEST_RETURNS and",
        "if",
        LATE_BEATS,
    ),
    Mutant(
        "late-beats-are-told-again-and-again",
        4,
        "engine/late_beats",
        "            self._is_told = True\n",
        "",
        LATE_BEATS,
    ),
    Mutant(
        "late-beats-of-long-ago-are-told",
        4,
        "engine/late_beats",
        "deque(maxlen=LOOKED_BACK)",
        "deque()",
        LATE_BEATS,
    ),
    Mutant(
        "links-that-break-make-beats-late",
        4,
        "engine/presence",
        "if self._doubts.get(peer.id, _BROKE) != _BROKE:",
        "if True:",
        LATE_BEATS,
    ),
    Mutant(
        "whoever-has-left-beats-late",
        4,
        "engine/late_beats",
        ".union(*found) & peers",
        ".union(*found)",
        LATE_BEATS,
    ),
    # A stop in a round.
    Mutant(
        "who-thaws-seals-as-if-nothing-had-been",
        4,
        "engine/sealer",
        " or stopped or ",
        " or ",
        STOPS,
    ),
    Mutant(
        "who-thaws-merges-at-once",
        4,
        "engine/sealer",
        "                state.knows_others_at(now),\n",
        "                -NEVER,\n",
        STOPS,
    ),
    Mutant(
        "a-thread-that-goes-on-first-hides-a-stop",
        4,
        "membership/stops",
        "return now if self._is_stop(now - self._looked_at) else self._over_at",
        "return self._over_at",
        STOPS,
    ),
    Mutant(
        "an-answer-from-before-a-stop-counts",
        4,
        "membership/stops",
        "answered and over_at == self._over_at",
        "answered",
        of("unit/membership/test_stops"),
    ),
    Mutant(
        "who-thaws-believes-the-first-answer",
        4,
        "engine/state",
        "bool(self.answered) and self.is_answered",
        "bool(self.answered)",
        STOPS,
    ),
    Mutant(
        "who-thaws-with-no-link-asks-nobody",
        4,
        "engine/state",
        "bool(self.answered) and self.is_answered",
        "self.is_answered",
        STOPS,
    ),
    Mutant(
        "who-thaws-asks-nobody",
        4,
        "engine/presence",
        "        self.state.begin_question()\n",
        "",
        STOPS,
    ),
    Mutant(
        "who-thaws-asks-at-rest-alone",
        4,
        "engine/beats",
        "state.resting or must_know else beat",
        "state.resting else beat",
        STOPS,
    ),
    Mutant(
        "who-thaws-asks-a-few-at-a-time",
        4,
        "engine/beats",
        "state.yet_to_answer.difference(audience) if must_know else set()",
        "set()",
        STOPS,
    ),
    Mutant(
        "who-thaws-waits-for-ever",
        4,
        "membership/stops",
        "since + self._timing.evict_after_s",
        "since + 10 * self._timing.evict_after_s",
        STOPS,
    ),
    Mutant(
        "stops-that-follow-one-another-lengthen-the-wait",
        4,
        "membership/stops",
        "        if self._unanswered_since is None:\n",
        "        if True:\n",
        of("unit/membership/test_stops"),
    ),
    Mutant(
        "an-answer-starts-no-new-wait",
        4,
        "membership/stops",
        "            self._unanswered_since = None\n            return",
        "            return",
        of("unit/membership/test_stops"),
    ),
    Mutant(
        "a-merge-that-stops-its-learner-never-ends",
        4,
        "engine/round",
        " and not self.was_interrupted",
        "",
        STOPS,
    ),
    Mutant(
        "a-stopped-learner-hears-in-the-future",
        4,
        "membership/roster",
        "min(now, peer.heard_at + seconds)",
        "peer.heard_at + seconds",
        of("unit/membership/test_roster"),
    ),
    Mutant(
        "the-dead-are-excused-again-and-again",
        4,
        "membership/roster",
        "if peer.heard_at != peer.excused_at:",
        "if True:",
        of("unit/membership/test_roster"),
    ),
    Mutant(
        "two-that-evicted-each-other-stay-silent",
        4,
        "transport/control",
        "is_past = is_past or self._handler.has_lost(link.id)",
        "pass",
        GRPC,
    ),
    Mutant(
        "the-evicted-are-not-lost",
        4,
        "membership/roster",
        "self._graves.bury(peer.id, peer.count, silent=True)",
        "self._graves.bury(peer.id, peer.count)",
        of("unit/membership/test_roster"),
    ),
    Mutant(
        "a-closed-roster-hangs-up",
        4,
        "membership/roster",
        "return not self.closed and (self._graves.is_silent(id) if",
        "return bool(self._graves.is_silent(id) if",
        of("unit/membership/test_roster"),
    ),
    Mutant(
        "a-later-process-is-lost-with-the-former",
        4,
        "membership/graves",
        "buried.silent and buried.incarnation == id.incarnation",
        "buried.silent",
        of("unit/membership/test_roster"),
    ),
    never(
        "a-model-without-anchors-is-fetched",
        "engine/adoption",
        "not beat.genesis or not beat.reports",
        of("unit/engine/test_joining"),
        law=4,
    ),
    # A peer speaks for itself.
    unchecked("messages-in-anothers-name", "transport/frames", "named == peer", TRANSFERS),
    unchecked(
        "another-answers-at-an-address",
        "transport/dialler",
        'name in ("", theirs.peer.name)',
        of("unit/transport/security/test_channels"),
        4,
    ),
    never(
        "streams-before-a-hello", "transport/server", "link is None or self._links.closing", GRPC
    ),
    Mutant(
        "operations-of-grpc-are-cancelled",
        8,
        "transport/stream",
        "await _outcome(asyncio.ensure_future(operation), seconds)",
        "await within(operation, seconds)",
        of("unit/transport/test_stream"),
    ),
    Mutant(
        "writes-to-nobody-stay",
        7,
        "transport/stream",
        "            if not self._going_out.done():\n                writing.cancel()\n",
        "",
        of("unit/transport/test_stream"),
    ),
    Mutant(
        "the-wait-for-nobody-stays",
        7,
        "transport/stream",
        "        if self._going_out:\n            self._going_out.cancel()\n",
        "",
        of("unit/transport/test_stream"),
    ),
    # Frames.
    unchecked("chunks-without-a-header", "transport/frames", "self._header is not None", FRAMES),
    unchecked("headers-within-a-message", "transport/frames", "self._header is None", FRAMES),
    unchecked(
        "acks-begin-a-message", "transport/frames", 'parsed.WhichOneof("kind") == "header"', FRAMES
    ),
    unchecked(
        "two-sections-of-one-name", "transport/frames", "len(names) == len(sections)", FRAMES
    ),
    unchecked("more-bytes-than-announced", "transport/frames", "not chunk", FRAMES),
    Mutant(
        "chunks-of-any-size", 8, "transport/frames", "0 < size == held,", "size <= held,", FRAMES
    ),
    # Messages.
    unchecked("sizes-without-limit", "transport/limits", "nbytes <= limit", WIRE),
    unchecked("names-of-nothing", "transport/limits", "bool(text) or may_be_empty", FRAMES),
    unchecked("lists-without-end", "transport/limits", "count <= limit", WIRE),
    unchecked(
        "numbers-that-are-none", "transport/limits", "math.isfinite(value) and value >= 0", WIRE
    ),
    unchecked("numbers-without-limit", "transport/limits", "value <= limit", WIRE),
    unchecked("anchors-without-a-key", "transport/wire_parts", 'owner.HasField("key")', FRAMES),
    unchecked("lives-of-any-kind", "transport/wire", "namesake.life in known", WIRE),
    unchecked(
        "merged-twice-in-one-anchor", "transport/wire_bulk", "len(merged) == len(pairs)", WIRE, 5
    ),
    Mutant(
        "claims-of-what-comes-after",
        5,
        "transport/wire_bulk",
        "inherited is None or inherited.settled < offer.seq",
        "True",
        WIRE,
    ),
    unchecked(
        "paces-of-nothing", "transport/wire_paces", "level.now > 0 and level.before > 0", WIRE
    ),
    # Answers are of the kind that was asked for.
    never(
        "an-offer-is-answered-by-anything",
        "transport/transfers",
        "not isinstance(seal, Seal) or seal.fragment != offer.fragment",
        TRANSFERS,
    ),
    never(
        "a-want-is-answered-by-anything",
        "transport/transfers",
        "isinstance(message, Offer) or message.fragment != want.fragment",
        TRANSFERS,
    ),
    never("pushed-unasked", "transport/transfers", "want is None or timer is None", TRANSFERS),
    never("offers-are-pushed", "transport/transfers", "isinstance(message, Offer)", TRANSFERS),
    Mutant(
        "each-name-of-an-address-is-dialled",
        8,
        "transport/dialler",
        "        if key not in self._dials:",
        "        if True:",
        of("unit/transport/test_grpc_transport", "is_dialled_once_at_a_time"),
    ),
    # The limits of a server on its callers.
    Mutant(
        "pings-without-end",
        8,
        "transport/grpc_options",
        '"grpc.http2.max_ping_strikes": PING_STRIKES,',
        '"grpc.http2.max_ping_strikes": 0,',
        OPTIONS,
    ),
    Mutant(
        "streams-of-a-connection-without-end",
        8,
        "transport/grpc_options",
        '        "grpc.max_concurrent_streams": 2 * streams,\n',
        "",
        OPTIONS,
    ),
    # Tensors.
    never("values-that-are-no-numbers", "codecs/packing", "not bounded(values)", PACKING),
    never("packets-that-end-early", "codecs/packing", "len(data) < begin", PACKING),
    never("forms-that-nobody-knows", "codecs/packing", "code not in forms", PACKING),
    never(
        "codecs-that-nobody-knows", "codecs/registry", "packet.codec not in (RAW, PACKED)", CODECS
    ),
    never("blocks-of-any-size", "codecs/blockwise", "not is_block(param)", BLOCKS),
    never(
        "scales-of-any-size",
        "codecs/blockwise",
        "low < bits(LEAST_SCALE) or high > bits(MOST / self.top)",
        BLOCKS,
    ),
    never("codes-beyond-the-least", "codecs/blockwise", "(codes.numpy() == -128).any()", BLOCKS),
    never("more-values-than-elements", "codecs/sparse", "param > numel", SPARSE),
    never("lists-of-any-length", "codecs/sparse", "len(ones) != count", SPARSE),
    never(
        "positions-in-any-order",
        "codecs/sparse",
        "places[-1] >= numel or not (places[1:] > places[:-1]).all()",
        SPARSE,
    ),
    never("marks-of-any-number", "codecs/sparse", "marked != count or mask[numel:].any()", SPARSE),
    never("moments-of-no-update", "worker/moment_packet", "param < 1", MOMENTS),
    never(
        "moments-of-any-size",
        "worker/moment_packet",
        "not is_between(view(data, self.dtype), self.least, self.most)",
        MOMENTS,
    ),
    never(
        "moments-of-another-fragment",
        "worker/moment_packet",
        "packet.codec != PACKED or packet.numel != numel",
        MOMENTS,
    ),
    never("merged-without-end", "worker/seal_payload", "not most < math.inf", PAYLOAD),
    never("strange-anchors-without-end", "worker/fragment_anchor", "not finite(weights)", ANCHORS),
    never(
        "buffers-of-another-digest",
        "worker/buffer_anchor",
        "short_digest(*sections) != state.content",
        BUFFERS,
    ),
    never(
        "rates-of-any-form",
        "worker/round_rate",
        "(packet.codec, packet.numel, packet.nbytes) != (RAW, count, 4 * count)",
        RATES,
    ),
    never("sizes-of-any-form", "worker/offer_sizes", "not fits", SIZES),
    # Signatures.
    unchecked(
        "a-ledger-with-fewer-proofs",
        "transport/security/evidence",
        "len(proofs) == members",
        EVIDENCE,
        4,
    ),
    unchecked(
        "keys-for-other-uses",
        "transport/security/signers",
        "usage is None or usage.digital_signature",
        NOTARY,
        4,
    ),
    unchecked(
        "chains-that-peers-refuse",
        "transport/security/notary",
        "len(proof.chain) <= MOST_CERTIFICATES",
        NOTARY,
    ),
    unchecked(
        "proofs-that-peers-refuse",
        "transport/security/notary",
        "size <= PROOF_LIMIT - STATEMENT_LIMIT",
        NOTARY,
    ),
)
