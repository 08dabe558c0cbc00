"""A session with one MCP server: opened, used and closed by the actor that owns it.

A session of the SDK is a nursery in disguise, so :func:`open_connection` is entered and left in one
task; calls may come from any. The SDK takes half a second to import: on first use, in a thread.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, cast

import attrs
import trio

from motet.actors.tools.mcp.stdio import Closing, End, Listing, StderrLog, open_process, under_way
from motet.protocols.chat import JsonObject
from motet.protocols.errors import MissingExtra, SchemaError
from motet.protocols.json_schema import compiled
from motet.protocols.mcp import McpAnswer, McpFailed, McpServer, McpTool, answer_of, refusal_kind
from motet.protocols.version import __version__

if TYPE_CHECKING:
    from mcp.client.session import ClientSession
    from mcp.shared.message import SessionMessage

PAGES, TOOLS = 100, 1_000
"""The limits of a tool list; the rest is not offered."""
DESCRIPTION = 4_000
"""Characters of a tool's description."""

_ENVIRONMENT = (
    *("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL"),
    *("TERM", "TMPDIR", "TZ", "USER"),
)


@attrs.define(eq=False)
class Connection:
    """An initialised session.

    Attributes:
        end: the reason for its end, once it has ended.
        listing: whether the list of tools has changed.
        screen: the tools that the SDK has not seen.
    """

    session: ClientSession
    server: McpServer
    end: End
    listing: Listing
    screen: _Screen

    def about(self) -> str:
        """The server's own name and version, and its protocol."""
        info = self.session.server_info
        who = f"{info.name} {info.version}" if info else "it gives no name"
        return f"{who}, protocol {self.session.protocol_version}"

    async def tools(self) -> tuple[McpTool, ...]:
        """The tools of all pages of its list. Raises ``McpFailed``."""
        from mcp_types import PaginatedRequestParams

        found: dict[str, JsonObject | McpTool] = {}
        cursor: str | None = None
        with under_way(), _failures(self.end):
            for _ in range(PAGES):
                params = None if cursor is None else PaginatedRequestParams(cursor=cursor)
                page = await self.session.list_tools(params=params)
                for tool in page.tools[: TOOLS - len(found)]:
                    found.setdefault(tool.name, tool.model_dump(mode="json", by_alias=True))
                for left_out in self.screen.left_out(set(found))[: TOOLS - len(found)]:
                    found.setdefault(left_out.name, left_out)
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
        with under_way(), trio.move_on_after(limit), _failures(self.end):
            result = await self.session.send_request(request, CallToolResult)
            return answer_of(result.model_dump(mode="json", by_alias=True, exclude_none=True))
        raise McpFailed(
            f"no answer within {limit:g} s; it was told to stop. Where its calls take longer, its "
            "timeout in the configuration must be raised",
            "timeout",
        )

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
    from mcp_types import CONNECTION_CLOSED, PARSE_ERROR
    from pydantic import ValidationError

    try:
        yield
    except MCPError as error:
        # Servers use this code for their own errors too.
        closed = error.code == CONNECTION_CLOSED and error.message == "Connection closed"
        if closed or end.happened.is_set():
            raise McpFailed("the connection to it is lost", "unavailable") from error
        if error.code == PARSE_ERROR:
            raise _unlawful(error.message) from error
        message = f"it refused: {error.message} (code {error.code})"
        raise McpFailed(message, refusal_kind(error.code)) from error
    except (ValidationError, RuntimeError) as error:
        raise _unlawful(str(error) or type(error).__name__) from error


def _unlawful(why: str) -> McpFailed:
    first = (why.splitlines() or [""])[0]
    return McpFailed(
        f"its answer is not of the protocol: {first}. That is a fault of the server, which may "
        "have done the call: try another one, and tell its author",
        "refused",
    )


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

    if server.url:
        from motet.actors.tools.mcp.web import over_http

        opened = over_http(server, end)
    else:
        opened = _over_stdio(server, log, end, listing)
    async with opened as (incoming, outgoing):
        me = Implementation(name="motet", version=__version__)
        screen = _Screen(incoming)
        async with ClientSession(
            cast(Any, screen),  # the parameters of its __aexit__ have other names
            outgoing,
            message_handler=on_message,
            client_info=me,
        ) as session:
            yield Connection(session, server, end, listing, screen)


@attrs.define(eq=False)
class _Screen(Closing):
    """The messages of a server, as the SDK reads them. Of its lists of tools, only the lawful ones
    reach the SDK, which refuses a whole list for one that is not.
    """

    _messages: Any  # the SDK's protocol, whose name is private
    _version: str = attrs.field(default="", init=False)
    _page: list[object] = attrs.field(factory=list[object], init=False)

    def left_out(self, names: set[str]) -> list[McpTool]:
        """The tools of the last page that are not among ``names``: the SDK refuses them."""
        found: list[McpTool] = []
        for place, tool in enumerate(self._page):
            name = _inside(tool, "name")
            own = name if isinstance(name, str) else f"(tool {place + 1} of its list)"
            if own not in names:
                why = _refusal(tool, self._agreed) or "its x-mcp-header annotations"
                found.append(McpTool(own, "", {}, problem=f"its declaration is not lawful: {why}"))
        return found

    def __getattr__(self, name: str) -> object:  # the sender's context, of streams that have it
        return getattr(self._messages, name)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        return self._screened(await self._messages.__anext__())

    async def receive(self) -> SessionMessage | Exception:
        return self._screened(await self._messages.receive())

    def _screened(self, item: SessionMessage | Exception) -> SessionMessage | Exception:
        result: object = getattr(getattr(item, "message", None), "result", None)
        version, tools = _inside(result, "protocolVersion"), _inside(result, "tools")
        if isinstance(version, str):
            self._version = version
        if isinstance(tools, list) and _inside(result, "content") is None:
            self._page = cast("list[object]", tools)
            cast(JsonObject, result)["tools"] = [
                one for one in self._page if not _refusal(one, self._agreed)
            ]
        return item

    @property
    def _agreed(self) -> str:
        """The version of the protocol; the newest does without an agreement."""
        from mcp_types.version import KNOWN_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION

        return self._version if self._version in KNOWN_PROTOCOL_VERSIONS else LATEST_MODERN_VERSION

    async def aclose(self) -> None:
        await self._messages.aclose()


def _refusal(tool: object, version: str) -> str:
    """Why the SDK refuses a tool of a list; empty when it accepts it."""
    from mcp_types import ListToolsResult
    from mcp_types.methods import validate_server_result
    from pydantic import ValidationError

    page = {"tools": [tool], "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    try:
        validate_server_result("tools/list", version, page)
        ListToolsResult.model_validate(page, by_name=False)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return f"{first['msg']} (at {'.'.join(map(str, first['loc'][2:])) or 'its top'})"
    return ""


@asynccontextmanager
async def _over_stdio(
    server: McpServer, log: StderrLog, end: End, listing: Listing
) -> AsyncGenerator[tuple[Any, Any]]:  # the SDK's protocols, whose names are private
    async with open_process(server, environment(server), log, end, listing) as wire:
        yield wire.incoming, wire.outgoing


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


def _tool(listed: Mapping[str, Any] | McpTool) -> McpTool:
    """A tool from its JSON. One that a model could not call right says why."""
    if isinstance(listed, McpTool):
        return listed
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
        await trio.to_thread.run_sync(load, abandon_on_cancel=True)
    except ModuleNotFoundError as error:
        raise MissingExtra("mcp", "an MCP server") from error
