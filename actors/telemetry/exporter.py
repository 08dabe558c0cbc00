"""The exporter: traces to an OpenTelemetry collector over HTTP, as OTLP/JSON.

The exporter of the SDK was rejected: it wants spans of its own making, a thread and another HTTP
library, and drops spans that do not fit in its queue. Invariant: no run notices a failure of the
collector; undelivered spans are counted, and are still in the database.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import ClassVar

import attrs
import trio

from motet.actors.errors.log import logger
from motet.actors.telemetry.http import HttpFailed, Response, is_address, post
from motet.protocols.errors import ConfigError, MotetError
from motet.protocols.messages import Request
from motet.protocols.meters import Meters
from motet.protocols.otlp import body, endpoint, portions, rejected
from motet.protocols.traces import Trace
from motet.runtime import Actor, handles
from motet.runtime.backoff import Backoff
from motet.runtime.describe import summarize

ATTEMPTS = 4
TIMEOUT = 10.0
"""Seconds for one attempt."""
INTERVAL = 2.0
"""Seconds that traces wait for others to share a request."""
ROOM = 10_000
"""Most spans in the outbox; beyond it, the oldest traces are dropped."""
FAREWELL = 3.0
"""Seconds for the outbox when the host stops."""
_AGAIN = frozenset({429, 502, 503, 504})
_BACKOFF = Backoff(1.0, most=math.inf)  # the few attempts are the limit
_LONGEST_WAIT = 30.0

log = logger(__name__)


class ExportFailed(MotetError):
    """A collector rejected spans; the message says why."""


def _is_address(_: object, __: object, url: str) -> None:
    """Once, and not with every attempt: what is wrong with an address does not pass."""
    if not is_address(url):
        raise ConfigError(f"{url!r} is not an http:// or https:// address")


@attrs.frozen
class Collector:
    """A collector. A ``url`` without a path gets OTLP's ``/v1/traces``.

    Raises ``ConfigError`` for an address that is none.
    """

    url: str = attrs.field(validator=_is_address)
    headers: Mapping[str, str] = attrs.field(factory=dict[str, str], repr=False)

    async def send(self, traces: Sequence[Trace]) -> int:
        """Send traces; the number of accepted spans. Raises ``ExportFailed`` when one is rejected.

        A collector that is busy or away is asked again, after as long as it says, for about ten
        seconds in all; a request that it refuses is not repeated.
        """
        return sum([await self.portion(portion) for portion in portions(traces)])

    async def portion(self, traces: Sequence[Trace]) -> int:
        """Send traces that fit in one request."""
        content = body(traces)
        headers = {"Content-Type": "application/json", **self.headers}
        problem = ""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                answer = await post(endpoint(self.url), content, headers, timeout=TIMEOUT)
            except HttpFailed as error:
                problem, wait = str(error), 0.0
            else:
                if 200 <= answer.status < 300:
                    return _taken(traces, answer)
                problem, wait = f"the collector answered {answer.status}", _retry_after(answer)
                if answer.status not in _AGAIN:
                    raise ExportFailed(f"{problem}: {answer.body[:200].decode(errors='replace')}")
            if attempt < ATTEMPTS:
                await trio.sleep(max(wait, _BACKOFF.longest(attempt)))
        raise ExportFailed(f"{problem}, {ATTEMPTS} times")


def _taken(traces: Sequence[Trace], answer: Response) -> int:
    refused, why = rejected(answer.body)
    if refused:
        raise ExportFailed(f"the collector refused {refused} spans: {why}")
    return _count(traces)


def _count(traces: Sequence[Trace]) -> int:
    return sum(span.ended is not None for trace in traces for span in trace.spans)


def _retry_after(answer: Response) -> float:
    """The collector's ``Retry-After`` in seconds; a date, which is rare, counts as none."""
    try:
        seconds = float(answer.headers.get("retry-after", "0"))
    except ValueError:
        return 0.0
    return min(max(seconds, 0.0), _LONGEST_WAIT) if math.isfinite(seconds) else 0.0


@attrs.define(eq=False)
class Outbox:
    """Traces that wait for the exporter. ``meters`` count the spans that are not sent."""

    meters: Meters = attrs.field(factory=Meters)
    waiting: deque[Trace] = attrs.field(factory=deque[Trace])
    spans: int = 0
    filled: trio.Event = attrs.field(factory=trio.Event)

    def put(self, traces: Sequence[Trace]) -> None:
        """Add a trace. Never waits, never fails."""
        for trace in traces:
            self.waiting.append(trace)
            self.spans += len(trace.spans)
        while self.spans > ROOM and len(self.waiting) > 1:
            lost = len(self.waiting.popleft().spans)
            self.spans -= lost
            self.meters.lost_exports += lost
        if self.waiting:
            self.filled.set()

    def take(self) -> list[Trace]:
        taken = list(self.waiting)
        self.waiting.clear()
        self.spans = 0
        self.filled = trio.Event()
        return taken


class SendTraces(Request[int], frozen=True, tag="traces.send"):
    """Send the outbox now; the number of spans. Raises ``ExportFailed``, and drops the failed."""


@attrs.frozen
class ExportStatistics:
    """Counts of exported and of lost spans."""

    sent: int
    lost: int


class Exporter(Actor[SendTraces]):
    """Sends its outbox every few seconds. Failures are logged and counted."""

    cleanup_budget: ClassVar[float] = FAREWELL + 1

    def __init__(self, collector: Collector, outbox: Outbox) -> None:
        self._collector = collector
        self._outbox = outbox
        self._sent = 0

    async def on_start(self) -> None:
        self.start_soon(self._run, name="sender")

    async def on_stop(self) -> None:
        with trio.move_on_after(FAREWELL):
            await self._send_quietly()

    def statistics(self) -> ExportStatistics:
        return ExportStatistics(self._sent, self._outbox.meters.lost_exports)

    @handles(SendTraces)
    async def send(self, _request: SendTraces) -> int:
        portions_left = deque(portions(self._outbox.take()))
        taken, problem = 0, None
        try:
            while portions_left:
                try:
                    taken += await self._collector.portion(portions_left[0])
                except ExportFailed as error:
                    problem = error
                    self._outbox.meters.lost_exports += _count(portions_left[0])
                portions_left.popleft()
        finally:
            self._sent += taken
            # Cancelled in the middle: for the next time, or the farewell.
            self._outbox.put([trace for portion in portions_left for trace in portion])
        if problem is not None:
            raise problem
        return taken

    async def _run(self) -> None:
        while True:
            await self._outbox.filled.wait()
            await trio.sleep(INTERVAL)
            await self._send_quietly()

    async def _send_quietly(self) -> None:
        """Catch every failure: a crash of this actor would restart its siblings and end runs."""
        try:
            await self.send(SendTraces())
        except Exception as error:
            url = self._collector.url
            log.warning(
                "traces_not_exported",
                url=url,
                reason=summarize(error),
                lost=self._outbox.meters.lost_exports,
            )
