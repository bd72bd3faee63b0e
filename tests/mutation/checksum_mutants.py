"""Mutants of the checksums that messages have where there is no TLS."""

from __future__ import annotations

from tests.mutation.mutant_list import FRAMES, Mutant, of

LAW = 8
TRANSFERS = of("unit/transport/test_transfers", "damaged")
SPOILED = of("unit/transport/test_grpc_transport", "has_changed or where_no_byte")

CHECKSUM_MUTANTS = (
    Mutant(
        "damaged-chunks-are-taken",
        LAW,
        "transport/frames",
        "                self._payload = zlib.crc32(chunk, self._payload)\n",
        "                self._payload = self._payload\n",
        FRAMES,
    ),
    Mutant(
        "damaged-messages-are-taken",
        LAW,
        "transport/frames",
        "            check_whole(self._checked, _CHECKSUM, self._payload)\n",
        "            pass\n",
        FRAMES,
    ),
    Mutant(
        "a-former-version-is-refused",
        LAW,
        "transport/frames",
        'frame if parsed.checksum else b""',
        "frame",
        FRAMES,
    ),
    Mutant(
        "a-checksum-may-be-zero",
        LAW,
        "transport/checksums",
        "(data, beside) or 1",
        "(data, beside)",
        FRAMES,
    ),
    Mutant(
        "damaged-headers-are-taken",
        LAW,
        "transport/checksums",
        "zlib.crc32(data, beside)",
        'zlib.crc32(b"", beside)',
        FRAMES,
    ),
    Mutant(
        "messages-without-a-checksum",
        LAW,
        "transport/grpc_transport",
        "checks=not security.keeps_bytes",
        "checks=False",
        SPOILED,
    ),
    Mutant(
        "checksums-that-nobody-needs",
        LAW,
        "transport/grpc_transport",
        "checks=not security.keeps_bytes",
        "checks=True",
        SPOILED,
    ),
    Mutant(
        "no-checksums-beyond-this-machine",
        LAW,
        "security",
        "            return Plaintext(INSECURE)\n",
        "            return Plaintext(INSECURE, is_local=True)\n",
        of("unit/test_security"),
    ),
    Mutant(
        "damage-is-told-as-a-refusal",
        LAW,
        "transport/statuses",
        "grpc.StatusCode.DATA_LOSS",
        "grpc.StatusCode.INVALID_ARGUMENT",
        SPOILED,
    ),
    Mutant(
        "damaged-answers-are-not-counted",
        LAW,
        "transport/transfers",
        "            self._damaged(to.id.name, str(fault))\n",
        "            pass\n",
        TRANSFERS,
    ),
)
