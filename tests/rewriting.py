"""Rewritten assertions, made once for all processes of a test run.

On a fresh clone, the processes of pytest-xdist collect the same files at the same time: none finds
what another has written, so that each would rewrite every file. This does it before they start, on
all cores. pytest looks at each of its files again, and rewrites those that have changed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

FEW = 50
"""With so few files, each process may as well do it."""


def place(file: Path) -> Path:
    """Where pytest keeps the code of a test file."""
    return rewrite.get_cache_dir(file) / (file.stem + rewrite.PYC_TAIL)


def rewrite_once(config: pytest.Config, folder: Path) -> int:
    """Rewrite the test files of a folder that were never rewritten; how many."""
    files = [one for one in sorted(folder.rglob("test_*.py")) if not place(one).exists()]
    if len(files) <= FEW:
        return 0
    cores = len(os.sched_getaffinity(0))
    children: list[int] = []
    for part in range(cores):
        child = os.fork()
        if not child:
            status = 1
            try:
                for file in files[part::cores]:
                    _rewrite(config, file)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)  # what one could not write, the others rewrite as before
    return len(files)


def _rewrite(config: pytest.Config, file: Path) -> None:
    stat, code = rewrite._rewrite_test(file, config)  # pyright: ignore[reportPrivateUsage]
    target = place(file)
    target.parent.mkdir(parents=True, exist_ok=True)
    state = config.stash[rewrite.assertstate_key]
    rewrite._write_pyc(state, code, stat, target)  # pyright: ignore[reportPrivateUsage]
