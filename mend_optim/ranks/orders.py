"""The lead's orders to the other ranks while all of them are in one call, as plain data.

A rank that is not the lead has no engine. In a call it does what the lead orders, one order after
another, until the lead says that the call is over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any


class Deed(IntEnum):
    """A deed that all ranks do."""

    #: Copy the parts of a fragment to the lead.
    COPY = 0
    #: The same, without what narrow dtypes have rounded away.
    COPY_PLAIN = 1
    #: Copy the parts of a moment to the lead.
    READ = 2
    #: Copy to the lead what narrow dtypes have rounded away.
    ROUNDED_OFF = 3
    #: Take that back.
    LOAD_ROUNDED_OFF = 4
    #: Nothing was rounded away.
    FORGET_ROUNDED_OFF = 5
    #: Correct a fragment and its moments.
    APPLY = 6
    #: Correct the moments of a fragment alone.
    APPLY_MOMENTS = 7
    #: Put an anchor into a fragment.
    PUT = 8
    #: Nothing more: the call is over, with a result.
    OVER = 9
    #: Raise the error that the lead has raised: the call is over.
    RAISE = 10
    #: Wait for the next order: the lead still waits for the network.
    WAIT = 11


@dataclass(frozen=True, kw_only=True)
class Order:
    """One order of the lead."""

    deed: Deed
    #: The fragment, for a deed that concerns one.
    fragment: int = 0
    #: Flags and numbers that the deed needs, as JSON can have them.
    facts: Mapping[str, Any] = field(default_factory=dict)


def encode_order(order: Order) -> bytes:
    """An order as bytes for the other ranks."""
    return json.dumps(asdict(order)).encode()


def decode_order(data: bytes) -> Order:
    """The inverse of `encode_order`; the bytes may end in zeros."""
    told = json.loads(data.rstrip(b"\0"))
    return Order(deed=Deed(told["deed"]), fragment=told["fragment"], facts=told["facts"])
