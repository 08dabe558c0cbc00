"""MCP servers: their configuration, tools and answers, and the requests of their actors.

Invariant: a server's name holds no ``__`` and begins and ends with a letter or a digit, so that
``mcp__<server>__<tool>`` can be read back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

import attrs
import msgspec

from motet.protocols.chat import FailureClass, JsonObject
from motet.protocols.errors import MotetError
from motet.protocols.messages import Request
from motet.protocols.stable_json import stable_json

Start: TypeAlias = Literal["lazy", "eager"]
Failure: TypeAlias = Literal["unavailable", "timeout", "invalid", "absent", "refused"]

MCP = "mcp:"
"""The prefix of a server's name among names of tools: ``tools=["mcp:git"]``."""
NAME_LENGTH = 24

_NAME = re.compile(r"[A-Za-z0-9]+(?:[_-][A-Za-z0-9]+)*")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)")
_SECRET = re.compile(r"key|token|secret|passw|auth|credential", re.IGNORECASE)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


SERVER_NAMES = (
    f"servers whose names have at most {NAME_LENGTH} letters and digits, with single '_' or '-' "
    "between them"
)


def is_server_name(name: str) -> bool:
    return len(name) <= NAME_LENGTH and _NAME.fullmatch(name) is not None


def seconds(value: float | str) -> float:
    """Seconds, given as a number or as a text such as ``30s`` or ``5m``. Raises ``ValueError``."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    found = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f"it must be seconds, or a text such as '30s' or '5m', not {value!r}")
    return float(found[1]) * _UNITS[found[2]]


def _program(words: Sequence[str]) -> tuple[str, ...]:
    if isinstance(words, str):
        raise ValueError("command must be a list: the program and each of its arguments")
    return tuple(words)


def _above_0(_: object, field: attrs.Attribute[Any], value: float) -> None:
    if not value > 0:
        raise ValueError(f"{field.name} must be above 0, not {value!r}")


def _not_negative(_: object, field: attrs.Attribute[float], value: float) -> None:
    if not value >= 0:
        raise ValueError(f"{field.name} must be at least 0, not {value!r}")


def _http_url(_: object, field: attrs.Attribute[str | None], value: str | None) -> None:
    if value is not None and re.fullmatch(r"https?://[^\s/]\S*", value) is None:
        raise ValueError(f"{field.name} must be a http(s) URL, not {value!r}")


def _start(_: object, field: attrs.Attribute[Any], value: Any) -> None:
    if value not in ("lazy", "eager"):
        raise ValueError(f"{field.name} must be 'lazy' or 'eager', not {value!r}")


@attrs.frozen(kw_only=True)
class McpServer:
    """A server of the Model Context Protocol: a program to start (stdio), or a URL to reach.

    A host has one connection to it, and one process, which all its agents and users share: it may
    show one user's data to another. Times are seconds, or texts such as ``"5m"``.

    Attributes:
        command: the program and its arguments; no shell.
        env: variables besides ``PATH``, ``HOME`` and a few more; none of the host's keys.
        cwd: its current directory.
        url: of a server that speaks streamable HTTP.
        headers: sent with every request to ``url``.
        token: sent to ``url`` as ``Authorization: Bearer``.
        timeout: of one call.
        start_timeout: from its start to its list of tools.
        idle_stop: after so long without a call it is stopped, until the next call; 0: never.
        start: ``lazy``, when it is first needed, or ``eager``, with the host.
        answer_mb: megabytes of an answer; a call with a longer one fails.
        answer_values: values in the JSON of an answer, nested ones too; a call with more fails.

    Raises ``ValueError`` without exactly one of ``command`` and ``url``.
    """

    command: tuple[str, ...] = attrs.field(default=(), converter=_program)
    env: Mapping[str, str] = attrs.field(factory=dict[str, str], repr=False)
    cwd: str | None = None
    url: str | None = attrs.field(default=None, validator=_http_url)
    headers: Mapping[str, str] = attrs.field(factory=dict[str, str], repr=False)
    token: str | None = attrs.field(default=None, repr=False)
    timeout: float = attrs.field(default=60.0, converter=seconds, validator=_above_0)
    start_timeout: float = attrs.field(default=30.0, converter=seconds, validator=_above_0)
    idle_stop: float = attrs.field(default=300.0, converter=seconds, validator=_not_negative)
    start: Start = attrs.field(default="lazy", validator=_start)
    answer_mb: float = attrs.field(default=8.0, validator=_above_0)
    answer_values: int = attrs.field(default=100_000, validator=_above_0)

    def __attrs_post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise ValueError("an MCP server must have either a command or a url")
        if self.url and (self.env or self.cwd):
            raise ValueError("env and cwd must stand with a command: a url has no process")
        if self.command and (self.headers or self.token):
            raise ValueError("headers and token must stand with a url: give a command env")

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values that must never be shown; of ``env``, those with names like ``TOKEN``."""
        env = tuple(value for name, value in self.env.items() if _SECRET.search(name))
        return (*env, *self.headers.values(), *((self.token,) if self.token else ()))


class McpFailed(MotetError):
    """A server could not be used, or failed a request.

    Attributes:
        kind: ``unavailable`` (it does not start, or has ended), ``timeout``, ``invalid`` (it does
            not accept the arguments), ``absent`` (what was asked for is not there), or ``refused``
            (it answered with another error of the protocol).
    """

    def __init__(self, message: str, kind: Failure):
        super().__init__(message)
        self.kind: Failure = kind

    @property
    def failure(self) -> FailureClass:
        """Where a call that failed like this counts."""
        return _CLASSES[self.kind]


_CLASSES: Mapping[Failure, FailureClass] = {
    "unavailable": "infrastructure",  # for all users: they share the server
    "timeout": "fault",
    "invalid": "argument",
    "absent": "negative",
    "refused": "fault",
}
_REFUSALS: Mapping[int, Failure] = {-32602: "invalid", -32002: "absent"}


def refusal_kind(code: int) -> Failure:
    """The kind of a failure, from the code of an error of the protocol."""
    return _REFUSALS.get(code, "refused")


class McpTool(msgspec.Struct, frozen=True):
    """A tool as its server lists it.

    Attributes:
        read_only: declared so by the server.
        problem: why it is not offered to models; empty for one that is.
    """

    name: str
    description: str
    parameters: JsonObject
    read_only: bool = False
    problem: str = ""


class McpAnswer(msgspec.Struct, frozen=True):
    """A server's answer to a call. ``value``: a text, or parts with a JSON form."""

    value: object
    failed: bool = False


class CallMcpTool(Request[McpAnswer], frozen=True, tag="mcp.call"):
    """Call a tool by the server's own name for it. Raises :class:`McpFailed`.

    Cancelling tells the server to stop that call; its answer is dropped.
    """

    tool: str
    arguments: JsonObject


class ListMcpTools(Request[tuple[McpTool, ...]], frozen=True, tag="mcp.list"):
    """The tools of the server, which is started if need be. Raises :class:`McpFailed`."""


class McpStatus(msgspec.Struct, frozen=True):
    """A configured server as people see it.

    Attributes:
        state: ``stopped``, ``starting``, ``ready``, ``stopping``.
        tools: those that are offered, by the server's own names, as last listed.
        problem: why the last attempt to use it failed; empty after a success.
    """

    name: str
    state: str
    tools: tuple[str, ...] = ()
    problem: str = ""


class GetMcpStatus(Request[McpStatus], frozen=True, tag="mcp.status"):
    """The status of the server; never starts it."""


# Answers obey the one rule for results: texts alone become one text; anything else is a list of
# parts with binary in the fields that the rule knows, so that images and files are stored and
# noted, never shown.


_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
_ID = rb'"id"\s*:\s*(\d{1,18})\s*'
_FIRST_ID = re.compile(rb"\s*\{[^{}\[\]]*?" + _ID + rb"[,}]")
_LAST_ID = re.compile(_ID + rb"(?:,[^{}\[\]]*)?\}\s*\Z")

_NEAR = 1_000
"""Bytes of an answer that is none, at either end, in which its id is looked for."""


def mended(json: bytes) -> bytes:
    """JSON without the bytes and halves of surrogate pairs that its parser refuses."""
    text = _ESCAPE.sub(lambda found: rb"\ufffd" if found[1] else found[0], json)
    return text.decode("utf-8", "replace").encode()


def readings(line: bytes) -> Iterator[bytes]:
    """A line, and if that is no message: the one behind another that its server has left in its
    middle, then the line with what can be mended.

    No text within a message begins another, since its quotes are escaped.
    """
    yield line
    if (begun := line.rfind(b'{"jsonrpc"')) > 0:
        yield line[begun:]
    yield mended(line)


def answered_id(json: bytes) -> int | None:
    """The id of an answer that is no message of the protocol, if it can be told."""
    found = _FIRST_ID.match(json[:_NEAR]) or _LAST_ID.search(json[-_NEAR:])
    return int(found[1]) if found else None


_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def _values(json: bytes) -> int:
    return json.count(b",") + json.count(b"[") + json.count(b"{")


def too_long(size: int, server: McpServer) -> str:
    """As :func:`too_much`, for an answer of so many bytes that is not whole yet."""
    is_long = size > server.answer_mb * 1_000_000
    return f"it is longer than {server.answer_mb:g} MB" if is_long else ""


def too_much(json: bytes, server: McpServer) -> str:
    """Why an answer is not even parsed; empty: it may be.

    A parser holds the interpreter until it is done, in whatever thread: 30 MB of dense JSON stop
    the whole host for seconds. Signs are counted in a hundredth of that time, those in texts only
    if there are too many.
    """
    if why := too_long(len(json), server):
        return why
    most = server.answer_values
    if len(json) <= most or _values(json) <= most or _values(_STRING.sub(b"", json)) <= most:
        return ""
    return f"it has more than {most:,} values"


class _Heading(msgspec.Struct):
    id: int | str | None = None


def id_of(message: bytes) -> int | str | None:
    """The id in a message; None without one."""
    try:
        return msgspec.json.decode(message, type=_Heading).id
    except (msgspec.DecodeError, RecursionError):
        return None


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
