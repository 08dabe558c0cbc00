"""``python -m bench``: measure groups of rows of motet and its peers, and print a table.

Only ratios are compared, since absolute figures drift with the machine. ``bench/baseline.json`` has
the reference ratios of ``--check``. The rows of the group ``errors`` are measured on a database of
a million rows, built in a temporary directory (``TMPDIR`` chooses the disk).
"""

from __future__ import annotations

import argparse
import platform
import sys
from importlib import import_module
from pathlib import Path

import msgspec

from bench import errors, redaction
from bench.measure import make_peers, measure, versions
from bench.report import Line, compare, lines, ratios, table
from bench.rows import Row

BASELINE = Path(__file__).with_name("baseline.json")
GROUPS = ("kernel", "storage", "harness", "turns", "gateway", "rooms")
REDACTION = "redaction"  # in processor time, without a peer
ERRORS = "errors"  # at a size that a process per sample could not build: it measures by itself
PACKAGES = (
    *("motet", "trio", "msgspec", "apsw"),
    *("pykka", "autogen-core", "autogen-agentchat", "langchain", "openai-agents"),
    *("agent-framework-core", "langgraph", "langgraph-checkpoint-sqlite"),
    *("pydantic-ai-slim", "dbos"),
    "websockets",
)


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line, measure, print. Returns 1 if ``--check`` found a regression."""
    chosen = _parser().parse_args(arguments)
    if chosen.install_peers:
        make_peers()
        return 0
    rows = [
        row for group in chosen.rows if group not in (ERRORS, REDACTION) for row in _rows(group)
    ]
    report = lines(rows, measure(rows, chosen.rounds, _say)) if rows else []
    figures = _errors(chosen) if ERRORS in chosen.rows else []
    masked = redaction.measure(chosen.rounds) if REDACTION in chosen.rows else []
    texts = [table(report)] if report else []
    texts += [errors.table(figures)] if figures else []
    texts += [redaction.table(masked)] if masked else []
    sys.stdout.write("\n".join([*texts, _versions(), ""]))
    if chosen.json is not None:
        encoded = msgspec.json.encode([*report, *figures, *masked])
        chosen.json.write_bytes(msgspec.json.format(encoded) + b"\n")
    if chosen.write_baseline:
        _write_baseline(report)
    if not chosen.check:
        return 0
    worse = compare(report, _read_baseline(), chosen.tolerance)
    for line in worse:
        _say(f"worse than the baseline: {line}")
    return 1 if worse else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    add = parser.add_argument
    groups = (*GROUPS, ERRORS, REDACTION)
    known = ", ".join(groups)
    add("--rows", nargs="+", choices=groups, default=["kernel"], metavar="GROUP", help=known)
    add("--rounds", type=int, default=7, help="interleaved rounds (default 7)")
    add("--json", type=Path, metavar="FILE", help="write the lines as JSON")
    add("--check", action="store_true", help="compare with bench/baseline.json, exit 1 if worse")
    add("--tolerance", type=float, default=0.15, help="share that may be lost (default 0.15)")
    add("--write-baseline", action="store_true", help="take these ratios as the baseline")
    sizes = errors.Sizes()
    add("--error-rows", type=int, default=sizes.rows, help="rows of its database (%(default)s)")
    add("--error-stores", type=int, default=sizes.stores, help="stores of a round (%(default)s)")
    add("--install-peers", action="store_true", help="make the peers' environment, then exit")
    return parser


def _errors(chosen: argparse.Namespace) -> list[errors.Figure]:
    sizes = errors.Sizes(chosen.error_rows, chosen.error_stores, rounds=chosen.rounds)
    return errors.measure(sizes, _say)


def _rows(group: str) -> tuple[Row, ...]:
    rows: tuple[Row, ...] = import_module(f"bench.{group}").ROWS
    return rows


def _read_baseline() -> dict[str, float]:
    return msgspec.json.decode(BASELINE.read_bytes(), type=dict[str, float])


def _write_baseline(report: list[Line]) -> None:
    merged = {**(_read_baseline() if BASELINE.exists() else {}), **ratios(report)}
    BASELINE.write_bytes(msgspec.json.format(msgspec.json.encode(merged)) + b"\n")


def _versions() -> str:
    found = {"python": platform.python_version(), **versions(PACKAGES)}
    return ", ".join(f"{name} {number}" for name, number in found.items())


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
