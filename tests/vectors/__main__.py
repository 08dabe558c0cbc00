"""``python -m tests.vectors FILE [--area A]``: exit code 0, 1 for failures, 2 for a wrong call."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.vectors.cases import load
from tests.vectors.runner import report, run_case


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.vectors", description=__doc__)
    parser.add_argument("file", type=Path, help="a JSON file of areas, each a list of cases")
    parser.add_argument("--area", help="only areas whose name contains this")
    chosen = parser.parse_args(arguments)
    try:
        areas = load(chosen.file)
    except (OSError, ValueError) as error:
        parser.error(f"{chosen.file}: {error}")
    wanted = [area for area in areas if (chosen.area or "").lower() in area.lower()]
    if not wanted:
        parser.error(f"no area contains {chosen.area!r}; there are: {', '.join(areas)}")
    failed = 0
    for area in wanted:
        outcomes = [run_case(case) for case in areas[area]]
        failed += sum(outcome.verdict == "failed" for outcome in outcomes)
        print("\n".join(report(area, outcomes)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
