"""Crowds of lines that have one form: dumps of keys, logs of connections, lists of accounts. Pure.

A text of megabytes that is full of secrets has few forms of lines. These are learned from a block
that :mod:`finders` has read: a form is the text of a line with places for random letters, where all
of its secrets are, and for numbers that differ. One expression of all forms then reads a block in
a fraction of the time, and what it does not fit is left to the finders.

Law: the spans and kinds are those of the finders. So a form is taken only

- if the finders have found exactly its places in :data:`PROBES` lines that were made of it, and no
  secret goes on behind any of these;
- if its random letters are such as no rule takes for anything else (:data:`~.values.SURE`, a UUID,
  letters and digits with single signs in a password, or of three sorts with letters at both ends),
  and do not begin as a token of a vendor does, unless all of the form begin so;
- if its numbers that differ are no long ones: the digits of those may be a card or a telephone.

A line that stands behind one that may go on is left to the finders with all of its block.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Iterator, Sequence

import attrs

from motet.protocols.redaction import finders
from motet.protocols.redaction.masks import Mask
from motet.protocols.redaction.rules import Rules
from motet.protocols.redaction.shapes import HEAD
from motet.protocols.redaction.values import Found

CROWD = 128
"""Secrets of a block from which on its forms are learned."""
FORMS, LINES = 12, 16
"""Forms that are known at once, at most; lines of one in a block, at least."""
PROBES = 12
GAPS = 128
"""Lines of no form in a block, at most, each of which is looked at behind."""
LONGEST = 2_048
"""Characters of a line that may have a form."""
_RUN = re.compile(r"[0-9A-Za-z][0-9A-Za-z_+/-]{10,398}[0-9A-Za-z]")
_SURE = r"(?=[A-Za-z]{0,399}[0-9])(?=[0-9]{0,399}[A-Za-z])"
_MIXED = r"(?=[^A-Z]{0,399}[A-Z])(?=[^a-z]{0,399}[a-z])(?=[^0-9]{0,399}[0-9])"
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SURE_UUID = rf"(?=[a-f]{{0,7}}[0-9])(?=[0-9-]{{0,35}}[a-f]){_UUID.pattern}"
"""With a letter, and a digit in its first part: so no rule takes it for a number or for words."""
_SIGNED = re.compile(
    r"(?=[^0-9\s]{0,79}[0-9])(?=[^A-Za-z\s]{0,79}[A-Za-z])"
    r"(?!(?i:vault|secrets?|s?sm|op|ref|keyvault|awssm|gcpsm|env|file|pass)\+)"
    r"(?=[^\s\"']{8,80})"
    r"[0-9A-Za-z]{2,11}(?:[!#*+=?%^][0-9A-Za-z]{1,11}){1,6}"
)
"""A password with single signs between letters and digits: no run of it is as long as a token's,
and it stands for nothing else, as stars, ``env+NAME`` and words do."""
_RANDOM = ("run", "number", "signed")
_LEAST, _LEAST_MIXED = 12, 20
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_NUMBER = re.compile(r"[0-9]+")
_CLUSTER = re.compile(r"[0-9](?:[ ().+-]{0,3}[0-9])*")
_PLAIN = re.compile(
    r"20[0-9]{2}-[0-9]{2}-[0-9]{2}(?: [0-9]{2})?|[0-9]{1,2}\.[0-9]{1,9}"
    r"|[0-9]{1,3}(?:\.[0-9]{1,3}){3}"
)
"""Numbers of many digits that are dates, also with the hour, seconds and addresses."""
_DIGITS = 7
_CLASSES = (
    ("0-9a-f", "0123456789abcdef"),
    ("0-9a-z", string.digits + string.ascii_lowercase),
    ("0-9A-Z", string.digits + string.ascii_uppercase),
    ("0-9A-Za-z", string.digits + string.ascii_letters),
    ("0-9A-Za-z_-", string.digits + string.ascii_letters + "_-"),
    ("0-9A-Za-z+/", string.digits + string.ascii_letters + "+/"),
)
MOST_PAUSE = 31
"""Blocks from which nothing is learned after many whose forms did not fit."""
Part = tuple[str, str]
"""A part of a line: its sort and its text. ``text``, ``number``, ``run`` for random letters,
``open`` before a secret and ``close`` behind it, with its kind."""


@attrs.frozen
class _Place:
    """A place of a form. ``text``: what it begins with; ``letters``: of what the rest is made."""

    sort: str
    text: str
    least: int = 0
    most: int = 0
    letters: str = ""
    name: str = ""

    def expression(self) -> str:
        match self.sort:
            case "text":
                return re.escape(self.text)
            case "number":
                return f"[0-9]{{{self.least},{self.most}}}"
            case "run":
                return re.escape(self.text) + self._letters()
            case "uuid":
                return _SURE_UUID
            case "signed":
                return _SIGNED.pattern + "(?![0-9A-Za-z!#*+=?%^])"
            case "open":
                return "("
            case _:
                return ")"

    def _letters(self) -> str:
        least, most = self.least, self.most
        if len(self.letters) <= 62:
            return f"{_SURE}[{self.name}]{{{least},{most}}}"
        # With signs near its ends it could be a path, a flag, or a token with something behind it.
        front = 4 if "/" in self.letters else 1
        rest = f"[{self.name}]{{{least - front - 1},{most - front - 1}}}"
        return f"{_MIXED}[0-9A-Za-z]{{{front}}}{rest}[0-9A-Za-z]"

    def made(self, source: random.Random) -> str:
        """An instance of it, made at random."""
        if self.sort == "text":
            return self.text
        if self.sort in ("open", "close"):
            return ""
        if self.sort == "uuid":
            parts = ["".join(source.choices(self.letters, k=n)) for n in (7, 4, 4, 4, 11)]
            return f"{parts[0]}{source.choice('0123456789')}-{'-'.join(parts[1:])}a"
        if self.sort == "signed":
            parts = ["".join(source.choices(self.letters, k=n)) for n in (4, 3, 2)]
            return (
                f"7{parts[0]}{source.choice('!#*+=?%^')}{parts[1]}{source.choice('!#')}{parts[2]}a"
            )
        size = source.choice((self.least, self.most, source.randint(self.least, self.most)))
        if self.sort == "number":
            return "".join(source.choices(string.digits, k=size))
        made = source.choices(self.letters, k=size)
        if re.fullmatch(self._letters(), "".join(made)) is None:
            letters = self.letters[10:62]
            made[:4] = source.choice("23456789"), letters[0], letters[-1], source.choice(letters)
            made[-1] = source.choice(letters)
        return self.text + "".join(made)


@attrs.frozen
class _Form:
    """The places of a line. ``kinds``: of its secrets; ``bare``: whose beginnings are to be seen.

    That is of those that begin with random letters.
    """

    places: tuple[_Place, ...]
    kinds: tuple[str, ...]
    bare: tuple[bool, ...]

    def expression(self) -> str:
        return "".join(place.expression() for place in self.places)

    def probe(self, source: random.Random, at: int) -> tuple[str, list[tuple[int, int, str]]]:
        """A line of this form, and its secrets, if it begins at a place."""
        made, spans, start = "", list[tuple[int, int, str]](), 0
        for place in self.places:
            if place.sort == "open":
                start = at + len(made)
            elif place.sort == "close":
                spans.append((start, at + len(made), place.text))
            made += place.made(source)
        return made + "\n", spans


@attrs.frozen
class Forms:
    """Forms that were learned, and the expression of all of them.

    ``heads``: the beginnings of tokens; a line with random letters that begin so has no form.
    ``at_group``: for the group of a form its secrets: their groups, kinds, and whether each begins
    with random letters.
    """

    rules: Rules
    heads: frozenset[str]
    expression: re.Pattern[str]
    at_group: dict[int, tuple[tuple[int, str, bool], ...]]

    def masked(
        self, text: str, mask: Mask, redact: Callable[[str], str | None]
    ) -> list[str] | None:
        """The parts of the redacted text; None: it is to be read by the finders.

        ``text``: whole lines. ``mask``: of a kind and a secret. ``redact``: lines of no form; None
        if that is not possible.
        """
        heads, at_group = self.heads, self.at_group
        parts: list[str] = []
        places: list[int] = []
        gaps: list[str] = []
        at = done = looks = 0  # where the last line of a form ends, and what has come into parts
        for line in self.expression.finditer(text):
            secrets = at_group[line.lastindex or 0]
            start, end = line.span()
            if start != at:
                looks += 1
                if looks > GAPS:
                    return None
                if finders.is_open(self.rules, text, start):
                    continue
            if len(secrets) == 1:  # as in most forms: nothing is read twice
                group, kind, bare = secrets[0]
                first, last = line.span(group)
                secret = text[first:last]
                if bare and secret[:HEAD] in heads:
                    continue
                if start == at:
                    parts += text[done:first], mask(kind, secret)
                    done, at = last, end
                    continue
            elif any(bare and line[group][:HEAD] in heads for group, _, bare in secrets):
                continue
            if start != at:
                parts += text[done:at], ""
                places.append(len(parts) - 1)
                gaps.append(text[at:start])
                done = start
            for group, kind, _ in secrets:
                first, last = line.span(group)
                parts += text[done:first], mask(kind, text[first:last])
                done = last
            at = end
        parts += text[done:at], ""
        if at != len(text):
            places.append(len(parts) - 1)
            gaps.append(text[at:])
        return parts if self._fill(parts, places, gaps, redact) else None

    def _fill(
        self,
        parts: list[str],
        places: Sequence[int],
        gaps: Sequence[str],
        redact: Callable[[str], str | None],
    ) -> bool:
        """Put what is made of the gaps into their places. All are read at once."""
        if not gaps:
            return True
        made = redact("".join(gaps))
        if made is None:
            return False
        lines = _LINE.findall(made)
        counts = [len(_LINE.findall(gap)) for gap in gaps]
        if sum(counts) != len(lines):
            return False  # a secret of many lines has become a mask of one
        at = 0
        for place, count in zip(places, counts, strict=True):
            parts[place] = "".join(lines[at : at + count])
            at += count
        return True


class Crowd:
    """The forms of one text that comes block by block.

    Attributes:
        forms: those that the blocks of now have; None: none are known.
    """

    def __init__(self) -> None:
        self.forms: Forms | None = None
        self._pause = self._left = 0

    def masked(
        self, rules: Rules, text: str, mask: Mask, redact: Callable[[str], str | None]
    ) -> list[str] | None:
        """As :meth:`Forms.masked`. Forms that do not fit are given up."""
        made = None
        if self.forms is not None and self.forms.rules is rules and "\x1b" not in text:
            made = self.forms.masked(text, mask, redact)
        if made is None:
            self.forms = None
        else:
            self._pause //= 2
        return made

    def meet(self, rules: Rules, text: str, found: Sequence[Found]) -> None:
        """Learn forms from a block with many secrets, ever more rarely if they do not fit."""
        if self._left:
            self._left -= 1
            return
        self.forms = learn(rules, text, found)
        self._pause = min(2 * self._pause + 1, MOST_PAUSE)
        self._left = self._pause


def learn(rules: Rules, text: str, found: Sequence[Found]) -> Forms | None:
    """The forms of most lines of a text, in which these secrets were found; None without any."""
    groups: dict[tuple[Part, ...], list[tuple[str, ...]]] = {}
    total = 0
    for line, secrets in _lines(text, found):
        total += len(line) + 1
        if len(line) < LONGEST and line.isascii() and (parts := _parts(line, secrets)) is not None:
            key = tuple((sort, "" if sort in _RANDOM else said) for sort, said in parts)
            groups.setdefault(key, []).append(
                tuple(said for sort, said in parts if sort in _RANDOM)
            )
    heads = frozenset(["eyJ", *rules.shapes.direct, *rules.shapes.joined])
    often = sorted(groups.items(), key=lambda one: -len(one[1]))[:FORMS]
    source = random.Random(len(text))
    made = [
        form
        for key, values in often
        if len(values) >= LINES and (form := _form(key, values)) is not None
        if _is_proved(rules, form, heads, source)
    ]
    if not made:
        return None
    shapes, at_group, group = list[str](), dict[int, tuple[tuple[int, str, bool], ...]](), 1
    for form in made:
        shapes.append(f"({form.expression()}\n)")
        at_group[group] = tuple(
            (group + 1 + at, kind, bare)
            for at, (kind, bare) in enumerate(zip(form.kinds, form.bare, strict=True))
        )
        group += 1 + len(form.kinds)
    return Forms(rules, heads, re.compile(f"^(?:{'|'.join(shapes)})", re.MULTILINE), at_group)


def _lines(text: str, found: Sequence[Found]) -> Iterator[tuple[str, list[Found]]]:
    """The lines of a text with their secrets. One over which a secret goes is passed over."""
    at = number = 0
    for line in _LINE.findall(text):
        end = at + len(line)
        secrets = list[Found]()
        is_whole = line.endswith("\n")
        while number < len(found) and found[number][0] < end:
            start, stop, context, kind = found[number]
            is_whole = is_whole and at <= start and stop < end and kind != "private-key"
            secrets.append((start - at, stop - at, context, kind))
            if stop > end:
                break
            number += 1
        if is_whole:
            yield line[:-1], secrets
        at = end


def _parts(line: str, secrets: Sequence[Found]) -> list[Part] | None:
    """The parts of a line; None if it can have no form."""
    parts: list[Part] = []
    at = 0
    for start, end, _, kind in secrets:
        _add_numbers(parts, line[at:start])
        parts.append(("open", ""))
        runs = 0
        if kind == "password" and _SIGNED.fullmatch(line, start, end):
            parts += ("signed", line[start:end]), ("close", kind)
            at = end
            continue
        for run in _RUN.finditer(line, start, end):
            parts += ("text", line[start : run.start()]), ("run", run.group())
            start = run.end()
            runs += 1
        if not runs:
            return None
        parts += ("text", line[start:end]), ("close", kind)
        at = end
    _add_numbers(parts, line[at:])
    return parts


def _add_numbers(parts: list[Part], text: str) -> None:
    at = 0
    for number in _NUMBER.finditer(text):
        parts += ("text", text[at : number.start()]), ("number", number.group())
        at = number.end()
    parts.append(("text", text[at:]))


def _form(key: tuple[Part, ...], values: Sequence[tuple[str, ...]]) -> _Form | None:
    """The form of lines with these parts, of which the random ones have these values."""
    columns = iter(zip(*values, strict=True))
    places: list[_Place] = []
    for sort, said in key:
        if sort not in _RANDOM:
            places.append(_Place(sort, said))
            continue
        column = next(columns)
        least, most = len(min(column, key=len)), len(max(column, key=len))
        if len({*column}) == 1:
            places.append(_Place("text", column[0]))
            continue
        if sort == "number":
            places.append(_Place("number", "", least, most))
            continue
        if all(map(_UUID.fullmatch, column)):
            places.append(_Place("uuid", "", letters="0123456789abcdef"))
            continue
        if sort == "signed":
            places.append(_Place(sort, "", letters=string.digits + string.ascii_letters))
            continue
        head = _common(min(column), max(column))
        head = head if len(head) >= HEAD else ""
        letters = {*"".join(one[len(head) :] for one in column)}
        name, of = next(((name, of) for name, of in _CLASSES if letters <= {*of}), ("", ""))
        if not of or least - len(head) < (_LEAST if len(of) <= 62 else _LEAST_MIXED):
            return None
        places.append(_Place("run", head, least - len(head), most - len(head), of, name))
    if _may_be_long(places):
        return None
    kinds = tuple(place.text for place in places if place.sort == "close")
    bare: list[bool] = []
    for at, place in enumerate(places):
        if place.sort == "open":
            rest = next(
                one for one in places[at + 1 :] if one.text or one.sort in ("run", "uuid", "signed")
            )
            bare.append(not rest.text)
    return _Form(tuple(places), kinds, tuple(bare))


def _common(one: str, other: str) -> str:
    """The beginning that two texts share: of the first and the last of many, all share it."""
    return next((one[:at] for at in range(len(one)) if one[at] != other[at]), one)


def _may_be_long(places: Sequence[_Place]) -> bool:
    """Whether numbers that differ may be read as one of many digits."""
    shown = "".join(
        "0" * place.most if place.sort == "number" else place.text if place.sort == "text" else "a"
        for place in places
        if place.sort not in ("open", "close")
    )
    if not any(place.sort == "number" for place in places):
        return False
    return any(
        sum(map(str.isdigit, one.group())) >= _DIGITS
        and _PLAIN.fullmatch(one.group().replace("0000-00-00", "2000-00-00")) is None
        for one in _CLUSTER.finditer(shown)
    )


def _is_proved(rules: Rules, form: _Form, heads: frozenset[str], source: random.Random) -> bool:
    """Whether the finders find exactly the places of a form in lines that were made of it."""
    text, spans = "", list[tuple[int, int, str]]()
    while text.count("\n") < PROBES:
        line, secrets = form.probe(source, len(text))
        starts = [start - len(text) for start, _, _ in secrets]
        if any(
            bare and line[at : at + HEAD] in heads
            for at, bare in zip(starts, form.bare, strict=True)
        ):
            continue
        text += line
        spans += secrets
        if finders.is_open(rules, text, len(text)):
            return False
    return [(start, end, kind) for start, end, _, kind in finders.find(rules, text)] == spans
