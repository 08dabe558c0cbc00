"""``NO_REPLY``: how an agent says that it has nothing to say. Pure.

A reply is silent when the whole of it is the token, without case and with nothing around it but
decorations: white space, punctuation, quotes, brackets, markdown. An answer that only mentions
the token is an answer. Source: agent loop specification, section 3.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

NO_REPLY: Final = "NO_REPLY"

_SYMBOLS = frozenset("`~^<>|+=$")


def is_silent(text: str) -> bool:
    """Whether the reply is to be stored, marked, and shown to nobody."""
    if NO_REPLY not in text.upper():
        return False
    match = SilenceMatch()
    return match.goes_on(text) and match.whole


class SilenceMatch(msgspec.Struct, eq=False):
    """How much of a silent reply a text that comes in chunks has been so far."""

    _found: int = 0

    @property
    def whole(self) -> bool:
        """Whether it would be one if it ended here."""
        return self._found == len(NO_REPLY)

    def goes_on(self, text: str) -> bool:
        """Whether it may still become one with this behind it; once False, it never will."""
        for letter in text:
            if letter.upper() == NO_REPLY[self._found : self._found + 1]:
                self._found += 1
            elif self._found not in (0, len(NO_REPLY)) or not is_decoration(letter):
                return False
        return True


def is_decoration(letter: str) -> bool:
    """White space, what cannot be seen, punctuation, and the signs of markdown."""
    return unicodedata.category(letter)[0] in "CPZ" or letter in _SYMBOLS


# What a model writes, told apart as it comes: prose, code, reasoning, ``<final>`` tags. Pure.
#
# Laws: the pieces in their order are the text; however the text is cut into chunks, the pieces are
# the same; the time is linear, since all that is still undecided is bounded.
#
# Code is a fence (to the end of the text when nothing closes it) or a span of one line. A tag in
# code is none. Inside of reasoning there is no code: it ends with the first closing tag of its own
# name, or with the text. Whatever has a bound below and goes beyond it is prose.


Kind: TypeAlias = Literal["prose", "span", "fence", "thinking", "final"]

THINKING: Final = ("think", "thinking", "thought", "antThinking", "redacted_thinking")
FINAL_TAG: Final = r"<\s{0,8}/?\s{0,8}final\s{0,8}>"

_SPAN = 1_000
_RUN = 64
_CLOSING_TAG = 64


class Segment(NamedTuple):
    kind: Kind
    text: str


def _beginnings(word: str) -> str:
    """A pattern of all beginnings of a word, the empty one too."""
    pattern = ""
    for letter in reversed(word):
        pattern = f"(?:{letter}{pattern})?"
    return pattern


_NAMES = "|".join(THINKING)
# Where prose may end: code, a whole tag, or what may become one of them when the text goes on.
_TAG_SIGN = (
    rf"(?P<final>{FINAL_TAG})"
    rf"|<(?P<name>{_NAMES})(?:\s[^<>]{{0,256}})?/?>"
    rf"|<(?:(?:{_NAMES})(?:\s[^<>]{{0,256}})?/?|{'|'.join(map(_beginnings, THINKING))})\Z"
    rf"|<\s{{0,8}}/?\s{{0,8}}(?:{_beginnings('final')}|final\s{{0,8}})\Z"
)
_TAG = re.compile(_TAG_SIGN, re.IGNORECASE | re.ASCII)
_SIGN = re.compile(rf"(?P<code>`|~~~|~{{1,2}}\Z)|{_TAG_SIGN}", re.IGNORECASE | re.ASCII)
_TICKS = re.compile(r"`{1,65}|~{1,65}")
_INFO = {"`": re.compile(r"[^`\n]{0,200}(?:\n|\Z)"), "~": re.compile(r"[^\n]{0,200}(?:\n|\Z)")}
_MAYBE_CLOSING = re.compile(r"[ \t]{0,200}[`~]{0,200}[ \t\r]{0,200}\Z")


@cache
def _closing_tag(name: str) -> re.Pattern[str]:
    return re.compile(rf"<\s{{0,8}}/\s{{0,8}}{name}\s{{0,8}}>", re.IGNORECASE | re.ASCII)


@cache
def _closing_run(length: int) -> re.Pattern[str]:
    return re.compile(rf"[^\n]{{1,{_SPAN}}}?(?<!`)`{{{length}}}(?!`)")


@cache
def _closing_fence(sign: str, length: int) -> re.Pattern[str]:
    return re.compile(rf"[ \t]{{0,200}}{sign}{{{length},200}}[ \t\r]{{0,200}}(?=\n|\Z)")


class Segmenter(msgspec.Struct, eq=False):
    """A text that comes in chunks, as pieces. ``close`` ends it and gives what was undecided."""

    _text: str = ""
    _at: int = 0
    _blank: bool = True
    """Nothing but white space is on this line so far: a fence may begin."""
    _fence: re.Pattern[str] | None = None
    _fence_line: bool = False
    _thinking: re.Pattern[str] | None = None
    _ended: bool = False

    def feed(self, text: str) -> list[Segment]:
        """The pieces that are decided now that the text goes on with this."""
        self._text, self._at = self._text[self._at :] + text, 0
        decided: list[Segment] = []
        while self._at < len(self._text):
            if self._thinking:
                piece = self._next_thinking(self._thinking)
            elif self._fence:
                piece = self._next_fenced(self._fence)
            else:
                piece = self._next_open()
            if piece is None:
                break
            decided.append(piece)
        return decided

    def close(self) -> list[Segment]:
        """What is left, now that the text has ended."""
        self._ended = True
        return self.feed("") if self._at < len(self._text) else []

    @property
    def ahead(self) -> str:
        """What of the undecided text is neither reasoning nor a tag, however the text goes on."""
        if self._thinking or self._at == len(self._text):
            return ""
        if self._fence:
            return self._text[self._at :]
        tag = _TAG.search(self._text, self._at)
        return self._text[self._at : tag.start() if tag else None]

    def _next_open(self) -> Segment | None:
        sign = _SIGN.search(self._text, self._at)
        end = sign.start() if sign else len(self._text)
        if end > self._at:
            return self._prose(end)
        assert sign is not None, "the text does not end here"
        return self._code() if sign["code"] else self._tag(sign)

    def _tag(self, found: re.Match[str]) -> Segment | None:
        if found["final"]:
            return self._take("final", found.end())
        if found["name"]:
            if not found[0].endswith("/>"):
                self._thinking = _closing_tag(found["name"].lower())
            return self._take("thinking", found.end())
        return self._prose(self._at + 1) if self._ended else None

    def _next_thinking(self, closing: re.Pattern[str]) -> Segment | None:
        text = self._text
        if found := closing.search(text, self._at):
            self._thinking = None
            return self._take("thinking", found.end())
        near = text.rfind("<", max(self._at, len(text) - _CLOSING_TAG))
        end = len(text) if self._ended or near < 0 else near
        return self._take("thinking", end) if end > self._at else None

    def _code(self) -> Segment | None:
        run = _TICKS.match(self._text, self._at)
        assert run is not None, "the sign is one of these"
        if len(run[0]) > _RUN:
            return self._prose(self._at + _RUN)
        if run.end() == len(self._text) and not self._ended:
            return None
        if self._blank and len(run[0]) >= 3:
            info = _INFO[run[0][0]].match(self._text, run.end())
            if info and (self._ended or info[0].endswith("\n")):
                return self._open_fence(run[0], info.end())
            if info:
                return None
        return self._span(run) if run[0][0] == "`" else self._prose(run.end())

    def _open_fence(self, run: str, end: int) -> Segment:
        self._fence, self._fence_line = _closing_fence(run[0], len(run)), True
        return self._take("fence", end)

    def _span(self, run: re.Match[str]) -> Segment | None:
        text, begin = self._text, run.end()
        found = _closing_run(len(run[0])).match(text, begin)
        if found and (self._ended or found.end() < len(text)):
            self._blank = False
            return self._take("span", found.end())
        limit = begin + _SPAN + len(run[0]) + 1
        if self._ended or len(text) >= limit or text.find("\n", begin, limit) >= 0:
            return self._prose(begin)
        return None

    def _next_fenced(self, closing: re.Pattern[str]) -> Segment | None:
        text, newline = self._text, self._text.find("\n", self._at)
        if self._fence_line:
            if newline < 0 and not self._ended and _MAYBE_CLOSING.match(text, self._at):
                return None
            if found := closing.match(text, self._at):
                self._fence, self._blank = None, False
                return self._take("fence", found.end())
        self._fence_line = newline >= 0
        return self._take("fence", newline + 1 if newline >= 0 else len(text))

    def _prose(self, end: int) -> Segment:
        piece = self._take("prose", end)
        _, newline, line = piece.text.rpartition("\n")
        self._blank = not line.strip() and (bool(newline) or self._blank)
        return piece

    def _take(self, kind: Kind, end: int) -> Segment:
        piece = Segment(kind, self._text[self._at : end])
        self._at = end
        return piece


def runs(text: str) -> Iterator[Segment]:
    """The pieces of a whole text; those of one kind that follow each other are one."""
    reader = Segmenter()
    for kind, run in groupby([*reader.feed(text), *reader.close()], key=_kind):
        yield Segment(kind, "".join(piece.text for piece in run))


def _kind(piece: Segment) -> Kind:
    return piece.kind


# What of a model's answer may be shown while it still comes. Pure.
#
# One filter for one answer: a retry or the next request to the model gets a new one. Laws: however
# the answer is cut into chunks, what is shown is the same; it only grows; nothing inside of a
# thinking tag is ever in it; a silent reply shows nothing. Held back is only what may still become
# a tag or the token, and from a tag that may stand in a code span what follows it there.
#
# What is shown is the answer without reasoning and ``<final>`` tags. The other steps need the whole
# text: the stored message, which is sanitized, replaces what was shown.


class StreamFilter(msgspec.Struct, eq=False):
    """Feed it the answer's chunks; show what it gives back, which may be nothing."""

    _pieces: Segmenter = msgspec.field(default_factory=Segmenter)
    _silence: SilenceMatch | None = msgspec.field(default_factory=SilenceMatch)
    """None when the answer is known not to be silent."""
    _ahead: int = 0
    """How much of the undecided text has been given out."""
    _held: list[str] = []

    def feed(self, text: str) -> str:
        """What can be shown now that the answer goes on with this."""
        decided = _visible(self._pieces.feed(text))
        ahead = self._pieces.ahead
        new = (decided + ahead)[self._ahead :]
        self._ahead = len(ahead)
        return new if self._silence is None else self._unless_silent(new, self._silence)

    def close(self) -> str:
        """What can be shown now that the answer has ended."""
        rest = _visible(self._pieces.close())[self._ahead :]
        if self._silence is not None:
            rest = self._unless_silent(rest, self._silence)
        if self._silence is None or self._silence.whole:
            return rest
        return "".join(self._held).strip()

    def _unless_silent(self, text: str, silence: SilenceMatch) -> str:
        self._held.append(text)
        if silence.goes_on(text):
            return ""
        self._silence = None
        return "".join(self._held).lstrip()


def _visible(pieces: list[Segment]) -> str:
    return "".join([p.text for p in pieces if p.kind not in ("thinking", "final")])
