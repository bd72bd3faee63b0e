from __future__ import annotations

import pytest

from mend_optim.errors import ClosedError, MendError, PeerError, UsageError, is_number, require


def test_require_names_argument_bound_value_and_remedy() -> None:
    with pytest.raises(UsageError) as caught:
        require(False, "fragments", 0, "an int >= 1", "use 1")
    assert str(caught.value) == "fragments must be an int >= 1, got 0; use 1"


def test_without_remedy_the_message_ends_with_the_value() -> None:
    with pytest.raises(UsageError, match=r"^name must be short, got 'long'$"):
        require(False, "name", "long", "short")


def test_require_is_silent_when_it_holds() -> None:
    require(True, "fragments", 1, "an int >= 1")


def test_callers_may_catch_the_builtin_kind() -> None:
    assert issubclass(UsageError, ValueError)
    assert issubclass(ClosedError, RuntimeError)
    assert all(issubclass(error, MendError) for error in (UsageError, PeerError, ClosedError))


def test_blame_is_never_shared() -> None:
    """A handler for the other side's faults must not swallow the local user's mistakes, nor the
    other way round."""
    assert not issubclass(PeerError, (UsageError, ClosedError, ValueError))
    assert not issubclass(UsageError, PeerError)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((1, True), (0.5, True), (float("inf"), True), (10**308, True), (10**309, False)),
        *((True, False), ("1", False), (None, False), (1j, False)),
    ],
)
def test_is_number(value: object, expected: bool) -> None:
    assert is_number(value) is expected
