"""Cancel scopes and nurseries of Trio, used in ways that Trio has no function for."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from types import TracebackType
from typing import NoReturn, ParamSpec, TypeVar, cast

import trio

from motet.runtime.errors import ActorDead, only_error

__all__ = ["cancel_at", "only_in_a_block", "open_hidden_nursery", "shielded_close"]

P = ParamSpec("P")
T = TypeVar("T")


def cancel_at(scope: trio.CancelScope, when: float) -> None:
    """Cancel ``scope`` at ``when``, or earlier if that was ordered before."""
    # A deadline that has passed would take effect at Trio's next look at the clock only. `cancel`
    # reaches the tasks in this step, so that they cannot begin anything in between.
    if when <= trio.current_time():
        scope.cancel()
    elif when < scope.deadline:
        scope.deadline = when


class _Unentered(AbstractAsyncContextManager[T]):
    """A block before ``async with``: its attributes are errors that say so."""

    def __init__(self, block: AbstractAsyncContextManager[T, bool | None], name: str) -> None:
        self._block = block
        self._name = name

    async def __aenter__(self) -> T:
        return await self._block.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._block.__aexit__(kind, error, traceback)

    def __getattr__(self, attribute: str) -> NoReturn:
        raise AttributeError(
            f"{self._name}() is not open yet, so it has no {attribute!r}: "
            f"use `async with {self._name}(...) as it:`, and it.{attribute} in that block",
            name=attribute,
            obj=self,
        )

    def __aiter__(self) -> NoReturn:
        raise TypeError(
            f"{self._name}() is a block, not an iterator: "
            f"use `async with {self._name}(...) as it:`, and `async for ... in it` in that block"
        )

    def __await__(self) -> NoReturn:
        raise TypeError(
            f"{self._name}() is a block, and is not awaited: "
            f"use `async with {self._name}(...) as it:`"
        )


def only_in_a_block(
    opening: Callable[P, AsyncGenerator[T]], name: str | None = None
) -> Callable[P, AbstractAsyncContextManager[T]]:
    """As ``asynccontextmanager``, for public blocks: to use one before it is entered names it.

    Without this, the call of a method of what the block yields is an AttributeError that names a
    class of the standard library, and iteration a TypeError. ``name``: that of the public method,
    if ``opening`` has another.
    """
    made = asynccontextmanager(opening)
    called = opening.__name__ if name is None else name

    @wraps(opening)
    def unentered(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[T]:
        return _Unentered(made(*args, **kwargs), called)

    return unentered


@asynccontextmanager
async def shielded_close() -> AsyncGenerator[trio.CancelScope]:
    """Let a closing handshake finish despite cancellation.

    ``async with shielded_close() as scope``: the block is shielded, and a cancellation from outside
    cancels the yielded scope instead. So the conversation goes inside of ``with scope:``, and the
    handshake after it, in the same block. The handshake must have a deadline of its own, since
    nothing else ends it. After the block the cancellation goes on.
    """
    scope = trio.CancelScope()

    async def pass_on() -> None:
        # Beside the shield and not inside of it: this task is the one that the outer cancellation
        # reaches.
        try:
            await trio.sleep_forever()
        finally:
            scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pass_on)
        with trio.CancelScope(shield=True):
            yield scope
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_hidden_nursery() -> AsyncGenerator[trio.Nursery]:
    """A nursery around a block of the user, who need not know of it.

    An error of the block leaves it as it was raised: the same object, with its context and cause,
    a group as a group. A single error of the nursery's tasks comes without the nursery's group.
    So does a Ctrl-C that hits one of them, for which the block knows only that actors are dead.
    """
    body: BaseException | None = None
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            except BaseException as error:
                body = error
                raise
    except BaseExceptionGroup as group:
        failure = _of_block(group, body)
    try:
        if failure is not None:
            raise failure  # not in the handler, which would change its context
    finally:
        del body, failure  # their tracebacks have this frame


def _of_block(
    group: BaseExceptionGroup[BaseException], body: BaseException | None
) -> BaseException:
    """The error of a block, by the group of its nursery and the error of its body.

    Trio takes its own ``Cancelled`` out of the group of a cancelled nursery, and copies the groups
    inside, even when there is none. So the groups are compared by their leaves.
    """
    if isinstance(body, BaseExceptionGroup) and len(group.exceptions) == 1:
        (only,) = group.exceptions
        own = cast("BaseException", body)
        return own if [*map(id, _leaves(only))] == [*map(id, _leaves(own))] else only
    pressed, others = group.split(KeyboardInterrupt)
    if pressed is not None and (others is None or others.split(ActorDead)[1] is None):
        return next(_leaves(pressed))  # it may be pressed twice
    return only_error(group)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions in nested groups, in order."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)  # isinstance loses its parameter
        for one in group.exceptions:
            yield from _leaves(one)
    else:
        yield error
