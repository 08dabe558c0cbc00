"""``motet token``: tokens of the gateway's users: made, listed and revoked, whether it runs or not.

A running server notices a new or a revoked one within 20 seconds.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TypeVar

import trio

from motet.actors.storage.location import Location
from motet.actors.storage.readers import Readers
from motet.actors.storage.tokens import TokenBook
from motet.actors.storage.writer import Writer
from motet.announced import lock_owner
from motet.cli.exits import OK
from motet.cli.render import in_json
from motet.cli.screen import console
from motet.cli.setup import Setup
from motet.cli.stored import reading, writing_together
from motet.protocols.errors import InputValidation
from motet.protocols.sessions import Role
from motet.protocols.tokens import NewToken, TokenInfo

T = TypeVar("T")

_SECONDS = {"m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def new_token(
    setup: Setup,
    user: str,
    role: Role,
    label: str,
    expires: str | None,
    *,
    impersonate: bool,
    json: bool,
) -> int:
    """Make one and print it on stdout, this once and never again."""
    if not user:
        raise InputValidation("whose token? `motet token new USER`")
    until = None if expires is None else _end(expires, time.time())

    async def make(book: TokenBook) -> NewToken:
        return await book.add(user, role, label=label, expires=until, impersonate=impersonate)

    made = _with_book(setup, make)
    if json:
        print(in_json(made))
    else:
        print(made.token)
        print(f"{made.info.id} of {user}, {role}: it is shown only now", file=sys.stderr)
    return OK


def list_tokens(setup: Setup, *, json: bool) -> int:
    """Print the tokens without their secrets, the revoked included."""
    found = _with_book(setup, TokenBook.tokens)
    if json:
        print(in_json(found))
    elif found:
        _print_table(found)
    else:
        print("no tokens are stored: `motet token new USER` makes one", file=sys.stderr)
    return OK


def revoke(setup: Setup, token_id: str) -> int:
    """End one for good."""
    ended = _with_book(setup, lambda book: book.revoke(token_id))
    print(f"{ended.id} of {ended.user} is revoked")
    return OK


def _with_book(setup: Setup, work: Callable[[TokenBook], Coroutine[object, object, T]]) -> T:
    async def run() -> T:
        async with _book(setup) as book:
            return await work(book)

    return trio.run(run)


@asynccontextmanager
async def _book(setup: Setup) -> AsyncGenerator[TokenBook]:
    """The tokens of a state directory, also while a host has it open."""
    state = setup.state
    if lock_owner(state) is not None:
        async with writing_together(state) as transact, reading(state) as readers:
            yield TokenBook(transact, readers)
        return
    with Location.directory(state) as location:
        writer, readers = Writer(location), Readers(location)
        await writer.open()
        try:
            yield TokenBook(writer.submit, readers)
        finally:
            # Awaits while being cancelled: the database has to be closed.
            with trio.CancelScope(shield=True):
                await readers.aclose()
                await writer.aclose()


def _print_table(found: tuple[TokenInfo, ...]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title in ("id", "user", "role", "made", "state", "label"):
        table.add_column(title, no_wrap=title != "label")
    for one in found:
        role = f"{one.role}, bridge" if one.impersonate else one.role
        made = time.strftime("%Y-%m-%d", time.localtime(one.created))
        table.add_row(one.id, Text(one.user), role, made, _state(one), Text(one.label))
    console(sys.stdout).print(table)


def _end(text: str, now: float) -> float:
    """Unix seconds: ``12h``, ``30d`` from now, or an ISO date. Raises ``InputValidation``."""
    found = re.fullmatch(r"([1-9]\d{0,5})([mhdw])", text)
    if found is not None:
        return now + int(found[1]) * _SECONDS[found[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise InputValidation(f"--expires {text!r}: give 12h, 30d or 2027-01-31") from None


def _state(one: TokenInfo) -> str:
    if one.revoked is not None:
        return "revoked"
    if one.expires is None:
        return "good"
    day = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.expires))
    return f"{'ended' if one.expires <= time.time() else 'until'} {day}"
