"""One page of the public internet, as text to read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

import trio

from motet.actors.tools.builtin.decoding import decode
from motet.actors.tools.builtin.html_text import declared_charset, readable
from motet.actors.tools.builtin.http_client import HttpClient, Response
from motet.actors.tools.builtin.web import Method
from motet.actors.tools.tool import ToolFailure
from motet.protocols.config import HttpConfig

PAGE_CHARS = 15_000
"""How much of a text one call gives; the rest is there at a later ``offset``."""

ERROR_CHARS = 4_000

_HTML = frozenset({"text/html", "application/xhtml+xml"})
_TEXT = frozenset(
    {
        "application/ecmascript",
        "application/graphql",
        "application/javascript",
        "application/json",
        "application/sql",
        "application/toml",
        "application/x-ndjson",
        "application/x-sh",
        "application/x-yaml",
        "application/xml",
        "application/yaml",
    }
)
_KINDS = {
    401: "auth",
    403: "auth",
    404: "not_found",
    408: "timeout",
    410: "not_found",
    429: "rate_limit",
    504: "timeout",
}


Fetch: TypeAlias = Callable[[str, Method, int], Awaitable[str]]
"""Of a URL, a method and an offset, as :func:`fetch` makes it."""


def fetcher(config: HttpConfig) -> Fetch:
    """Fetches as configured."""
    client = HttpClient(config.max_bytes, config.allow_private, refuse_unreadable)
    return partial(fetch, client, config.timeout)


async def fetch(
    client: HttpClient, timeout: float, url: str, method: Method = "GET", offset: int = 0
) -> str:
    """The text at ``url`` from a character on, with a line about where it came from.

    Raises:
        ToolFailure: refused, unreachable, too slow (``timeout``), or an HTTP error status.
    """
    with trio.move_on_after(timeout):
        response = await client.fetch(url, method)
        if method == "HEAD":
            return _heading(response) + "\n" + _header_lines(response)
        # Parsing a large page takes longer than other tasks should wait.
        text = await trio.to_thread.run_sync(_text, response)
        if response.status >= 400:
            raise _error(response, text)
        return f"{_heading(response)}\n\n{page(text, offset)}"
    raise ToolFailure(f"{url} took longer than {timeout:g} seconds", kind="timeout")


def page(text: str, offset: int) -> str:
    """A part of ``text`` that fits a result, and how to get the next one."""
    if offset < 0 or offset > len(text):
        message = f"offset is 0 to {len(text)} for this page, not {offset}"
        raise ToolFailure(message, kind="validation")
    end = offset + PAGE_CHARS
    if end >= len(text):
        return text[offset:]
    note = f"[characters {offset} to {end} of {len(text)}; go on with offset={end}]"
    return f"{text[offset:end]}\n{note}"


def refuse_unreadable(response: Response) -> None:
    """Raise if the headers say that the body is no text; an error status may have any body."""
    kind = response.content_type
    if response.status < 400 and kind and not _is_text(kind):
        size = response.headers.get("content-length")
        shown = f"{int(size):,} bytes" if size and size.isdecimal() else "size unknown"
        raise ToolFailure(
            f"{response.url} is {kind} ({shown}); only text, HTML and JSON can be read",
            kind="validation",
        )


def _is_text(kind: str) -> bool:
    return (
        kind.startswith("text/")
        or kind in _HTML
        or kind in _TEXT
        or kind.endswith(("+json", "+xml", "+yaml"))
    )


def _text(response: Response) -> str:
    kind, body = response.content_type, response.body
    if (not _is_text(kind) and b"\0" in body[:8192]) or (kind and not _is_text(kind)):
        if response.status >= 400:
            return ""
        message = f"{response.url} is binary data ({len(body):,} bytes)"
        raise ToolFailure(f"{message}; only text, HTML and JSON can be read", kind="validation")
    charset = _charset(response)
    text = decode(body, charset)
    if kind in _HTML:
        title, shown = readable(text, response.url)
        text = f"# {title}\n\n{shown}" if title else shown
    return text + (f"\n[cut after {len(body):,} bytes]" if response.cut else "")


def _charset(response: Response) -> str | None:
    for parameter in response.headers.get("content-type", "").split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip("\"'")
    return declared_charset(response.body) if response.content_type in _HTML else None


def _heading(response: Response) -> str:
    return f"[{response.phrase} · {response.url} · {response.content_type or 'no type given'}]"


def _header_lines(response: Response) -> str:
    return "\n".join(f"{name}: {value}" for name, value in sorted(response.headers.items()))


def _error(response: Response, text: str) -> ToolFailure:
    message = f"HTTP {response.phrase} for {response.url}"
    return ToolFailure(
        message,
        detail={"message": message, "status": response.status, "body": text[:ERROR_CHARS]},
        code=str(response.status),
        kind=_KINDS.get(response.status, "unknown"),
    )
