"""Checksums of plaintext that leaves the machine.

TCP's checksum has 16 bits, and a device on the way may compute it anew over bytes that it has
damaged. TLS notices that. In plaintext, the last field of a message is a CRC-32, over all bytes
before it, and over the chunks of a bulky message. A message that does not match it is refused, and
the way is blamed for that, not the sender. A former version sends no such field, and ignores it.
"""

from __future__ import annotations

import zlib

from mend_optim.errors import PeerError

# protobuf's type of a field of four bytes, the least significant one first
_FIXED32 = 5


class DamagedError(PeerError):
    """The bytes of a message are not those that its sender has sent."""

    def __init__(self) -> None:
        super().__init__("bytes changed on the way: they do not match their checksum")


def with_checksum(data: bytes, field: int, beside: int = 0) -> bytes:
    """Return a serialized message with its checksum as the last field.

    Args:
        data: The message.
        field: The number of the field, below 16.
        beside: The CRC-32 of the bytes that belong to it, if there are any.
    """
    found = zlib.crc32(data, beside) or 1  # zero would say that there is no checksum
    return data + bytes([field << 3 | _FIXED32]) + found.to_bytes(4, "little")


def check_whole(data: bytes, field: int, beside: int = 0) -> None:
    """Raise `DamagedError` unless the message is what `with_checksum` has made."""
    if data != with_checksum(data[:-5], field, beside):
        raise DamagedError
