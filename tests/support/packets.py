"""Packets, taken apart and forged."""

from __future__ import annotations

import struct

from mend_optim.codecs.packing import Piece, pack


def bytes_of(piece: Piece) -> bytes:
    """What a piece writes into a packet."""
    return bytes(pack([piece], 0).data[16:])[: piece.nbytes]


def with_word(data: bytes, at: int, value: int) -> bytes:
    """The same bytes but for one 32-bit word."""
    return data[: 4 * at] + struct.pack("<I", value) + data[4 * at + 4 :]
