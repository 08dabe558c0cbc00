"""Health checks and metrics over plain HTTP: ``/healthz``, ``/healthz/...`` and ``/metrics``.

The text format of Prometheus is written by hand: the usual client library keeps its figures in
globals of the process, where two hosts would mix theirs, and takes locks that one thread does not
need. Invariants: ``/healthz`` shows nobody more than version and instance, and never waits;
``/metrics`` is for admins, where there are tokens, and has no name of a user, session or run.
"""

from __future__ import annotations

import json
import logging
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, Literal, TypeAlias

import attrs

from motet.actors.gateway.auth import bearer, host_is_loopback
from motet.actors.gateway.context import Context
from motet.actors.gateway.http import Head, Response, plain
from motet.actors.gateway.method import Refusal
from motet.protocols.host import HostStatus

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
Kind: TypeAlias = Literal["gauge", "counter"]
Labels: TypeAlias = Mapping[str, str]
logger = logging.getLogger(__name__)


@attrs.frozen
class GatewayCounts:
    """``requests``: how often each method ended with each code; ``ok`` is one."""

    connections: int
    subscriptions: int
    evicted: int
    failed: int
    refused_connects: int
    gaps: int
    requests: Mapping[tuple[str, str], int]


@attrs.frozen
class Metric:
    name: str
    kind: Kind
    help: str
    values: tuple[tuple[Labels, float], ...]


def exposition(status: HostStatus, counts: GatewayCounts) -> str:
    """The metrics as one text."""
    metrics = (*_host(status), *_gateway(counts), *_process())
    return "".join(line + "\n" for metric in metrics for line in _lines(metric))


def _one(name: str, kind: Kind, text: str, value: float, **labels: str) -> Metric:
    return Metric(name, kind, text, ((labels, value),))


def _host(status: HostStatus) -> Iterable[Metric]:
    version = status.version
    return (
        _one("motet_info", "gauge", "The version that runs.", 1, version=version),
        _one("motet_start_time_seconds", "gauge", "When the host began.", status.started),
        _one("motet_agents", "gauge", "Agents known by name.", status.agents),
        _one("motet_sessions_live", "gauge", "Sessions in memory.", status.live_sessions),
        Metric(
            "motet_runs",
            "gauge",
            "Runs that have not ended.",
            (({"state": "running"}, status.running), ({"state": "queued"}, status.queued)),
        ),
        _one(
            "motet_storage_available",
            "gauge",
            "0 while nothing can be stored.",
            float(not status.storage),
        ),
        _one(
            "motet_unsaved_ends",
            "gauge",
            "Ends of runs that are not on disk yet.",
            status.unsaved_ends,
        ),
        _one(
            "motet_events_dropped_total",
            "counter",
            "Events that a slow or missing reader did not get.",
            status.dropped_events,
        ),
    )


def _gateway(counts: GatewayCounts) -> Iterable[Metric]:
    requests = tuple(
        ({"method": method, "code": code}, float(number))
        for (method, code), number in sorted(counts.requests.items())
    )
    figures: tuple[tuple[str, Kind, str, float], ...] = (
        ("connections", "gauge", "Clients that are connected.", counts.connections),
        ("subscriptions", "gauge", "Streams that they hear.", counts.subscriptions),
        ("evicted_total", "counter", "Clients cut off: they took nothing.", counts.evicted),
        ("failed_total", "counter", "Connections ended by a fault of the host.", counts.failed),
        (
            "refused_connects_total",
            "counter",
            "Connects with a wrong token.",
            counts.refused_connects,
        ),
        ("gaps_total", "counter", "Streams on which a client fell behind.", counts.gaps),
    )
    metrics = (_one(f"motet_gateway_{name}", kind, text, n) for name, kind, text, n in figures)
    help_text = "Requests that were answered."
    return (*metrics, Metric("motet_gateway_requests_total", "counter", help_text, requests))


def _process() -> Iterable[Metric]:
    memory = _resident()
    return (
        _one("process_cpu_seconds_total", "counter", "User and system time.", time.process_time()),
        *(
            (_one("process_resident_memory_bytes", "gauge", "Memory in use.", memory),)
            if memory
            else ()
        ),
    )


def _resident() -> int:
    """Bytes; 0 where the system does not say."""
    try:
        pages = Path("/proc/self/statm").read_text("ascii").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * resource.getpagesize()


def _lines(metric: Metric) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.help}"
    yield f"# TYPE {metric.name} {metric.kind}"
    for labels, value in metric.values:
        shown = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
        yield (
            f"{metric.name}{{{shown}}} {_number(value)}"
            if shown
            else (f"{metric.name} {_number(value)}")
        )


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


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
    if status.storage:
        return _json(503, {"status": "storage_unavailable", "reason": status.storage})
    if context.counts.open["websocket"] >= context.settings.limits.connections:
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
        evicted=context.counts.total["evicted"],
        failed=context.counts.total["failed"],
        refused_connects=context.counts.total["refused_connect"],
        gaps=context.hub.gaps,
        requests=context.counts.requests,
    )
    return Response(200, exposition(status, counts), CONTENT_TYPE)


def _not_an_admin(context: Context, head: Head, peer: str) -> Response | None:
    """The refusal of a client that may not read the metrics; None: it may."""
    if not context.needs_token():
        if host_is_loopback(head.headers.get("host", "")):
            return None
        return plain(403, "Without a token this gateway is for localhost only.")
    if context.refused_for(peer) > 0:
        return plain(429, "Too many failed connects.")
    try:
        identity = context.authenticate(bearer(head.headers), peer)
    except Refusal as refusal:
        return plain(401, str(refusal), ("www-authenticate", "Bearer"))
    if identity.principal.role != "admin":
        return plain(403, "Metrics are for the role admin.")
    return None
