"""The gateway: WebSocket protocol ``motet.v1`` and a little HTTP on one port.

Reading order: ``server`` (the actor, the port), ``connection`` (one client), ``methods`` (what
can be asked), ``streams`` with ``subscription`` and ``outbox`` (how events reach a client
without gap or duplicate, however slow it is).
"""

from motet.actors.gateway.auth import StaticTokens, TokenEntry, TokenStore, token_entry
from motet.actors.gateway.context import Settings
from motet.actors.gateway.server import Gateway, serve
from motet.actors.storage.tokens import digest, new_token

__all__ = [
    "Gateway",
    "Settings",
    "StaticTokens",
    "TokenEntry",
    "TokenStore",
    "digest",
    "new_token",
    "serve",
    "token_entry",
]
