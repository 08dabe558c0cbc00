"""HTML as text to read: the title, the words, and where links lead."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from urllib.parse import urljoin

_SILENT = frozenset({"script", "style", "template", "svg", "iframe", "object", "noscript"})
_BLOCKS = frozenset(
    "address article aside blockquote br dd div dl dt fieldset figcaption figure footer form h1 h2"
    " h3 h4 h5 h6 header hr li main nav ol p pre section table tbody thead tr ul option".split()
)
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
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
    reader.feed(html)
    reader.close()
    return reader.title(), reader.text()


class _Reader(HTMLParser):
    def __init__(self, base: str) -> None:
        super().__init__(convert_charrefs=True)
        self._base = base
        self._pieces: list[str] = []
        self._title: list[str] = []
        self._in_title = False
        self._silent: list[str] = []
        self._link: str | None = None
        self._verbatim = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in _SILENT:
            self._silent.append(tag)
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
        if tag in self._silent:
            del self._silent[self._silent.index(tag) :]
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
            self._pieces.append(data if self._verbatim else data.replace("\n", " "))

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
        return _GAPS.sub("\n\n", "\n".join(lines)).strip()
