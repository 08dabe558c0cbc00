"""A module that keeps things where no simulated world can forget them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

CACHE: dict[str, list[int]] = {}


class Counter:
    """A count in the class, and fields in an object."""

    made = 0

    def __init__(self) -> None:
        self.pages: list[str] = []


class Opaque:
    """An object without fields."""


book = Counter()


@cache
def cached(number: int) -> int:
    return number


def default(more: list[int] = []) -> list[int]:  # noqa: B006 (the fault)
    more.append(1)
    return more


def _counting() -> Callable[[], None]:
    count: list[int] = []

    def closed() -> None:
        count.append(1)

    closed.__module__ = __name__
    return closed


closed = _counting()


def scribble() -> None:
    """Change all of them."""
    CACHE["a"] = [1]
    Counter.made += 1
    book.pages.append("x")
    cached(1)
    default()
    closed()


def erase() -> None:
    """Undo it."""
    CACHE.clear()
    Counter.made = 0
    book.pages.clear()
    cached.cache_clear()
    for held in default.__defaults__ or ():
        held.clear()
    for cell in closed.__closure__ or ():
        cell.cell_contents.clear()
