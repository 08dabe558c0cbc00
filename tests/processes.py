"""Finding real processes by a mark in their command line."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import trio


def alive(mark: str) -> list[int]:
    """Pids of live processes, zombies left out, whose command line holds ``mark``."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mark in line:
            found.append(int(folder.name))
    return found


async def wait_alive(mark: str, count: int) -> None:
    """Wait until ``count`` processes carry the mark: they are not ours, so only /proc tells."""
    with trio.fail_after(60):
        while len(alive(mark)) < count:
            await trio.sleep(0.01)


def need_sandbox() -> None:
    """Skip without bubblewrap; where nothing may be left out, its absence is a failure."""
    if shutil.which("bwrap") is None:
        if os.environ.get("CI"):
            pytest.fail("bubblewrap is not installed: apt install bubblewrap")
        pytest.skip("bubblewrap is not installed")
