"""Mutants of the bar of a long wait, and of the ports and the folder that `mend run` holds."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

BAR, BARS = "runtime/wait_bar", of("unit/runtime/test_wait_bar")
PORTS, HELD = "cli/run/held_ports", of("unit/cli/test_held_ports")
FOLDER, KEPT = "cli/run/run_folder", of("unit/cli/test_run_folder")


def bar(name: str, old: str, new: str) -> Mutant:
    """A user sees what a learner waits for (law 1)."""
    return Mutant(name, 1, BAR, old, new, BARS)


def ports(name: str, old: str, new: str) -> Mutant:
    """Mistakes of users are named (law 8)."""
    return Mutant(name, 8, PORTS, old, new, HELD)


def folder(name: str, old: str, new: str) -> Mutant:
    """A learner can be started again (law 1)."""
    return Mutant(name, 1, FOLDER, old, new, KEPT)


TERMINAL_MUTANTS = (
    bar("a-bar-of-a-short-wait", "clock() + SHOW_AFTER_S", "clock()"),
    bar("a-bar-of-all-bytes", "self._before = received()", "self._before = 0"),
    bar("a-bar-for-nobody", "self._over = not _is_terminal()", "self._over = False"),
    bar("a-console-that-cannot-say-ends-a-step", "except (AttributeError, ", "except ("),
    bar("a-closed-console-ends-a-step", "ValueError):", "):"),
    bar("a-bar-in-a-file", "return sys.stderr.isatty()", "return sys.stderr.isatty() or True"),
    bar("a-bar-after-its-wait", "        self._over = True\n", ""),
    bar("a-bar-that-stays", "            self._bar.close()\n", "            pass\n"),
    bar("a-bar-is-always-due", 'float("inf") if self._over else ', ""),
    bar(
        "a-bar-is-due-before-now",
        "max(0.0, self._due_at - self._clock())",
        "self._due_at - self._clock()",
    ),
    bar("a-bar-is-drawn-early", "if self.left_s() > 0:", "if self._over:"),
    bar("a-bar-is-drawn-all-the-time", "self._clock() + LOOK_EVERY_S", "self._clock()"),
    bar("tqdm-is-looked-for-again", "            self._over = self._bar is None\n", ""),
    bar("a-bar-keeps-its-text", "self._bar.set_description_str(text, refresh=False)", "pass"),
    bar("a-bar-keeps-its-bytes", "        self._bar.n = received\n", ""),
    bar("a-bar-is-not-drawn-again", "        self._bar.refresh()\n", ""),
    bar("a-bar-begins-at-nothing", "initial=received", "initial=0"),
    bar("a-bar-leaves-a-line", '"leave": False', '"leave": True'),
    bar("a-bar-on-a-narrow-terminal", "max(_LEAST_TEXT, shutil", "max(0, shutil"),
    bar("a-bar-over-the-whole-line", ".columns - _FIGURES", ".columns"),
    bar("a-text-that-fits-is-cut", "len(text) <= room", "len(text) < room"),
    bar("a-text-is-cut-too-late", "text[: room - 1]", "text[:room]"),
    ports("ports-from-0", "require(1 <= first <=", "require(0 <= first <="),
    ports("ports-beyond-the-last", "first <= 65536 - count,", "first <= 65536,"),
    ports("the-last-port-is-none", "first <= 65536 - count,", "first < 65536 - count,"),
    ports("all-learners-have-the-first-port", "else first + i", "else first"),
    ports(
        "a-held-port-keeps-its-server-out",
        "            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n",
        "",
    ),
    ports("the-first-port-is-named-for-all", "{port} is not", "{first} is not"),
    ports("a-taken-port-without-its-cause", "({error.strerror})", ""),
    ports(
        "ports-of-the-system-are-not-told",
        "ports.append(holder.getsockname()[1])",
        "ports.append(port)",
    ),
    ports("ports-are-held-everywhere", 'if sys.platform != "linux":', "if False:"),
    ports("ports-are-held-nowhere", 'if sys.platform != "linux":', "if True:"),
    folder("a-cleaner-may-empty-the-folder", "fcntl.flock(descriptor, fcntl.LOCK_SH)", "pass"),
    folder("no-lock-no-run", "with suppress(OSError):", "with suppress():"),
    folder("the-folder-stays-open", "        os.close(descriptor)\n", "        pass\n"),
)
