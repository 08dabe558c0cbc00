"""The paths of the edges: dispatch of a request, and the answer to one that fails."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import unquote

import attrs
import h11
import msgspec
import trio

from motet.actors.gateway.context import Context
from motet.actors.gateway.edges.agui import run_agent
from motet.actors.gateway.edges.exchange import (
    ClientGone,
    Exchange,
    Fault,
    cors,
    fault_of,
    identify,
)
from motet.actors.gateway.edges.openai import complete, models
from motet.actors.gateway.http import BadRequest, Head, HttpConnection, Response
from motet.protocols.admission import Place, origin_allowed
from motet.protocols.sessions import Role


@attrs.frozen
class Route:
    """``open``: more of the path may follow, as ``Exchange.tail``."""

    path: str
    method: str
    role: Role
    handle: Callable[[Exchange], Awaitable[bool]]
    open: bool = False


ROUTES: Final = (
    Route("/v1/chat/completions", "POST", "operator", complete),
    Route("/v1/models", "GET", "viewer", models),
    Route("/v1/ag-ui", "POST", "operator", run_agent, open=True),
)
_ALLOWED: Final = "authorization, content-type, idempotency-key, x-session, x-as-user"
_NAMES: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+(\s*,\s*[!#$%&'*+.^_`|~0-9A-Za-z-]+)*")
_MOST_NAMES: Final = 4_096


def route_of(head: Head) -> tuple[Route, str] | None:
    """The edge of a request, and the rest of the path; None: it is for no edge."""
    for route in ROUTES:
        if head.path == route.path:
            return route, ""
        if route.open and head.path.startswith(f"{route.path}/"):
            return route, unquote(head.path.removeprefix(f"{route.path}/"))
    return None


async def serve_edge(
    context: Context, http: HttpConnection, head: Head, place: Place, found: tuple[Route, str]
) -> bool:
    """Answer a request to an edge; true: another may follow on its connection.

    Raises ``trio.BrokenResourceError`` when the client is gone.
    """
    route, tail = found
    origin = head.headers.get("origin")
    host, origins = head.headers.get("host", ""), context.settings.allowed_origins
    allowed = origin is not None and origin_allowed(origin, host, origins)
    shared = cors(origin) if origin is not None and allowed else ()
    if head.method == "OPTIONS" and allowed:
        return await http.respond(_preflight(head, route, shared))
    exchange: Exchange | None = None
    try:
        if head.method != route.method and (head.method, route.method) != ("HEAD", "GET"):
            raise Fault(405, "invalid_params", f"{route.path} takes {route.method} only.")
        exchange = Exchange(context, http, head, identify(context, head, place, route.role), tail)
        alive = await _counted(exchange, route)
        context.counts.requests[route.path, "ok"] += 1
        return alive
    except (ClientGone, trio.BrokenResourceError):
        raise trio.BrokenResourceError("the client is gone") from None
    except BadRequest as error:
        fault = Fault(error.response.status, "invalid_params", str(error))
    except Exception as error:
        fault = fault_of(error)
    context.counts.requests[route.path, fault.code] += 1
    if exchange is None or not exchange.begun:
        allow = (("allow", f"{route.method}, OPTIONS"),) if fault.status == 405 else ()
        return await http.respond(fault.response(*shared, *allow))
    with trio.fail_after(context.settings.limits.send_timeout_ms / 1000):
        await http.send(h11.Data(data=b"data: " + msgspec.json.encode(fault.answer) + b"\n\n"))
        return await http.finish()


async def _counted(exchange: Exchange, route: Route) -> bool:
    context, user = exchange.context, exchange.identity.bearer.user
    context.add_connection(user)
    context.connections.add(exchange)
    try:
        with context.counts.opened("edge"):
            return await route.handle(exchange)
    finally:
        context.connections.discard(exchange)
        context.remove_connection(user)


def _preflight(head: Head, route: Route, shared: tuple[tuple[str, str], ...]) -> Response:
    """Let a page of an allowed origin send its headers: SDKs add a dozen of their own."""
    wanted = head.headers.get("access-control-request-headers", "")
    more = f", {wanted}" if len(wanted) <= _MOST_NAMES and _NAMES.fullmatch(wanted) else ""
    return Response(
        200,
        headers=(
            *shared,
            ("access-control-allow-methods", route.method),
            ("access-control-allow-headers", _ALLOWED + more),
            ("access-control-max-age", "600"),
        ),
    )
