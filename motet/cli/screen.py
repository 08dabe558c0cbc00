"""Output for a terminal or a pipe: answers on standard output, everything else beside them.

When standard output is no terminal, it gets nothing but the answers, each when it is whole, and
all other lines go to standard error.
"""

from __future__ import annotations

import pydoc
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

import attrs

from motet.cli.render import Kind, Piece, one_line

if TYPE_CHECKING:
    from rich.console import Console

STYLES: dict[Kind, str] = {
    "text": "",
    "call": "cyan",
    "done": "green",
    "failed": "red",
    "warning": "yellow",
    "note": "dim",
}

PIPE_WIDTH = 250
"""The width of a pipe: unlimited, so that filters get whole lines."""


@attrs.define
class Screen:
    """The output of a session. A line always begins at the left, also after streamed text."""

    answers: TextIO
    notes: Console
    live: bool
    """Whether answers are shown while they are made."""
    _open: bool = False
    """Whether the last text left its line unfinished."""

    @classmethod
    def standard(cls) -> Screen:
        """The screen on this process's standard streams."""
        live = sys.stdout.isatty()
        return cls(sys.stdout, console(sys.stdout if live else sys.stderr), live)

    def show(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            if piece.kind == "text":
                self.write(piece.text)
            else:
                self.line(piece.text, piece.kind)

    def write(self, text: str) -> None:
        """More of an answer."""
        self.answers.write(text)
        self.answers.flush()
        self._open = not text.endswith("\n")

    def end(self) -> None:
        """The answer is complete: the next output begins a new line."""
        if self._open:
            self.write("\n")

    def line(self, text: str, kind: Kind = "note") -> None:
        """A line, or several, of their own."""
        self.end()
        self.notes.print(text, style=STYLES[kind], markup=False, highlight=False, soft_wrap=True)


def is_long(text: str) -> bool:
    """Whether a text does not fit on the terminal."""
    columns, rows = shutil.get_terminal_size()
    needed = sum(1 + len(line) // columns for line in text.split("\n"))
    return sys.stdout.isatty() and needed > rows - 3


def page(text: str) -> None:
    """Print a text; a long one goes to the pager (``PAGER``) of a terminal."""
    if sys.stdin.isatty() and is_long(text):
        pydoc.pager(text)
    else:
        print(text)


LEAST_TEXT = 50
"""Columns of a terminal that the text of an entry gets beside its facts, or it has its own line."""


def print_entries(headings: Sequence[str], rows: Iterable[Sequence[str]], text: str) -> None:
    """A table whose column ``text`` has what is left of a line.

    Where that is too little, each entry is a line of its facts, and its text below.
    """
    from rich.cells import cell_len
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    columns = [*zip(headings, *rows, strict=True)]
    used = [column for column in columns if any(column[1:])]  # one without any cell is left out
    headings, *cells = ([one_line(cell) for cell in row] for row in zip(*used, strict=True))
    at = headings.index(text)
    facts = [row[:at] + row[at + 1 :] for row in (headings, *cells)]
    taken = sum(2 + max(map(cell_len, column)) for column in zip(*facts, strict=True))
    out = console(sys.stdout)
    if out.width - taken < LEAST_TEXT:
        for row, known in zip(cells, facts[1:], strict=True):
            out.print(Text("  ".join(filter(None, known)), overflow="fold"))
            out.print(Padding(Text(row[at], overflow="fold"), (0, 0, 0, 2)))
        return
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, no_wrap=heading != text, overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    out.print(table)


def console(file: TextIO) -> Console:
    """A console of rich, which is imported when something is printed."""
    from rich.console import Console

    width = None if file.isatty() else PIPE_WIDTH
    return Console(file=file, width=width, highlight=False, emoji=False)
