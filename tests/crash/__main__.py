"""``python -m tests.crash``: kill a busy host again and again, and check what is left each time.

The seed decides the inputs, the plans and when each kill comes, counted from the start of that
life; where a process is at that instant is up to the machine.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from random import SystemRandom

from tests.crash.kills import Kills, Outcome


def main(arguments: list[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    seed = SystemRandom().randrange(1 << 32) if chosen.seed is None else chosen.seed
    folder = Path(tempfile.mkdtemp(prefix="motet-crash-"))
    print(f"seed {seed}: {chosen.kills} kills of a host with 60 sessions and 7 rooms, in {folder}")
    kills = Kills(folder, seed, told=_progress)
    try:
        outcome = kills.run(chosen.kills)
    except KeyboardInterrupt:
        print(f"\nstopped after {len(kills.outcome.kills)} kills")
        outcome = kills.outcome
    print(f"\r{outcome.summary()}")
    if outcome.problems:
        print("\n".join(outcome.problems[:20]), file=sys.stderr)
        print(f"what is left is in {folder}; again with --seed {seed}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    return 0


def _progress(outcome: Outcome) -> None:
    if outcome.problems:
        print("\n" + "\n".join(outcome.problems[-5:]), file=sys.stderr)
    if sys.stdout.isatty() or len(outcome.kills) % 50 == 0:
        end = "" if sys.stdout.isatty() else "\n"
        print(f"\r{outcome.line()}", end=end, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=None, help="of a run before")
    return parser


if __name__ == "__main__":
    sys.exit(main())
