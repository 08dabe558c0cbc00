"""Secrets that a name gives away: ``password=…``, ``"api_key": "…"``, ``--token …``, headers.

One expression of the grammar in ``forms.json`` finds a name, a sign and a value, in all the forms
that programs print: environment, YAML, TOML, INI, JSON (also inside of JSON or of a URL), keyword
arguments, reprs, XML, flags, headers. The functions then decide whether the name is that of a
secret and the value is one, and not its type, its place, a word of prose or a mark that hides it.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from motet.protocols.redaction import headers
from motet.protocols.redaction.rules import Rules
from motet.protocols.redaction.values import (
    DIGIT,
    IDENTIFIER,
    MASK,
    TRAILING,
    UUID,
    Found,
    is_placeholder,
    is_secret,
    is_strong,
    looks_random,
)

_FRONT = re.compile(r"[a-z0-9_.$ -]{0,40}")
"""What stands in front of a name, read backwards."""
_ENCODED = re.compile(r"%(?:25){0,2}(?:3b|26|3f|2c|20|0a)")
"""A sign of an address in front of a name, whose digits are none of its letters."""
WINDOW = 400
"""Characters of a name and its value on which is decided; only a secret is read to its end."""
_SEPARATORS = re.compile(r"[_. $-]+")

Spelled = tuple[str, bool, bool]
"""A name: its category (``password``, ``secret``, ``weak`` or nothing), and its camel case."""


KNOWN_NAMES = 4_096
"""Names whose categories are remembered."""


def category(rules: Rules, front: str, core: str) -> str:
    """``password``, ``secret``, ``weak``, ``header``, ``cookie`` or, for another name, nothing."""
    known = rules.categories
    if (told := known.get((front, core))) is None:
        if len(known) >= KNOWN_NAMES:
            known.clear()
        told = known[front, core] = _category(rules, front, core)
    return told


def _category(rules: Rules, front: str, core: str) -> str:
    apart = core.startswith("_")
    core = _SEPARATORS.sub("", core).removesuffix("s") if core != "pass" else core
    if core.startswith("authorization"):
        return "header"
    if core.startswith("cookie"):
        return "cookie"
    words = [word for word in _SEPARATORS.split(front) if word]
    glued = bool(words) and not apart and not _SEPARATORS.match(front[-1:])
    names = [core]
    joined = core
    for word in reversed(words[-3:]):
        joined = word + joined
        names.append(joined)
    if joined.endswith(rules.harmless):
        return ""
    if glued:
        # ``dbpassword``, ``accesstoken``: a long word may end an unknown one, a short one may not.
        last = words[-1] + core
        names = [last[at:] for at in range(len(last) - len(core) + 1)] + names
        if core in rules.weak or len(core) < 5:
            names = [name for name in names if name != core]
    best = ""
    for name in names:
        if name in rules.passwords:
            return "password"
        if name in rules.secrets and name not in rules.weak:
            best = "secret"
        elif name in rules.weak and not best:
            best = "weak"
    return best


def _is_weak_password(rules: Rules, value: str) -> bool:
    """The value of ``x_pass`` or ``pw``, which may also be a number of passes."""
    kinds = {letter.isdigit() for letter in value}
    return len(value) >= 6 and len(kinds) == 2 and not is_placeholder(rules, value)


def named(
    rules: Rules, text: str, low: str, starts: list[int], known: Mapping[int, int], done: set[int]
) -> Iterator[Found]:
    """The values behind names in one text.

    ``low``: the same text in lower case, as ASCII. ``starts``: the places of the needles of names.
    ``known``: the beginnings and ends of tokens, which need no name. ``done``: gets the places of
    names with values of letters and digits, where no other form of a secret can begin.
    """
    at = 0
    begin, whole = rules.expression("name").match, rules.expression("named").match
    quick = rules.expression("quick").match
    has_login = "login" in low
    may_stand_apart = has_login or "-" in low or "set" in low
    was_plain, edges = False, b""
    for start in starts:
        if start < at:
            continue
        # Where one value is plain, the next one mostly is: then its name is read only once.
        name = None if was_plain else begin(low, start)
        if (was_plain or (name is not None and name.lastgroup == "plain")) and (
            plain := quick(low, start)
        ) is not None:
            edges = edges or low.encode("ascii").translate(_EDGES)
            if (one := _quick(rules, text, low, edges, start, plain)) is not None:
                done.add(start)
                yield one
                at, was_plain = one[1], True
                continue
        if was_plain:
            name, was_plain = begin(low, start), False
        if name is None:
            continue
        group = name.lastgroup
        if group in _NOTHING:
            continue
        if group == "prose":
            if not may_stand_apart or not _may_stand_apart(low, start, has_login=has_login):
                continue
        elif group == "apart":
            end = known.get(name.end(), 0)
            if end and text[end : end + 1] == " ":
                at = end
                continue
        elif group == "plain" and (one := headers.quick_credentials(rules, low, start)) is not None:
            done.add(start)
            yield one
            at = one[1]
            continue
        if (found := whole(low, start, start + WINDOW)) is None:
            continue
        front = _front(low, start)
        line = front.rpartition(" ")[2]
        core, sign = found["core"], found["sign"]
        is_flag = line.startswith("--") or (line.startswith("-") and len(line) > 2)
        is_flag = is_flag or (line == "-" and core[:4] in _SHORT_FLAGS and _has_digit(found))
        if sign == "" and not is_flag:
            if found["quoted"] is not None and not found["end"] and " " in found["quoted"]:
                continue  # an apostrophe, or the rest of a sentence
            is_flag = _is_setting(rules, text, start, line, found)
            if not is_flag:
                continue
        if text[start].isupper() and line[-1:].isalpha() and text[start - 1].islower():
            line, front = _apart(text, start, line), _apart(text, start, front)
        spaced = front if core == "key" and not line.startswith("-") else line
        kind = category(rules, spaced.lstrip("-"), core)
        if not kind and core == "key":
            kind = _kind_of_key(rules, text, start, line, front, found)
        if not kind or (kind in _SWITCHED and not rules.is_on(_SWITCHED[kind])):
            continue
        made = _made(rules, text, low, found, kind, is_flag=is_flag)
        if made and found.end() == start + WINDOW and (longer := whole(low, start)):
            made = _made(rules, text, low, longer, kind, is_flag=is_flag) or made
        if made and kind not in _SWITCHED:
            made += _more(rules, text, low, found, made[0])
        for one in made:
            yield one
            at = max(at, one[1])


def _front(low: str, start: int) -> str:
    shown = _FRONT.match(low[max(0, start - 40) : start][::-1])
    edge = start - (shown.end() if shown else 0)
    code = _ENCODED.match(low, max(0, edge - 1), start)
    return low[code.end() if code else edge : start]


def _apart(text: str, end: int, front: str) -> str:
    """The front of a name in camel case with its words apart: of ``stripeSecretKey`` all three."""
    return _HUMP.sub("_", text[end - len(front) : end]).lower() + "_"


_NOTHING = frozenset(["dull", "vain"])
"""Behind a name: words that no secret of its kind is, and words that stand for none."""
_SHORT_FLAGS = frozenset(["pass", "secr", "toke"])


def _has_digit(found: re.Match[str]) -> bool:
    return DIGIT.search(found["quoted"] or found["bare"] or "") is not None


_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_EDGES = bytes(
    code if chr(code) in "abcdefghijklmnopqrstuvwxyz0123456789_.$ -" else 10 for code in range(256)
)
"""All but the letters of names becomes the end of a line."""


def _quick(
    rules: Rules, text: str, low: str, edges: bytes, start: int, plain: re.Match[str]
) -> Found | None:
    """A value of letters and digits that stands alone behind ``=`` or ``:``, as most do."""
    first, last = plain.span("value")
    least = max(0, start - 40)
    front = low[max(least, edges.rfind(b"\n", least, start) + 1) : start]
    line = front.rpartition(" ")[2]
    if text[start].isupper() and line[-1:].isalpha() and text[start - 1].islower():
        line, front = _apart(text, start, line), _apart(text, start, front)
    core = plain["core"]
    kind = category(rules, (front if core == "key" else line).lstrip("-"), core)
    if kind not in ("password", "secret") or low.find("${", least, start) >= 0:
        return None
    return first, last, start, kind if kind == "password" else _kind(plain)


_SWITCHED = {"header": "header.authorization", "cookie": "header.cookie"}


def _may_stand_apart(low: str, start: int, *, has_login: bool) -> bool:
    """Whether a name with a word behind it may have a value: most are words of prose.

    The name is that of a flag or of a setting.
    """
    least = max(0, start - 40)
    return (
        low.rfind("-", least, start) >= 0
        or low.rfind("set", least, start) >= 0
        or (has_login and low.rfind("login", max(0, start - 240), start) >= 0)
    )


_NO_SECRET_KEY = re.compile(
    r"(?:public|primary|foreign|sort|partition|range|cache|object|idempotency|lookup|index|hash|row"
    r"|s3|map|dict|group|order|unique|translation|i18n|locale|message|event|routing|redis|composite)"
    r"[_-]?\Z"
)


def _kind_of_key(
    rules: Rules, text: str, start: int, line: str, front: str, found: re.Match[str]
) -> str:
    """The category of a name that only ends with ``key``."""
    if _is_key_of_a_vendor(rules, text, line, found):
        return "secret"
    is_one = _is_variable(text, start, line, found) or _is_lone_key(text, front, found)
    return "weak" if is_one else ""


def _is_variable(text: str, start: int, line: str, found: re.Match[str]) -> bool:
    """A constant such as ``STRIPE_KEY``, of whatever vendor."""
    return (
        len(line) > 2
        and line[-1] == "_"
        and found["sign"].strip() in ("=", ":", "=>", ":=")
        and text[start : start + 3] == "KEY"
        and text[start - len(line) : start].isupper()
        and _NO_SECRET_KEY.search(line) is None
    )


def _is_lone_key(text: str, front: str, found: re.Match[str]) -> bool:
    """``key=`` without a word that tells of what, and a value as long and random as keys are."""
    value = text[slice(*found.span("quoted" if found["quoted"] is not None else "bare"))]
    return (
        len(value) >= 32
        and not front[-1:].isalnum()
        and front[-1:] not in ("_", "-", ".")
        and _is_mixed(value)
        and _NO_SECRET_KEY.search(front.rstrip()) is None
    )


_LONG_KEY = re.compile(
    r"(?=[0-9]{0,99}[a-f])[0-9a-f]{32,128}\Z"
    r"|(?=.{0,99}[a-z])(?=.{0,99}[A-Z])(?=(?:[^0-9]{0,99}[0-9]){2})"
    r"(?:[0-9A-Za-z]{24,99}|[0-9A-Za-z_-]{40,99}={0,2}|[0-9A-Za-z+/]{40,99}={1,2})\Z"
)
"""In hexadecimal, or with letters of both cases."""


def _is_key_of_a_vendor(rules: Rules, text: str, line: str, found: re.Match[str]) -> bool:
    """``acme_key = "…"``, of whatever vendor, with a value as long and random as keys are.

    The keys of caches, tables and files have names of their own, and are digests just as well. A
    UUID is one only where the name says of nothing that has an id: ``user_key`` names a user.
    """
    if (
        not rules.is_on("name.secret")
        or line[-1:] not in ("_", "-")
        or found["sign"].strip() not in ("=", ":", "=>", ":=")
    ):
        return False
    words = [word for word in _SEPARATORS.split(line) if word]
    if not words or not rules.identifiers.isdisjoint(words):
        return False
    if ("".join(words[-3:]) + "key").endswith(rules.harmless):
        return False
    value = text[slice(*found.span("quoted" if found["quoted"] is not None else "bare"))]
    if UUID.match(value) is not None:
        return rules.things.isdisjoint(one for word in words for one in (word, word[:-1]))
    return _LONG_KEY.match(value) is not None


_LINES = 20


def _more(rules: Rules, text: str, low: str, found: re.Match[str], one: Found) -> list[Found]:
    """What belongs to a value that was found: what it was changed to, and its further lines."""
    _, end, start, kind = one
    after = text[end : end + 1]
    if after in ('"', "'", "`"):
        if (changed := rules.expression("changed").match(text, end)) is not None:
            return [(changed.start("value"), changed.end("value"), start, kind)]
        made: list[Found] = []
        joined = rules.expression("joined")
        while len(made) < _LINES and (piece := joined.match(text, end)) is not None:
            if not any(c.isdigit() for c in piece["value"]):
                break
            end = piece.end("value")
            made.append((piece.start("value"), end, start, kind))
        return made
    if after not in ("\n", "\r", "\\"):
        return []
    if found["quoted"] is not None:
        rest = rules.expression("rest-of-quoted").match(text, end, end + 1_200)
        quote = (found["quote"] or "").lstrip("\\")[:1]
        if rest is not None and text[rest.end() : rest.end() + 1] == quote:
            return [(end, rest.end(), start, kind)]
        return []
    if after == "\\":
        carried = rules.expression("carried").match(text, end)
        return [] if carried is None else [(*carried.span("value"), start, kind)]
    if "|" in found["gap"] or ">" in found["gap"]:
        indent = re.compile(r"\r?\n([ \t]{1,64})").match(text, low.find("\n", found.start("gap")))
        lines: list[Found] = []
        while indent is not None and len(lines) < _LINES:
            line = re.compile(rf"\r?\n{indent[1]}(?P<value>[^\s:]{{4,400}})(?=\r?\n|\Z)").match(
                text, end
            )
            if line is None:
                break
            end = line.end()
            lines.append((line.start("value"), end, start, kind))
        return lines
    return []


def _made(
    rules: Rules, text: str, low: str, found: re.Match[str], kind: str, *, is_flag: bool
) -> list[Found]:
    if kind == "header":
        return list(headers.credentials(rules, text, low, found))
    if kind == "cookie":
        return list(headers.cookies(rules, text, low, found))
    one = _value(rules, text, low, found, kind, is_flag=is_flag)
    return [] if one is None else [one]


def _is_setting(rules: Rules, text: str, start: int, line: str, found: re.Match[str]) -> bool:
    """A name and a value with a space between: ``config set``, ``.netrc``, ``PASSWORD 'x'``."""
    core, bare, low = found["core"], found["bare"], found.string
    if core == "bearer" and not line:
        return True
    if found["quoted"] is not None and not found["quote"].startswith("`"):
        shown = text[slice(*found.span("quoted"))]
        if looks_random(shown) and (len(shown) >= 12 or core.startswith(("pass", "pw"))):
            return True
    if core.startswith(("pass", "pw")):
        begin, end = found.span("bare")
        shown = text[begin:end]
        if found["quote"] == "'" or (bare and (is_strong(shown) or _is_mixed(shown))):
            return True
        front = low[max(0, start - 240) : start]
        if "login" in front and rules.expression("login").search(front):
            return True
    if bare and _is_apart(text[slice(*found.span("bare"))], found):
        return True
    if bare and low[found.end("bare") : found.end("bare") + 1] in ("", "\n", "\r"):
        head = low[max(low.rfind("\n", max(0, start - 80), start) + 1, start - 80, 0) : start]
        if " " not in head.strip() and len(bare) >= 6 and any(c.isdigit() for c in bare):
            return True
    before = low[max(0, start - 120) : start]
    return "set" in before and rules.expression("setting").search(before) is not None


_MIXED = re.compile(
    r"(?=.{0,99}[a-z])(?=.{0,99}[A-Z])(?=(?:[^0-9]{0,99}[0-9]){2})[0-9A-Za-z]{12,99}\Z"
)


def _is_mixed(value: str) -> bool:
    """Letters of both cases and digits in a row, as random passwords have them."""
    return _MIXED.match(value) is not None


_DIGITS = re.compile(r"(?:[^0-9]{0,400}[0-9]){3}")
_LONG = re.compile(r"[0-9A-Za-z_+/=-]{20,400}[.,;:!?]?\Z")


def _is_apart(value: str, found: re.Match[str]) -> bool:
    """Whether a value behind a name in a sentence is as random as only keys are."""
    if found["core"] in ("bearer", "auth") or _LONG.match(value) is None or found["call"]:
        return False
    return (
        looks_random(value)
        and IDENTIFIER.match(value.lower()) is None
        and _DIGITS.match(value) is not None
    )


def _value(
    rules: Rules, text: str, low: str, found: re.Match[str], kind: str, *, is_flag: bool
) -> Found | None:
    part = "quoted" if found["quoted"] is not None else "bare"
    start, end = found.span(part)
    sign = found["sign"].strip()
    quoted = part == "quoted"
    if low.startswith("secret:", found.start()) and MASK.match(text, found.start() - 1):
        return None
    if not quoted:
        if found["call"]:
            return None
        end = _bare_end(rules, text, low, found, start, end)
    value = text[start:end]
    if quoted and value.lstrip()[:1] in _AFTER_PROMPT:
        return None
    if sign == "(" and (quoted or not looks_random(value)):
        return None
    if sign == "|" and not (quoted or looks_random(value)):
        return None
    if sign == ">" and not low[max(0, found.start() - 60) : found.start()].rpartition("<")[1]:
        return None
    if sign in (",", "|") and not any(letter.isdigit() for letter in value):
        return None
    if sign in ("is", "was"):
        has = {letter.isdigit() for letter in value}
        if kind != "password" or len(has) != 2 or len(value) < 6:
            return None
    if (
        low.rfind("${", max(0, found.start() - 40), found.start())
        > low.rfind("}", max(0, found.start() - 40), found.start())
    ) and not _is_mixed(value.removeprefix("-")):
        return None  # the default of a variable
    if sign == ">" and value[:1] == "@":
        return None
    if _is_argument(low, found, value, is_flag=is_flag):
        return None
    if found["lines"]:
        carried = "\\" in found["lines"] or "|" in found["lines"] or ">" in found["lines"]
        if not carried and (is_flag or sign not in (":", "=>", ">")):
            return None
        if text[end : end + 1] in ("=", ":") or (value[-1:] in "=:" and kind == "password"):
            return None
    if "\n" in found["gap"] and kind != "password" and not looks_random(value):
        return None
    strong = (
        is_flag or sign in ("=", ":=", "=>", "==", "%3d", ">", "->", "?=") or "\n" in found["gap"]
    )
    if sign in (":", "::", "%3a") and not quoted and kind == "password":
        strong = _stands_alone(text, low, found, end)
    if (
        "\n" in found["gap"]
        and kind == "password"
        and not quoted
        and not _stands_alone(text, low, found, end)
    ):
        return None
    if kind == "password" and sign == "==" and not quoted:
        return None
    if found["core"] == "bearer" and sign == "":
        return (start, end, found.start(), "authorization") if _is_bearer(rules, value) else None
    if kind == "weak" and found["core"] in ("pass", "pw") and (quoted or strong):
        if not _is_weak_password(rules, value):
            return None
    elif not is_secret(rules, kind, value, quoted=quoted, strong=strong):
        return None
    return start, end, found.start(), kind if kind == "password" else _kind(found)


_FOLDER = re.compile(r"(?:[a-z][a-z_.-]*/)+\Z")
_RESOURCE = re.compile(r"\barn:[a-z-]*:secretsmanager:[a-z0-9:-]*\Z")
_ASKS = re.compile(r"\b(?:mysql|mariadb)[a-z-]*\b[^|;&\n]*--\Z")
"""Programs whose option takes no value behind a space: they ask a person for it."""


def _is_argument(low: str, found: re.Match[str], value: str, *, is_flag: bool) -> bool:
    """A folder behind ``grep password=``, the name of a stored secret, a name of a database."""
    if _FOLDER.match(value):
        return True
    front = low[max(0, found.start() - 120) : found.start()]
    if found["core"] == "secret" and found["sign"] == ":" and _RESOURCE.search(front):
        return True
    return is_flag and found["sign"] == "" and _ASKS.search(front) is not None


_AFTER_PROMPT = frozenset("),+;")
"""What follows a text such as ``"Password: "`` in a program."""


_BEARER = re.compile(r"(?=[^0-9]{0,999}[0-9])(?=[^ ]{8})[^ =]++=*\Z")
"""Behind ``bearer`` without a sign: ``=`` is at the end of a token only, as in RFC 6750."""


def _is_bearer(rules: Rules, value: str) -> bool:
    return _BEARER.match(value) is not None and not is_placeholder(rules, value)


def _kind(found: re.Match[str]) -> str:
    core = found["core"]
    return (
        "key"
        if core in ("key", "psk")
        else "token"
        if core in ("token", "jwt", "bearer")
        else "secret"
    )


def _bare_end(rules: Rules, text: str, low: str, found: re.Match[str], start: int, end: int) -> int:
    """The end of a value without quotes. One of a variable goes on to the next space."""
    sign = found["sign"]
    if (
        sign == "="
        and text[end : end + 1] not in ("", "\n", "\r", " ")
        and rules.expression("line-name").search(low[max(0, found.start() - 80) : found.start()])
    ):
        stop = _TO_SPACE.match(text, end)
        end = stop.end() if stop else end
    if sign.startswith("%"):
        cut = _ENCODED_END.search(low, start, end)
        end = cut.start() if cut else end
    if text[end - 1] == "\\" and text[end : end + 1] in ("", "\n", "\r"):
        end = max(start + 1, end - 1)  # the line is carried on
    while end > start + 1 and text[end - 1] in TRAILING:
        end -= 1
    return end


def _stands_alone(text: str, low: str, found: re.Match[str], end: int) -> bool:
    """Whether a value is all that comes behind its name, on a line that begins with it."""
    after = text[end : end + 1]
    if after not in ("", "\n", "\r", ",", "}", "#") and text[end : end + 2] != " #":
        return False
    head = low[max(0, found.start() - 80) : found.start()]
    return _LINE_HEAD.search(head) is not None


_LINE_HEAD = re.compile(r"(?:^|[\n{,(])[ \t]*(?:-[ \t]+)?[\"']?[a-z0-9_.-]{0,60}\Z")
_TO_SPACE = re.compile(r"[^\s\"'`]*")
_ENCODED_END = re.compile("%(?:25){0,2}(?:2[26c]|7d|5d|3b[a-z_ +]{2,30}%(?:25){0,2}3d)")


def pairs(rules: Rules, text: str, low: str, starts: list[int]) -> Iterator[Found]:
    """Values beside their names in fields of their own: ``name: DB_PASSWORD``, ``value: …``.

    ``starts``: the places of the needles of names.
    """
    tail, head, pair = (rules.expression(f"pair{part}") for part in ("-tail", "-head", ""))
    at = 0
    for start in starts:
        if start < at or tail.match(low, start) is None:
            continue
        if (front := head.search(low, max(0, start - _PAIR_FRONT), start)) is None:
            continue
        found = pair.match(low, front.start())
        if found is None or found.end("name") <= start:
            continue
        name = found["name"]
        if not (kind := name_kind(rules, name, text[found.start("name") : found.end("name")])):
            continue
        part = "quoted" if found["quoted"] is not None else "bare"
        first, last = found.span(part)
        value = text[first:last]
        if kind in ("password", "secret", "weak") and is_secret(
            rules, kind, value, quoted=part == "quoted", strong=True
        ):
            yield first, last, found.start(), "password" if kind == "password" else "secret"
            at = last


_PAIR_FRONT = 120
"""Characters in which a field of a name stands in front of the needle of the name."""


def name_kind(rules: Rules, low: str, name: str) -> str:
    """The category of a whole name, such as the key of an object."""
    best = ""
    for found in rules.expression("end-of-name").finditer(low):
        front = low[: found.start()]
        at = found.start()
        if at and name[at : at + 1].isupper() and name[at - 1].islower():
            front = _apart(name, at, front)
        best = category(rules, front[-40:], found["core"]) or best
        break
    return best
