"""The metrics of a host in the text format of Prometheus. Pure.

It is written by hand: the usual client library keeps its figures in globals of the process, where
two hosts would mix theirs, and takes locks that one thread does not need. Invariant: no metric has
the name of a user, session or run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal, TypeAlias

import attrs

from motet.protocols.host import HostStatus
from motet.protocols.meters import Figures
from motet.protocols.storage import Histogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
Kind: TypeAlias = Literal["gauge", "counter", "histogram"]
Labels: TypeAlias = Mapping[str, str]


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
    """``values``: labels with a figure, or with a histogram."""

    name: str
    kind: Kind
    help: str
    values: tuple[tuple[Labels, float | Histogram], ...]


def exposition(
    status: HostStatus, figures: Figures, counts: GatewayCounts, cpu: float, memory: int
) -> str:
    """The metrics as one text. ``cpu``: seconds of the process; ``memory``: its bytes, or 0."""
    metrics = (*_host(status), *_work(figures), *_gateway(counts), *_process(cpu, memory))
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
        Metric(
            "motet_storage_bytes",
            "gauge",
            "Files of the database, and of its write-ahead log, which a stuck reader keeps.",
            (
                ({"part": "database"}, status.database_bytes),
                ({"part": "log"}, status.log_bytes),
            ),
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


def _work(figures: Figures) -> Iterable[Metric]:
    meters = figures.meters
    for name, histogram, text in (
        ("turn", meters.turns, "Runs from begin to end."),
        ("model", meters.models, "Model calls, retries included."),
        ("model_first_token", meters.first_tokens, "Model calls to the first part of an answer."),
        ("tool", meters.tools, "Tool calls, waits for approvals included."),
        ("commit", meters.commits, "Commits of the database."),
    ):
        yield Metric(f"motet_{name}_seconds", "histogram", text, (({}, histogram),))
    outcomes = tuple(({"status": one}, float(n)) for one, n in sorted(meters.outcomes.items()))
    yield Metric("motet_runs_ended_total", "counter", "Runs that have ended.", outcomes)
    calls = tuple(
        ({"kind": kind, "status": status}, float(n))
        for (kind, status), n in sorted(meters.calls.items())
    )
    yield Metric("motet_calls_ended_total", "counter", "Calls of models and tools.", calls)
    tokens = tuple(({"kind": one}, float(n)) for one, n in sorted(meters.tokens.items()))
    yield Metric("motet_tokens_total", "counter", "Tokens as providers counted them.", tokens)
    for name, text, value in (
        ("cost_dollars_total", "Cost of the model calls of known price.", meters.dollars),
        ("unpriced_calls_total", "Model calls of unknown price.", meters.unpriced),
        ("approvals_waiting", "Calls that wait for a person.", figures.approvals),
        ("breakers_open", "Circuit breakers that are not closed.", figures.breakers),
        ("traces_lost_total", "Traces that were not stored.", figures.lost_traces),
        ("spans_not_exported_total", "Spans lost by the export.", meters.lost_exports),
    ):
        kind: Kind = "counter" if name.endswith("_total") else "gauge"
        yield _one(f"motet_{name}", kind, text, value)


MOST_REQUESTS: Final = 150
"""Series of requests, by method and code; the rarest others are one."""


def _requests(counts: GatewayCounts) -> tuple[tuple[Labels, float], ...]:
    known = sorted(counts.requests.items(), key=lambda one: (-one[1], one[0]))
    found = [({"method": m, "code": c}, float(n)) for (m, c), n in sorted(known[:MOST_REQUESTS])]
    if rest := sum(n for _, n in known[MOST_REQUESTS:]):
        found.append(({"method": "other", "code": "other"}, float(rest)))
    return tuple(found)


def _gateway(counts: GatewayCounts) -> Iterable[Metric]:
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
    return (
        *metrics,
        Metric("motet_gateway_requests_total", "counter", help_text, _requests(counts)),
    )


def _process(cpu: float, memory: int) -> Iterable[Metric]:
    yield _one("process_cpu_seconds_total", "counter", "User and system time.", cpu)
    if memory:  # not every system says it
        yield _one("process_resident_memory_bytes", "gauge", "Memory in use.", memory)


def _lines(metric: Metric) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.help}"
    yield f"# TYPE {metric.name} {metric.kind}"
    for labels, value in metric.values:
        if isinstance(value, Histogram):
            yield from _histogram(metric.name, labels, value)
        else:
            yield _sample(metric.name, labels, value)


def _histogram(name: str, labels: Labels, one: Histogram) -> Iterator[str]:
    bounds = [*map(_number, one.bounds), "+Inf"]
    counts = one.cumulative()
    for bound, count in zip(bounds, counts, strict=True):
        yield _sample(f"{name}_bucket", {**labels, "le": bound}, count)
    yield _sample(f"{name}_sum", labels, one.total)
    yield _sample(f"{name}_count", labels, counts[-1])


def _sample(name: str, labels: Labels, value: float) -> str:
    shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{name}{{{shown}}} {_number(value)}" if shown else f"{name} {_number(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
