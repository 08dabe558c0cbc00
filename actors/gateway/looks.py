"""What the port tells of itself over plain HTTP: whether it lives, is ready, and how it fares.

Invariants: ``/healthz`` tells nobody more than version and instance, and never waits; ``/metrics``
is for admins, as far as there are tokens.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping

from motet.actors.gateway.auth import bearer, host_is_loopback
from motet.actors.gateway.context import Context
from motet.actors.gateway.failures import Refusal
from motet.actors.gateway.http import Head, Response, plain
from motet.actors.gateway.metrics import CONTENT_TYPE, GatewayCounts, exposition
from motet.protocols.host import HostStatus

logger = logging.getLogger(__name__)


def looks(context: Context, head: Head, peer: str) -> Mapping[str, Callable[[], Response]]:
    """The answers by their paths."""
    return {
        "/healthz": lambda: _health(context),
        "/healthz/live": lambda: _json(200, {"status": "ok"}),
        "/healthz/ready": lambda: _ready(context),
        "/metrics": lambda: _metrics(context, head, peer),
    }


def _json(status: int, body: Mapping[str, object]) -> Response:
    return Response(status, json.dumps(body), "application/json")


def _status(context: Context) -> HostStatus | None:
    try:
        return context.api.status()
    except Exception:
        logger.exception("the host cannot tell its status")
        return None


def _health(context: Context) -> Response:
    status = _status(context)
    if status is None:
        return _json(503, {"status": "failing"})
    return _json(200, {"status": "ok", "version": status.version, "instance": status.instance})


def _ready(context: Context) -> Response:
    """Whether a new client would be served."""
    if _status(context) is None:
        return _json(503, {"status": "failing"})
    if context.websockets >= context.settings.limits.connections:
        return _json(503, {"status": "full"})
    return _json(200, {"status": "ok"})


def _metrics(context: Context, head: Head, peer: str) -> Response:
    refused = _not_an_admin(context, head, peer)
    if refused is not None:
        return refused
    status = _status(context)
    if status is None:
        return plain(503, "The host cannot tell its status.")
    counts = GatewayCounts(
        connections=len(context.connections),
        subscriptions=context.hub.watchers,
        evicted=context.evicted,
        failed=context.failed,
        refused_connects=context.refused_connects,
        gaps=context.hub.gaps,
        requests=context.requests,
    )
    return Response(200, exposition(status, counts), CONTENT_TYPE)


def _not_an_admin(context: Context, head: Head, peer: str) -> Response | None:
    """Why this client is not told the metrics, or None."""
    if not context.needs_token():
        if host_is_loopback(head.headers.get("host", "")):
            return None
        return plain(403, "Without a token this gateway is for localhost only.")
    if context.refused_for(peer) > 0:
        return plain(429, "Too many failed connects.")
    try:
        principal, _ = context.authenticate(bearer(head.headers), peer)
    except Refusal as refusal:
        return plain(401, str(refusal), ("www-authenticate", "Bearer"))
    if principal.role != "admin":
        return plain(403, "Metrics are for the role admin.")
    return None
