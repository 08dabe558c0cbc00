"""The trace of a run: one line per event, the same bytes for the same run in any process.

Invariants: a line has no address, no ``id`` and no path of this machine; names of tasks are
numbered where they repeat, in the order of their first step. Events are stored raw and made into
text only when they are read, since most traces are never read.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator
from types import CodeType, CoroutineType, GeneratorType
from typing import Any

import msgspec
import trio

__all__ = [
    "WIDTH",
    "Event",
    "Trace",
    "awaited_by",
    "drivers",
    "lane_of",
    "normalised",
    "position",
    "report",
]

WIDTH = 100  # columns of a report
_LANES = 24  # lanes drawn; those that come later share the last one

_ADDRESS = re.compile(r" (?:object )?at 0x[0-9a-fA-F]+")

# An event's text, or the source of it: a code object, a function, or None for "begins".
What = str | CodeType | None | Callable[[], str]


class Event(msgspec.Struct, frozen=True):
    """One line: the step, the virtual second, the task or actor, and the event."""

    step: int
    time: float
    who: str
    what: str

    def __str__(self) -> str:
        return _line(self.step, self.time, self.who, self.what)


class Trace:
    """The events of one run, in order."""

    def __init__(self) -> None:
        self._raw: list[tuple[int, float, str, What]] = []
        self._labels: dict[trio.lowlevel.Task, str] = {}
        self._used: dict[str, int] = {}
        self.muted = False

    def add(self, step: int, time: float, who: str, what: What) -> None:
        """Add an event; a callable gives its text later, and must always return the same."""
        if not self.muted:
            self._raw.append((step, time, who, what))

    def label(self, task: trio.lowlevel.Task) -> str:
        """The name of a task in this trace: unique, and the same in every process."""
        # Numbered in the order of first steps, which unlike `id` is the same in every process.
        label = self._labels.get(task)
        if label is None:
            name = _short(task.name)
            number = self._used[name] = self._used.get(name, 0) + 1
            label = self._labels[task] = name if number == 1 else f"{name} #{number}"
        return label

    def forget_tasks(self) -> None:
        """Drop the references to tasks: the run is over."""
        self._labels.clear()

    def events(self, last: int | None = None) -> list[Event]:
        """All events, or the ``last`` ones."""
        raw = self._raw if last is None else self._raw[-last:]
        return [Event(step, time, who, _text(what)) for step, time, who, what in raw]

    def lines(self) -> Iterator[str]:
        """Each event as its line."""
        # Without the events, which take as long again: a search hashes thousands of traces.
        return (_line(step, time, who, _text(what)) for step, time, who, what in self._raw)

    @property
    def hash(self) -> str:
        """The SHA-256 of all lines, in hexadecimal."""
        text = "".join([f"{line}\n" for line in self.lines()])
        return hashlib.sha256(text.encode()).hexdigest()

    def report(self, last: int = 50) -> str:
        """The last events with a lane for each actor; at most 100 columns."""
        return report(self.events(), last)

    def __len__(self) -> int:
        return len(self._raw)


def _line(step: int, time: float, who: str, what: str) -> str:
    return f"{step} {time:.6f} {who}: {what}"


def _text(what: What) -> str:
    if isinstance(what, CodeType):
        return f"resumes in {what.co_qualname.replace('<locals>.', '')}"
    if what is None:
        return "begins"
    return normalised(what if isinstance(what, str) else what())


def _short(name: str) -> str:
    """A task's name without the module that Trio puts before it; names of actors as they are."""
    if name.startswith("/") or " " in name:
        return normalised(name)
    *_, owner, last = ["", *name.rpartition("<locals>.")[2].split(".")]
    return f"{owner}.{last}" if owner[:1].isupper() else last


def normalised(text: str) -> str:
    """One line, without addresses."""
    if "\n" in text:
        text = " ".join(text.split())
    return _ADDRESS.sub("", text) if " at 0x" in text else text


def position(task: trio.lowlevel.Task) -> CodeType | None:
    """The innermost function outside Trio in which a suspended task will resume; None: not begun.

    As :meth:`trio.lowlevel.Task.iter_await_frames`, without its frames and lines, which cost time.
    """
    code: CodeType | None = None
    awaitable: Any = task.coro  # Any: cr_await promises nothing
    kinds = _kinds  # this runs at every step of every world, so that each look-up counts
    # Below the last coroutine there is a generator or a C object, which are Trio's.
    while type(awaitable) is CoroutineType:
        here: CodeType = awaitable.cr_code
        kind = kinds[here] if here in kinds else _kind_of(here)
        if kind == "trio":
            break
        awaitable = awaitable.cr_await
        if type(awaitable) is GeneratorType:
            awaitable = _driven_by(awaitable)
        if kind == "ours" and awaitable is not None:
            code = here
    return code


drivers: dict[CodeType, str] = {}
"""Generators that step a coroutine by hand: the code of each, and its variable with the coroutine.

They are seen through: a task waits where the coroutine does.
"""


def awaited_by(awaitable: Any) -> Any:
    """What a suspended coroutine awaits; None before its first step. Any: it may be anything."""
    inner: Any = awaitable.cr_await
    return _driven_by(inner) if type(inner) is GeneratorType else inner


def _driven_by(generator: Any) -> Any:
    """The coroutine that a generator steps by hand; the generator itself, if it does not."""
    variable = drivers.get(generator.gi_code)
    if variable is None:
        return generator
    # Any: typeshed says that there always is one.
    frame: Any = generator.gi_frame
    return frame.f_locals.get(variable) if frame is not None else None


_kinds: dict[CodeType, str] = {}
_TRIO_FOLDER = trio.__file__.removesuffix("__init__.py")


def _kind_of(code: CodeType) -> str:
    file = code.co_filename
    # A function of contextlib says nothing, so its caller is named.
    other = "contextlib" if file == contextlib.__file__ else "ours"
    kind = _kinds[code] = "trio" if file.startswith(_TRIO_FOLDER) else other
    return kind


# ---------------------------------------------------------------------- the report


def lane_of(who: str) -> str:
    """The lane of a task: its actor's path, or a lane of its own if it belongs to no actor."""
    return who.partition(" ")[0] if who.startswith("/") else who


def report(events: list[Event], last: int = 50) -> str:
    """The ``last`` events, one line each, with a lane per actor: ``*`` marks the acting one."""
    shown = events[-last:]
    lanes = list(dict.fromkeys(lane_of(event.who) for event in shown))
    drawn = lanes[:_LANES]
    column = {lane: min(index, _LANES - 1) for index, lane in enumerate(lanes)}
    width = min(len(lanes), _LANES)
    head = [f"{'lane ' + _letter(i):>19}  {lane}" for i, lane in enumerate(drawn)]
    if len(lanes) > _LANES:
        head[-1] += f" and {len(lanes) - _LANES} more"
    names = " ".join(_letter(index) for index in range(width))
    body = [_row(event, column[lane_of(event.who)], width) for event in shown]
    left_out = len(events) - len(shown)
    first = [f"{left_out} earlier events are not shown"] if left_out else []
    return "\n".join(
        line[:WIDTH] for line in [*first, *head, f"{'step':>6} {'time':>11}  {names}", *body]
    )


def _letter(index: int) -> str:
    return "abcdefghijklmnopqrstuvwxyz"[index]


def _row(event: Event, column: int, width: int) -> str:
    marks = " ".join("*" if index == column else "." for index in range(width))
    start = f"{event.step:6} {event.time:11.3f}  {marks}  "
    room = WIDTH - len(start)
    task = event.who.removeprefix(lane_of(event.who)).strip()
    text = f"{task}: {event.what}" if task else event.what
    return start + (text if len(text) <= room else text[: room - 1] + "…")
