"""Health checks and metrics over plain HTTP: ``/healthz``, ``/healthz/...`` and ``/metrics``.

Invariants: ``/healthz`` shows nobody more than version and instance, and never waits; ``/metrics``
is for admins, where there are tokens.
"""

from __future__ import annotations

import json
import logging
import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from motet.actors.gateway.context import Context
from motet.actors.gateway.http import Head, Response, plain, refused
from motet.actors.gateway.method import Refusal
from motet.protocols.admission import bearer, host_is_loopback
from motet.protocols.host import HostStatus
from motet.protocols.metrics import CONTENT_TYPE, GatewayCounts, exposition

logger = logging.getLogger(__name__)


def monitoring_pages(
    context: Context, head: Head, peer: str
) -> Mapping[str, Callable[[], Response]]:
    """The pages by their paths."""
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
    status = _status(context)
    if status is None:
        return _json(503, {"status": "failing"})
    if status.draining:
        return _json(503, {"status": "draining"})
    if status.storage:
        return _json(503, {"status": "storage_unavailable", "reason": status.storage})
    if context.is_full():
        return _json(503, {"status": "full"})
    return _json(200, {"status": "ok"})


def _resident() -> int:
    """Bytes; 0 where the system does not say."""
    try:
        pages = Path("/proc/self/statm").read_text("ascii").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * resource.getpagesize()


def _metrics(context: Context, head: Head, peer: str) -> Response:
    refusal = _not_an_admin(context, head, peer)
    if refusal is not None:
        return refusal
    status = _status(context)
    if status is None:
        return plain(503, "The host cannot tell its status.")
    counts = GatewayCounts(
        connections=len(context.connections),
        subscriptions=context.hub.watchers,
        evicted=context.counts.total["evicted"],
        failed=context.counts.total["failed"],
        refused_connects=context.counts.total["refused_connect"],
        gaps=context.hub.gaps,
        requests=context.counts.requests,
    )
    text = exposition(status, context.api.figures(), counts, time.process_time(), _resident())
    return Response(200, text, CONTENT_TYPE)


def _not_an_admin(context: Context, head: Head, peer: str) -> Response | None:
    """The refusal of a client that may not read the metrics; None: it may."""
    if not context.needs_token():
        if host_is_loopback(head.headers.get("host", "")):
            return None
        return plain(403, "Without a token this gateway is for localhost only.")
    try:
        identity = context.authenticate(bearer(head.headers), peer)
    except Refusal as refusal:
        return refused(refusal)
    if identity.principal.role != "admin":
        return plain(403, "Metrics are for the role admin.")
    return None
