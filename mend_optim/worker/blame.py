"""Whose fault an error is that the worker meets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mend_optim.errors import PeerError

#: What torch's errors say, which are plain `RuntimeError`s, when the system has no more memory.
_NO_MEMORY = ("DefaultCPUAllocator: ", "std::bad_alloc")


@contextmanager
def blamed_on_peer() -> Iterator[None]:
    """Work on a peer's bytes, which changes nothing yet: whatever is raised becomes a `PeerError`.

    The checks of a peer's bytes refuse what is wrong by name. If they miss something, it must not
    end a thread of this learner. Running out of memory is nobody's fault."""
    try:
        yield
    except (PeerError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, RuntimeError) and any(sign in str(error) for sign in _NO_MEMORY):
            raise MemoryError(str(error)) from error
        raise PeerError(f"{type(error).__name__}: {error}") from error
