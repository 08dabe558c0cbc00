"""The edges at which the runtime calls code that others wrote: handlers, tools, hooks, adapters.

Python has exceptions that are no ``Exception``: ``asyncio.CancelledError``, ``GeneratorExit``,
``SystemExit``, the panics of Rust extensions, classes of one's own. No ``except Exception`` sees
them, so one of them would end every actor up to the whole system. :func:`divided` is the one rule
that turns them into failures; ``with foreign_code:`` (``outside.py``) applies it around a call.

Two kinds of errors are nobody's failure and have to go on. A ``trio.Cancelled`` belongs to a cancel
scope around the edge if one of them is cancelled; then that scope takes it. If none is, it came
from elsewhere (it was kept and raised again, or left a loop in a thread), and nothing but the end
of the whole run would take it. And an exception that a signal handler raises, such as the
``KeyboardInterrupt`` of Ctrl-C, hits whatever line the program is at: it is the program's.

A child task of a nursery that a tool opens ends within Trio, outside of every edge: Trio puts the
``repr`` of its error into the reason of the cancellation. An error whose ``repr`` raises there, or
whose ``__traceback__`` does, ends the run of Trio, as it ends any program on Trio.

Choices not taken. Methods of ``trio.Nursery`` with a safe ``repr``: every program that imports this
would get them. A list of known classes would miss the next one. Looking at the exception that
stands in ``sys.exc_info`` of a scope's own ``__exit__`` would need Trio's private names.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from types import CodeType
from typing import Final, TypeGuard, TypeVar, cast

import trio

from motet.runtime.errors import MotetRuntimeError, only_error

__all__ = ["PROGRAM_ENDS", "ForeignError", "HarnessEnd", "divided", "is_a", "is_plain", "shown"]

E = TypeVar("E")

PROGRAM_ENDS: Final = (KeyboardInterrupt, SystemExit)
"""What ends a program. Out of the handler of a request they reach the asker as themselves, as out
of a function that it calls; the actor goes on. Anywhere else they are failures as any other."""


_ENDS_OF_TESTS = (("_pytest.outcomes", "OutcomeException"), ("hypothesis.errors", "StopTest"))
"""By these classes, ``pytest.fail`` and Hypothesis end a test out of a tool that it gave."""
_TEST_RUNS = "PYTEST_CURRENT_TEST"
"""The variable that pytest sets while a test runs: elsewhere, its classes end nothing."""


class HarnessEnd(BaseException):
    """Base of the exceptions by which a simulator ends code: they pass every edge."""


class ForeignError(MotetRuntimeError):
    """Stands for an exception that is no ``Exception``, and is a failure all the same.

    ``raised``, also its cause: the exception, or the group with such exceptions. Its text is the
    type and the text of that; ``str`` and ``repr`` never raise.
    """

    def __init__(self, raised: BaseException) -> None:
        super().__init__()
        self.raised = raised
        self.__cause__ = raised

    def __str__(self) -> str:
        return shown(self.raised)

    def __repr__(self) -> str:
        return f"ForeignError({self})"


def divided(
    error: BaseException, *, cancelled: bool, in_task: bool = True
) -> tuple[Exception | None, BaseException | None]:
    """What an error of foreign code comes to: the failure, and what has to go on; one may be None.

    ``in_task``: the code ran in a task of Trio; ``cancelled``: under a cancelled scope.
    What goes on, also out of groups:

    * ``trio.Cancelled`` when ``cancelled``;
    * what a signal handler of the program has raised, or Trio for Ctrl-C;
    * ``GeneratorExit`` outside of Trio's tasks, where abandoned coroutines are closed;
    * :class:`HarnessEnd`, and that by which pytest, while a test runs, and Hypothesis end a test.

    All else is a failure: an ``Exception`` as it is, anything else in a :class:`ForeignError`. So
    are ``StopIteration`` and ``StopAsyncIteration``, by which some loop of the caller would end.
    Raises nothing.
    """

    # A plain function: Python 3.11 splits groups by nothing else that can be called.
    def goes_on(one: BaseException) -> bool:
        kind = type(one)
        if issubclass(kind, Exception | BaseExceptionGroup):
            return False
        if issubclass(kind, trio.Cancelled):
            return cancelled
        if issubclass(kind, GeneratorExit):
            return not in_task
        return issubclass(kind, HarnessEnd) or _ends_test(kind) or _is_of_a_signal(one)

    if is_plain(type(error)):  # `isinstance` would ask the object for its class
        return cast("Exception", error), None
    try:
        if not issubclass(type(error), BaseExceptionGroup):
            return (None, error) if goes_on(error) else (ForeignError(error), None)
        group = cast("BaseExceptionGroup[BaseException]", error)
        # Not by the method of the object, which may be the foreign code's own.
        going_on, rest = BaseExceptionGroup.split(group, goes_on)
    except BaseException:  # of properties and methods of the error; groups nested too deep
        return ForeignError(error), None
    if rest is None or isinstance(rest, Exception):
        return rest, going_on
    return ForeignError(only_error(rest)), going_on


def is_plain(kind: type[BaseException]) -> bool:
    """Whether ``except Exception`` is all that errors of the class need."""
    return issubclass(kind, Exception) and not issubclass(kind, StopIteration | StopAsyncIteration)


def _ends_test(kind: type[BaseException]) -> bool:
    # Not imported: a program that has not loaded them is no test. One that has may be none either:
    # tools of agents that write code run snippets with `pytest.importorskip` in them.
    ends = _ENDS_OF_TESTS[_TEST_RUNS not in os.environ :]
    found = (getattr(sys.modules.get(module), name, None) for module, name in ends)
    return any(isinstance(end, type) and issubclass(kind, end) for end in found)


def shown(error: object) -> str:
    """``repr(error)``, or the name of its type when that fails."""
    try:
        return repr(error)
    except BaseException as worse:
        if divided(worse, cancelled=False)[1] is not None:
            raise
        return f"<{type(error).__name__} without a text>"


def _is_of_a_signal(error: BaseException) -> bool:
    """Whether a signal handler has raised it, or Trio has, to deliver Ctrl-C to the main task."""
    handlers = set(_code_of_handlers())
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code in handlers:
            return True
        trace = trace.tb_next
        if trace is None and issubclass(type(error), KeyboardInterrupt):
            return str(frame.f_globals.get("__name__")).startswith("trio._core.")
    return False


def _code_of_handlers() -> Iterator[CodeType]:
    """The code of each signal handler in force that is written in Python."""
    for number in signal.valid_signals():
        handler: object = signal.getsignal(number)
        while isinstance(handler, partial):
            handler = cast("partial[object]", handler).func
        code = getattr(handler, "__code__", None)
        if code is None and callable(handler):  # an object with the method
            code = getattr(handler.__call__, "__code__", None)
        if isinstance(code, CodeType):
            yield code


def is_a(value: object, kind: type[E]) -> TypeGuard[E]:
    """As ``isinstance``, which asks a value for its ``__class__``: that is code of others."""
    return issubclass(type(value), kind)
