"""``python -m bench``: run the kernel's benchmark and print a table, or JSON with ``--json``."""

from __future__ import annotations

import argparse
import sys

import msgspec

from bench.kernel import ROWS, Report, run


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, measure, print."""
    names = [row.name for row in ROWS]
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--rows", nargs="+", choices=names, default=names, metavar="ROW", help=", ".join(names)
    )
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds (default 7)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    chosen = parser.parse_args(arguments)
    report = run(tuple(row for row in ROWS if row.name in chosen.rows), chosen.rounds)
    text = msgspec.json.encode(report).decode() if chosen.json else table(report)
    sys.stdout.write(text + "\n")


def table(report: Report) -> str:
    """The report as aligned text."""
    lines = [f"{'':18}{'motet/s':>12}{'peer/s':>12}{'ratio':>8}{'spread':>8}  peer"]
    lines += [
        f"{row.name:18}{row.motet:12,.0f}{row.peer:12,.0f}{row.ratio:8.2f}{row.spread:8.0%}"
        f"  {row.peer_name}"
        for row in report.results
    ]
    versions = ", ".join(f"{name} {number}" for name, number in report.versions.items())
    return "\n".join([*lines, versions])


if __name__ == "__main__":
    main()
