"""``python -m tests.fuzz --minutes 10``: frames and bytes at a real server, for so long.

Before them come the floods of :mod:`tests.fuzz.floods`, which take a minute or two.
"""

from __future__ import annotations

import argparse
import sys

import trio

from tests.fuzz.floods import FLOODS, floods
from tests.fuzz.siege import siege

_WARM_SECONDS = 20.0
_LEG_SECONDS = 30.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--only", action="store_true", help="the case of --seed, and no other")
    chosen = parser.parse_args()
    if not chosen.only and (kept_out := trio.run(floods, tuple(FLOODS), 100)):
        print("\n".join(kept_out))
        return 1
    return trio.run(_fuzz, chosen.minutes * 60, chosen.seed, chosen.only)


async def _fuzz(seconds: float, seed: int, only: bool) -> int:
    print("leaks are judged by objects and blocks: resident memory grows with caches as well")
    async with siege(seed) as attack:
        if only:
            await attack.one(seed)
        else:
            await attack.go_on(min(_WARM_SECONDS, seconds / 4))
            warm = attack.footprint()
            until = trio.current_time() + seconds
            while not attack.findings and trio.current_time() < until:
                await attack.go_on(min(_LEG_SECONDS, until - trio.current_time()))
                print(f"{attack.cases} cases, {attack.footprint()}", flush=True)
            attack.findings += attack.footprint().leaked_since(warm)
        print("\n".join(attack.findings) or f"{attack.cases} cases: nothing found")
        return 1 if attack.findings else 0


if __name__ == "__main__":
    sys.exit(main())
