"""``python -m bench``: measure, and print a table, or JSON with ``--json``.

The rows of the kernel are motet next to bare Trio. ``--rows errors`` measures the error store on
a database of a million rows; it is built in a temporary directory (``TMPDIR`` chooses the disk).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from bench import errors
from bench.kernel import ROWS, Report, run

ERRORS = "errors"


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, measure, print."""
    kernel = [row.name for row in ROWS]
    chosen = _parser([*kernel, ERRORS], kernel).parse_args(arguments)
    if ERRORS in chosen.rows:
        sizes = errors.Sizes(
            rows=chosen.error_rows, stores=chosen.error_stores, rounds=chosen.rounds
        )
        figures = errors.measure(sizes)
        _print(chosen.json, figures, errors.table(figures))
    if rows := tuple(row for row in ROWS if row.name in chosen.rows):
        report = run(rows, chosen.rounds)
        _print(chosen.json, report, table(report))


def _parser(names: list[str], default: list[str]) -> argparse.ArgumentParser:
    sizes = errors.Sizes()
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    add = parser.add_argument
    known = ", ".join(names)
    add("--rows", nargs="+", choices=names, default=default, metavar="ROW", help=known)
    add("--rounds", type=int, default=7, help="measured rounds (default 7)")
    add("--json", nargs="?", const="-", metavar="FILE", help="JSON, to FILE or instead of a table")
    add("--error-rows", type=int, default=sizes.rows, help="rows of its database (%(default)s)")
    add("--error-stores", type=int, default=sizes.stores, help="stores of a round (%(default)s)")
    return parser


def _print(json: str | None, figures: Report | list[errors.Figure], text: str) -> None:
    encoded = msgspec.json.encode(figures)
    if json == "-":
        text = encoded.decode()
    elif json is not None:
        Path(json).write_bytes(encoded + b"\n")
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
