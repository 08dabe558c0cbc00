"""The gateway: WebSocket protocol ``motet.v1`` and a little HTTP on one port.

Reading order: ``server`` (the actor, the port), ``connection`` (one client), ``methods`` (what
can be asked), ``streams`` with ``subscription`` and ``outbox`` (how events reach a client
without gap or duplicate, however slow it is).
"""

from motet.actors.gateway.auth import (
    StaticTokens,
    TokenEntry,
    TokenStore,
    digest,
    new_token,
    token_entry,
)
from motet.actors.gateway.command_answers import answer_command, stop_text
from motet.actors.gateway.commands import (
    COMMANDS,
    Command,
    help_text,
    message_text,
    parse_command,
)
from motet.actors.gateway.context import Settings
from motet.actors.gateway.server import Gateway, serve

__all__ = [
    "COMMANDS",
    "Command",
    "Gateway",
    "Settings",
    "StaticTokens",
    "TokenEntry",
    "TokenStore",
    "answer_command",
    "digest",
    "help_text",
    "message_text",
    "new_token",
    "parse_command",
    "serve",
    "stop_text",
    "token_entry",
]
