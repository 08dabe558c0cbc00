"""Breeds hosts to be killed: everything is imported once, and each life is a fork.

It reads the number of a life per line, with ``quiet`` behind the last one, and says ``pid N`` and
``ended STATUS`` (of ``waitpid``); what the host says is in between.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable

from motet.actors import host
from tests.crash import victim

IMPORTED = (host, victim)


def main(folder: str, seed: str) -> None:
    for line in iter(sys.stdin.readline, ""):
        pid = os.fork()
        if not pid:
            _live(folder, seed, line.split())
        print(f"pid {pid}", flush=True)
        _, status = os.waitpid(pid, 0)
        print(f"ended {status}", flush=True)


def _live(folder: str, seed: str, life: Iterable[str]) -> None:
    try:
        victim.main(folder, seed, *life)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
