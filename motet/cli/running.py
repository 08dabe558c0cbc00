"""The connection to a server: that of an address, or the one that has a state directory open.

:mod:`motet.announced` has the file that ``motet serve`` leaves there, with its address and token.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import attrs
import trio

from motet.announced import lock_owner, running
from motet.cli.setup import Setup
from motet.client import Client, connect
from motet.protocols.errors import MotetError, NotFound
from motet.runtime.errors import only_error

R = TypeVar("R")
PATIENCE = 15.0
"""Seconds that a server may take to answer a command."""
LOOK_EVERY = 1.0
"""Seconds between two looks at a server that a command waits for."""


@asynccontextmanager
async def talking(state: Path, patience: float = PATIENCE) -> AsyncGenerator[Client]:
    """A client of the running server, for ``patience`` seconds.

    Raises ``NotFound`` when there is none, and ``MotetError`` as a client does.
    """
    server = running(state)
    if server is None:
        raise NotFound(_absent(state))
    try:
        with trio.fail_after(patience):
            async with connect(
                server.url, token=server.token, name="motet", tls=server.tls()
            ) as client:
                yield client
    except trio.TooSlowError:
        raise MotetError(f"the server at {server.url} does not answer") from None


@asynccontextmanager
async def while_it_runs(state: Path) -> AsyncGenerator[None]:
    """Leave the block with ``MotetError`` when the server of the state directory has ended."""
    server = running(state)

    async def watch() -> None:
        while server is not None and running(state) == server:
            await trio.sleep(LOOK_EVERY)
        raise MotetError("the server has ended; its next host resumes the stored work")

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            yield
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise only_error(group) from None


def _absent(state: Path) -> str:
    owner = lock_owner(state)
    if owner is None:
        return f"no server runs on {state}: start one with `motet serve`"
    return f"{state} is in use by process {owner or '(unknown)'}, which is no `motet serve`"


PAGE = 200
"""Entries that a server lists at once."""


@attrs.frozen
class Server:
    """A server: that of an address, or else the one that runs on the state of ``setup``."""

    setup: Setup | None = None
    url: str = ""
    token: str | None = None

    @asynccontextmanager
    async def client(self, patience: float = PATIENCE) -> AsyncGenerator[Client]:
        """A client, for ``patience`` seconds.

        Raises ``MotetError`` when there is no server, or when it does not answer in time.
        """
        if self.setup is not None:
            async with talking(self.setup.state, patience) as client:
                yield client
            return
        try:
            with trio.fail_after(patience):
                async with connect(self.url, token=self.token, name="motet") as client:
                    yield client
        except trio.TooSlowError:
            raise MotetError(f"the server at {self.url} does not answer") from None


def ask(server: Server, what: Callable[[Client], Awaitable[R]]) -> R:
    """The answer of the server. Raises ``MotetError``."""

    async def ask() -> R:
        async with server.client() as client:
            return await what(client)
        raise AssertionError("a client swallows nothing")

    return trio.run(ask)
