"""Tokens that have a published format: those of vendors, and JSON web tokens. Pure.

A text is read run by run (``motet.protocols.redaction.shapes``), and most runs are dropped by their
first three characters and their length. A token begins where a word does: behind a character that
is in no run, or behind an escape.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from motet.protocols.redaction.rules import Rules
from motet.protocols.redaction.shapes import HEAD, JOINERS, LETTERS, RUN, Shape, Table
from motet.protocols.redaction.values import Found

_LETTER_CODES = LETTERS.encode()
RUNS = bytes(97 if code in _LETTER_CODES else 32 for code in range(256))
"""Letters of a run become ``a``, all else a space."""
_RUN = b"a" * RUN
_ESCAPES = re.compile(r"(?:\\[abfnrtv0]|\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|%[0-9A-Fa-f]{2})")
_STARTS = re.compile(r"(?<![0-9A-Za-z_-])[0-9A-Za-z]")
_JOINERS = frozenset(JOINERS)
_DASHES = "-_"
_NONE: tuple[Shape, ...] = ()
_BASE64_SIGNS = frozenset("+/")
_SPECIAL = frozenset([*JOINERS, "\\", "%"])
BACK = 64
"""Characters in front of a long run in which its token may have begun."""
_CONTINUED = re.compile(
    r"[\"']?[ \t]{0,8}[\\+]?[ \t]{0,8}\r?\n[ \t]{0,64}(?:[|>*#]{1,8}[ \t]{1,8})?[\"']?"
    r"(?P<more>[0-9A-Za-z_.~+/=-]{4,4096})(?=[\"'\\),; \t]{0,8}[+\\]?[ \t]{0,8}(?:\r?\n|\Z))"
)
_NEXT = re.compile(r"[0-9A-Za-z_.-]{1,80}=[0-9A-Za-z_.~+/-]{12}")
"""The next variable of a file of variables: of a token, only a short part is behind an ``=``."""
LINES = 20
"""Lines over which a token may be wrapped."""


def tokens(rules: Rules, text: str, raw: bytes) -> Iterator[Found]:
    """The tokens of vendors. ``raw``: the text as ASCII."""
    table = rules.shapes
    runs = raw.translate(RUNS)
    find, direct, by_length, of_length = runs.find, table.direct, table.by_length, table.of_length
    joined, joints, short, over = table.joined, table.joints, table.short, table.no_token
    at = last = 0  # ``last``: the end of the last run that was tried itself
    for anchor, shapes in table.anchored.items():
        if anchor[-1] in text:
            yield from _around(anchor, shapes, text)
    while (start := find(_RUN, at)) >= 0:
        at = end = find(b" ", start + RUN)
        if end < 0:
            at = end = len(text)
        head = text[start : start + HEAD]
        is_known, size = head in direct, end - start
        if text[end - 1] in _DASHES and size not in of_length:  # behind the token
            size = len(text[start:end].rstrip(_DASHES))
        if is_known or ((of := of_length.get(size)) is not None and of.match(text, start)):
            shapes = direct.get(head, _NONE) + by_length.get(size, _NONE)
            if made := _matched(shapes, text, start):
                yield start, made[0], start, made[1]
                at = last = max(at, made[0])
                continue
        before = text[start - 1 : start]
        if before not in _SPECIAL:
            last = at
        elif before in _JOINERS:
            # Unless the run before was tried itself, a token may have begun in a shorter one.
            if start - last > 1:
                place = runs.rfind(b" ", last, start - 1) + 1
                head = text[place : place + HEAD]
                if (
                    (head in joined and (head not in short or short[head].match(text, place)))
                    or text[place - 1 : place] in _JOINERS
                    or text[start - 2 : start + 1] in joints
                ):
                    for place, shapes in _begun(joined, joints, text, runs, last, start):
                        if made := _matched(shapes, text, place):
                            yield place, made[0], place, made[1]
                            at = max(at, made[0])
                            break
            last = at
            if text[at : at + 1] in _BASE64_SIGNS and (skipped := over.match(text, at)) is not None:
                # Back to the last long run in it, as if each had been looked at.
                place = runs.rfind(_RUN, at, skipped.end())
                if place >= 0:
                    at = last = find(b" ", place)
        else:
            if (escape := _ESCAPES.match(text, start - 1)) is not None:
                place = escape.end()
                shapes = direct.get(text[place : place + HEAD], ())
                if shapes and (made := _matched(shapes, text, place)):
                    yield place, made[0], place, made[1]
                    at = max(at, made[0])
            last = at


def _begun(
    joined: Table, joints: Table, text: str, runs: bytes, last: int, start: int
) -> list[tuple[int, tuple[Shape, ...]]]:
    """Where the token of a run behind a joiner may have begun, in order: at which shorter run."""
    least = max(last, start - BACK)
    found: list[tuple[int, tuple[Shape, ...]]] = []
    around = joints.get(text[start - 2 : start + 1], ())
    at = start - 1
    while True:
        before = runs.rfind(b" ", least, at)
        if before < 0 and least > 0:
            break  # it began too far in front, or was tried itself
        place = before + 1
        if place < at:
            head = text[place : place + HEAD]
            if around or head in joined:
                found.append((place, joined.get(head, _NONE) + around))
        if before < 0 or text[before] not in _JOINERS:
            break
        at = before
    return found[::-1]


def _around(anchor: str, shapes: tuple[Shape, ...], text: str) -> Iterator[Found]:
    """The tokens that are found by the literal text in their middle."""
    at = text.find(anchor)
    while at >= 0:
        for shape in shapes:
            for one in _STARTS.finditer(text, max(0, at - BACK // 4), at):
                found = shape.pattern.match(text, one.start())
                if found is not None and found.end() > at:
                    yield found.start(), found.end(), found.start(), shape.kind
                    break
        at = text.find(anchor, at + 1)


def _matched(shapes: tuple[Shape, ...], text: str, at: int) -> tuple[int, str] | None:
    """The longest token of these shapes; one may go on in the next lines."""
    best: tuple[int, str] | None = None
    for shape in shapes:
        found = shape.pattern.match(text, at)
        end = 0
        if found is None:
            if len(shape.head) < HEAD:
                continue  # shorter beginnings are in every line of base64
        else:
            end = found.end()
            if not _is_random(shape, found.group()):
                continue
        if not end or (text[end : end + 1] in _MAY_GO_ON and _LAST.match(text, end) is None):
            end = max(end, _over_lines(shape, text, at))
        if end and (best is None or end > best[0]):
            best = end, shape.kind
    return best


_MAY_GO_ON = frozenset(["", "\n", "\r", '"', "'", "\\", " "])
_LAST = re.compile(r"[\"']?(?: [^ \t\\+\r\n]|[,;)}\]])")
"""Behind a token on whose line something follows: it is not wrapped."""
_PIECE = re.compile(r"[0-9A-Za-z_.~+/=:-]{0,256}")
_KNOWN_HEAD = re.compile(
    r"(?:sk-|gh[a-z]_|glpat-|xox[a-z]-|AKIA|ASIA|eyJ|AIza|[a-z]{2,12}_[a-z]{0,6}_?)[0-9A-Za-z]"
)


def _over_lines(shape: Shape, text: str, at: int) -> int:
    """The end of a token that was wrapped: the next lines hold nothing but its rest. 0: none."""
    if len(shape.head) < HEAD or not text.startswith(shape.head[:RUN], at):
        return 0
    first = _PIECE.match(text, at)
    assert first is not None
    if _CONTINUED.match(text, first.end()) is None:
        return 0
    joined, borders = first.group(), [(len(first.group()), first.end())]
    end = first.end()
    for _ in range(LINES):
        more = _CONTINUED.match(text, end)
        if more is None or (shape.head and more["more"].startswith(shape.head)):
            break
        if _NEXT.match(more["more"]) is not None:
            break
        if _KNOWN_HEAD.match(more["more"]) or (
            more["more"].isalpha() and more["more"].islower() and len(more["more"]) < 16
        ):
            break
        joined += more["more"]
        end = more.end("more")
        borders.append((len(joined), end))
    if len(borders) == 1:
        return 0
    found = shape.pattern.match(joined)
    if found is None or not _is_random(shape, found.group()):
        return 0
    return next((place for size, place in borders[1:] if size == found.end()), 0)


def _is_random(shape: Shape, token: str) -> bool:
    body = token[len(shape.head) :]
    if body[:1] in "xX0.*-_" and len(set(body[:64].lower())) == 1:
        return False
    if shape.check != "mixed":
        return True
    return (
        any(letter.isdigit() for letter in body) and body.lower() != body and body.upper() != body
    )


def web_tokens(rules: Rules, text: str) -> Iterator[Found]:
    """JSON web tokens, also over several lines."""
    pattern = rules.expression("json-web-token")
    at = text.find("eyJ")
    while at >= 0:
        if (found := pattern.match(text, at)) is None:
            at = text.find("eyJ", at + 1)
            continue
        end = found.end()
        while text[end - 1] == ".":
            end -= 1
        for _ in range(LINES):
            more = _CONTINUED.match(text, end)
            if (
                more is None
                or more["more"].startswith("eyJ")
                or not any(c.isdigit() or c.isupper() for c in more["more"])
            ):
                break
            end = more.end("more")
        yield at, end, at, "jwt"
        at = text.find("eyJ", end)


# Lines that go on

_OPEN_TOKEN = re.compile(r"\n\r?[ \t]{0,8}[\\+]?[ \t]{0,8}[\"']?[0-9A-Za-z_.~+/=:-]{16,512}")
"""What ends a line, read backwards: from the end it is at one place only."""


def line_ends(text: str) -> Iterator[tuple[int, str]]:
    """The ends of lines that may be the first part of a token: where such a line ends, and it."""
    back = text[::-1]
    for found in _OPEN_TOKEN.finditer(back):
        yield len(text) - found.start() - 1, found.group()[::-1]


def is_open_token(rules: Rules, line: str) -> bool:
    """Whether a line ends with what may be the first part of a token."""
    tail = _OPEN_TOKEN.match(line[::-1])
    return tail is not None and may_be_token(rules, line[-tail.end() :])


def may_be_token(rules: Rules, word: str) -> bool:
    """Whether the end of a line may be the first part of a token."""
    none = rules.shapes.no_head.match(word, 0, BACK + HEAD)
    assert none is not None  # it may be empty
    if none.end() == min(len(word), BACK + HEAD):
        return False
    for found in _WORDS.finditer(word, 0, BACK + 1):
        if word.startswith("eyJ", found.start()) or rules.shapes.may_begin(
            word[found.start() : found.start() + RUN]
        ):
            return True
    return False


_WORDS = re.compile(r"[0-9A-Za-z]+")
