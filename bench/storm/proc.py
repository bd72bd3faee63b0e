"""What /proc says about processes and their sockets."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

TCP = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
Counts = dict[str, int]


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def state(pid: int) -> str:
    """R, S, D, T (stopped), Z; empty if there is no such process."""
    fields = _stat(pid)
    return fields[0] if fields else ""


def session_members(session: int) -> list[int]:
    """The processes of a session that have not ended."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    stats = {pid: _stat(pid) for pid in pids}
    return [
        pid
        for pid, fields in stats.items()
        if fields and fields[0] != "Z" and int(fields[3]) == session
    ]


def sample(pid: int) -> Counts:
    """Memory in kB (all that is resident, and the anonymous part), open files, threads; empty if it
    has ended."""
    names = {"VmRSS": "rss_kb", "RssAnon": "anon_kb", "Threads": "threads"}
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        pairs = (line.split(":", 1) for line in lines if ":" in line)
        counts = {names[key]: int(value.split()[0]) for key, value in pairs if key in names}
        return {**counts, "fds": len(os.listdir(f"/proc/{pid}/fd"))}
    return {}


def thread_names(pid: int) -> dict[str, int]:
    """How many threads of each name it has; empty if it has ended."""
    names: Counter[str] = Counter()
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                names[(thread / "comm").read_text().strip()] += 1
    return dict(names)


def socket_owner(near: int, far: int, pids: Iterable[int]) -> int | None:
    """Which of these processes holds the end at local port `near` of a connection to port `far`."""
    inode = _inode(near, far)
    target = f"socket:[{inode}]"
    return next((pid for pid in pids if inode and target in _files(pid)), None)


def _inode(near: int, far: int) -> str:
    ends = (f":{near:04X}", f":{far:04X}")
    for table in TCP:
        with suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                fields = line.split()
                if fields[1].endswith(ends[0]) and fields[2].endswith(ends[1]):
                    return fields[9]
    return ""


def _files(pid: int) -> set[str]:
    found = set()
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found
