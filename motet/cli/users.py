"""``motet users``: the deletion of a user, through the server that runs, or without one.

Both do the same: see :func:`motet.protocols.users.delete_user`.
"""

from __future__ import annotations

import sys

import msgspec
import trio

from motet.actors.host import open_host
from motet.announced import lock_owner
from motet.cli.exits import OK, USAGE
from motet.cli.render import in_json, one_line
from motet.cli.running import talking
from motet.cli.setup import Setup
from motet.cli.stored import database_file
from motet.protocols.errors import ConfigError, NotFound
from motet.protocols.users import DELETE, TRANSFER, UserDeleted

PATIENCE = 3_600.0
"""Seconds that a server may take, whose rooms are looked through one by one."""


def delete_user(setup: Setup, user: str, rooms: str | None, *, sure: bool, json: bool) -> int:
    """Delete a user, if that is confirmed. Raises ``NotFound``, ``InputValidation``."""
    if not user:
        raise ConfigError("whom? `motet users delete NAME`; `motet token list` names some")
    if not sure and not _agrees(user, rooms):
        print("nothing was deleted", file=sys.stderr)
        return USAGE
    done = trio.run(_delete, setup, user, rooms)
    if json:
        print(in_json(done))
        return OK
    what = "given away" if rooms and rooms.startswith(TRANSFER) else "deleted"
    print(
        f"deleted {one_line(user)}: {done.tokens} tokens, {done.sessions} sessions,"
        f" {done.messages} messages in rooms of others; {len(done.rooms)} rooms {what}."
        " Files in the workspace stay."
    )
    return OK


def _agrees(user: str, rooms: str | None) -> bool:
    if not sys.stdin.isatty():
        raise ConfigError("deleting cannot be undone: say --yes if you are sure")
    own = " and rooms" * (rooms == DELETE)
    answer = input(f"Delete {one_line(user)} for ever, with all sessions{own}? [y/N] ")
    return answer.strip().lower() in ("y", "yes")


async def _delete(setup: Setup, user: str, rooms: str | None) -> UserDeleted:
    if lock_owner(setup.state) is not None:
        async with talking(setup.state, PATIENCE) as client:
            found = await client.call("users.delete", user=user, rooms=rooms)
            return msgspec.convert(found, UserDeleted)
    if not database_file(setup.state).is_file():
        raise NotFound(f"there is nothing stored in {setup.state} yet: no host has used it")
    async with open_host(setup.state, config=setup.config, agents=setup.agents()) as host:
        return await host.delete_user(user, rooms=rooms)
    raise AssertionError("a host swallows nothing")
