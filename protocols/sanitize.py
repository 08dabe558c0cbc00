"""Filters of a model's answers for their readers: while they stream, and for the transcript. Pure.

:class:`Segmenter` divides a text into prose, code, reasoning and ``<final>`` tags as it arrives;
:class:`SilenceMatch` recognises ``NO_REPLY``; :class:`StreamFilter` joins the two and says which
text can be shown already. :func:`sanitize` makes the final text in eight steps and a trim, on a
masked text in which code and reasoning are marks, so that no step changes them.

Laws: the chunks into which a text is cut make no difference; sanitizing twice changes nothing more;
code outside of reasoning is unchanged; a text without artefacts is only trimmed; all of it takes
linear time, since undecided text is bounded. Source: agent loop specification, section 3.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

NO_REPLY: Final = "NO_REPLY"
"""The token of a silent reply. The reply is the token in any case, with only decorations around it:
white space, punctuation, quotes, brackets, markdown. An answer that mentions it is an answer."""

_SYMBOLS = frozenset("`~^<>|+=$")


def is_silent(text: str, *tokens: str) -> bool:
    """Whether the reply is one of the tokens (``NO_REPLY`` by default), and is not to be shown."""
    upper = text.upper()
    for token in tokens or (NO_REPLY,):
        if token in upper:
            match = SilenceMatch(token)
            if match.goes_on(text) and match.whole:
                return True
    return False


class SilenceMatch(msgspec.Struct, eq=False):
    """Matches a text that comes in chunks against a silent reply."""

    token: str = NO_REPLY
    _found: int = 0

    @property
    def whole(self) -> bool:
        """Whether the text is a silent reply if it ends here."""
        return self._found == len(self.token)

    def goes_on(self, text: str) -> bool:
        """Whether the text can still become a silent reply with this chunk; once False, always."""
        for letter in text:
            if letter.upper() == self.token[self._found : self._found + 1]:
                self._found += 1
            elif self._found not in (0, len(self.token)) or not is_decoration(letter):
                return False
        return True


def is_decoration(letter: str) -> bool:
    """White space, invisible characters, punctuation, and the signs of markdown."""
    return unicodedata.category(letter)[0] in "CPZ" or letter in _SYMBOLS


# Segments. Law: the segments in their order are the text.
#
# Code is a fence (to the end of the text if it is not closed) or a span in one line. A tag in code
# is no tag. There is no code in reasoning, which ends with the first closing tag of its own name,
# or with the text. Calls between DeepSeek's tokens or in its elements (``<｜DSML｜…>``) are like
# reasoning, and so is any other token of its kind. A construct beyond its bound below is prose.


Kind: TypeAlias = Literal["prose", "span", "fence", "thinking", "final"]

THINKING: Final = ("think", "thinking", "thought", "antThinking", "redacted_thinking")
FINAL_TAG: Final = r"<\s{0,8}/?\s{0,8}final\s{0,8}>"

_BLOCKS: Final = "calls|call|outputs|output"
_TOKEN: Final = rf"<｜tool▁(?P<block>{_BLOCKS})▁begin｜>|<｜[\w▁ -]{{1,40}}｜>"
_ELEMENT: Final = r"<(?:/｜DSML｜\w{1,40}|｜DSML｜(?P<element>\w{1,40})(?:\s[^<>]{0,256})?)>"
_PART_OF_TOKEN: Final = (
    r"<｜[\w▁ -]{0,40}｜?\Z"
    r"|</?｜(?:D(?:S(?:M(?:L(?:｜(?:\w{1,40}(?:\s[^<>]{0,256})?)?)?)?)?)?)?\Z"
)

_SPAN = 1_000
_RUN = 64
_CLOSING_TAG = 64


class Segment(NamedTuple):
    kind: Kind
    text: str


def _beginnings(word: str) -> str:
    """A pattern of all prefixes of a word, the empty one included."""
    pattern = ""
    for letter in reversed(word):
        pattern = f"(?:{letter}{pattern})?"
    return pattern


_NAMES = "|".join(THINKING)
# Where prose may end: code, a whole tag, or the beginning of one at the end of the text.
_TAG_SIGN = (
    rf"(?P<final>{FINAL_TAG})"
    rf"|<(?P<name>{_NAMES})(?:\s[^<>]{{0,256}})?/?>"
    rf"|(?P<token>{_TOKEN}|{_ELEMENT})|{_PART_OF_TOKEN}"
    rf"|<(?:(?:{_NAMES})(?:\s[^<>]{{0,256}})?/?|{'|'.join(map(_beginnings, THINKING))})\Z"
    rf"|<\s{{0,8}}/?\s{{0,8}}(?:{_beginnings('final')}|final\s{{0,8}})\Z"
)
_TAG = re.compile(_TAG_SIGN, re.IGNORECASE | re.ASCII)
_SIGN = re.compile(rf"(?P<code>`|~~~|~{{1,2}}\Z)|{_TAG_SIGN}", re.IGNORECASE | re.ASCII)
_TICKS = re.compile(r"`{1,65}|~{1,65}")
_INFO = {"`": re.compile(r"[^`\n]{0,200}(?:\n|\Z)"), "~": re.compile(r"[^\n]{0,200}(?:\n|\Z)")}
_MAYBE_CLOSING = re.compile(r"[ \t]{0,200}[`~]{0,200}[ \t\r]{0,200}\Z")


# By themselves, what closes a tag, a run of ticks and a fence; ``re`` keeps the compiled patterns.
_END_OF_TAG = r"(?ai)<\s{{0,8}}/\s{{0,8}}{}\s{{0,8}}>"
_END_OF_RUN = rf"[^\n]{{{{1,{_SPAN}}}}}?(?<!`)`{{{{{{}}}}}}(?!`)"
_END_OF_FENCE = r"[ \t]{{0,200}}{}{{{},200}}[ \t\r]{{0,200}}(?=\n|\Z)"


class Segmenter(msgspec.Struct, eq=False):
    """Divides a text that comes in chunks. ``close`` ends it and decides the rest."""

    _text: str = ""
    _at: int = 0
    _blank: bool = True
    """Whether this line has only white space so far: a fence may begin."""
    _fence: re.Pattern[str] | None = None
    _fence_line: bool = False
    _thinking: re.Pattern[str] | None = None
    _ended: bool = False

    def feed(self, text: str) -> list[Segment]:
        """The segments that this chunk decides."""
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
        """The rest, now that the text has ended."""
        self._ended = True
        return self.feed("") if self._at < len(self._text) else []

    @property
    def ahead(self) -> str:
        """The part of the undecided text that cannot become reasoning or a tag."""
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
        if found["token"]:
            if found["block"]:
                self._thinking = re.compile(f"<｜tool▁{found['block'].lower()}▁end｜>")
            elif found["element"]:
                self._thinking = re.compile(f"(?ai)</｜DSML｜{found['element']}>")
            return self._take("thinking", found.end())
        if found["name"]:
            if not found[0].endswith("/>"):
                self._thinking = re.compile(_END_OF_TAG.format(found["name"].lower()))
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
                self._fence = re.compile(_END_OF_FENCE.format(run[0][0], len(run[0])))
                self._fence_line = True
                return self._take("fence", info.end())
            if info:
                return None
        return self._span(run) if run[0][0] == "`" else self._prose(run.end())

    def _span(self, run: re.Match[str]) -> Segment | None:
        text, begin = self._text, run.end()
        found = re.compile(_END_OF_RUN.format(len(run[0]))).match(text, begin)
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
    """The segments of a whole text; neighbours of one kind are joined."""
    reader = Segmenter()
    for kind, run in groupby([*reader.feed(text), *reader.close()], key=_kind):
        yield Segment(kind, "".join(piece.text for piece in run))


def _kind(piece: Segment) -> Kind:
    return piece.kind


class StreamFilter(msgspec.Struct, eq=False):
    """Filters one answer: feed it the chunks, show the texts that it returns.

    Laws: the shown text does not depend on the chunks, only grows, has nothing from inside a
    thinking tag, and is empty for a silent reply. Only text that may become a tag or the token is
    held back, and after a tag that may be in a code span the rest of that span.

    The shown text lacks reasoning and ``<final>`` tags. The other steps of sanitizing need the
    whole text: in the end the sanitized message replaces the shown text. A retry has its own.
    """

    _segmenter: Segmenter = msgspec.field(default_factory=Segmenter)
    _silence: SilenceMatch | None = msgspec.field(default_factory=SilenceMatch)
    """None once the answer cannot be silent."""
    _ahead: int = 0
    """How much of the undecided text was shown already."""
    _held: list[str] = []

    def feed(self, text: str) -> str:
        """The text to show after this chunk."""
        decided = _visible(self._segmenter.feed(text))
        ahead = self._segmenter.ahead
        new = (decided + ahead)[self._ahead :]
        self._ahead = len(ahead)
        return new if self._silence is None else self._unless_silent(new, self._silence)

    def close(self) -> str:
        """The text to show at the end of the answer."""
        rest = _visible(self._segmenter.close())[self._ahead :]
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


def _visible(segments: list[Segment]) -> str:
    if not segments:
        return ""
    return "".join([p.text for p in segments if p.kind not in ("thinking", "final")])


# Masks

NUL: Final = "\0"
FENCE: Final = "\0f"
THOUGHT: Final = re.compile("\0t[0-9]+\0")

_LETTERS: dict[Kind, str] = {"span": "s", "fence": "f", "thinking": "t"}
_MARK = re.compile("\0[fnst]([0-9]+)\0")
_HIDES = re.compile("[`<\0]|~~~")


def masked(text: str) -> tuple[str, list[str]]:
    """The text with marks, and the text behind each mark. Law: ``unmasked(*masked(text)) == text``.

    A mark is NUL, a letter for the kind, a number, NUL. A NUL of the text becomes a mark, too, so
    that every mark in a masked text is ours. Equal spans have equal marks, so that equal paragraphs
    stay equal; every fence has a mark of its own.
    """
    if not _HIDES.search(text):
        return text, []
    hidden: list[str] = []
    marks: dict[str, str] = {}

    def mark(letter: str, content: str) -> str:
        if content not in marks or letter == "f":
            marks[content] = f"\0{letter}{len(hidden)}\0"
            hidden.append(content)
        return marks[content]

    parts: list[str] = []
    for kind, content in runs(text):
        if letter := _LETTERS.get(kind):
            parts.append(mark(letter, content))
        else:
            parts.append(content.replace(NUL, mark("n", NUL)) if NUL in content else content)
    return "".join(parts), hidden


def unmasked(text: str, hidden: list[str]) -> str:
    return _MARK.sub(lambda found: hidden[int(found[1])], text) if hidden else text


# The steps, on a masked text

Step: TypeAlias = Callable[[str], str]

_INDICATORS = (
    "invfunction_calls", "functioninvoke", "<parameter name=", "</parameter", "<function_call",
    "<tool_call", "<tool_use", "<minimax:tool_call",
)  # fmt: skip
_TOOL_TAG = re.compile(
    r"</?(?:function_call|functioninvoke|invoke|invfunction_calls|tool_call|tool_use|parameter"
    r"|minimax:tool_call)"
)
_TAG_END = re.compile(f"[>{NUL}]")
_OBJECT = re.compile(r"\s*(?:\{|\[(?=\s*\{))")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\Z)', re.DOTALL)
_JSON = json.JSONDecoder(strict=False)
_ARGUMENTS = re.compile(r"\s*(?:Arguments:\s*)?(?=\{|\[\s*\{)")
_REST = re.compile(r"[ \t]*\]?[ \t\r]*(?=\n|\Z)")
_DOWNGRADED = ("[Tool Call:", "[Tool Result", "[Historical context:")
_PAYLOAD = re.compile(r'Arguments:|[{}]|\][ \t]*,?$|\[[ \t]*$|"[^"\n]*"[ \t]*:')
_FINAL = re.compile(FINAL_TAG, re.IGNORECASE | re.ASCII)
_ECHO = "[System Message]"
_MEDIA = re.compile(r"MEDIA:\S")
_VOICE = "[[audio_as_voice]]"
_BLANK_LINES = re.compile(r"(?:[^\S\n]*\n)+")


def garbled_tool_xml(text: str) -> str:
    """Without tags of tool calls that came as text, and without what they call.

    A ``<parameter>`` is one only where a call is; elsewhere it is prose.
    """
    lowered = text.lower()
    if not any(indicator in lowered for indicator in _INDICATORS):
        return text
    places = list(_tool_tags(text))
    tags = [text[start:end] for start, end in places]
    if not any(_is_call(tag) for tag in tags) and any(tag.startswith("<p") for tag in tags):
        return text
    at = depth = 0
    kept: list[str] = []
    for number, ((start, end), tag) in enumerate(zip(places, tags, strict=True)):
        if start < at:
            continue
        kept.append(text[at:start])
        at = end
        if tag.startswith("</"):
            depth = max(0, depth - _is_call(tag))
        elif _is_call(tag):
            depth += 1
            is_last = number == len(places) - 1
            at = len(text) if is_last and _is_cut(text[end:]) else _end_of_json(text, end)
        elif depth and tags[number + 1 : number + 2] == ["</parameter>"]:
            value = places[number + 1][0]
            at = end if FENCE in text[end:value] else value
    return "".join([*kept, text[at:]]).strip()


def _is_call(tag: str) -> bool:
    return "parameter" not in tag[:11]


def _end_of_json(text: str, at: int) -> int:
    """The end of the JSON objects at a place; the place itself if there are none, or a fence."""
    end = at
    while found := _OBJECT.match(text, end):
        try:
            _, behind = _JSON.raw_decode(text, found.end() - 1)
        except (ValueError, RecursionError):
            break
        end = behind
    return at if FENCE in text[at:end] else end


def _is_cut(text: str) -> bool:
    """Whether this is the beginning of a JSON object, and no more."""
    if FENCE in text or not _OBJECT.match(text):
        return False
    bare = _STRING.sub("", text)
    return sum(map(bare.count, "{[")) > sum(map(bare.count, "}]"))


def _tool_tags(text: str) -> Iterator[tuple[int, int]]:
    """The places of the tags, each up to the next ``>``, but not across code."""
    stop = 0
    for found in _TOOL_TAG.finditer(text):
        if found.start() < stop and text[stop - 1] == ">":
            continue
        if stop < found.end():
            end = _TAG_END.search(text, found.end())
            if end is None:
                return
            stop = end.end()
        if text[stop - 1] == ">":
            yield found.start(), stop


def downgraded_tool_text(text: str) -> str:
    """Without calls and results that were written as text, and the JSON that follows them."""
    if "[" not in text:
        return text
    kept: list[str] = []
    skipping, at = False, 0
    while at <= len(text):
        newline = text.find("\n", at)
        end = len(text) if newline < 0 else newline
        bare = text[at:end].strip()
        starts = bare.startswith(_DOWNGRADED)
        skipping = starts or (skipping and (not bare or _PAYLOAD.match(bare) is not None))
        if starts:
            end = _end_of_payload(text, at, end)
        elif not skipping:
            kept.append(text[at:end])
        at = end + 1
    return "\n".join(kept)


def _end_of_payload(text: str, line: int, end: int) -> int:
    """The end of the last line of a call: of its own line, or of the JSON that begins there or in
    the next line, however it is laid out.
    """
    inside = text.find("{", line, end)
    head = _ARGUMENTS.match(text, end)
    for begin in (inside, head.end() if head else -1):
        stop = _end_of_json(text, begin) if begin >= 0 else begin
        if stop > max(begin, end):
            rest = _REST.match(text, stop)
            return rest.end() if rest else stop - 1
    return end


def thinking_tags(text: str) -> str:
    """Without reasoning, which the segmenter has found."""
    return THOUGHT.sub("", text).strip()


def final_tags(text: str) -> str:
    """Without the tags around a final answer; the answer stays."""
    return _FINAL.sub("", text).strip()


def echoed_system_messages(text: str) -> str:
    """Without blocks that begin as a system message, up to a blank line or the end."""
    kept: list[str] = []
    skipping = False
    for line in text.split("\n"):
        bare = line.strip()
        starts = bare.startswith(_ECHO)
        if not (starts or skipping) or FENCE in line:
            kept.append(line)
        skipping = starts or (skipping and bool(bare))
    return "\n".join(kept).strip()


def duplicate_blocks(text: str) -> str:
    """Without paragraphs that repeat the one before them, and without empty ones."""
    kept: list[str] = []
    last = ""
    for block in text.split("\n\n"):
        bare = block.strip()
        if bare not in ("", last):
            kept.append(block)
            last = bare
    return "\n\n".join(kept)


def media_paths(text: str) -> str:
    """Without lines for a channel: paths of media files, and how to send them."""
    if "MEDIA:" not in text:
        return text
    lines = text.split("\n")
    kept = [x for x in lines if not _MEDIA.search(x) and not x.strip().startswith(_VOICE)]
    return "\n".join(kept).strip()


def leading_blank_lines(text: str) -> str:
    """Without lines of white space at the beginning; the first real line keeps its indent."""
    blank = _BLANK_LINES.match(text)
    return text[blank.end() :] if blank else text


STEPS: Final[Mapping[str, Step]] = {
    "garbled tool XML": garbled_tool_xml,
    "downgraded tool text": downgraded_tool_text,
    "thinking tags": thinking_tags,
    "final tags": final_tags,
    "echoed system messages": echoed_system_messages,
    "duplicate blocks": duplicate_blocks,
    "media paths": media_paths,
    "leading blank lines": leading_blank_lines,
}
"""By name, in their order."""

_SUSPECT: Final = re.compile(r"[<\[]|\n\s*\n|MEDIA:|invfunction_calls|functioninvoke")
_ROUNDS: Final = 10


def sanitize(text: str) -> str:
    """The answer as it is stored and shown.

    A removal can join text that an earlier step looks for, so the steps are repeated until they
    change nothing. A text that changes in every round was made to do so: only its code blocks stay.
    """
    if not _SUSPECT.search(text):
        return text.strip()
    for _ in range(_ROUNDS):
        clean = _sanitized_once(text)
        if clean == text:
            return clean
        text = clean
    return "\n".join(run.text for run in runs(text) if run.kind == "fence")


def _sanitized_once(text: str) -> str:
    bare, hidden = masked(text)
    for step in STEPS.values():
        bare = step(bare)
    return unmasked(bare, hidden).strip()
