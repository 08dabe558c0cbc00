"""Secrets in commands, and in forms without a name: flags, SQL, ``.pgpass``, pipes, Web Keys. Pure.

A short flag takes a secret only in a program that ``rules.json`` lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from motet.protocols.redaction import named
from motet.protocols.redaction.named import Found
from motet.protocols.redaction.rules import Rules

_PAIRS = re.compile(
    r"--(?P<flag>[a-z-]{2,30})(?:=|[ \t]{1,4}|\",[ \t]*\")[\"']?(?P<user>[^\s:\"'=]{1,100})"
    r":(?P<password>[^\s\"'`,]{1,200})"
)
_GAP_TO = r"(?:[ \t]{1,4}|=|[\"'],[ \t]{0,4})"
_FORMS = {
    form: re.compile(pattern)
    for form, pattern in {
        "attached": r"[\"']?(?P<value>[^\s\"'`;|&<>]{1,200})",
        "separate": _GAP_TO + r"[\"']?(?P<value>[^\s\"'`;|&<>-][^\s\"'`;|&<>]{0,400})",
        "either": rf"{_GAP_TO}?[\"']?(?P<value>[^\s\"'`;|&<>-][^\s\"'`;|&<>]{{0,200}})",
        "pair": rf"{_GAP_TO}?[\"']?[^\s:\"'@]{{1,100}}:(?P<value>[^\s\"'`]{{1,200}})",
        "percent": rf"{_GAP_TO}?[\"']?[^\s%\"']{{1,100}}%(?P<value>[^\s\"'`]{{1,200}})",
    }.items()
}
_PORTS = re.compile(r"[\d.:]{1,40}(?:/(?:tcp|udp))?\Z")
_PROGRAM = re.compile(r"(?:\A|[\s/;|&(`$\"'\[,])([a-z0-9][a-z0-9_.-]{0,30})[\"']?(?=[\s,])")
_INDIRECT = re.compile(r"(?:env|file|fd|stdin)\b")


REACH = 160
"""Characters in front of a flag in which its program is looked for."""


def flags(rules: Rules, text: str, low: str) -> Iterator[Found]:
    """Flags with a user and a password, and short flags of programs that are known to have them."""
    if "--" in low:
        for found in _PAIRS.finditer(low):
            start, end = found.span("password")
            shown = text[start:end]
            if found["flag"].replace("-", "") not in rules.pair_flags or _PORTS.match(shown):
                continue
            if not named.is_placeholder(rules, shown):
                yield start, end, found.start(), "password"
    for sign in _FLAG_SIGNS:
        at = low.find(sign)
        program, begin, searched = "", 0, 0  # the last program, and how far it was looked for
        while at >= 0:
            place, at = at + 1, low.find(sign, at + 2)
            if low[place + 1 : place + 2] not in _FLAG_LETTERS:
                continue
            line = max(low.rfind("\n", max(0, place - REACH), place) + 1, place - REACH, 0)
            for one in _PROGRAM.finditer(low, max(0, line - 1, searched), place):
                searched = one.end()
                if one[1] in rules.by_program:
                    program, begin = one[1], one.start(1)
            searched = max(searched, place - 34)
            if program and begin >= line:
                yield from _flag_value(rules, text, place, text[place : place + 12], program)


_FLAG_SIGNS = (" -", '"-', "'-")
_FLAG_LETTERS = frozenset("upawkxcsdt")


def _flag_value(rules: Rules, text: str, at: int, flag: str, program: str) -> Iterator[Found]:
    for name, form in rules.by_program[program]:
        if not flag.startswith(name):
            continue
        value = _FORMS[form].match(text, at + len(name))
        if value is None:
            continue
        start, end = value.span("value")
        shown = text[start:end]
        if shown.startswith("pass:"):
            start, shown = start + 5, shown[5:]
        elif _INDIRECT.match(shown):
            continue
        if named.is_placeholder(rules, shown) or _PORTS.match(shown) or start == end:
            continue
        if form == "either" and start == at + len(name) and not any(c.isdigit() for c in shown):
            continue
        yield start, end, at, "password"
        return


_PGPASS = re.compile(
    r"(?:\A|[\n'\"])[\w.*-]{1,200}:(?:543\d|6432):[\w.*-]{1,100}:[\w.*-]{1,100}"
    r":(?P<value>[^\s:'\"]{1,200})"
)
_ORACLE = re.compile(r"jdbc:oracle:[a-z]{2,6}:[\w$]{1,60}/(?P<value>[^\s@\"']{1,100})@")
_DSN = re.compile(
    r"(?<![\w/])[\w.-]{1,60}:(?P<value>[^\s@:/\"'][^\s@\"']{0,100})@(?:tcp6?|unix|cloudsql)\("
)
_JWK = re.compile(r"\"(?:d|p|q|dp|dq|qi|k)\"\s{0,4}:\s{0,4}\"(?P<value>[0-9A-Za-z_-]{20,2000})\"")
_IDENTIFIED = re.compile(
    r"identified[ \t]+(?:with[ \t]+[\w']+[ \t]+)?by(?:[ \t]+password)?[ \t]+"
    r"['\"](?P<value>[^'\"\n]{1,200})['\"]"
)
_PIPED = re.compile(
    r"(?:echo|printf)[ \t]+(?:-n[ \t]+)?(?P<q>[\"']?)(?P<value>[^\s\"'|]{4,400})(?P=q)[ \t]*"
    r"\|[^\n]{0,200}(?:stdin|sudo[ \t]+-s|passwd|cryptsetup)"
)


_AUTH_PAIR = re.compile(
    r"auth[a-z]{0,12}[ \t]{0,4}[=:]?[ \t]{0,4}\(b?[\"'][^\"'\n]{1,100}[\"'],[ \t]{0,4}"
    r"b?[\"'](?P<value>[^\"'\n]{1,200})[\"']"
)
_AUTH_PLAIN = re.compile(r"\bauth (?:plain|login|cram-md5) (?P<value>[0-9a-z+/]{8,400}={0,2})")
_CALLS = re.compile(
    r"(?:secret[ \t](?:set|put|create)[ \t]\S{1,100}[ \t]+(?:--body|-b|--value|<<<)(?:[ \t]{0,4}|=)"
    r"|htpasswd[ \t]+-[a-z]*b[a-z]*[ \t]+\S{1,200}[ \t]+\S{1,100}[ \t]+"
    r"|snyk auth[ \t]+|snmp-server community[ \t]+"
    r"|convertto-securestring[ \t]+(?:-(?:string|asplaintext|force)[ \t]+){0,3}(?!-)"
    r"|wpa_passphrase[ \t]+\S{1,100}[ \t]+|password-command(?:=|[ \t]+)[\"']echo[ \t]+)"
    r"[\"']?(?P<value>[^\s\"']{4,400})"
)
_CALL_HINT = re.compile(
    r"s(?:ecret |nyk auth|nmp-server|ecurestring)|passwd -b|wpa_pass|password-c"
)
_DIALOG = re.compile(  # what a client answers to "Password:", both in base64
    r"334 ugfzc3dvcmq6[^\n]{0,16}\r?\n[^\n]{0,40}?(?P<value>[a-z0-9+/]{4,400}={0,2})"
)
_PASSWORD_FOR = re.compile(
    r"(?:password|passphrase|passwd) (?:for|of) [^\s:]{1,80}(?::| is| =)[ \t]{1,4}"
    r"(?P<value>[^\s\"'`]{8,200})"
)
_HASHED = re.compile(
    r"(?<![\w$])\$(?:[156y]|2[aby]|argon2(?:id?|d))\$(?P<value>[0-9A-Za-z./$=,+]{20,200})"
)
_CREDENTIALS = re.compile(
    r"(?<![\w/:.@%-])[\w.-]{1,40}:(?P<value>[^\s:@/\"'<>,;()]{8,80})@(?=[0-9A-Za-z])"
)
_HEX_KEY = re.compile(
    r"(?<!cache )(?<!object )(?<!lock )(?<!index )(?<!s3 )(?<!hash )(?<![a-z0-9])key[ \t:=]{1,3}"
    r"(?P<value>[0-9a-f]{64,128})(?![0-9a-z])"
)


def others(rules: Rules, text: str, low: str) -> Iterator[Found]:
    """Forms without a name: ``.pgpass``, drivers' addresses, SQL, pipes, JSON Web Keys."""
    patterns: list[re.Pattern[str]] = []
    if ":543" in low or ":6432" in low:
        patterns.append(_PGPASS)
    if "@" in low and "jdbc:oracle" in low:
        patterns.append(_ORACLE)
    if "@" in low and "(" in low and ("@tcp" in low or "@unix(" in low or "@cloudsql(" in low):
        patterns.append(_DSN)
    if "identified" in low:
        patterns.append(_IDENTIFIED)
    if "auth" in low:
        patterns += (_AUTH_PAIR, _AUTH_PLAIN)
    if "ugfzc3dvcmq6" in low:
        patterns.append(_DIALOG)
    if _CALL_HINT.search(low):
        patterns.append(_CALLS)
    if "|" in low and ("stdin" in low or "sudo" in low):
        patterns.append(_PIPED)
    if "key" in low:
        patterns.append(_HEX_KEY)
    for pattern in patterns:
        for found in pattern.finditer(low):
            start, end = found.span("value")
            if not named.is_placeholder(rules, text[start:end]):
                yield start, end, found.start(), "password"
    if "pass" in low:
        for found in _PASSWORD_FOR.finditer(low):
            start, end = found.span("value")
            if named.is_strong(text[start:end]):
                yield start, end, found.start(), "password"
    if "$" in text:
        for found in _HASHED.finditer(text):
            yield found.start(), found.end(), found.start(), "password"
    if "@" in text:
        for found in _CREDENTIALS.finditer(text):
            if named.is_strong(found["value"]):
                yield found.start("value"), found.end("value"), found.start(), "password"
    if '"' in text and '"kty"' in text:
        for found in _JWK.finditer(text):
            yield found.start("value"), found.end("value"), found.start(), "private-key"
