"""HTML as text to read: the title, the words, and where links lead."""

from __future__ import annotations

import re
from contextlib import suppress
from html.parser import HTMLParser
from urllib.parse import urljoin

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
"""How much of a document is read, in characters."""

# Stands for a space of preformatted text until the others have been joined.
_KEPT_SPACE = "\0"
_SPACES = re.compile(r"[ \t\r\f\v\xa0]+")
_GAPS = re.compile(r"\n\s*\n+")
_META = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)


def declared_charset(body: bytes) -> str | None:
    """The character set that an HTML document names in its first 4,096 bytes."""
    found = _META.search(body[:4096])
    return found[1].decode("ascii") if found else None


def readable(html: str, base: str) -> tuple[str, str]:
    """The title and the text of a document; links are kept as ``text <address>``.

    Never raises, whatever the document. ``base`` is what relative links are relative to.
    """
    reader = _Reader(base)
    # Not close(): it takes what is incomplete at the end apart in quadratic time. A tag of our own
    # flushes the last words instead.
    with suppress(AssertionError):  # how the parser of some Python versions gives up
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
        """Take ``<![...>`` as the comment that browsers take it for; the parser may refuse it."""
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
