"""Redaction of secrets and personal data in texts and JSON values, before they are stored. Pure.

Rules match whole tokens of an unambiguous shape: a Unix time, a row id, a hash or an error id is
never one. Laws: redacting twice changes nothing more where words stand apart, the time is linear
in the text, and a value keeps its structure. Source: errors specification section 2.

Every repetition in a pattern is bounded, or can start only where the one before it cannot have
started (a look-behind for its own alphabet): so hostile text takes linear time, too. Long texts are
searched in windows. Secrets in the configuration of a host are redacted wherever they occur
(:func:`registered_secrets`). Terminal colour codes inside or around a secret do not hide it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import TypeAlias, cast

from motet.protocols.texts import well_formed

# Search in windows. Python's ``re`` holds the GIL for a whole search: in ten megabytes that is a
# tenth of a second in which no other thread runs. Law: equal to ``re.sub``, for patterns that match
# at most :data:`OVERLAP` characters or, if cut, also match the rest.

Replacement: TypeAlias = str | Callable[[re.Match[str]], str]

NO_WORD_BEFORE = (
    r"(?:(?<![0-9A-Za-z_])|(?<=\\[abfnrtv0])|(?<=\\x[0-9A-Fa-f]{2})|(?<=\\u[0-9A-Fa-f]{4}))"
)
"""The beginning of a word, also behind an escape, as in the ``repr`` of a text with lines."""

WINDOW = 131_072
OVERLAP = 65_536


def substitute(pattern: re.Pattern[str], replacement: Replacement, text: str) -> str:
    """The text with every match replaced; a text as replacement may refer to groups."""
    if len(text) <= WINDOW + OVERLAP:
        return pattern.sub(replacement, text)
    parts: list[str] = []
    done = 0
    for found in _matches(pattern, text):
        new = found.expand(replacement) if isinstance(replacement, str) else replacement(found)
        parts += text[done : found.start()], new
        done = found.end()
    return "".join([*parts, text[done:]])


def contains(pattern: re.Pattern[str], text: str) -> bool:
    if len(text) <= WINDOW + OVERLAP:
        return pattern.search(text) is not None
    return next(_matches(pattern, text), None) is not None


def lowered_windows(text: str) -> list[str]:
    """The text in lower case, in overlapping windows."""
    if len(text) <= WINDOW + OVERLAP:
        return [text.lower()]
    return [text[at : at + WINDOW + OVERLAP].lower() for at in range(0, len(text), WINDOW)]


def _matches(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    at, size = 0, WINDOW + OVERLAP
    while at < len(text):
        end = min(at + size, len(text))
        found = pattern.search(text, at, end)
        if found is None:
            at, size = (end - OVERLAP if end < len(text) else end), WINDOW + OVERLAP
        elif found.end() == end < len(text):
            # The match may go on behind the window: search again from its start, twice as far.
            at, size = found.start(), 2 * size
        else:
            yield found
            at, size = found.end(), WINDOW + OVERLAP


# Registered secrets: the exact values in the configurations of the process's hosts. They belong to
# the process, as its logs do: a secret of one host must not show in another's either. Invariant: a
# value is redacted as long as one host that has registered it is open.

SHORTEST = 8
"""Shorter values are words: redacting them would only make errors unreadable."""
_ANYWHERE = 16

_values: Counter[str] = Counter()
_pattern: re.Pattern[str] | None = None


@contextmanager
def registered_secrets(values: Iterable[str | None]) -> Generator[None]:
    """Redact these values wherever they occur, until the end of the block."""
    kept = [value for value in values if value and len(value) >= SHORTEST]
    _change(kept, 1)
    try:
        yield
    finally:
        _change(kept, -1)


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
    return rf"{NO_WORD_BEFORE}{shape}(?![0-9A-Za-z_])"


REDACTED = "[REDACTED]"
EMAIL = "[EMAIL_REDACTED]"
PHONE = "[PHONE_REDACTED]"
SSN = "[SSN_REDACTED]"
CARD = "[CARD_REDACTED]"

# A token neither begins nor ends in the middle of a word, nor beside the mark that replaced
# another one: there it was in the middle of a word when that one was found.
_OPEN, _SHUT = NO_WORD_BEFORE + r"(?<!\])", r"(?![0-9A-Za-z_\[])"
# The same for digits, which also must not be part of a decimal, a date or a version. It stands
# after the first character: a pattern that begins with a character class is searched faster.
_FIRST, _LAST = r"(?<![\w.\]-].)", r"(?![\w\[-])(?!\.\d)"

_KEYS = re.compile(
    _OPEN + r"(?:"
    r"sk-[0-9A-Za-z]{20,}"
    r"|sk-(?:proj|ant|svcacct|admin|or|lf)-[0-9A-Za-z_-]{20,}"
    r"|[rs]k_(?:live|test)_[0-9A-Za-z]{16,}"
    r"|AIza[0-9A-Za-z_-]{35,}"
    r"|gh[oprsu]_[0-9A-Za-z]{36,}|github_pat_[0-9A-Za-z_]{22,}|glpat-[0-9A-Za-z_-]{20,}"
    r"|xox[abeoprs]-[0-9A-Za-z-]{10,}|xapp-[0-9A-Za-z-]{10,}"
    r"|A(?:KI|SI)A[0-9A-Z]{16}"
    r"|hf_[0-9A-Za-z]{30,}|npm_[0-9A-Za-z]{36}"
    r"|mtt_[0-9a-f]{32}"
    r"|eyJ[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]*"
    r")" + _SHUT
)
_PEM = re.compile(
    r"-----BEGIN [0-9A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r".*?(?:-----END [0-9A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
    re.DOTALL,
)
_DATABASES = re.compile(
    r"(?:postgres(?:ql)?|mysql|mariadb|mongodb|rediss?|amqps?|mssql|oracle|clickhouse)"
    r"(?:\+[0-9a-z]+)?\Z",
    re.IGNORECASE,
)
_USERINFO = re.compile(r"://[^\s\"'`<>@/?#]{0,400}@")
_URL = re.compile(
    r"\b(?P<scheme>[A-Za-z][0-9A-Za-z+.-]{1,30})://(?P<user>[^\s\"'`<>@/?#]{0,400})@"
    r"(?P<rest>[^\s\"'`<>]{0,500})"
)
_AUTHORIZATION = re.compile(
    r"\b(authorization\\?[\"']?\s{0,3}[:=]\s{0,3}\\?[\"']?(?:basic|bearer|token|apikey|digest)\s{1,3})"
    r"[^\s\"'\\,;]{4,}",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(bearer\s{1,3})((?=[a-z._~+/=-]*[0-9])[0-9a-z._~+/=-]{8,})", re.IGNORECASE)
LONG_HEX = re.compile(_OPEN + r"(?<!sha256:)(?<!sha512:)[0-9A-Fa-f]{64,}" + _SHUT)

# The first letter stands for itself: see _FIRST.
_PASSWORD = r"(?<=p)(?P<password>ass(?:word|wd|phrase)|wd(?!=/))"
_TOKEN = (
    r"(?<=a)(?:pi|ccess|ccount)[_-]?key|(?<=p)rivate[_-]?key|(?<=s)(?:ecret|igning)[_-]?key"
    r"|(?<=e)ncryption[_-]?key|(?<=m)aster[_-]?key|(?<=s)ecret|(?<=t)oken|(?<=c)redentials?"
)
_NAME = rf"[AaCcEeMmPpSsTt](?i:{_PASSWORD}|{_TOKEN})"
_NAMED = re.compile(
    _NAME + r"(?P<sign>\\?[\"']?\s{0,3}(?:=>|:=|[:=])\s{0,3})"
    r"(?:(?P<quote>\\?[\"'])(?P<quoted>(?:(?!(?P=quote))(?:\\.|[^\\\n])){1,400})(?:(?P=quote)|\Z)"
    r"|(?P<bare>[^\s\"'`,;&<>(){}\[\]\\]{1,400})(?P<call>[(\[]?))"
)
_NAME_ENDS = re.compile(_NAME + r"\Z")
_SECRET_LENGTH = 8

_ANSI = re.compile(
    r"(?:\x1b|\\x1b|\\u001b|\\033|\\e)\[[0-?]{0,64}[ -/]{0,8}[@-~]|\x9b[0-?]{0,64}[ -/]{0,8}[@-~]"
    r"|\x1b\][^\x07\x1b]{0,2048}(?:\x07|\x1b\\)|\x1b[ -/]{0,8}[0-Z\\^-~]"
)
_ANSI_HINTS = ("\x1b", "\x9b", "x1b[", "u001b[", "033[", "\\e[")

_EMAIL = re.compile(
    r"(?<![\w.%+\]-])(?!git@)[\w.%+-]+@(?:[0-9A-Za-z](?:[0-9A-Za-z-]{0,61}[0-9A-Za-z])?\.){1,8}"
    r"(?!(?:png|jpe?g|gif|svg|webp|js|py)\b)[A-Za-z]{2,24}(?![\w\[-])"
)
_CARD = re.compile(
    r"[2-6]" + _FIRST + r"(?:\d{3}(?P<a>[ -]?)\d{4}(?P=a)\d{4}(?P=a)\d{4}"
    r"|(?<=3)\d{3}(?P<b>[ -]?)\d{6}(?P=b)\d{4,5})" + _LAST
)
_CARD_BRAND = re.compile(
    r"(?:4\d{15}|5[1-5]\d{14}|2(?:2[2-9]|[3-6]\d|7[01])\d{13}|3[47]\d{13}|3(?:0[0-5]|[68]\d)\d{11}"
    r"|6(?:011|4[4-9]\d|5\d\d)\d{12}|35(?:2[89]|[3-8]\d)\d{12}|62\d{14})\Z"
)
_SSN = re.compile(r"\d" + _FIRST + r"(?<!9)\d\d(?<!000)(?<!666)-(?!00)\d{2}-(?!0000)\d{4}" + _LAST)
_PHONE = re.compile(
    r"[+(1-9](?<![\w.+\]-].)(?:"
    r"(?:(?:(?<=\+)1|(?<=1))[ .-]\(?[2-9]|(?<=\()[2-9]|(?<=[2-9]))\d{2}"
    r"(?:\) ?|(?P<s>[.-]))\d{3}(?(s)(?P=s)|[ .-])\d{4}"
    r"|(?<=\+)[1-9](?:[ .()-]{0,2}\d){9,14}"
    r")" + _LAST
)


def redact_text(text: str, known: Mapping[str, str] | None = None) -> str:
    """The text without secrets. ``known``: exact values and their replacements."""
    text = _without_values(text, known)
    if len(text) < _LONG_WORD and _SUSPECT.search(text) is None:
        return text
    text = _by_rules(text)
    if not _any_in(_ANSI_HINTS, [text]):
        return text
    # First with a mark for each colour code, so that words end there; then without the codes.
    marked = substitute(_ANSI, "\x1b", text)
    clean = _redacted(marked, known)
    bare = clean.replace("\x1b", "")
    final = _redacted(bare, known)
    return text if clean == marked and final == bare else final


def _redacted(text: str, known: Mapping[str, str] | None) -> str:
    return _by_rules(_without_values(text, known))


def _without_values(text: str, known: Mapping[str, str] | None) -> str:
    if known:
        text = _redact_known(text, known)
    if hidden := registered_secrets_pattern():
        text = substitute(hidden, REDACTED, text)
    return text


def _by_rules(text: str) -> str:
    if "://" in text and contains(_USERINFO, text):
        text = substitute(_URL, _url, text)
    lowered = lowered_windows(text)
    if _any_in(_ALL_HINTS, lowered):
        for hints, pattern, replacement in _RULES:
            if _any_in(hints, lowered):
                text = substitute(pattern, replacement, text)
    if len(text) >= _LONG_WORD and _has_long_word(text) and contains(_HEX_RUN, text):
        text = substitute(LONG_HEX, REDACTED, text)
    if "+" in text or contains(_NUMBER, text):
        for pattern, replacement in _NUMBERS:
            text = substitute(pattern, replacement, text)
    return text


def _any_in(words: tuple[str, ...], texts: list[str]) -> bool:
    for text in texts:
        for word in words:  # loops take half the time of any(), and most errors are short
            if word in text:
                return True
    return False


def redact(value: object, known: Mapping[str, str] | None = None) -> object:
    """A JSON value without secrets: in every text, and under every key that names a secret."""
    match value:
        case str():
            return redact_text(value, known)
        case list():
            return [redact(item, known) for item in cast("list[object]", value)]
        case dict():
            items = cast("dict[str, object]", value).items()
            return {redact_text(k, known): _redact_under(k, v, known) for k, v in items}
        case _:
            return value


_LONG_WORD = 64
_HEX_RUN = re.compile("[0-9A-Fa-f]{64}")  # searched five times as fast as the rule itself
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


def luhn(digits: str) -> bool:
    """Whether the last digit is the check digit of a card number."""
    doubled = (sum(divmod(2 * int(d), 10)) for d in digits[-2::-2])
    return (sum(int(d) for d in digits[::-2]) + sum(doubled)) % 10 == 0


def _redact_under(key: str, value: object, known: Mapping[str, str] | None) -> object:
    """Under the name of a secret only a text is a secret: counts and flags are not."""
    name = _NAME_ENDS.search(key[-64:]) if isinstance(value, str) else None
    if name and (name["password"] or _looks_secret(str(value))) and value:
        return REDACTED
    return redact(value, known)


def _redact_known(text: str, known: Mapping[str, str]) -> str:
    values = sorted(filter(None, known), key=len, reverse=True)
    if not values:
        return text
    shape = "|".join(re.escape(value) for value in values)
    return re.sub(rf"{_OPEN}(?:{shape}){_SHUT}", lambda found: known[found.group()], text)


def _url(found: re.Match[str]) -> str:
    """The whole URL of a database is a secret; of other URLs user and password are."""
    if _DATABASES.match(found["scheme"]):
        return REDACTED + found.group()[len(found.group().rstrip(",;.)]}")) :]
    if ":" not in found["user"]:
        return found.group()
    return f"{found['scheme']}://{REDACTED}@{found['rest']}"


def _named(found: re.Match[str]) -> str:
    kind = "bare" if found["quoted"] is None else "quoted"
    if not _is_value(found, found[kind], kind == "quoted"):
        return found.group()
    start, end = (found.start(kind) - found.start(), found.end(kind) - found.start())
    return found.group()[:start] + REDACTED + found.group()[end:]


def _is_value(found: re.Match[str], value: str, quoted: bool) -> bool:
    """Not prose or code after a secret's name: a call, a type, ``password: must be long``."""
    if not quoted and found["call"]:
        return False
    if found["password"] and (quoted or "=" in found["sign"]):
        return True
    return _looks_secret(value) or bool(found["password"] and _has_digit(value))


def _looks_secret(value: str) -> bool:
    return (
        len(value) >= _SECRET_LENGTH
        and " " not in value
        and _has_digit(value)
        and not value.isdigit()
    )


def _has_digit(value: str) -> bool:
    return _DIGIT.search(value) is not None


def _card(found: re.Match[str]) -> str:
    digits = re.sub("[ -]", "", found.group())
    return CARD if _CARD_BRAND.match(digits) and luhn(digits) else found.group()


def _has_long_word(text: str) -> bool:
    """Whether a word of 64 letters is possible: it would fill one of the blocks of 32."""
    return any(text[at : at + 32].isalnum() for at in range(0, len(text), 32))


_DIGIT = re.compile(r"\d")
# A short text with a secret has one of these signs, three digits in a row, or the beginning of a
# key without signs: eyJ, AIza, AKIA, ASIA, bearer. Most texts have none, and are not searched.
_SUSPECT = re.compile(
    r"[:=@_+\[\x1b\x9b\dIJKSRr-]"
    r"(?:(?<![\dIJKSRr])|(?<=\d\d\d)|(?<=eyJ)|(?<=A[IKS])|(?<=(?i:bearer)))"
)
# Every card, social security number and phone without a plus sign holds this.
_NUMBER = re.compile(r"\d{3}(?:[ .)-]{1,2}\d{2}|\d{11})")

# Words in lower case: a text to which a rule applies contains one of its words.
_KEY_HINTS = (
    "sk-", "k_live_", "k_test_", "aiza", "gho_", "ghp_", "ghr_", "ghs_", "ghu_", "github_pat_",
    "glpat-", "xox", "xapp-", "akia", "asia", "hf_", "npm_", "mtt_", "eyj",
)  # fmt: skip
_NAME_HINTS = ("passw", "passphrase", "pwd", "key", "secret", "token", "credential")
_RULES: tuple[tuple[tuple[str, ...], re.Pattern[str], Replacement], ...] = (
    (("private key",), _PEM, REDACTED),
    (_KEY_HINTS, _KEYS, REDACTED),
    (("authorization",), _AUTHORIZATION, rf"\1{REDACTED}"),
    (("bearer",), _BEARER, rf"\1{REDACTED}"),
    (_NAME_HINTS, _NAMED, _named),
    (("@",), _EMAIL, EMAIL),
)
_ALL_HINTS = tuple(hint for hints, _, _ in _RULES for hint in hints)
_NUMBERS: tuple[tuple[re.Pattern[str], Replacement], ...] = (
    (_CARD, _card),
    (_SSN, SSN),
    (_PHONE, PHONE),
)


# Truncation. Half a secret would not be recognised, so that a text is cut at a space if possible.

HEAD = 65_536
"""Code points of an error from which its summary and its short texts are made."""
TEXT_LIMIT = 12_000_000
"""Code points of one text of a stored error; three quarters from its beginning."""
_NEAR = 1_024
PREFIX_MARGIN = 2_048


def redacted_head(text: str, limit: int = HEAD) -> tuple[str, int]:
    """The beginning of a text without secrets, and the number of cut code points."""
    kept = text[: _end(text, limit)] if len(text) > limit else text
    return redact_text(kept), len(text) - len(kept)


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
