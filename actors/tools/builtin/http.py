"""A page of the public internet as readable text: its title, words, and links with addresses."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from html.parser import HTMLParser
from typing import TypeAlias
from urllib.parse import urljoin

import trio

from motet.actors.telemetry.http import Response
from motet.actors.tools.builtin.http_client import Method, WebClient, decode
from motet.protocols.config import HttpConfig
from motet.protocols.tools import ToolFailure, ToolNegative

_SILENT = frozenset({"script", "style", "template", "svg", "iframe", "object"})
# fmt: off
_BLOCKS = frozenset({
    "address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "fieldset",
    "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header",
    "hr", "li", "main", "nav", "ol", "option", "p", "pre", "section", "table", "tbody", "thead",
    "tr", "ul",
})
# fmt: on
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
MAX_HTML = 1_000_000
"""Characters of a document that are read."""

# Replaces a space of preformatted text until the other spaces have been joined.
_KEPT_SPACE = "\0"
_SPACES = re.compile(r"[ \t\r\f\v\xa0]+")
_GAPS = re.compile(r"\n\s*\n+")
_META = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)


def declared_charset(body: bytes) -> str | None:
    """The character set that an HTML document names in its first 4,096 bytes."""
    found = _META.search(body[:4096])
    return found[1].decode("ascii") if found else None


def readable(html: str, base: str) -> tuple[str, str]:
    """The title and the text of a document; links become ``text <address>``. Never raises.

    ``base``: the address for relative links.
    """
    reader = _Reader(base)
    # Not close(): it parses an incomplete end in quadratic time. A tag of our own flushes the last
    # words instead.
    with suppress(AssertionError):  # some versions of Python's parser fail like this
        reader.feed(html[:MAX_HTML] + "<br>")
    return reader.title(), reader.text()


class _Reader(HTMLParser):
    def __init__(self, base: str) -> None:
        super().__init__(convert_charrefs=True)
        self._base = base
        self._pieces: list[str] = []
        self._title: list[str] = []
        self._in_title = False
        self._silent = ""
        self._depth = 0
        self._link: str | None = None
        self._verbatim = 0

    def parse_html_declaration(self, i: int) -> int:
        """Read ``<![...>`` as a comment, as browsers do; the parser may refuse it."""
        if self.rawdata.startswith("<![", i):
            return self.parse_bogus_comment(i)
        return super().parse_html_declaration(i)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in _SILENT:
            self._silent = self._silent or tag
            self._depth += tag == self._silent
        elif tag == "title" and not self._silent:
            self._in_title = not self._title
        elif tag in _BLOCKS:
            self._pieces.append("\n" + ("- " if tag == "li" else _HEADINGS.get(tag, "")))
            self._verbatim += tag == "pre"
        elif tag == "a":
            self._end_link()
            self._link = given.get("href")
        elif tag == "img" and given.get("alt"):
            self._pieces.append(f"[{given['alt']}]")
        elif tag in ("td", "th"):
            self._pieces.append(" | ")

    def handle_endtag(self, tag: str) -> None:
        if tag in _SILENT:
            self._depth -= tag == self._silent
            self._silent = self._silent if self._depth else ""
        elif tag == "title":
            self._in_title = False
        elif tag == "a":
            self._end_link()
        elif tag in _BLOCKS:
            self._pieces.append("\n")
            self._verbatim = max(0, self._verbatim - (tag == "pre"))

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self._title.append(data)
        elif not self._silent:
            kept = data.expandtabs(4).replace(" ", _KEPT_SPACE)
            self._pieces.append(kept if self._verbatim else data.replace("\n", " "))

    def _end_link(self) -> None:
        target, self._link = self._link, None
        if target and not target.startswith(("#", "javascript:", "data:")):
            try:
                self._pieces.append(f" <{urljoin(self._base, target)}>")
            except ValueError:
                self._pieces.append(f" <{target}>")

    def title(self) -> str:
        return " ".join("".join(self._title).split())

    def text(self) -> str:
        lines = (_SPACES.sub(" ", line).strip() for line in "".join(self._pieces).split("\n"))
        return _GAPS.sub("\n\n", "\n".join(lines)).strip().replace(_KEPT_SPACE, " ")


PAGE_CHARS = 15_000
"""Characters of a text in one result; a later ``offset`` gives the rest."""

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
"""Takes a URL, a method and an offset; see :func:`fetch`."""


def fetcher(config: HttpConfig) -> Fetch:
    """A :data:`Fetch` with the limits of a configuration."""
    client = WebClient(config.max_bytes, config.allow_private, refuse_unreadable)
    return partial(fetch, client, config.timeout)


async def fetch(
    client: WebClient, timeout: float, url: str, method: Method = "GET", offset: int = 0
) -> str:
    """The text at ``url`` from ``offset`` on, below a line with its source.

    Raises:
        ToolFailure: refused, unreachable, or too slow (``timeout``).
        ToolNegative: the server has answered with an HTTP error status.
    """
    with trio.move_on_after(timeout):
        response = await client.fetch(url, method)
        if method == "HEAD":
            lines = (f"{name}: {value}" for name, value in sorted(response.headers.items()))
            return "\n".join((_heading(response), *lines))
        # In a thread: parsing a large page would block other tasks.
        text = await trio.to_thread.run_sync(_text, response)
        if response.status >= 400:
            raise _error(response, text)
        return f"{_heading(response)}\n\n{page(text, offset)}"
    raise ToolFailure(f"{url} took longer than {timeout:g} seconds", kind="timeout")


def page(text: str, offset: int) -> str:
    """The part of ``text`` that fits a result, with a note on how to read on."""
    if offset < 0 or offset > len(text):
        message = f"offset is 0 to {len(text)} for this page, not {offset}"
        raise ToolFailure(message, kind="validation")
    end = offset + PAGE_CHARS
    if end >= len(text):
        return text[offset:]
    note = f"[characters {offset} to {end} of {len(text)}; go on with offset={end}]"
    return f"{text[offset:end]}\n{note}"


def refuse_unreadable(response: Response) -> None:
    """Raise if the headers declare a body other than text; an error status may have any."""
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


def _error(response: Response, text: str) -> ToolNegative:
    """The answer of a server that was reached: with the beginning of its page, for the model."""
    message = f"HTTP {response.phrase} for {response.url}"
    body = text[:ERROR_CHARS]
    return ToolNegative(
        message,
        value=f"{message}\n\n{body}" if body.strip() else message,
        detail={"message": message, "status": response.status, "body": body},
        code=str(response.status),
        kind=_KINDS.get(response.status, "unknown"),
    )
