"""States that must be reached in some run, or else the test that waits for them shows nothing.

    @given(mt.programs(agent))
    def test_agent(program):
        with mt.simulated_host(seed=program.seed) as host:
            program.execute(host)
            mt.check(host)
            mt.sometimes(host.history.crashes, "a crash")

The pytest plugin asks at the end of each test; a plain loop asks itself, by ``assert_reached()``.

Invariant: what is named is in the book of the test from the first time that it is looked at, or
from the beginning when the source of the test names it, so that a line that is never run counts.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Generator
from contextlib import contextmanager
from linecache import getline

import attrs

__all__ = ["Book", "NeverReached", "assert_reached", "book_of", "named_in", "sometimes"]


class NeverReached(AssertionError):
    """A state that should be reached in some run was reached in none. ``names`` says which."""

    def __init__(self, names: tuple[str, ...], runs: int) -> None:
        listed = "\n".join(f"  {name}" for name in names)
        super().__init__(
            f"never reached, though looked at {runs} times:\n{listed}\n"
            "run more examples, or make what leads there likelier"
        )
        self.names = names


@attrs.define
class Book:
    """What a test has looked for, and what was reached; ``runs`` counts the looks."""

    states: dict[str, bool] = attrs.field(factory=dict[str, bool])
    runs: int = 0

    def note(self, name: str, reached: bool) -> None:
        """Something was looked at."""
        self.runs += 1
        self.states[name] = self.states.get(name, False) or reached

    def expect(self, *names: str) -> None:
        """These must be reached, whether or not they are ever looked at."""
        for name in names:
            self.states.setdefault(name, False)

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(name for name, reached in self.states.items() if not reached)

    def check(self) -> None:
        """Raise :class:`NeverReached` when something was not."""
        if self.missing:
            raise NeverReached(self.missing, self.runs)


_open: list[Book] = [Book()]


def sometimes(condition: object, name: str = "") -> bool:
    """Note a state that must be reached in some run of the test; whether it is reached now.

    ``sometimes(condition, "name")``, or ``sometimes("name")`` on a line that must be come to.
    Without a name the line itself is the name.
    """
    if isinstance(condition, str) and not name:
        _open[-1].note(condition, True)
        return True
    reached = bool(condition)
    _open[-1].note(name or _line(), reached)
    return reached


def assert_reached(*names: str) -> None:
    """Raise :class:`NeverReached` unless all that was looked for, and ``names``, was reached.

    For plain loops, behind the loop: what was noted is forgotten then.
    """
    book = _open[-1]
    book.expect(*names)
    try:
        book.check()
    finally:
        book.states.clear()
        book.runs = 0


@contextmanager
def book_of(test: Callable[..., object] | None = None) -> Generator[Book]:
    """A book of its own for the time of the block, with all that the test's source names."""
    book = Book()
    if test is not None:
        book.expect(*named_in(test))
    _open.append(book)
    try:
        yield book
    finally:
        _open.remove(book)


def named_in(test: Callable[..., object]) -> tuple[str, ...]:
    """The names that the source of a test gives to its states; none for what has no source."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(test))))
    except (OSError, TypeError, SyntaxError):
        return ()
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    found = (_named(call) for call in calls if _called(call) == "sometimes")
    return tuple(dict.fromkeys(name for name in found if name))


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _named(call: ast.Call) -> str:
    by_word = [word.value for word in call.keywords if word.arg == "name"]
    for given in (*by_word, *reversed(call.args)):
        if isinstance(given, ast.Constant) and isinstance(given.value, str):
            return given.value
    return ""


def _line() -> str:
    """The line that has called ``sometimes``."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]  # the documented way
    file, number = frame.f_code.co_filename, frame.f_lineno
    return getline(file, number).strip() or f"{file}:{number}"
