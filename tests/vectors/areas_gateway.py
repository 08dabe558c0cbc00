"""Frames of the gateway, and whom a token makes of its client."""

from __future__ import annotations

import json

import trio

from motet.actors.gateway.auth import StaticTokens, token_entry
from motet.actors.gateway.context import Context, Settings
from motet.actors.gateway.method import Refusal
from motet.actors.storage.tokens import digest
from motet.protocols import gateway as wire
from motet.protocols.chat import JsonObject
from tests.actors.gateway.fake_host import FakeHost
from tests.vectors.cases import Facts, Given, NotUnderstood


def frames(given: Given) -> Facts:
    """An answer on the wire, or the role of a client with these tokens at both ends."""
    if "ok_payload" in given:
        frame: JsonObject = json.loads(wire.encode(wire.ok("1", given.get("ok_payload"))))
        return frame
    if "server_token" in given:
        return trio.run(_role, given.text("server_token"), given.text("client_token"))
    raise NotUnderstood(str(given))


async def _role(server: str, client: str) -> Facts:
    """The one token of the seed's server was its admin's."""
    entries = (token_entry(_token(server), "user", "admin"),) if server else ()
    context = Context(FakeHost().api, Settings(tokens=StaticTokens(entries)))
    try:
        identity = context.authenticate(_token(client) if client else None, "here")
    except Refusal as refused:
        return {"role": "", "error": refused.code}
    return {"role": identity.principal.role}


def _token(text: str) -> str:
    """A token as they are here, for one of the seed's."""
    return f"mtt_{digest(text)[:32]}"
