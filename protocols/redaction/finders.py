"""The places of the secrets in one text: tokens of vendors, keys, URLs, commands, personal data.

:func:`find` gives them all, in order and without overlaps. It is linear in the text: cheap looks
for signs come first (a run of sixteen letters, ``://``, ``private``), and an expression is tried
only where there is one. All look-arounds are local, and a match crosses the end of a line only
where :func:`is_open` says so of that line: so a text may be cut at the end of any other line.
Pure.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import TypeAlias

from motet.protocols.redaction import commands, forms, named, personal, tokens, values
from motet.protocols.redaction.personal import CARD, EMAIL, PHONE, SSN
from motet.protocols.redaction.rules import FIELDS, Rules
from motet.protocols.redaction.values import MASK, Found

_CODES = r"(?:\x1b|\\x1b|\\u001b|\\033|\\e)\[[0-?]{0,64}[ -/]{0,8}[@-~]"
ANSI = re.compile(
    _CODES + r"|\x9b[0-?]{0,64}[ -/]{0,8}[@-~]"
    r"|\x1b\][^\x07\x1b]{0,2048}(?:\x07|\x1b\\)|\x1b[ -/]{0,8}[0-Z\\^-~]"
)


def find(rules: Rules, text: str, scanned: Scanned | None = None) -> list[Found]:
    """The secrets of a text. Terminal codes inside or beside a secret do not hide it.

    ``scanned``: of a text of ASCII, what a look for its anchors has found.
    """
    has_codes = "\x1b" in text or "\x9b" in text
    if not has_codes and not ("\\" in text and _CODE_HINTS.search(text)):
        return merged(_plain(rules, text, scanned), text)
    if (code := ANSI.search(text)) is None:
        return merged(_plain(rules, text), text)
    # As it is, for it may be no code; with marks, so that words end at codes; without the codes.
    found = _plain(rules, text)
    found += _plain(rules, ANSI.sub(lambda code: "\x1b" * len(code.group()), text))
    bare: list[str] = []
    places: list[int] = []
    at = 0
    while code is not None:
        bare.append(text[at : code.start()])
        places.extend(range(at, code.start()))
        at = code.end()
        code = ANSI.search(text, at)
    bare.append(text[at:])
    places.extend(range(at, len(text)))
    places.append(len(text))
    for start, end, context, kind in _plain(rules, "".join(bare)):
        found.append((places[start], places[end - 1] + 1, places[context], kind))
    return merged(found, text)


_CODE_HINTS = re.compile(r"\\(?:x1b|u001b|033|e)\[")


def merged(found: list[Found], text: str) -> list[Found]:
    """Without overlaps, in order. The larger of two names the kind; of equal ones the first."""
    if not found:
        return found
    kept: list[Found] = []
    masks = [m.span() for m in MASK.finditer(text)] if "[" in text else []
    ordered = sorted(found)
    if not masks and all(one[1] <= two[0] for one, two in pairwise(ordered)):
        return ordered
    for start, end, context, kind in sorted(found, key=lambda one: (one[0], -one[1])):
        if masks:
            near = bisect_right(masks, (start, start))
            if any(
                start < mask[1] and mask[0] < end for mask in masks[max(0, near - 1) : near + 1]
            ):
                continue
        if not kept or start >= kept[-1][1]:
            kept.append((start, end, context, kind))
            continue
        first, last, least, name = kept[-1]
        if end == last and start == first:
            name = max(name, kind, key=_rank)
        elif kind == "private-key" and end >= last:
            name = kind  # or the lines behind it would be taken for others
        kept[-1] = (first, max(end, last), min(least, context), name)
    return kept


def _rank(kind: str) -> int:
    return 2 if kind == "private-key" else 0 if kind in _NAMED else 1


_NAMED = frozenset(
    [
        "password",
        "secret",
        "token",
        "key",
        "authorization",
        "cookie",
        "url",
        "jwt",
        EMAIL,
        PHONE,
        CARD,
        SSN,
    ]
)


_ABROAD = {
    **dict.fromkeys("“”„‟«»", '"'),
    **dict.fromkeys("‘’‚‛", "'"),
    "：": ":",
    "＝": "=",
    "пароль": "passwd",
    "парола": "passwd",
    "密码": "pw",
    "密碼": "pw",
    "口令": "pw",
    "パスワード": " pass",
    "비밀번호": "pass",
    "contraseña": "  password",
    "hasło": " pass",
    "şifre": " pass",
    "lösenord": "password",
}
_ABROAD_SHAPE = re.compile("|".join(map(re.escape, _ABROAD)), re.IGNORECASE)


def as_ascii(text: str) -> bytes:
    """The text as ASCII, character by character. Quotes, colons and names of passwords that other
    languages have become those that the rules know.
    """
    if text.isascii():
        return text.encode()
    text = _ABROAD_SHAPE.sub(lambda one: _ABROAD[one.group().lower()], text)
    return text.encode("ascii", "replace")


def _plain(rules: Rules, text: str, scanned: Scanned | None = None) -> list[Found]:
    raw = as_ascii(text)
    low = raw.lower().decode("ascii")
    is_on = rules.is_on
    found = list(tokens.tokens(rules, text, raw))
    found += personal.numbers(rules, text, raw)
    if not any(sign in low for sign in _SIGNS) and _DIALOG not in text:
        return found
    starts, present = scanned or rules.anchors.scan(low)
    if "private" in present and is_on("key.private"):
        found += _keys(rules, text)
    if "eyj" in present and is_on("token.json-web"):
        found += tokens.web_tokens(rules, text)
    done = set[int]()
    if starts:
        known = {one[0]: one[1] for one in found}
        found += named.named(rules, text, low, starts, known, done)
        if not present.isdisjoint(FIELDS) and is_on("name.field"):
            found += named.pairs(rules, text, low, starts)
        if "data:\n" in low and is_on("file.manifest"):
            found += forms.found_in_manifests(rules, text, low)
    others = [start for start in starts if start not in done] if done else starts
    found += forms.found_by_forms(rules, text, low, others, present)
    if "://" in present:
        found += _urls(rules, text, low)
    if is_on("url.query"):
        found += _query(rules, text, low)
    if "-" in low:
        found += commands.flags(rules, text, low)
    if "@" in text and is_on("personal.email"):
        found += personal.emails(rules, text, low)
    return found


_SIGNS = " \t=:>|(,%\"'@$?&;.\\<"
"""All rules but those of tokens and numbers need one of these: the lines of base64 have none."""
_DIALOG = "UGFzc3dvcmQ6"
"""But for the question of a mail server, behind which a password is a line of base64."""


SUSPECT = re.compile(
    r"[:=@+~%|<>?&\x1b\x9b\\]|--| [-/][A-Za-z]|\d{3}|[0-9A-Za-z_-]{16}"
    r"|eyJ|pw |rabbitmq|rclone|isakmp|server key|snmp-|SecureS|securestring|[\"'][ \t]{0,2},"
    r"|radtest|freerdp|isql |kinit |autologon|nmcli|pdp |rman target|[Ll]ogin |LOGIN "
    r"|[Aa]uth |AUTH[ \"]|[Pp]ass|PASS|[Bb]earer|BEARER|[Ii]dentified|IDENTIFIED|[Ss]et |SET "
)
"""A short text with a secret holds one of these; most texts have none, and are not searched."""
NEEDED = re.compile(
    r"[@+~%|<>?&\x1b\x9b\\]|://|:543|:6432|-|\d{3}|[0-9a-z_]{16}|eyj|_pat|value|variable"
    r"|pass|pw|psk|secret|token|key|auth|cred|bearer|cookie|private|identified|wpa|snmp-|securestring"
    r"|salt|pepper|rabbitmq|rclone|sp_add|login\(|schtasks|: eap|: xauth|net use|mnemonic|phrase"
    r"|radtest|freerdp|isql |kinit |autologon|nmcli|pdp |rman target"
    r"|login |samlresponse|pdo|mysqli|getconnection|kennwort|wachtwoord|senha|adgangskode|parola"
)
"""The same in lower case, for texts that hold a sign: one of these, too, is in each secret."""


# Private keys

_REST = re.compile(r"[\s\"'\\+,;)\]}]*")
_BODY = re.compile(r"[0-9A-Za-z+/=]+")


def body_end(rules: Rules, text: str, at: int) -> tuple[int, bool]:
    """The end of the body of a private key from ``at``, and whether it could go on behind the text.

    The body is decided line by line: base64, headers and blank lines belong to it, whatever is in
    front of them on their lines (indentation, a quote, the name of a program). It ends behind an
    END line, or before the first line that is of another kind.
    """
    closed = rules.expression("key-end")
    while at < len(text):
        line_end = text.find("\n", at)
        stop = len(text) if line_end < 0 else line_end + 1
        over = closed.search(text, at, stop)
        if over is not None:
            return over.end(), False
        if not _is_body(rules, text[at:stop]):
            return at, False
        at = stop
    return at, True


def _is_body(rules: Rules, line: str) -> bool:
    line = line.strip(" \t\r\n>|\"'+,*#\\")
    if not line or rules.expression("key-headers").match(line):
        return True
    word = line.rpartition(" ")[2]
    word = word.rpartition("\\n")[0].rpartition("\\n")[2] or word if "\\n" in word else word
    if word.startswith("=") and len(word) == 5:
        return True  # the checksum of a PGP block
    if not _BODY.fullmatch(word):
        return False
    if word != line:
        return len(word) >= 24
    return len(word) >= 16 or not (word.isalpha() and (word.islower() or word.istitle()))


def _keys(rules: Rules, text: str) -> Iterator[Found]:
    opened, closed = rules.expression("key-begin"), rules.expression("key-end")
    at = searched = 0
    while (begin := opened.search(text, at)) is not None:
        line_end = text.find("\n", begin.end())
        line_end = len(text) if line_end < 0 else line_end
        over = closed.search(text, begin.end(), line_end) if line_end > searched else None
        if over is None:
            searched = line_end  # or a line of many beginnings would take quadratic time
        if over is not None:
            end = over.end()
        else:
            inline = rules.expression("key-inline").match(text, begin.end(), line_end)
            end = inline.end() if inline else begin.end()
            rest = _REST.match(text, end, line_end)
            if rest is not None and rest.end() == line_end:
                end, _ = body_end(rules, text, min(line_end + 1, len(text)))
        if end > begin.end():
            yield begin.start(), end, begin.start(), "private-key"
        at = max(end, begin.end())


# URLs

_SCHEME = re.compile(r"[a-z0-9+.-]{1,30}[a-z]")
"""The scheme of an address, read backwards."""
_HOST = re.compile(r"[a-z0-9.-]{0,253}?([a-z0-9-]{1,63}\.[a-z]{2,10})[/:]")
"""The host of an address, with its domain."""


_USERS = frozenset(["user", "username", "usr", "login", "name"])
_PASSWORDS = frozenset(["pass", "password", "passwd", "pwd", "pw", "secret"])
"""Together with such a user they only say where a password goes."""


def _login(rules: Rules, text: str, low: str, start: int, found: re.Match[str]) -> Found:
    """The user and the password of an address, or all of the address of a database."""
    scheme = low[start : low.index("://", start)].partition("+")[0].rpartition(":")[2]
    if scheme not in rules.databases:
        return found.start("user"), found.end("password"), start, "url"
    rest = rules.expression("url-rest").match(low, found.end("password") + 1)
    assert rest is not None
    end = rest.end()
    while text[end - 1] in ",;.)]}":
        end -= 1
    return start, end, start, "database-url"


def _urls(rules: Rules, text: str, low: str) -> Iterator[Found]:
    url, quick = rules.expression("url"), rules.expression("quick-url").match
    at = low.find("://")
    has_webhooks, domains = "hook" in low, rules.webhook_domains
    while at >= 0:
        place = at
        at = low.find("://", at + 3)
        if not has_webhooks and (host := _HOST.match(low, place + 3)) is not None:
            has_webhooks = host[1] in domains
        front = _SCHEME.match(low[max(0, place - 31) : place][::-1])
        if front is None:
            continue
        start = place - front.end()
        if (plain := quick(low, place)) is not None:
            if rules.is_on("url.password"):
                yield _login(rules, text, low, start, plain)
            continue
        found = url.match(low, start)
        if found is None:
            continue
        if found["password"] is not None and not rules.is_on("url.password"):
            continue
        password = found["password"]
        if password is not None:
            first, last = found.span("password")
            if password.partition("/")[0].isdigit() and "/" in password:
                continue  # a port, and a path with a sign in it
            if values.is_placeholder(rules, text[first:last]):
                continue
            if found["user"] in _USERS and password in _PASSWORDS:
                continue
            yield _login(rules, text, low, start, found)
        elif len(found["user"]) >= 16 and values.looks_random(
            text[found.start("user") : found.end("user")]
        ):
            yield found.start("user"), found.end("user"), start, "url"
    if has_webhooks:
        for found in rules.webhooks.finditer(text):
            name = found.lastgroup
            if name is not None:
                rule = rules.file.webhooks[int(name[1:])]
                yield (
                    found.start() + len(rule.head),
                    found.end(),
                    found.start(),
                    rule.kind if rule.kind == "telegram" else f"{rule.kind}-webhook",
                )


_SHORT_QUERY = frozenset(
    ["key", "code", "auth", "session", "sid", "pw", "pass", "signature", "st", "ticket", "hmac"]
)


def _query(rules: Rules, text: str, low: str) -> Iterator[Found]:
    for found in rules.query_in(low):
        start, end = found.span("value")
        while text[end - 1] in _PUNCTUATION:
            end -= 1
        value = text[start:end]
        if values.is_placeholder(rules, value) or not values.looks_random(value.replace("%", "a1")):
            continue
        if found["name"] in _SHORT_QUERY and values.name_like(value):
            continue
        kind = "signature" if "sig" in found["name"] else "token"
        yield start, end, found.start("whole"), kind


_PUNCTUATION = ".,:;!?"


# Lines that go on


def _is_open_above(rules: Rules, text: str, end: int, least: int) -> bool:
    """Whether a secret of many lines goes on: a block of YAML, a quoted text, a manifest."""
    above = text[max(least, end - forms.REACH) : end].lower()
    if ("data:\n" in above or "kind: secret" in above) and forms.is_in_manifest(above):
        return True
    if not _MANY_LINES.search(above):
        return False
    # Where each line begins such a secret, the others before would each be tried in vain.
    first = len(above)
    for _ in range(_LINES):
        if (first := above.rfind("\n", 0, first)) < 0:
            break
    above = above[first + 1 :]
    return rules.expression("open-lines").search(above) is not None


_MANY_LINES = re.compile(
    r"[|>][+-]?\d?[ \t]{0,8}\r?\n|[\"'`\\+.(][ \t]{0,8}\r?\n|[\"'][^\"'\n]{4,200}\n"
    r"|\{[ \t]{0,8}\r?\n[ \t]{0,64}(?:type|description|sensitive|nullable)\b"
)
REACH = 512
"""Characters of a line that :func:`is_open` reads."""
_LINES = 24
"""Lines of a secret, and the line of its name, at most."""
_OPENERS = ("name", "variable", "login", "ugfz", "@\n")
"""Each line behind which a secret goes on holds one of these or the name of a secret, or ends with
a part of a token. A password of an address that was cut behind its sign is one only at the end.
"""
Scanned: TypeAlias = tuple[list[int], set[str]]
"""As :meth:`~motet.protocols.redaction.anchors.Anchors.scan`."""


def open_lines(rules: Rules, text: str, ends: list[int]) -> tuple[set[int], Scanned]:
    """The numbers of the lines of a text that are not to be searched together with others.

    ``text``: printable lines of ASCII, which end at ``ends``. All lines for which :func:`is_open`
    is true are among them, and some more; looked at together, they take much less time.
    """
    low = text.lower()
    scanned = rules.anchors.scan(low)
    opened = {bisect_right(ends, start) for start in scanned[0]}
    for opener in _OPENERS:
        at = low.find(opener)
        while at >= 0:
            line = bisect_right(ends, at)
            opened.add(line)
            at = low.find(opener, ends[line])
    for at, word in tokens.line_ends(text):
        if len(word) >= REACH - 16 or tokens.may_be_token(rules, word):
            opened.add(bisect_right(ends, at))
    return opened, scanned


def is_open(rules: Rules, text: str, end: int, least: int = 0) -> bool:
    """Whether a secret may go on behind the end of a line, which is at ``end``.

    ``least``: where the text begins that is searched together.
    """
    start = max(text.rfind("\n", least, end - 1) + 1, end - REACH, least)
    line = text[start:end]
    low = line.lower()
    for name in ("open-name", "open-pair", "open-login"):
        if rules.expression(name).search(low):
            return True
    return tokens.is_open_token(rules, line) or _is_open_above(rules, text, end, least)
