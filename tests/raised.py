"""Exceptions of all shapes, for blocks that have to let them through unchanged."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final, TypeAlias, cast

State: TypeAlias = tuple[int, BaseException | None, BaseException | None, bool, object]


def alone() -> None:
    raise ValueError("alone")


def with_a_context() -> None:
    try:
        raise KeyError("first")
    except KeyError:
        raise ValueError("second")  # noqa: B904 (its context is the point)


def with_a_cause() -> None:
    raise ValueError("second") from KeyError("cause")


def without_its_context() -> None:
    try:
        raise KeyError("first")
    except KeyError:
        raise ValueError("second") from None


def group_of_one() -> None:
    raise ExceptionGroup("one", [ValueError("only")])


def nested_groups_of_one() -> None:
    raise ExceptionGroup("outer", [ExceptionGroup("inner", [ValueError("only")])])


def group_of_two() -> None:
    raise ExceptionGroup("two", [ValueError("a"), KeyError("b")])


def interrupt() -> None:
    raise KeyboardInterrupt


def group_with_an_interrupt() -> None:
    raise BaseExceptionGroup("one", [KeyboardInterrupt()])


RAISERS: Final[tuple[Callable[[], None], ...]] = (
    alone,
    with_a_context,
    with_a_cause,
    without_its_context,
    group_of_one,
    nested_groups_of_one,
    group_of_two,
    interrupt,
    group_with_an_interrupt,
)


def state_of(error: BaseException) -> State:
    """The exception, and all of it that a block could change."""
    about = error.__context__, error.__cause__, error.__suppress_context__
    if not isinstance(error, BaseExceptionGroup):
        return id(error), *about, ()
    group = cast("BaseExceptionGroup[BaseException]", error)
    return id(group), *about, group.exceptions


@contextmanager
def caught(states: list[State]) -> Generator[None]:
    """Note the state of an exception that passes."""
    try:
        yield
    except BaseException as error:
        states.append(state_of(error))
        raise
