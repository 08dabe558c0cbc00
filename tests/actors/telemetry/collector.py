"""A collector of OpenTelemetry on a real socket, which reads requests by the official protobufs."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import h11
import trio
from google.protobuf import json_format  # type: ignore[import-untyped]  # it has no stubs
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

Reply = tuple[int, dict[str, str], bytes]
OK: Reply = (200, {"content-type": "application/json"}, b"{}")
IDS = ("traceId", "spanId", "parentSpanId")


def parsed(body: bytes) -> list[Span]:
    """The spans of a request; an unknown field or a wrong type is an error."""
    # OTLP's JSON has ids in hex where that of protobuf has base64.
    data = json.loads(body, object_hook=_in_base64)
    request = json_format.Parse(json.dumps(data), ExportTraceServiceRequest())
    return [
        span
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _in_base64(fields: dict[str, Any]) -> dict[str, Any]:
    ids = {key: bytes.fromhex(fields[key]) for key in IDS if key in fields}
    return fields | {key: base64.b64encode(value).decode() for key, value in ids.items()}


def values(span: Span) -> dict[str, object]:
    """The attributes of a span as plain values."""
    found: dict[str, object] = {}
    for attribute in span.attributes:
        kind = attribute.value.WhichOneof("value")
        assert kind is not None
        value = getattr(attribute.value, kind)
        found[attribute.key] = [v.string_value for v in value.values] if kind[0] == "a" else value
    return found


@attrs.define
class Collector:
    """What arrived. ``replies`` are given in order, then :data:`OK` for ever; None: no answer."""

    url: str = ""
    replies: list[Reply | None] = attrs.field(factory=list[Reply | None])
    requests: list[h11.Request] = attrs.field(factory=list[h11.Request])
    bodies: list[bytes] = attrs.field(factory=list[bytes])
    got: trio.Event = attrs.field(factory=trio.Event)

    @property
    def spans(self) -> list[Span]:
        return [span for body in self.bodies for span in parsed(body)]

    async def serve(self, stream: trio.abc.Stream) -> None:
        async with stream:
            connection, body = h11.Connection(h11.SERVER), bytearray()
            while not isinstance(event := connection.next_event(), h11.EndOfMessage):
                match event:
                    case h11.Request():
                        self.requests.append(event)
                    case h11.Data():
                        body += event.data
                    case h11.ConnectionClosed():
                        return
                    case _:
                        connection.receive_data(bytes(await stream.receive_some(65_536)))
            self.bodies.append(bytes(body))
            self.got.set()
            reply = self.replies.pop(0) if self.replies else OK
            if reply is None:
                return
            status, headers, answer = reply
            length = ("content-length", str(len(answer)))
            head = h11.Response(status_code=status, headers=[*headers.items(), length])
            sent = [h11.Data(data=answer), h11.EndOfMessage()]
            await stream.send_all(b"".join(connection.send(part) or b"" for part in (head, *sent)))


@asynccontextmanager
async def open_collector(*replies: Reply | None) -> AsyncGenerator[Collector]:
    collector = Collector(replies=list(replies))
    async with trio.open_nursery() as nursery:
        listen = partial(trio.serve_tcp, collector.serve, 0, host="127.0.0.1")
        listeners: list[trio.SocketListener] = await nursery.start(listen)
        collector.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        yield collector
        nursery.cancel_scope.cancel()
