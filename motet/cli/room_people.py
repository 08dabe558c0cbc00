"""``motet rooms`` for those who run a community: people, invites, exports, deletion.

Each action goes through a server, as the user of the token, so that the room's own table of rights
decides; what it has done is printed in a sentence, or as JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TypeVar

from motet.cli.errors import clock_time
from motet.cli.exits import OK
from motet.cli.render import in_json, one_line, visible
from motet.cli.rooms import named_room
from motet.cli.running import Server, ask
from motet.cli.screen import console
from motet.cli.sessions import exported, rules_of
from motet.client import Client
from motet.protocols.command_texts import invite_text, people_text, summary_text
from motet.protocols.errors import ConfigError, InputValidation
from motet.protocols.host_rooms import RoomExport
from motet.protocols.room_acts import WORDS, RoomAct, act_of, invited_as
from motet.protocols.room_invites import (
    RoomInvite,
)
from motet.protocols.room_newcomers import Summary
from motet.runtime.outside import wall_time

T = TypeVar("T")


def administer(
    server: Server,
    action: str,
    room: str,
    words: Sequence[str],
    *,
    json: bool,
    redacted: bool = False,
) -> int:
    """Carry out one action. Raises ``ConfigError`` for words that are none of it, and what the
    server answers. ``redacted``: an export without secrets.
    """
    if action == "join" and not room:
        raise ConfigError("with which invite? motet rooms join mti_...")
    name, rest = named_room(room), " ".join(words)
    if action in WORDS:
        act = _typed(lambda: act_of(action, name, rest))
        return _act(server, act, json=json)
    match action:
        case "people":
            found = ask(server, lambda client: client.room_people(name))
            _print(found, visible(people_text(found)), json=json)
        case "summary":
            brief = ask(server, lambda client: client.room_summary(name))
            _print(brief, visible(summary_text(Summary(brief.upto, brief.text))), json=json)
        case "invite":
            role, expires, uses = _typed(lambda: invited_as(rest, wall_time()))
            made = ask(server, lambda client: client.invite(name, role, expires=expires, uses=uses))
            _print(made, invite_text(made), json=json)
        case "invites":
            _print_invites(ask(server, lambda client: client.invites(name)), json=json)
        case "revoke":
            if not rest:
                raise ConfigError("which invite? motet rooms invites NAME lists them")
            ask(server, lambda client: client.revoke_invite(name, rest))
            print(f"the invite {rest} is revoked", file=sys.stderr)
        case "join":
            info = ask(server, lambda client: client.join(name))
            _print(info, info.name, json=json)
        case "export":
            with rules_of(server.setup) if redacted and server.setup else nullcontext():
                _export(server, name, redacted=redacted)
        case "delete":
            if rest != name:
                raise ConfigError(f"to delete it and all in it: motet rooms delete {name} {name}")
            ask(server, lambda client: client.delete_room(name))
            print(f"the room {name} is deleted", file=sys.stderr)
        case _:
            raise ConfigError(f"{action!r} is no action on rooms")
    return OK


def _typed(read: Callable[[], T]) -> T:
    """What was typed; a mistake in it is one of the command line."""
    try:
        return read()
    except InputValidation as error:
        raise ConfigError(str(error)) from None


def _act(server: Server, act: RoomAct, *, json: bool) -> int:
    found = ask(server, lambda client: client.manage_room(act))
    text = people_text(found) if found.role is not None else f"you have left {found.room}"
    _print(found, visible(text), json=json)
    return OK


def _print(found: object, text: str, *, json: bool) -> None:
    print(in_json(found) if json else text)


def _print_invites(found: tuple[RoomInvite, ...], *, json: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    if json:
        print(in_json(found))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("invite", "role", "by", "made", "ends", "uses left"):
        table.add_column(heading, overflow="fold")
    for one in found:
        ends = "never" if one.expires is None else clock_time(one.expires)[:16]
        uses = "any" if one.uses is None else str(one.uses)
        words = (one.id, one.role, one.by, clock_time(one.created)[:16], ends, uses)
        table.add_row(*(Text(one_line(word)) for word in words))
    console(sys.stdout).print(table)


def _export(server: Server, room: str, *, redacted: bool) -> None:
    """Print the room as JSON lines: the room with its people first, then each message.

    ``redacted``: without secrets. The masks have the tags that they have in the errors of the same
    state; those of a server elsewhere, whose key stays there, have tags of this export.
    """

    async def read(client: Client) -> None:
        after: int | None = 0
        while after is not None:
            part: RoomExport = await client.export_room(room, after=after)
            if after == 0:
                head = {"room": part.room, "owner": part.owner, "terms": part.terms}
                print(exported(head | {"people": part.people}, redacted=redacted))
            for message in part.messages:
                print(exported(message, redacted=redacted))
            after = part.next

    ask(server, read)
