"""Session keys: ``agent:<agent>:<channel>:<kind>:<chat>``, and what can be read from one.

Invariants: different chats have different keys, whatever their names hold, since ``:`` and ``%``
are escaped in each part; :func:`parse_key` gives back what a key was made of. Any other text may
be a session key too; nothing is read from it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, TypeAlias

import msgspec

from motet.protocols.agents import PromptMode
from motet.protocols.errors import NotFound

ChatKind: TypeAlias = Literal["direct", "group"]
Scope: TypeAlias = Literal["per-sender", "global"]
DmScope: TypeAlias = Literal["main", "per-peer", "per-channel-peer", "per-account-channel-peer"]

GLOBAL = "global"
MAIN = "main"
SUB_AGENT = "subagent"
CRON = "cron"
ROOM_CHANNEL = "room"
"""The channel of sessions of room members. A room decides who speaks: senders do not queue."""
HOST_USER = "host"
"""The user of what the host does by itself."""


def is_internal(user: str) -> bool:
    """Whether a name is one of the host's own users: itself, and the members of a room.

    Nobody gets such a name from outside: they would have the rights of the room's agents. A program
    that embeds a host may use it: it has all rights in any case.
    """
    return user == HOST_USER or user.startswith(f"{ROOM_CHANNEL}:")


class Chat(msgspec.Struct, frozen=True, kw_only=True):
    """Where an agent is talked with. ``account``: of the agent, on a channel where it has several.

    ``topic`` is a part of a group, ``thread`` a part of a direct chat.
    """

    agent: str
    channel: str
    kind: ChatKind
    chat: str
    topic: str = ""
    thread: str = ""
    account: str = ""


def session_key(
    chat: Chat,
    *,
    scope: Scope = "per-sender",
    dm_scope: DmScope = "per-channel-peer",
    main: str = MAIN,
) -> str:
    """The session of a chat.

    ``scope`` global: one for everything. ``dm_scope``: what direct chats have in common:
    everything (the session called ``main``), the peer on all channels, or nothing.
    """
    if scope == "global":
        return GLOBAL
    if chat.kind == "group":
        return _joined(chat.agent, chat.channel, "group", chat.chat, *_tail("topic", chat.topic))
    tail = _tail("thread", chat.thread)
    match dm_scope:
        case "main":
            return _joined(chat.agent, main)
        case "per-peer":
            return _joined(chat.agent, "direct", chat.chat, *tail)
        case "per-account-channel-peer" if chat.account:
            return _joined(chat.agent, chat.channel, chat.account, "direct", chat.chat, *tail)
        case _:
            return _joined(chat.agent, chat.channel, "direct", chat.chat, *tail)


def thread_of(room: str) -> tuple[str, int]:
    """The room of a thread, which is named ``ROOM/NUMBER``, and the number; 0: it is no thread."""
    home, _, number = room.partition("/")
    return home, int(number) if number.isdecimal() else 0


def cron_key(agent: str, job: str) -> str:
    """The session of a scheduled job: all its runs share one history."""
    return _joined(agent, CRON, job)


def sub_agent_key(agent: str, label: str) -> str:
    """The session of a sub-agent."""
    return _joined(agent, SUB_AGENT, label)


def split_key(key: str) -> tuple[str, str]:
    """The agent of a key and the rest as it stands; two empty texts for any other session."""
    mark, _, rest = key.partition(":")
    agent, colon, rest = rest.partition(":")
    return (_read(agent), rest) if mark == "agent" and colon else ("", "")


@lru_cache(maxsize=1024)
def parse_key(key: str) -> Chat | None:
    """The chat of a key that names its channel and chat; None for any other session."""
    if not key.startswith("agent:"):
        return None
    agent, rest = split_key(key)
    match [_read(part) for part in rest.split(":")]:
        case [channel, "group", chat]:
            return Chat(agent=agent, channel=channel, kind="group", chat=chat)
        case [channel, "group", chat, "topic", topic]:
            return Chat(agent=agent, channel=channel, kind="group", chat=chat, topic=topic)
        case [channel, "direct", chat]:
            return _direct(agent, channel, "", chat, "")
        case [channel, "direct", chat, "thread", thread]:
            return _direct(agent, channel, "", chat, thread)
        case [channel, account, "direct", chat]:
            return _direct(agent, channel, account, chat, "")
        case [channel, account, "direct", chat, "thread", thread]:
            return _direct(agent, channel, account, chat, thread)
        case _:
            return None


def _direct(agent: str, channel: str, account: str, chat: str, thread: str) -> Chat:
    return Chat(
        agent=agent, channel=channel, account=account, kind="direct", chat=chat, thread=thread
    )


def is_sub_agent(key: str) -> bool:
    return _marked(key, SUB_AGENT)


def is_cron(key: str) -> bool:
    return _marked(key, CRON)


def prompt_mode(key: str) -> PromptMode:
    """The mode that a session's key asks for."""
    if not key.startswith("agent:"):
        return "full"
    return "minimal" if is_sub_agent(key) or is_cron(key) else "full"


def is_chat(key: str) -> bool:
    """Whether the inputs of a session come over a channel."""
    chat = parse_key(key)
    return chat is not None and chat.channel != ROOM_CHANNEL


def is_of_room(key: str) -> bool:
    """Whether it is the session of a member of a room."""
    chat = parse_key(key)
    return chat is not None and chat.channel == ROOM_CHANNEL


def member_at(key: str) -> tuple[str, str] | None:
    """The room and the name of the member whose session it is."""
    chat = parse_key(key) if is_of_room(key) else None
    return (chat.chat, chat.agent) if chat is not None else None


def is_group(key: str) -> bool:
    """Whether several people talk with an agent in a session, over a channel."""
    chat = parse_key(key)
    return chat is not None and chat.kind == "group" and chat.channel != ROOM_CHANNEL


def is_shared(key: str) -> bool:
    """Whether several people's inputs come to a session: of a group, or of a room's member."""
    chat = parse_key(key)
    return chat is not None and chat.kind == "group"


def check_session(session: str, user: str) -> None:
    """Raises ``NotFound`` for a room's session, unless ``user`` stands for that room's members."""
    chat = parse_key(session)
    room = "" if chat is None else thread_of(chat.chat)[0]
    if chat is not None and chat.channel == ROOM_CHANNEL and user != f"{ROOM_CHANNEL}:{room}":
        raise NotFound(f"no session {session!r}")


def chat_user(key: str, sender: str) -> str:
    """Whose files a session works with: those of its sender, in a group those of the group."""
    chat = parse_key(key)
    if chat is None or chat.kind == "direct":
        return sender
    place = thread_of(chat.chat)[0] if chat.channel == ROOM_CHANNEL else chat.chat
    return f"group:{chat.channel}:{place}"


def _marked(key: str, mark: str) -> bool:
    rest = split_key(key)[1] if key.startswith("agent:") else ""
    return rest[: len(mark) + 1].lower() == f"{mark}:"


def _joined(*parts: str) -> str:
    return ":".join(["agent", *map(_written, parts)])


def _tail(name: str, value: str) -> tuple[str, ...]:
    return (name, value) if value else ()


def _written(part: str) -> str:
    return part.replace("%", "%25").replace(":", "%3a")


def _read(part: str) -> str:
    return part.replace("%3a", ":").replace("%25", "%") if "%" in part else part
