"""Telemetry for OpenTelemetry: spans, counters and histograms through its API.

Needs the extra ``otel``. The API alone does nothing; the program installs the SDK and exporters.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from motet.protocols.errors import MissingExtra
from motet.protocols.messages import Message
from motet.runtime.telemetry import SpanKind

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter, Histogram, MeterProvider
    from opentelemetry.trace import TracerProvider

__all__ = ["OpenTelemetry"]

_SCOPE = "motet.runtime"


class OpenTelemetry:
    """``open_system(telemetry=OpenTelemetry())``; without providers the global ones are used.

    A handler's span is a child of its sender's span, and current while the handler runs, so that
    spans of user code are its children. Raises MissingExtra without the package.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        try:
            from opentelemetry import metrics, trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise MissingExtra("otel", "OpenTelemetry") from error
        self._tracer = trace.get_tracer(_SCOPE, tracer_provider=tracer_provider)
        self._meter = metrics.get_meter(_SCOPE, meter_provider=meter_provider)
        self._propagator = TraceContextTextMapPropagator()
        self._kinds = {"ask": trace.SpanKind.CLIENT, "handle": trace.SpanKind.CONSUMER}
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}

    @contextmanager
    def span(
        self, kind: SpanKind, path: str, message: type[Message], parent: str | None
    ) -> Generator[str | None]:
        """A span named ``ask Total`` or ``handle Total``, current in the block.

        An ``Exception`` is recorded and makes the span an error; a cancellation does not.
        """
        within = None if parent is None else self._propagator.extract({"traceparent": parent})
        with self._tracer.start_as_current_span(
            f"{kind} {message.__name__}",
            context=within,
            kind=self._kinds[kind],
            attributes={"motet.path": path, "motet.message": message.__qualname__},
        ):
            yield self.context()

    def context(self) -> str | None:
        """The current span as a ``traceparent``; None outside of any."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        return carrier.get("traceparent")

    def count(self, name: str, path: str) -> None:
        """Add one to the counter ``name``."""
        counter = self._counters.get(name)
        if counter is None:
            counter = self._counters[name] = self._meter.create_counter(name)
        counter.add(1, {"motet.path": path})

    def record(self, name: str, path: str, value: float) -> None:
        """Record ``value`` in the histogram ``name``; names that end in seconds are in seconds."""
        histogram = self._histograms.get(name)
        if histogram is None:
            unit = "s" if name.endswith("seconds") else ""
            histogram = self._histograms[name] = self._meter.create_histogram(name, unit=unit)
        histogram.record(value, {"motet.path": path})
