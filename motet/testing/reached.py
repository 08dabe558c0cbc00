"""States that must be reached in some run, since otherwise the test proves nothing.

    @given(mt.programs(agent))
    def test_agent(program):
        with mt.simulated_host(seed=program.seed) as host:
            program.execute(host)
            mt.check(host)
            mt.sometimes(host.history.crashes, "a crash")

The pytest plugin checks at the end of each test; a plain loop calls ``assert_reached()``.

Invariant: a state is in the book of the test from its first look, or from the beginning if the
source of the test names it, so that a line that never runs counts as not reached.
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
    """States that no run has reached; ``names`` lists them."""

    def __init__(self, names: tuple[str, ...], runs: int) -> None:
        listed = "\n".join(f"  {name}" for name in names)
        super().__init__(
            f"never reached, though looked at {runs} times:\n{listed}\n"
            "run more examples, or make what leads there likelier"
        )
        self.names = names


@attrs.define
class Book:
    """The states of a test, and whether each was reached; ``runs`` counts the looks."""

    states: dict[str, bool] = attrs.field(factory=dict[str, bool])
    runs: int = 0

    def note(self, name: str, reached: bool) -> None:
        """Record a look at a state."""
        self.runs += 1
        self.states[name] = self.states.get(name, False) or reached

    def expect(self, *names: str) -> None:
        """Require these states, even without a look at them."""
        for name in names:
            self.states.setdefault(name, False)

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(name for name, reached in self.states.items() if not reached)

    def check(self) -> None:
        """Raise :class:`NeverReached` for missing states."""
        if self.missing:
            raise NeverReached(self.missing, self.runs)


_open: list[Book] = [Book()]


def sometimes(condition: object, name: str = "") -> bool:
    """Require a state in some run of the test; returns True if it is reached now.

    ``sometimes(condition, "name")``, or ``sometimes("name")`` on a line that must run. Without a
    name the source line is the name.
    """
    if isinstance(condition, str) and not name:
        _open[-1].note(condition, True)
        return True
    reached = bool(condition)
    _open[-1].note(name or _line(), reached)
    return reached


def assert_reached(*names: str) -> None:
    """Raise :class:`NeverReached` unless all states so far, and ``names``, were reached.

    For plain loops, after the loop: it forgets the states.
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
    """Use a new book in the block, with all states that the test's source names."""
    book = Book()
    if test is not None:
        book.expect(*named_in(test))
    _open.append(book)
    try:
        yield book
    finally:
        _open.remove(book)


def named_in(test: Callable[..., object]) -> tuple[str, ...]:
    """The names of states in the source of a test; none without a source."""
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
    """The source line that called ``sometimes``."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]  # the documented way
    file, number = frame.f_code.co_filename, frame.f_lineno
    return getline(file, number).strip() or f"{file}:{number}"
