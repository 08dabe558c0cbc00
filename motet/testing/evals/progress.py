"""The progress of an evaluation: a bar on a terminal, a line for each trial elsewhere.

Invariant: nothing is written to standard output, which belongs to the table or the JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO, TypeAlias

import attrs

from motet.protocols.evals import TrialRecord, shortened
from motet.protocols.models import Usage
from motet.testing.evals.report import EvalReport, money, visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

__all__ = ["Silent", "Told", "bar_on", "watching"]

PIPE_WIDTH = 250
NAMED = 3
"""Cases under way that the bar names."""
BAR = 16
TAKEN = BAR + 24
"""Columns of the bar, of its counts up to 9999/9999, of the time, and between them."""
LEAST_NAME = 6


Leave: TypeAlias = Callable[[EvalReport], None]


@attrs.define(eq=False)
class Silent:
    """A :class:`Watch` that shows nothing.

    ``leave``: called with the report when a tool does not end; for a command, which can leave the
    process. Without it the host waits: a library cannot leave a thread behind.
    """

    leave: Leave | None = None

    def begin(self, planned: int, kept: Sequence[TrialRecord]) -> None:
        """Nothing to show."""

    def started(self, case: str) -> None:
        """Nothing to show."""

    def ended(self, trial: TrialRecord) -> None:
        """Nothing to show."""

    def left_behind(self, report: EvalReport) -> None:
        """Leave, if that is possible."""
        if self.leave is not None:
            self.leave(report)


class Told(Silent):
    """Shows the progress on a console, with a bar or by lines."""

    def __init__(self, console: Console, bar: Progress | None, leave: Leave | None) -> None:
        super().__init__(leave)
        self._console = console
        self._bar = bar
        self._task: TaskID | None = None
        self._working: list[str] = []
        self._passed = self._ended = 0
        self._spent = Usage()

    def begin(self, planned: int, kept: Sequence[TrialRecord]) -> None:
        """Draw the bar."""
        for trial in kept:
            self._count(trial)
        if kept:
            self._line(f"{len(kept)} of {planned} trials are kept", "dim")
        if self._bar is not None:
            self._task = self._bar.add_task(
                "", total=planned, completed=len(kept), said="", names=""
            )

    def started(self, case: str) -> None:
        """A trial begins."""
        self._working.append(case)
        self._draw()

    def ended(self, trial: TrialRecord) -> None:
        """Advance the bar; print a line for what has not passed, and on a pipe for all."""
        self._working.remove(trial.case)
        self._count(trial)
        if self._bar is None or trial.outcome != "passed":
            self._line(_line(trial), "red" if trial.outcome != "passed" else "green")
        self._draw(advance=1)

    def left_behind(self, report: EvalReport) -> None:
        """Name the cases whose tools do not end."""
        if self._bar is not None:
            self._bar.stop()
        self._line(f"a tool does not end: {', '.join(map(visible, report.left))}", "yellow")
        super().left_behind(report)

    def _count(self, trial: TrialRecord) -> None:
        self._ended += 1
        self._passed += trial.outcome == "passed"
        self._spent += trial.usage + trial.judging

    def _draw(self, advance: int = 0) -> None:
        if self._bar is None or self._task is None:
            return
        names = ", ".join(map(visible, self._working[:NAMED]))
        more = f" +{len(self._working) - NAMED}" if len(self._working) > NAMED else ""
        cost = f" · {money(self._spent)}" if self._spent.cost else ""
        said = f"{self._passed} passed, {self._ended - self._passed} not"
        tokens = f" · {self._spent.total_tokens:,} tokens{cost}"
        # rich would shorten the numbers first, which are worth more than names.
        room = self._console.width - TAKEN - len(said)
        if room >= len(tokens):
            said, room = said + tokens, room - len(tokens)
        names = shortened(names + more, room) if room > LEAST_NAME else ""
        self._bar.update(self._task, advance=advance, said=said, names=names)

    def _line(self, text: str, style: str) -> None:
        from rich.text import Text

        self._console.print(Text(text, style), soft_wrap=True)


def _line(trial: TrialRecord) -> str:
    mark = "✓" if trial.outcome == "passed" else "✗"
    number = f" ({trial.repeat})" if trial.repeat > 1 else ""
    spent = trial.usage + trial.judging
    figures = f"{trial.seconds:.2f} s  {spent.total_tokens:,} tokens"
    reasons = "; ".join(map(visible, trial.reasons))
    return f"{mark} {visible(trial.case)}{number}  {figures}{'  ' if reasons else ''}{reasons}"


@contextmanager
def watching(show: bool | None, leave: Leave | None = None) -> Generator[Silent]:
    """The progress on standard error. ``show`` None: only at a terminal."""
    out: TextIO = sys.stderr
    live = out.isatty()
    if not (live if show is None else show):
        yield Silent(leave)
        return
    from rich.console import Console

    console = Console(file=out, width=None if live else PIPE_WIDTH, highlight=False, emoji=False)
    if not live:
        yield Told(console, None, leave)
        return
    with bar_on(console) as bar:
        yield Told(console, bar, leave)


def bar_on(console: Console) -> Progress:
    """The bar, which is drawn while its block is open."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        BarColumn(BAR),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[said]}", markup=False),
        TextColumn("{task.fields[names]}", style="dim", markup=False),
        console=console,
        transient=True,
    )
