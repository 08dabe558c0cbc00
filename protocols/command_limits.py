"""The limits of a command of the shell tool, and the sentence that says which one it met.

A command has limits for each of its processes, which the kernel keeps (``RLIMIT_``), and totals for
all of them together, which its guard keeps (``TOTAL_``, ``runtime/process_guard.py``): a thousand
processes that are each within the limit of one could else take the whole machine.

Invariant: the guard ends a command that is over a total, with exit code 125 and a last line of the
form ``guard: limit NAME``.
"""

from __future__ import annotations

import math
import re
import signal
from typing import Final

from motet.protocols.config import ShellConfig

FILE_MB = 1024
"""The largest file that a process of a command may write. ``written_mb`` bounds all of them."""
FAILED = 125
"""Exit code of a guard that has ended its command, or could not do its work."""

TOTALS: Final = ("memory", "tasks", "cpu", "written")
"""The names of the totals, as the guard says them."""

_GUARD = "guard: "
_MEMORY_WORDS = re.compile(
    r"MemoryError|cannot allocate memory|bad_alloc|out of memory|memory exhausted", re.IGNORECASE
)
_TASKS_WORDS = re.compile(
    r"fork: .*temporarily unavailable|can't start new thread|cannot fork", re.IGNORECASE
)


def command_limits(config: ShellConfig, cores: int) -> dict[str, int]:
    """The limits of each process of a command, and the totals of all: bytes, numbers, seconds."""
    longest = math.ceil(config.timeout) * cores + 1
    cpu = longest if config.cpu_seconds is None else math.ceil(config.cpu_seconds)
    return {
        "RLIMIT_CPU": min(longest, cpu),
        # Not RLIMIT_AS: node and Go reserve address space that they never use.
        "RLIMIT_DATA": config.memory_mb << 20,
        "RLIMIT_FSIZE": min(FILE_MB, config.written_mb) << 20,
        "TOTAL_MEMORY": config.memory_of_all << 20,
        "TOTAL_TASKS": config.processes,
        "TOTAL_CPU": cpu,
        "TOTAL_WRITTEN": config.written_mb << 20,
    }


def over(code: int, output: str) -> str:
    """The name of the total that ended a command; empty: none did."""
    name = _guarded(code, output).removeprefix("limit ")
    return name if name in TOTALS else ""


def is_unsupervised(code: int, output: str) -> bool:
    """Whether the guard of a command has failed, and not the command."""
    return bool(_guarded(code, output)) and not over(code, output)


def _guarded(code: int, output: str) -> str:
    """The last words of the guard; empty: it has none."""
    last = output.rstrip().rpartition("\n")[2]
    return last.removeprefix(_GUARD) if code == FAILED and last.startswith(_GUARD) else ""


def ending(code: int, output: str, config: ShellConfig) -> str:
    """How a command ended that did not succeed, behind "the command"."""
    said = {
        "memory": f"more than {config.memory_of_all:,} MiB of memory (total_memory_mb)",
        "tasks": f"more than {config.processes:,} processes and threads (processes)",
        "cpu": f"more than {config.cpu_seconds or 0:g} s of processor time (cpu_seconds)",
        "written": f"more than {config.written_mb:,} MiB written to disk (written_mb)",
    }.get(over(code, output))
    if said is not None:
        return f"was ended: its processes together had {said} of [tools.shell]"
    if is_unsupervised(code, output):
        return "could not be supervised"
    try:
        name = signal.Signals(code - 128).name
    except ValueError:
        return f"failed with exit code {code}"
    why = {
        "SIGKILL": " (perhaps the machine was out of memory)",
        "SIGXCPU": " (it used up its processor time)",
        "SIGXFSZ": f" (it wrote a file of more than {min(FILE_MB, config.written_mb)} MiB)",
    }.get(name, "")
    return f"was killed by {name}{why}, exit code {code}"


def hint(output: str, config: ShellConfig) -> str:
    """The limit that the words of a failed command speak of, if they do."""
    if _MEMORY_WORDS.search(output):
        return f"; each process may allocate {config.memory_mb} MiB"
    if _TASKS_WORDS.search(output):
        return f"; it may have {config.processes} processes and threads"
    return ""
