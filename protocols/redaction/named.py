"""Secrets that a name gives away: ``password=…``, ``"api_key": "…"``, ``--token …``, headers.

One expression finds a name, a sign and a value, in all the forms that programs print: environment,
YAML, TOML, INI, JSON (also inside of JSON or of a URL), keyword arguments, reprs, XML, flags,
headers. The functions then decide whether the name is that of a secret and the value is one, and
not its type, its place, a word of prose or a mark that hides it. Pure.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator

from motet.protocols.redaction.rules import Rules

Found = tuple[int, int, int, str]
"""Start and end of a secret, where its context starts, and its kind."""

MASK = re.compile(
    r"\[secret:[a-z0-9-]{1,40}(?::[0-9a-f]{4})?\]|\[(?:[A-Z]{3,5}_)?REDACTED\]|\[hidden\]"
)

# The end of a name, in lower case. The words before it are looked at afterwards.
NEEDLES = (
    "pass",
    "pw",
    "psk",
    "secret",
    "token",
    "key",
    "auth",
    "cred",
    "bearer",
    "cookie",
    "_pat",
)
"""Each name of a secret holds one of these. ``str.find`` finds them ten times as fast as ``re``."""
CORES = (
    r"pass(?:[_-]?(?:words?|phrases?|code)|wds?|wort)?|pwd?|psk|secret|token|key"
    r"|auth(?:orization)?|cred(?:ential)?|bearer|cookie2?|_pat(?![a-z])"
)
CLOSE = r"(?:\\{0,8}[\"'`]|%22|&quot;)?\]?"
ENDINGS = (
    r"(?:[_-]?(?:s|base64|b64|base|value|string|text|plain|plaintext|raw|new|old|current|previous"
    r"|confirm|confirmation|prod|production|dev|staging|live|test|primary|secondary|default|admin"
    r"|root|user|rw|ro|env|val|data|encoded|(?<!signing[._-]key)id(?=[ \t]{0,8}=)))*[_-]?\d{0,3}"
)
_SIGN = (
    r"(?P<sign>[ \t]{0,64}(?:=>|:=|->|\?=|==?|::?|>|\|)"
    r"|%3d|%3a(?:%20|\+)?"
    r"|[ \t]{0,2},[ \t]{0,2}(?=b?\\{0,8}[\"'])"
    r"|[ \t](?:is|was)(?=:?[ \t])|[ \t]provided:|\((?=[0-9a-z_.-]{20})|(?=[ \t\n]))"
)
_GAP = (
    r"(?P<gap>:?[ \t]{0,32}"
    r"(?P<lines>(?:[|>][+-]?\d?[ \t]{0,8}|\\{1,2})?\r?\n[ \t]{1,64}(?:-[ \t])?)?)"
)
_TYPE = r"(?:[a-z][a-z0-9_.\[\]|, ]{0,40}=[ \t]?(?=[rbuf]{0,2}[\"']))?"
_WRAP = (
    r"(?:[a-z_.]{0,30}secret(?:str|bytes|value)?\(|[bruf]{1,2}(?=[\"'])"
    r"|!!(?:str|binary)[ ]|string\(\d{1,6}\)[ ]|[@$](?=[\"']))?"
)
_VALUE = (
    r"(?:(?P<quote>\\{0,8}(?:\"\"\"|'''|[\"'`])|%22|&quot;)"
    r"(?P<quoted>(?:(?!(?P=quote))(?:\\[^\n]|[^\\\n])){1,4096})(?P<end>(?P=quote)|(?=\n)|\Z)"
    r"|(?P<bare>[^\s\x1b\x9b\"'`,;&<>(){}\[\]\\]{1,4096})(?P<call>[(\[{]?))"
)
NAMED = re.compile(
    rf"(?P<core>{CORES}){ENDINGS}{CLOSE}{_SIGN}{_GAP}{_TYPE}{_WRAP}{_VALUE}",
)
"""For texts in lower case."""

PAIR = re.compile(
    r"(?:\bname|\bkey|<key|\bvariable)(?:\\{0,8}[\"'])?[ \t]{0,4}(?:[:=>]|[ \t])[ \t]{0,8}"
    r"(?:\\{0,8}[\"'])?"
    r"(?P<name>[a-z0-9_.-]{2,80})(?:\\{0,8}[\"'])?(?:</key>)?[ \t]{0,8}[,;{]?[ \t]{0,8}"
    r"(?:\r?\n[ \t]*)?(?:\\{0,8}[\"'])?(?:value|<string|plaintext|default)(?:\\{0,8}[\"'])?"
    r"[ \t]{0,4}[:=>][ \t]{0,8}" + _VALUE
)
"""A name and its value as two fields: variables of a container, settings in XML."""

_FRONT = re.compile(r"[a-z0-9_.$ -]{0,40}")
"""What stands in front of a name, read backwards."""
WINDOW = 400
"""Characters of a name and its value on which is decided; only a secret is read to its end."""
_SEPARATORS = re.compile(r"[_. $-]+")
_PROSE = re.compile(r"[a-z][a-z'-]*[.,:;!?]?\Z")
_TRAILING = ".,:;!?"

Spelled = tuple[str, bool, bool]
"""A name: its category (``password``, ``secret``, ``weak`` or nothing), and its camel case."""


def category(rules: Rules, front: str, core: str) -> str:
    """``password``, ``secret``, ``weak`` or, for a name that is of no secret, nothing."""
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


def is_placeholder(rules: Rules, value: str) -> bool:
    """Whether a value only stands for a secret."""
    bare = value.strip().strip("\"'`").strip()
    if not bare or MASK.search(value):
        return True
    lowered = bare.lower()
    if lowered.rstrip(_TRAILING) in rules.placeholders:
        return True
    return rules.passes_by.match(bare) is not None or rules.passes_by.match(lowered) is not None


def looks_random(value: str) -> bool:
    """At least eight characters with a digit, not only digits; or long and of both cases."""
    if len(value) < 8 or " " in value:
        return False
    if any(letter.isdigit() for letter in value):
        return not value.replace(".", "").replace("-", "").replace(":", "").isdigit()
    if len(value) >= 16 and value.lower() != value and value.upper() != value:
        return _CAMEL.fullmatch(value) is None
    return len(value) >= 20 and value.isalpha() and value.islower()


_CAMEL = re.compile(r"(?:[A-Za-z]?[a-z]{2,}[_.-]?)+")
_IDENTIFIER = re.compile(r"[a-z][a-z]+(?:[_./:-][a-z]{2,}){1,8}[0-9]{0,2}\Z")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z", re.IGNORECASE)
_BASE64 = re.compile(r"[0-9A-Za-z+/_-]{8,}={0,2}\Z")
_DIGEST = re.compile(r"(?:sha\d{1,3}|md5)[:-][0-9A-Za-z+/=]+\Z", re.IGNORECASE)
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d")


def is_strong(value: str) -> bool:
    """Letters, digits and signs together, as only passwords have them."""
    return (
        len(value) >= 8
        and any(letter.isdigit() for letter in value)
        and any(letter.isalpha() for letter in value)
        and any(letter in "!#$%^&*+=?~" for letter in value)
    )


def holds_user(value: str) -> bool:
    """Whether base64 hides ``user:password``."""
    if not _BASE64.match(value):
        return False
    try:
        plain = base64.b64decode(value + "=" * (-len(value) % 4))
    except ValueError:
        return False
    return b":" in plain and all(32 <= byte < 127 for byte in plain)


def is_secret(rules: Rules, kind: str, value: str, *, quoted: bool, strong: bool) -> bool:
    """Whether the value of a name is a secret. ``strong``: the sign before it is one of code."""
    if is_placeholder(rules, value) or _DIGEST.match(value) or _TIME.match(value):
        return False
    if kind == "password":
        if quoted or strong:
            return True
        return (
            _PROSE.match(value.lower()) is None
            or (len(value) >= 10 and value.isalpha())
            or any(letter.isdigit() for letter in value)
        )
    if holds_user(value):
        return True
    if _IDENTIFIER.match(value) or not looks_random(value):
        return False
    return kind == "secret" or (len(value) >= 12 and not _UUID.match(value))


def _is_weak_password(rules: Rules, value: str) -> bool:
    """The value of ``x_pass`` or ``pw``, which may also be a number of passes."""
    kinds = {letter.isdigit() for letter in value}
    return len(value) >= 6 and len(kinds) == 2 and not is_placeholder(rules, value)


def named(rules: Rules, text: str, low: str, starts: list[int]) -> Iterator[Found]:
    """The values behind names in one text.

    ``low``: the same text in lower case, as ASCII. ``starts``: the places of :data:`NEEDLES`.
    """
    at = 0
    for start in starts:
        if start < at or (found := NAMED.match(low, start, start + WINDOW)) is None:
            continue
        shown = _FRONT.match(low[max(0, start - 40) : start][::-1])
        front = shown.group()[::-1] if shown else ""
        line = front.rpartition(" ")[2]
        core, sign = found["core"], found["sign"]
        is_flag = line.startswith("--") or (line.startswith("-") and len(line) > 2)
        if sign == "" and not is_flag:
            is_flag = _is_setting(low, start, line, found)
            if not is_flag:
                continue
        if text[start].isupper() and line[-1:].isalpha() and text[start - 1].islower():
            line, front = f"{line}_", f"{front}_"  # camel case
        spaced = front if sign and core == "key" else line
        kind = category(rules, spaced.lstrip("-"), core)
        if not kind:
            continue
        made = _made(rules, text, low, found, kind, is_flag=is_flag)
        if made and found.end() == start + WINDOW and (whole := NAMED.match(low, start)):
            made = _made(rules, text, low, whole, kind, is_flag=is_flag) or made
        if made and (changed := _CHANGED.match(text, made[0][1])) is not None:
            made.append((changed.start("value"), changed.end("value"), start, made[0][3]))
        for one in made:
            yield one
            at = max(at, one[1])


def _made(
    rules: Rules, text: str, low: str, found: re.Match[str], kind: str, *, is_flag: bool
) -> list[Found]:
    if kind == "header":
        return list(_header(rules, text, low, found))
    if kind == "cookie":
        return list(_cookies(rules, text, low, found))
    one = _value(rules, text, low, found, kind, is_flag=is_flag)
    return [] if one is None else [one]


_SETTING = re.compile(
    r"(?:configure set|config set|setx|\bset|config:set)[ \t]+(?:-g[ \t]+)?\S{0,100}\Z"
)
_CHANGED = re.compile(r"[\"'][ \t]{0,4}->[ \t]{0,4}[\"'](?P<value>[^\"'\n]{1,400})[\"']")
_LOGIN = re.compile(r"\blogin[ \t\r\n]+\S{1,200}[ \t\r\n]+(?:account[ \t]+\S{1,200}[ \t\r\n]+)?\Z")


def _is_setting(low: str, start: int, line: str, found: re.Match[str]) -> bool:
    """A name and a value with a space between: ``config set``, ``.netrc``, ``PASSWORD 'x'``."""
    core, bare = found["core"], found["bare"]
    if core == "bearer" and not line:
        return True
    if core.startswith(("pass", "pw")):
        begin, end = found.span("bare")
        if found["quote"] == "'" or (bare and is_strong(found.string[begin:end])):
            return True
        if "login" in low[max(0, start - 240) : start] and _LOGIN.search(
            low[max(0, start - 240) : start]
        ):
            return True
    if bare and low[found.end("bare") : found.end("bare") + 1] in ("", "\n", "\r"):
        head = low[max(low.rfind("\n", max(0, start - 80), start) + 1, start - 80, 0) : start]
        if " " not in head.strip() and len(bare) >= 6 and any(c.isdigit() for c in bare):
            return True
    before = low[max(0, start - 120) : start]
    return "set" in before and _SETTING.search(before) is not None


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
        end = _bare_end(text, low, found, start, end)
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


_AFTER_PROMPT = frozenset("),+;")
"""What follows a text such as ``"Password: "`` in a program."""


def _is_bearer(rules: Rules, value: str) -> bool:
    has_digit = any(letter.isdigit() for letter in value)
    return len(value) >= 8 and has_digit and not is_placeholder(rules, value)


def _kind(found: re.Match[str]) -> str:
    core = found["core"]
    return (
        "key"
        if core in ("key", "psk")
        else "token"
        if core in ("token", "jwt", "bearer")
        else "secret"
    )


_LINE_NAME = re.compile(
    r"(?:^|\n)[ \t]*(?:(?:export|set|setx|env|arg|-|\$env:)[ \t]*)?[a-z0-9_.-]{0,60}\Z"
)


def _bare_end(text: str, low: str, found: re.Match[str], start: int, end: int) -> int:
    """The end of a value without quotes. One of a variable goes on to the next space."""
    sign = found["sign"]
    if (
        sign == "="
        and text[end : end + 1] not in ("", "\n", "\r", " ")
        and _LINE_NAME.search(low[max(0, found.start() - 80) : found.start()])
    ):
        stop = re.compile(r"[^\s\"'`]*").match(text, end)
        end = stop.end() if stop else end
    if sign.startswith("%"):
        cut = re.compile("%2[26c]|%7d|%5d").search(low, start, end)
        end = cut.start() if cut else end
    while end > start + 1 and text[end - 1] in _TRAILING:
        end -= 1
    return end


def _stands_alone(text: str, low: str, found: re.Match[str], end: int) -> bool:
    """Whether a value is all that comes behind its name, on a line that begins with it."""
    after = text[end : end + 1]
    if after not in ("", "\n", "\r", ",", "}", "#") and text[end : end + 2] != " #":
        return False
    head = low[max(0, found.start() - 80) : found.start()]
    return re.search(r"(?:^|[\n{,(])[ \t]*(?:-[ \t]+)?[\"']?[a-z0-9_.-]{0,60}\Z", head) is not None


_OPENED = re.compile(r"[bB]?\\{0,8}[\"'`]|%22|&quot;")
_PARAMETERS = re.compile(r"[^\r\n`<>]{4,4096}")
_WORD_VALUE = re.compile(r"[^\s\"'`\\,;<>\]\)}]{4,4096}")
_QUOTED_VALUE = re.compile(r"[^\r\n\"'`\\]{4,4096}")


def _header(rules: Rules, text: str, low: str, found: re.Match[str]) -> Iterator[Found]:
    """The credentials of an ``Authorization`` header, whatever its scheme."""
    if found["sign"] == "":
        return
    opened = _OPENED.match(text, found.end("gap"))
    start = opened.end() if opened else found.end("gap")
    quoted = found["quoted"] is not None and found.start("quoted") == start
    scheme = re.compile(r"[a-z0-9_-]{2,30}").match(low, start)
    name = scheme.group() if scheme else ""
    known = name in rules.schemes and scheme is not None
    if known and scheme is not None:
        behind = re.compile(r"[ \t]{1,4}(?:\\?\r?\n[ \t]*)?|%20|\+").match(low, scheme.end())
        if behind is None:
            known = False
        else:
            start = behind.end()
    value = _WORD_VALUE.match(text, start)
    if value is None:
        return
    if known and name in rules.parameters and "=" in value.group():
        whole = _PARAMETERS.match(text, start)
        end = whole.end() if whole else value.end()
        if quoted and found["quote"]:
            end = min(end, found.end("quoted"))
        elif "'" in text[start:end] and '"' in text[start:end]:
            end = start + text[start:end].index("'")  # as an argument of a shell
        while end > start and text[end - 1] in " \t'\"\\]":
            end -= 1
        if not MASK.search(text[start:end]):
            yield start, end, found.start(), "authorization"
        return
    end = value.end()
    while end > start and text[end - 1] in _TRAILING:
        end -= 1
    shown = text[start:end]
    if is_placeholder(rules, shown) or (shown == "realm=" and text[end : end + 1] == '"'):
        return
    if (known and _is_credential(shown)) or looks_random(shown):
        yield start, end, found.start(), "authorization"


def _is_credential(value: str) -> bool:
    return len(value) >= 4 and (
        any(letter.isdigit() or letter in "=+/" for letter in value)
        or value.lower() != value
        or len(value) >= 16
    )


_COOKIE = re.compile(r"[ \t]*(?P<name>[^\s=;,\"'`\\]{1,200})=(?P<value>\"?[^\s;,\"'`\\<>]{1,4096})")
_LANGUAGE = re.compile(r"[a-z]{1,5}(?:-[A-Z]{2})?\Z|[0-9]{1,2}\Z")


def _cookies(rules: Rules, text: str, low: str, found: re.Match[str]) -> Iterator[Found]:
    """The values in a header of cookies, one by one, without their attributes."""
    opened = _OPENED.match(text, found.end("gap"))
    at = opened.end() if opened else found.end("gap")
    if found["sign"] == "" and not low[found.end("core")].isspace():
        return
    first = True
    while (pair := _COOKIE.match(text, at)) is not None:
        start, end = pair.span("value")
        if pair["value"].startswith('"'):
            start += 1
        value = text[start:end]
        attribute = not first and pair["name"].lower() in rules.attributes
        if not attribute and not _LANGUAGE.match(value) and not is_placeholder(rules, value):
            yield start, end, found.start(), "cookie"
        first = False
        rest = re.compile(r"\"?;").match(text, end)
        if rest is None:
            return
        at = rest.end()
        while (flag := re.compile(r"[ \t]*[A-Za-z-]{1,20};").match(text, at)) is not None:
            at = flag.end()


def pairs(rules: Rules, text: str, low: str) -> Iterator[Found]:
    """Values beside their names in fields of their own: ``name: DB_PASSWORD``, ``value: …``."""
    for found in PAIR.finditer(low):
        name = found["name"]
        if not (kind := name_kind(rules, name, text[found.start("name") : found.end("name")])):
            continue
        part = "quoted" if found["quoted"] is not None else "bare"
        start, end = found.span(part)
        value = text[start:end]
        if kind in ("password", "secret", "weak") and is_secret(
            rules, kind, value, quoted=part == "quoted", strong=True
        ):
            yield start, end, found.start(), "password" if kind == "password" else "secret"


_END_OF_NAME = re.compile(rf"(?P<core>{CORES}){ENDINGS}\Z")


def name_kind(rules: Rules, low: str, name: str) -> str:
    """The category of a whole name, such as the key of an object."""
    best = ""
    for found in _END_OF_NAME.finditer(low):
        front = low[: found.start()]
        at = found.start()
        if at and name[at : at + 1].isupper() and name[at - 1].islower():
            front += "_"
        best = category(rules, front[-40:], found["core"]) or best
        break
    return best


_NAME_LIKE = re.compile(r"[A-Za-z]+[_.-]?[A-Za-z]*[0-9]{0,3}\Z")


def name_like(value: str) -> bool:
    """Whether a value reads as a word with a number."""
    return _NAME_LIKE.match(value) is not None
