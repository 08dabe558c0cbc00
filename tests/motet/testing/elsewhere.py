"""Another process, with another seed of its hashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def replayed_elsewhere(case: Path) -> list[str]:
    """What is wrong with a case, as another process says; fails when it is not the same run."""
    code = f"from motet import testing as mt; print(*mt.replay_case({str(case)!r}), sep='\\n')"
    told = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    return told.stdout.splitlines()
