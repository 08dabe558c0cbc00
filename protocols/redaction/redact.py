"""Redaction of secrets and personal data in texts, streams and JSON values. Pure.

A secret becomes ``[secret:KIND:TAG]``. Equal secrets have equal tags, so that a reader can tell
them apart. A tag is four digits of a keyed hash: a hash without a key would let a reader who has
the mask try a list of passwords. The key belongs to the installation (:func:`registered_secrets`),
so that tags are the same after a restart; without a host it is one of the process.

Laws: redacting twice changes nothing more; the time is linear in the text; a value keeps its
structure; a stream that comes in any pieces is redacted as its whole (:class:`Redactor`). Secrets
in the configuration of a host are redacted wherever they occur. Source: errors specification
section 2.
"""

from __future__ import annotations

import re
import secrets
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import lru_cache
from itertools import accumulate, islice
from typing import TypeAlias, cast

from motet.protocols.redaction import finders, named, values
from motet.protocols.redaction.crowds import CROWD, Crowd
from motet.protocols.redaction.masks import PRIVATE_KEY, Tagger, mask, masked, masker
from motet.protocols.redaction.own import OwnRules, table
from motet.protocols.redaction.rules import Rules
from motet.protocols.texts import well_formed

Tag: TypeAlias = Callable[[str], str]

# Registered secrets: the exact values in the configurations of the process's hosts, with their own
# rules and keys. They belong to the process, as its logs do: a secret of one host must not show in
# another's either. Invariant: a value is redacted as long as one host that has registered it is
# open.

SHORTEST = 8
"""Shorter values are words: redacting them would only make errors unreadable."""
_ANYWHERE = 16
_NO_WORD_BEFORE = (
    r"(?:(?<![0-9A-Za-z_])|(?<=\\[abfnrtv0])|(?<=\\x[0-9A-Fa-f]{2})|(?<=\\u[0-9A-Fa-f]{4}))"
)
"""The beginning of a word, also behind an escape, as in the ``repr`` of a text with lines."""

_values: Counter[str] = Counter()
_pattern: re.Pattern[str] | None = None
_own: list[OwnRules] = []
_state = object()
_keys: list[bytes] = [secrets.token_bytes(16)]


@contextmanager
def registered_secrets(
    values: Iterable[str | None], *, own: OwnRules | None = None, key: bytes | None = None
) -> Generator[None]:
    """Redact these values wherever they occur, until the end of the block.

    ``own``: rules that hold beside those of motet. ``key``: of the tags; the last one given counts.
    """
    lines = [line for value in values if value for line in value.splitlines()]
    kept = [line for line in lines if len(line) >= SHORTEST]
    if own is not None and own.is_empty:
        own = None
    global _state
    _change(kept, 1)
    if own is not None:
        _own.append(own)
    if key is not None:
        _keys.append(key)
    _state = object()  # at last: a thread that finds it finds the rest
    try:
        yield
    finally:
        _change(kept, -1)
        if own is not None:
            _own.remove(own)
        if key is not None:
            _keys.remove(key)
        _state = object()


def state_of_rules() -> object:
    """Another object whenever the secrets, rules or keys of the process have changed."""
    return _state


def registered_secrets_pattern() -> re.Pattern[str] | None:
    """The pattern of all registered secrets; None without any."""
    return _pattern


def _change(values: list[str], by: int) -> None:
    global _pattern
    for value in values:
        _values[value] += by
    longest_first = sorted((v for v, n in _values.items() if n > 0), key=len, reverse=True)
    shapes = "|".join(_shape(value) for value in longest_first)
    _pattern = re.compile(shapes) if shapes else None


def _shape(value: str) -> str:
    """A long value with digits is never part of a word by chance; others must stand alone."""
    shape = re.escape(value)
    if len(value) >= _ANYWHERE and any(letter.isdigit() for letter in value):
        return shape
    return rf"{_NO_WORD_BEFORE}{shape}(?![0-9A-Za-z_])"


def _key(*, tagged: bool) -> bytes | None:
    return _keys[-1] if tagged else None


def _table() -> Rules:
    return table(tuple(_own))


def _found(text: str, scanned: finders.Scanned | None = None) -> list[values.Found]:
    """All that is to be masked in a text. ``scanned``: as in :func:`finders.find`."""
    found = finders.find(_table(), text, scanned)
    if not _own and _pattern is None:
        return found
    configured = _pattern.finditer(text) if _pattern is not None else ()
    extra = [(one.start(), one.end(), one.start(), "configured") for one in configured]
    denied = [one for own in _own for one in own.denied(text)]
    if any(own.spares for own in _own):
        found = [one for one in found if not any(own.allows(text[one[0] : one[1]]) for own in _own)]
    return finders.merged([*extra, *denied, *found], text)


def _has_no_own(text: str) -> bool:
    """Whether only the rules of motet can find a secret in a text."""
    return not _own and (_pattern is None or _pattern.search(text) is None)


# Streams

LIMIT = 65_536
"""Code points that are searched at once."""
AHEAD = 8_192
"""Code points that are read behind them in a line that is longer, so that it's cut at no secret."""
OPEN_LINES = 512
"""Lines in a row behind each of which a secret may go on, at most: more are cut as one line."""
_GOES_ON = re.compile(r"[^\s\"'`,;<>&\\]*")


class Redactor:
    """Redacts a text that comes in pieces. Law: the outputs together are the redacted whole.

    A piece of text comes out as soon as its line has ended, unless a secret may go on in the next
    line. Memory is bounded by :data:`LIMIT` and :data:`AHEAD`, whatever the lengths of lines and
    secrets are. ``tagged=False``: masks without tags, for files that others may read.
    """

    def __init__(self, *, tagged: bool = True) -> None:
        self._tagged = tagged
        self._waiting: list[str] = []
        self._size = 0
        self._seen = 0
        self._inside: Tagger | None = None
        self._crowd = Crowd()

    @property
    def kept(self) -> int:
        """Code points that wait for the rest of their line."""
        return self._size

    @property
    def is_clear(self) -> bool:
        """Whether all of the text has come out, and what follows has nothing to do with it."""
        return not self._size and self._inside is None

    def feed(self, piece: str) -> str:
        """Take a piece; the redacted text that is certain now."""
        self._waiting.append(piece)
        self._size += len(piece)
        if "\n" not in piece and self._size < LIMIT + AHEAD and self._inside is None:
            return ""
        return self._advance(final=False)

    def close(self) -> str:
        """The rest, at the end of the stream."""
        return self._advance(final=True)

    def _advance(self, *, final: bool) -> str:
        text = self._waiting[0] if len(self._waiting) == 1 else "".join(self._waiting)
        parts: list[str] = []
        at = 0
        while at < len(text):
            if self._inside is not None:
                at, is_over = self._go_on(self._inside, text, at, final=final)
                if not is_over:
                    break
                parts.append(self._inside.mask())
                self._inside = None
                continue
            end = self._line_end(text, at)
            if end:
                self._whole(text[at:end], parts)
                at = end
            elif len(text) - at >= LIMIT + AHEAD:
                at += self._cut(text[at : at + LIMIT + AHEAD], parts)
            elif final:
                self._whole(text[at:], parts)
                at = len(text)
            else:
                break
            self._seen = 0
        if final and self._inside is not None:
            parts.append(self._inside.mask())
            self._inside = None
        rest = text[at:]
        self._waiting, self._size = ([rest] if rest else []), len(rest)
        self._seen = len(rest) if self._inside is None else 0
        return "".join(parts)

    def _line_end(self, text: str, at: int) -> int:
        """The end of the last line that is sure to hold its secrets whole; 0 without one."""
        table = _table()
        end = min(at + LIMIT, len(text))
        first = at + max(0, self._seen - 1) if at == 0 else at
        for _ in range(OPEN_LINES):
            if (end := text.rfind("\n", first, end)) < 0:
                break
            if not finders.is_open(table, text, end + 1, at):
                return end + 1
        return 0

    def _whole(self, text: str, parts: list[str]) -> None:
        """Redact a piece that ends where no secret goes on, but for the body of a private key."""
        crowd, key = self._crowd, _key(tagged=self._tagged)
        if crowd.forms is not None and _has_no_own(text):
            made = crowd.masked(_table(), text, masker(key), self._lines)
            if made is not None:
                parts += made
                return
        at = 0
        found = _found(text)
        if len(found) >= CROWD and _has_no_own(text):
            crowd.meet(_table(), text, found)
        for start, end, _, kind in found:
            parts.append(text[at:start])
            at = end
            if kind == PRIVATE_KEY and end == len(text) and text[-1] == "\n":
                self._inside = Tagger(kind, key)
                self._inside.add(text[start:end])
                return
            parts.append(mask(kind, text[start:end], key))
        parts.append(text[at:])

    def _lines(self, text: str) -> str | None:
        """Lines that no crowd has, redacted; None if a private key goes on behind them."""
        found = _found(text)
        has_key = any(one[3] == PRIVATE_KEY for one in found)
        return None if has_key else masked(text, found, _key(tagged=self._tagged))

    def _cut(self, text: str, parts: list[str]) -> int:
        """Redact the beginning of a line that is too long, and return its length."""
        found = _found(text)
        end = max(text.rfind(space, LIMIT - 1_024, LIMIT) for space in " ,;\t") + 1 or LIMIT
        while (
            across := next((f for f in found if min(f[0], f[2]) < end < f[1]), None)
        ) is not None:
            start = min(across[0], across[2])
            if start > 0:
                end = start
                continue
            end = across[1]
            break
        at, key = 0, _key(tagged=self._tagged)
        for start, stop, _, kind in found:
            if start >= end:
                break
            parts.append(text[at:start])
            at = stop
            if stop == len(text):
                self._inside = Tagger(kind, key)
                self._inside.add(text[start:stop])
                return stop
            parts.append(mask(kind, text[start:stop], key))
        parts.append(text[at:end])
        return end

    def _go_on(self, inside: Tagger, text: str, at: int, *, final: bool) -> tuple[int, bool]:
        """Read on inside of a secret: how far it goes, and whether it has ended."""
        if inside.kind != PRIVATE_KEY:
            found = _GOES_ON.match(text, at)
            end = found.end() if found else at
            inside.add(text[at:end])
            return end, end < len(text)
        stop = len(text) if final else text.rfind("\n") + 1
        if not final and len(text) - max(at, stop) > LIMIT:
            stop = len(text)
        end, goes_on = finders.body_end(_table(), text[:stop], at)
        inside.add(text[at:end])
        return end, not goes_on


# Texts and values

_SHORT = 80
"""Of longer texts a look for these takes more time than the search that it would save."""
_LINE = 8_192
"""Characters of a text that is searched together with others, at most."""


def is_calm(text: str) -> bool:
    """Whether a text is sure to hold no secret, also no registered one."""
    if _pattern is not None and _pattern.search(text) is not None:
        return False
    if text.isascii():
        return finders.SUSPECT.search(text) is None or finders.NEEDED.search(text.lower()) is None
    return finders.NEEDED.search(finders.as_ascii(text).decode().lower()) is None


def redact_text(text: str, known: Mapping[str, str] | None = None, *, tagged: bool = True) -> str:
    """The text without secrets. ``known``: exact values and their replacements."""
    if known:
        text = _redact_known(text, known)
    if len(text) < _SHORT and not _own and is_calm(text):
        return text
    if len(text) > LIMIT:
        redactor = Redactor(tagged=tagged)
        return redactor.feed(text) + redactor.close()
    return masked(text, _found(text), _key(tagged=tagged))


def look_together(texts: Iterable[str], done: dict[str, str]) -> None:
    """Search short texts in one pass, each as a line, and note those without a secret in ``done``.

    Law: what is noted is what :func:`redact_text` gives. Of the others nothing is noted.
    """
    fresh = [t for t in dict.fromkeys(texts) if len(t) < _LINE and t.isascii() and t.isprintable()]
    ends = [*accumulate(len(text) + 1 for text in fresh)]
    lines = fresh[: bisect_right(ends, LIMIT)]
    whole = "\n".join([*lines, ""])
    left, scanned = finders.open_lines(_table(), whole, ends)
    if left:
        lines = [text for at, text in enumerate(lines) if at not in left]
        ends, whole = [*accumulate(len(text) + 1 for text in lines)], "\n".join([*lines, ""])
    hit = set[int]()
    for start, end, _, _ in _found(whole, None if left else scanned):
        hit.update(range(bisect_right(ends, start), bisect_right(ends, end - 1) + 1))
    done.update((text, text) for at, text in enumerate(lines) if at not in hit)


def redacted_after(head: str, rest: str, done: dict[str, str], heads: dict[str, str]) -> str:
    """Redact ``head + rest``, of which many texts have the same head.

    ``done``: as in `redact`. ``heads``: those behind which no secret can go on; is filled.
    """
    if head + rest in done:
        return done[head + rest]
    if (made := heads.get(head)) is None:
        one = Redactor()
        made = one.feed(head)
        if not one.is_clear:  # a secret may go on behind it
            return redact_text(head + rest)
        heads[head] = made
    return made + str(redact(rest, done=done))


def _redact_known(text: str, known: Mapping[str, str]) -> str:
    values = sorted(filter(None, known), key=len, reverse=True)
    if not values:
        return text
    shape = "|".join(re.escape(value) for value in values)
    shape = rf"{_NO_WORD_BEFORE}(?<!\])(?:{shape})(?![0-9A-Za-z_\[])"
    return re.sub(shape, lambda found: known[found.group()], text)


def redact(
    value: object,
    known: Mapping[str, str] | None = None,
    *,
    tagged: bool = True,
    done: dict[str, str] | None = None,
) -> object:
    """A JSON value without secrets: in every text, and under every key that names a secret.

    ``done``: texts, and what they have become by the same rules; is filled.
    """
    match value:
        case str():
            if done is None:
                return redact_text(value, known, tagged=tagged)
            if (made := done.get(value)) is None:
                made = done[value] = redact_text(value, known, tagged=tagged)
            return made
        case list():
            items = cast("list[object]", value)
            return [redact(item, known, tagged=tagged, done=done) for item in items]
        case dict():
            table = cast("dict[str, object]", value)
            told, whole = _named_value(table), dict[str, object]()
            for key, item in table.items():
                name, kind = _known_name(_state, key) if _is_word(key) else ("", None)
                if known or not tagged or kind is None:
                    name = redact_text(key, known, tagged=tagged)
                if told and key in _VALUE_KEYS:
                    key, kind = told, None
                whole[name] = _redact_under(key, kind, item, known, tagged, done)
            return whole
        case _:
            return value


_NAME_KEYS, _VALUE_KEYS = ("name", "Name", "key", "Key"), ("value", "Value")


def _named_value(table: Mapping[str, object]) -> str:
    """The name in an object of a name and its value, as in lists of variables; or nothing."""
    if "value" not in table and "Value" not in table:
        return ""
    return next((n for key in _NAME_KEYS if isinstance(n := table.get(key), str)), "")


def _redact_under(
    key: str,
    kind: str | None,
    value: object,
    known: Mapping[str, str] | None,
    tagged: bool,
    done: dict[str, str] | None,
) -> object:
    """Under the name of a secret a text is one, and so are those in a list: counts are not.

    ``kind``: of that name, if it is known.
    """
    if kind == "":
        return redact(value, known, tagged=tagged, done=done)
    if isinstance(value, list):
        items = cast("list[object]", value)
        if all(isinstance(item, str) for item in items):
            return [_redact_under(key, kind, item, known, tagged, done) for item in items]
        return redact(items, known, tagged=tagged, done=done)
    if not isinstance(value, str) or not value:
        return redact(value, known, tagged=tagged, done=done)
    table = _table()
    kind = _kind_of_name(key) if kind is None else kind
    if kind in ("password", "secret", "weak"):
        if values.is_secret(table, kind, value, quoted=True, strong=True) and not _allowed(value):
            of = "password" if kind == "password" else "secret"
            return mask(of, value, _key(tagged=tagged))
    elif kind in ("header", "cookie") and "\n" not in value:
        line = redact_text(f"{key[-80:]}: {value}", known, tagged=tagged)
        return line.partition(": ")[2]
    return redact(value, known, tagged=tagged, done=done)


def _kind_of_name(name: str) -> str:
    if _is_word(name):
        return _known_name(_state, name)[1]
    return named.name_kind(_table(), name[-80:].lower(), name[-80:])


def _is_word(name: str) -> bool:
    """Whether it is a usual name, which comes again and again, and no token of a vendor."""
    return len(name) < _ANYWHERE and name.isidentifier()


@lru_cache(512)
def _known_name(_by: object, name: str) -> tuple[str, str]:
    return redact_text(name), named.name_kind(_table(), name.lower(), name)


def _allowed(value: str) -> bool:
    return any(own.allows(value) for own in _own)


LARGE = 32_768
"""Code points that take a millisecond or two; a value counts as eight."""


def is_large(value: object) -> bool:
    """Whether redacting a JSON value would block an event loop. Stops as soon as that is known."""
    room, waiting = LARGE, [value]
    while waiting and room > 0:
        value = waiting.pop()
        room -= 8
        match value:
            case str():
                room -= len(value)
            case list():
                waiting += cast("list[object]", value)[:LARGE]
            case dict():
                items = islice(cast("dict[str, object]", value).items(), LARGE)
                waiting += [part for item in items for part in item]
            case _:
                pass
    return room <= 0


# Truncation. Half a secret would not be recognised, so that a text is cut at a space if possible.

HEAD = 65_536
"""Code points of an error from which its summary and its short texts are made."""
TEXT_LIMIT = 12_000_000
"""Code points of one text of a stored error; three quarters from its beginning."""
_NEAR = 1_024
PREFIX_MARGIN = 2_048


def redacted_head(
    text: str, limit: int = HEAD, done: dict[str, str] | None = None
) -> tuple[str, int]:
    """The beginning of a text without secrets, and the number of cut code points.

    ``done``: as in :func:`redact`.
    """
    kept = text[: _end(text, limit)] if len(text) > limit else text
    return str(redact(kept, done=done)), len(text) - len(kept)


def redacted_prefix(text: str, limit: int) -> str:
    """At most ``limit`` code points of a text, without its secrets.

    The text is cut twice: first generously, between words, to bound the work; and after redaction,
    to the limit. So neither cut leaves half of a secret.
    """
    if not text:
        return text
    room = limit + PREFIX_MARGIN
    head, _ = redacted_head(well_formed(text if len(text) <= room else text[: room + 1]), room)
    return head[:limit]


def truncate_texts(value: object, limit: int = TEXT_LIMIT) -> object:
    """A JSON value whose texts are hardly longer than ``limit``, with notes on the cut parts."""
    match value:
        case str():
            return _truncated(value, limit)
        case list():
            return [truncate_texts(item, limit) for item in cast("list[object]", value)]
        case dict():
            items = cast("dict[str, object]", value).items()
            return {_truncated(key, limit): truncate_texts(item, limit) for key, item in items}
        case _:
            return value


def _truncated(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    head = _end(text, limit * 3 // 4)
    tail = _end(text, len(text) - limit // 4)
    return f"{text[:head]}\n[... {tail - head} characters left out ...]\n{text[tail:]}"


def _end(text: str, at: int) -> int:
    """Where to cut near ``at``: behind a space or the end of a line, if there is one."""
    near = max(text.rfind(space, at - _NEAR, at) for space in " \n")
    return at if near < 0 else near + 1
