"""The tables of the kernel as Markdown: ``python -m motet.runtime.diagram [FILE...]``.

Without files it prints them. With files it writes each table between its two markers, for example
``<!-- table: life cycle -->`` and ``<!-- end -->``. All are generated: the life cycle from its
table, the supervision from decisions of the supervision table.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

from motet.runtime.lifecycle import TRANSITIONS
from motet.runtime.supervision import ChildTable, Decision, ExitKind, Restart, Strategy, Supervision

__all__ = ["TABLES", "life_cycle", "restarts", "strategies", "with_tables"]


def life_cycle() -> str:
    """The states of an actor and the events between them, as a Mermaid diagram."""
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> new"]
    for state, following in TRANSITIONS.items():
        for target in dict.fromkeys(following.values()):
            events = ", ".join(event for event, after in following.items() if after == target)
            lines.append(f"    {state} --> {target}: {events}")
    return "\n".join([*lines, "    dead --> [*]", "```"])


def restarts() -> str:
    """The ends of a child that lead to a restart."""
    rows = (
        (restart, *(_verb(_decision("one_for_one", restart, kind)) for kind in get_args(ExitKind)))
        for restart in get_args(Restart)
    )
    return _table(("restart", *(f"ended: {kind}" for kind in get_args(ExitKind))), rows)


def strategies() -> str:
    """The stops and starts after the crash of the second of three permanent children."""
    decided = ((name, _decision(name, "permanent", "crashed")) for name in get_args(Strategy))
    rows = ((name, _names(one.stops), _names(one.starts)) for name, one in decided)
    return _table(("b of a, b, c crashes", "stopped first", "then started"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "life cycle": life_cycle,
    "restarts": restarts,
    "strategies": strategies,
}

_SECTION = re.compile(r"(<!-- table: ([\w ]+) -->\n).*?(<!-- end -->)", re.S)


def with_tables(text: str) -> str:
    """``text`` with the text between markers replaced; KeyError for an unknown table."""
    return _SECTION.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}", text)


def _decision(strategy: Strategy, restart: Restart, kind: ExitKind) -> Decision:
    table = ChildTable(Supervision(strategy=strategy))
    for name in ("a", "b", "c"):
        table.add(name, restart)
        table.starting(name, 0.0)
    return table.exited("b", kind, 1.0, 0.0)


def _verb(decision: Decision) -> str:
    return "started again" if decision.starts else "gone"


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "none"


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(files: list[str]) -> None:
    """Print the tables, or update ``files``."""
    if not files:
        sys.stdout.write("\n\n".join(table() for table in TABLES.values()) + "\n")
    for path in map(Path, files):
        path.write_text(with_tables(path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
