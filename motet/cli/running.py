"""The connection to a server: that of an address, or the one that has a state directory open.

``motet serve`` leaves a file there, readable for its owner only and out of the reach of tools: the
address, and a token of an admin that is valid until that server ends.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import attrs
import msgspec
import trio

from motet.cli.setup import Setup
from motet.cli.stored import lock_owner
from motet.client import Client, connect
from motet.protocols.errors import MotetError, NotFound
from motet.runtime.errors import only_error

R = TypeVar("R")
FILE = "server.json"
PATIENCE = 15.0
"""Seconds that a server may take to answer a command."""
LOOK_EVERY = 1.0
"""Seconds between two looks at a server that a command waits for."""


class Running(msgspec.Struct, frozen=True):
    """A server. ``certificate``: file of its own, if it speaks TLS."""

    url: str
    token: str
    process: int
    certificate: str | None = None


@contextmanager
def announced(state: Path, url: str, token: str, certificate: str | None) -> Generator[None]:
    """Let commands find the server for the length of the block."""
    file, new = state / FILE, state / f"{FILE}.new"
    told = Running(url, token, os.getpid(), certificate)
    with suppress(FileNotFoundError):
        new.unlink()
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as out:
        out.write(msgspec.json.encode(told))
    new.replace(file)  # so that a reader never finds half of it
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            file.unlink()


def running(state: Path) -> Running | None:
    """The server that serves from a state directory now. A file left by a crash does not count."""
    owner = lock_owner(state)
    if owner is None:
        return None
    try:
        found = msgspec.json.decode((state / FILE).read_bytes(), type=Running)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return found if found.process == owner else None


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
                server.url, token=server.token, name="motet", tls=_tls(server)
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


def _tls(server: Running) -> ssl.SSLContext | None:
    """The certificate itself is pinned, whatever its host name."""
    if server.certificate is None:
        return None
    context = ssl.create_default_context(cafile=server.certificate)
    context.check_hostname = False
    return context


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
