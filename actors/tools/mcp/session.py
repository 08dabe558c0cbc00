"""A session with one MCP server: opened, used and closed by the actor that owns it.

A session of the SDK is a nursery in disguise, so :func:`open_connection` is entered and left in one
task; calls may come from any. The SDK takes half a second to import: on first use, in a thread.

A server's answer (:func:`answer_of`) obeys the one rule for results: texts alone become one text;
anything else is a list of parts with binary in the fields that the rule knows, so that images and
files are stored and noted, never shown.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import attrs
import msgspec
import trio

from motet.actors.tools.mcp.stdio import LONGEST, End, Listing, StderrLog, open_process
from motet.protocols.chat import JsonObject
from motet.protocols.errors import MissingExtra, SchemaError
from motet.protocols.json_schema import compiled
from motet.protocols.mcp import McpAnswer, McpFailed, McpServer, McpTool
from motet.protocols.stable_json import stable_json
from motet.protocols.version import __version__

if TYPE_CHECKING:
    import httpx2
    from mcp.client.session import ClientSession


PAGES, TOOLS = 100, 1_000
"""The limits of a tool list; the rest is not offered."""
DESCRIPTION = 4_000
"""Characters of a tool's description."""
CLOSE_BUDGET = 2.0
"""Seconds to tell a server on the web that the session is over."""

_ENVIRONMENT = (
    *("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL"),
    *("TERM", "TMPDIR", "TZ", "USER"),
)
_SESSION = "mcp-session-id"


@attrs.define(eq=False)
class Connection:
    """An initialised session.

    Attributes:
        end: the reason for its end, once it has ended.
        listing: whether the list of tools has changed.
    """

    session: ClientSession
    server: McpServer
    end: End
    listing: Listing

    def about(self) -> str:
        """The server's own name and version, and its protocol."""
        info = self.session.server_info
        who = f"{info.name} {info.version}" if info else "it does not say what it is"
        return f"{who}, protocol {self.session.protocol_version}"

    async def tools(self) -> tuple[McpTool, ...]:
        """The tools of all pages of its list. Raises ``McpFailed``."""
        from mcp_types import PaginatedRequestParams

        found: dict[str, JsonObject] = {}
        cursor: str | None = None
        with _failures(self.end):
            for _ in range(PAGES):
                params = None if cursor is None else PaginatedRequestParams(cursor=cursor)
                page = await self.session.list_tools(params=params)
                for tool in page.tools[: TOOLS - len(found)]:
                    found.setdefault(tool.name, tool.model_dump(mode="json", by_alias=True))
                cursor = page.next_cursor
                if cursor is None:
                    break
        # Checking the schemas of a thousand tools takes a second.
        return await trio.to_thread.run_sync(lambda: tuple(map(_tool, found.values())))

    async def call(self, tool: str, arguments: JsonObject) -> McpAnswer:
        """Call a tool. Cancelled or timed out, the server is told to stop. Raises ``McpFailed``.

        The answer is not checked against the tool's output schema: the call has had its effect.
        """
        from mcp_types import CallToolRequest, CallToolRequestParams, CallToolResult

        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=arguments))
        limit = self.server.timeout
        with trio.move_on_after(limit), _failures(self.end):
            result = await self.session.send_request(request, CallToolResult)
            return answer_of(result.model_dump(mode="json", by_alias=True, exclude_none=True))
        raise McpFailed(f"no answer within {limit:g} s; it was told to stop", "timeout")

    async def watch(self) -> None:
        """Subscribe to changes of the list, on servers with the newer protocol. Never ends."""
        from mcp.client.subscriptions import SubscriptionLost, listen
        from mcp.shared.exceptions import MCPError

        if self.session.discover_result is not None:
            try:
                async with listen(self.session, tools_list_changed=True) as events:
                    async for _ in events:
                        self.listing.changed()
            except (MCPError, SubscriptionLost):
                pass  # no notices from this server: its list is read again at its next start
        await trio.sleep_forever()


@contextmanager
def _failures(end: End) -> Generator[None]:
    """Turns exceptions of the SDK into :class:`McpFailed`."""
    from mcp.shared.exceptions import MCPError
    from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS
    from pydantic import ValidationError

    try:
        yield
    except MCPError as error:
        # Servers use this code for their own errors too.
        closed = error.code == CONNECTION_CLOSED and error.message == "Connection closed"
        if closed or end.happened.is_set():
            raise McpFailed("the connection to it is lost", "unavailable") from error
        message = f"it refused: {error.message} (code {error.code})"
        raise McpFailed(
            message, "invalid" if error.code == INVALID_PARAMS else "refused"
        ) from error
    except (ValidationError, RuntimeError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise McpFailed(f"its answer is not of the protocol: {first}", "refused") from error


@asynccontextmanager
async def open_connection(
    server: McpServer, log: StderrLog, end: End
) -> AsyncGenerator[tuple[Connection, tuple[McpTool, ...]]]:
    """Start or reach a server, agree on a protocol and read its tools, for the length of the block.

    Raises ``McpFailed`` when that fails or takes longer than the server's ``start_timeout``,
    ``MissingExtra`` without the SDK. Leaving ends the server's process and all its descendants;
    ``end`` has the reason if the server ended the session.
    """
    await _load_sdk()
    log.clear()
    async with _opened(server, log, end) as connection:
        yield connection, await _listed(connection)


async def _listed(connection: Connection) -> tuple[McpTool, ...]:
    limit = connection.server.start_timeout
    with trio.move_on_after(limit):
        with _failures(connection.end):
            await _agree(connection.session)
        return await connection.tools()
    raise McpFailed(f"it did not start within {limit:g} s", "unavailable")


@asynccontextmanager
async def _opened(server: McpServer, log: StderrLog, end: End) -> AsyncGenerator[Connection]:
    from mcp.client.session import ClientSession
    from mcp_types import Implementation, ToolListChangedNotification

    listing = Listing()

    async def on_message(message: object) -> None:
        if server.url and isinstance(message, ToolListChangedNotification):
            listing.changed()

    opened = _over_http(server, end) if server.url else _over_stdio(server, log, end, listing)
    async with opened as (incoming, outgoing):
        me = Implementation(name="motet", version=__version__)
        async with ClientSession(
            incoming, outgoing, message_handler=on_message, client_info=me
        ) as session:
            yield Connection(session, server, end, listing)


@asynccontextmanager
async def _over_stdio(
    server: McpServer, log: StderrLog, end: End, listing: Listing
) -> AsyncGenerator[tuple[Any, Any]]:  # the SDK's protocols, whose names are private
    async with open_process(server, environment(server), log, end, listing) as wire:
        yield wire.incoming, wire.outgoing


@asynccontextmanager
async def _over_http(server: McpServer, end: End) -> AsyncGenerator[tuple[Any, Any]]:
    """Without time-outs of its own: the calls have theirs, on Trio's clock."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    async def on_response(response: httpx2.Response) -> None:
        in_session = _SESSION in response.request.headers
        if response.status_code == 404 and in_session:
            end.because("it has forgotten the session")
        elif response.status_code in (401, 403) and not in_session:
            end.because(f"it answered HTTP {response.status_code}: check its headers and token")

    headers = dict(server.headers)
    if server.token:
        headers["Authorization"] = f"Bearer {server.token}"
    assert server.url is not None
    hooks = {"response": [on_response]}
    with trio.CancelScope() as scope:
        async with (
            httpx2.AsyncClient(headers=headers, timeout=None, event_hooks=hooks) as client,
            streamable_http_client(
                server.url, http_client=client, max_sse_event_size=LONGEST
            ) as streams,
        ):
            try:
                yield streams
            finally:
                scope.deadline = trio.current_time() + CLOSE_BUDGET


async def _agree(session: ClientSession) -> None:
    """Initialise, or, with a server that knows only the newer protocol, discover."""
    from mcp.shared.exceptions import MCPError
    from mcp_types import METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION

    try:
        await session.initialize()
    except MCPError as error:
        if error.code not in (METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION):
            raise
        await session.discover()


def environment(server: McpServer) -> dict[str, str]:
    """The environment of a server's process: a few variables of the host's, and its own."""
    kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    return {**kept, **server.env}


def _tool(listed: Mapping[str, Any]) -> McpTool:
    """A tool from its JSON. One that a model could not call right says why."""
    annotations: JsonObject = listed.get("annotations") or {}
    schema: JsonObject = dict(listed.get("inputSchema") or {})
    schema.setdefault("type", "object")
    schema.setdefault("properties", {})
    return McpTool(
        name=str(listed["name"]),
        description=str(listed.get("description") or listed.get("title") or "")[:DESCRIPTION],
        parameters=schema,
        read_only=annotations.get("readOnlyHint") is True,
        problem=_not_callable(listed) or _unusable(schema),
    )


def _not_callable(listed: Mapping[str, Any]) -> str:
    """Why a model may not call a tool with a plain ``tools/call``, by the protocol."""
    if _inside(listed, "execution", "taskSupport") == "required":
        return "it runs as a task only (execution.taskSupport)"
    seen_by = _inside(listed, "_meta", "ui", "visibility")
    if isinstance(seen_by, list) and "model" not in cast("list[object]", seen_by):
        return "it is for the pages of its server, not for models (_meta.ui.visibility)"
    return ""


def _inside(value: object, *keys: str) -> object:
    for key in keys:
        value = cast(JsonObject, value).get(key) if isinstance(value, dict) else None
    return value


def _unusable(schema: JsonObject) -> str:
    """Why arguments cannot be checked, and providers would refuse each request with the tool."""
    try:
        compiled(schema)
    except SchemaError as error:
        return f"its input schema cannot be used: {error}"
    return "" if schema["type"] == "object" else "its input schema is not of type object"


async def _load_sdk() -> None:
    """Raises ``MissingExtra``."""

    def load() -> None:
        for module in ("mcp.client.session", "mcp.client.streamable_http"):
            import_module(module)

    try:
        await trio.to_thread.run_sync(load)
    except ModuleNotFoundError as error:
        raise MissingExtra("mcp", "an MCP server") from error


def answer_of(result: Mapping[str, object]) -> McpAnswer:
    """The answer in the JSON of a ``tools/call`` result."""
    content = result.get("content")
    blocks = cast("Sequence[object]", content) if isinstance(content, list) else ()
    objects = [cast(JsonObject, block) for block in blocks if isinstance(block, dict)]
    parts = [_part(block) for block in objects]
    structured = result.get("structuredContent")
    if structured is not None and not _is_told(structured, objects, parts):
        parts.append(structured)
    return McpAnswer(_joined(parts), failed=result.get("isError") is True)


def _joined(parts: list[object]) -> object:
    if len(parts) == 1:
        return parts[0]
    texts = [part for part in parts if isinstance(part, str)]
    return "\n\n".join(texts) if len(texts) == len(parts) else parts


def _part(block: JsonObject) -> object:
    kind, text = block.get("type"), block.get("text")
    if kind == "text" and isinstance(text, str):
        return text
    resource = block.get("resource")
    if kind == "resource" and isinstance(resource, dict):
        return _resource(cast(JsonObject, resource))
    return {key: value for key, value in block.items() if key not in ("_meta", "annotations")}


def _resource(resource: JsonObject) -> object:
    """Its text below its URI; its bytes with their type, where the rule for results finds them."""
    text = resource.get("text")
    if isinstance(text, str):
        return f"[{resource.get('uri', 'resource')}]\n{text}"
    shown = {key: value for key, value in resource.items() if key != "_meta"}
    return {"mimeType": "application/octet-stream", **shown}


def _is_told(structured: object, blocks: Sequence[JsonObject], parts: Sequence[object]) -> bool:
    """Whether the content has the structured value too, as the protocol wants for older clients.

    Servers repeat it as JSON in a text, or put the text, or the content itself, into a field of an
    object: ``{"result": ...}`` of some SDKs, ``{"content": ...}`` of the filesystem server.
    """
    texts = [part for part in parts if isinstance(part, str)]
    whole = ["\n".join(texts), "\n\n".join(texts), "".join(texts)] if len(texts) > 1 else []
    values = [_json_of(text) for text in texts]
    told = [*texts, *whole, *values, *blocks, *filter(None, (values, texts, list(blocks)))]
    if any(_same(structured, one) for one in told):
        return True
    if not isinstance(structured, dict) or len(cast(JsonObject, structured)) != 1:
        return False
    ((_, field),) = cast(JsonObject, structured).items()
    return any(_same(field, one) for one in told)


def _same(one: object, other: object) -> bool:
    """Equal as JSON: 1 is not true."""
    try:
        return one == other and stable_json(one) == stable_json(other)
    except RecursionError:
        return False


def _json_of(text: str) -> object:
    try:
        value: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    return value
