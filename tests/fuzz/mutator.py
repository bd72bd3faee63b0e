"""Mutations of the fields of protobuf messages. Mutations of bytes seldom get through: a size that
is wrong makes the whole message garbage."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto

from tests.fuzz.target import Target, joined, parted

_BYTES, _TEXT = FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_STRING
_FLOATS = (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT)
_SMALL = (FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_FIXED32)
INTEGERS = (0, 1, 2, 3, 255, 2**31, 2**32 - 1, 2**32, 2**62 - 1, 2**62, 2**62 + 1, 2**64 - 1)
FLOATS = (0.0, 1.0, 0.5, 1e-300, 1e300, float("inf"), float("nan"), -1.0, 5e-324)
TEXTS = ("", "a", "0", "1", "delta", "merged", "scale", "rate", "sizes", "anchor", "velocity")
TEXTS += ("velocity_rate", "moment.exp_avg", "none", "packed", "yours", "a\n", "e\u0301", "é", "٣")


def _number(field: Any, old: Any, chance: Random) -> Any:
    if field.type == FieldDescriptor.TYPE_BOOL:
        return not old
    if field.type in _FLOATS:
        return chance.choice((*FLOATS, old * 2, old / 3))
    new = chance.choice((*INTEGERS, old + 1, max(0, old - 1), old ^ 1 << chance.randrange(64)))
    return new & (2**32 - 1 if field.type in _SMALL else 2**64 - 1)


def _changed(field: Any, old: Any, chance: Random) -> Any:
    """Another value of a field that is no message."""
    if field.type == _TEXT:
        return chance.choice((*TEXTS, old + "x", old[1:]))
    if field.type != _BYTES:
        return _number(field, old, chance)
    new = bytearray(old)
    for _ in range(chance.randint(1, 4) if new else 0):
        new[chance.randrange(len(new))] = chance.randrange(256)
    return bytes(new) if new and chance.random() < 0.9 else chance.randbytes(chance.randrange(40))


def _change_list(items: Any, field: Any, chance: Random) -> None:
    """Remove, repeat or add an entry of a repeated field."""
    whole = field.type == FieldDescriptor.TYPE_MESSAGE
    if len(items) and chance.random() < 0.3:
        del items[chance.randrange(len(items))]
    elif len(items) and chance.random() < 0.5:
        again = items[chance.randrange(len(items))]
        items.append(again)
    elif whole:
        items.add()
    else:
        items.append(_changed(field, "" if field.type == _TEXT else b"", chance))


def change(message: Proto, chance: Random) -> None:
    """Change one field somewhere in a message."""
    field = chance.choice(message.DESCRIPTOR.fields)
    value = getattr(message, field.name)
    inner = field.type == FieldDescriptor.TYPE_MESSAGE
    if hasattr(value, "extend"):  # a list; protobuf 6.30 has no `is_repeated`
        if inner and len(value) and chance.random() < 0.7:
            change(value[chance.randrange(len(value))], chance)
        else:
            _change_list(value, field, chance)
    elif not inner:
        setattr(message, field.name, _changed(field, value, chance))
    elif message.HasField(field.name) and chance.random() < 0.1:
        message.ClearField(field.name)
    elif message.HasField(field.name) or chance.random() < 0.2:
        value.SetInParent()
        if value.DESCRIPTOR.fields:
            change(value, chance)


def _with_change(target: Target, data: bytes, chance: Random) -> bytes:
    """The bytes of a message, which may stand behind one byte, with one field changed. Raises
    `DecodeError`."""
    kind = chance.choice(target.protos)
    before = 0 if target.before_list is None else chance.randint(0, 1)
    message = kind.FromString(data[before:])
    change(message, chance)
    return data[:before] + bytes(message.SerializeToString())


def _with_parts(
    target: Target, parts: list[bytes], chance: Random, plainly: Callable[[bytes], bytes]
) -> list[bytes]:
    """The parts of a list with one of them changed, left out or put in. Raises `DecodeError`."""
    place = chance.randrange(len(parts))
    match chance.randrange(6):
        case 0:
            parts.insert(place, chance.choice(parts))
        case 1:
            del parts[place]
        case how if how == 2 or not target.protos:
            parts[place] = plainly(parts[place])
        case _:
            parts[place] = _with_change(target, parts[place], chance)
    return [part[: 2**16 - 1] for part in parts]


def mutated(
    target: Target, data: bytes, chance: Random, plainly: Callable[[bytes], bytes]
) -> bytes:
    """An input after a mutation: of its structure mostly, or else `plainly` of its bytes."""
    before = target.before_list
    if chance.random() < 0.4 or (before is None and not target.protos):
        return plainly(data)
    try:
        if before is None:
            return _with_change(target, data, chance)
        parts = parted(data[before:])
        if parts:
            return data[:before] + joined(_with_parts(target, parts, chance, plainly))
    except (DecodeError, ValueError):
        pass  # its bytes are garbage by now
    return plainly(data)
