"""``python -m tests.soak --minutes 10``: daemons at work for so long, and what they come to hold.

Each kind of daemon gets its share of the time: one that embeds a host, and one that serves clients.
"""

from __future__ import annotations

import argparse
import sys

import trio

from tests.soak.daemon import KINDS, WAYS, Kind, daemon
from tests.soak.judge import BLOCKS_PER_RUN, Sample, never_ran, problems

_SAMPLES = 24


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak",
        description="Have daemons work, and look whether what they hold grows.",
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="of all (%(default)s)")
    parser.add_argument("--daemon", choices=KINDS, nargs="+", default=KINDS, help="its kinds")
    parser.add_argument("--seed", type=int, default=0, help="of what its users do")
    chosen = parser.parse_args()
    found: list[str] = []
    for kind in chosen.daemon:
        seconds = chosen.minutes * 60 / len(chosen.daemon)
        found += trio.run(soak, kind, seconds, chosen.seed)
    print("\n".join(found) or "nothing grows")
    return 1 if found else 0


async def soak(
    kind: Kind,
    seconds: float,
    seed: int,
    samples: int = _SAMPLES,
    most: float = BLOCKS_PER_RUN,
) -> list[str]:
    """What grows in a daemon that works for so long, and what it never did, in words."""
    taken: list[Sample] = []
    async with daemon(kind, seed) as (one, log):
        for _ in range(samples):
            await one.work(seconds / samples)
            taken.append(await one.sample(log))
            print(f"{kind}: {taken[-1]}", flush=True)
        found = [*problems(taken, most), *never_ran(one.ran, WAYS[kind])]
    return [f"{kind}: {one}" for one in found]


if __name__ == "__main__":
    sys.exit(main())
