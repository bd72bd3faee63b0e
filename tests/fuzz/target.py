"""What a target of fuzzing is, and how a list of byte strings goes into one file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from google.protobuf.message import Message as Proto

#: Bytes of the longest input. A decoder's bounds on larger messages have tests of their own.
LONGEST = 4096


class Target(NamedTuple):
    """One decoder of bytes that a peer or a file controls."""

    name: str
    #: Decodes the bytes; whether it took them. Raises whatever breaks a law.
    run: Callable[[bytes], bool]
    #: Makes inputs that it takes, from real messages.
    seeds: Callable[[], Iterable[bytes]]
    #: The most memory of numpy's and Python's that one run may take up beyond 1 MiB, in bytes for
    #: each byte of the input.
    growth: int = 100
    #: Its share of the time, against that of a target with 1.
    weight: int = 1
    #: The protobuf messages that are in the input, for mutations of their fields.
    protos: tuple[type[Proto], ...] = ()
    #: The bytes before a list of them, as `joined` makes it; None: the input is one of them.
    before_list: int | None = None

    @property
    def most_memory(self) -> int:
        """The most memory that one run on the longest input may take up."""
        return (1 << 20) + self.growth * LONGEST


def joined(parts: Sequence[bytes]) -> bytes:
    """A list of byte strings as one, each behind its size in two bytes."""
    return b"".join(len(part).to_bytes(2, "little") + part for part in parts)


def parted(data: bytes) -> list[bytes]:
    """The inverse of `joined`, for any bytes: the last part may be short."""
    parts = []
    while len(data) >= 2:
        end = 2 + int.from_bytes(data[:2], "little")
        parts.append(data[2:end])
        data = data[end:]
    return parts


def same(one: Any, other: Any, what: str) -> None:
    """Raise unless both are equal."""
    if one != other:
        raise AssertionError(f"{what}: {one!r} is not {other!r}")
