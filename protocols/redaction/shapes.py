"""Published formats of tokens, and the tables by which a word is compared with few of them. Pure.

A *shape* writes a format down: literal text, and ``{alphabet:length}`` or ``{alphabet:least,most}``
for its random parts, as in ``ghp_{alnum:36,255}``.

A *run* is a row of letters, digits, ``_`` and ``-``; :data:`JOINERS` join runs within a token. A
token holds a run of :data:`RUN` characters: it begins at that run (:attr:`Shapes.direct`, by its
first three characters, or :attr:`Shapes.by_length`, by the length of the run), or at a shorter one
before a joiner (:attr:`Shapes.joined`, and :attr:`Shapes.joints`, by what is around the joiner, for
shapes that begin with a random part).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property

import attrs

WORD = "0-9A-Za-z"
LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-"
JOINERS = ".~:/+!$"
RUN = 16
PART = re.compile(r"\{([a-z0-9]+):(\d+)(?:(,)(\d*))?\}")
ENDLESS = 1 << 30
HEAD = 3
"""Characters by which a shape is looked up."""


@attrs.frozen(slots=False)
class Shape:
    """One published format. The tail is open if its last part has no greatest length."""

    kind: str
    text: str
    check: str
    alphabets: dict[str, str] = attrs.field(repr=False, eq=False)
    anchor: str = ""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The format, up to where its word ends."""
        made, at = "", 0
        for part in PART.finditer(self.text):
            made += re.escape(self.text[at : part.start()])
            least, comma, most = part[2], part[3] or "", part[4] or ""
            made += f"[{self.alphabets[part[1]]}]{{{least}{comma}{most}}}"
            at = part.end()
        return re.compile(made + re.escape(self.text[at:]) + f"(?![{WORD}])")

    @cached_property
    def head(self) -> str:
        """The literal text that it begins with."""
        found = PART.search(self.text)
        return self.text[: found.start()] if found else self.text

    def begins(self, text: str) -> bool:
        """Whether a text may be the beginning of such a token."""
        return text.startswith(self.head[: len(text)])

    def heads(self) -> Iterator[str]:
        """The first three characters that it can have."""
        if len(self.head) >= HEAD:
            yield self.head[:HEAD]
        elif found := PART.match(self.text, len(self.head)):
            for letter in expanded(self.alphabets[found[1]]):
                yield self.head + letter

    @cached_property
    def first_run(self) -> tuple[int, int, bool]:
        """The least and the greatest length of its first run, and whether another one follows."""
        least = most = at = 0
        while at < len(self.text):
            part = PART.match(self.text, at)
            if part is None:
                if self.text[at] not in LETTERS:
                    return least, most, True
                least, most, at = least + 1, most + 1, at + 1
                continue
            if not set(expanded(self.alphabets[part[1]])) <= set(LETTERS):
                return least, ENDLESS, True
            longest = part[2] if part[3] is None else part[4]
            least += int(part[2])
            most += int(longest) if longest else ENDLESS
            at = part.end()
        return least, most, False


def expanded(letters: str) -> str:
    """The characters of an alphabet."""
    inside = re.compile(f"[{letters}]")
    return "".join(chr(code) for code in range(33, 127) if inside.match(chr(code)))


Table = dict[str, tuple[Shape, ...]]


@attrs.frozen(slots=False)
class Shapes:
    """The tables of all shapes."""

    direct: Table
    by_length: dict[int, tuple[Shape, ...]]
    joined: Table
    joints: Table
    anchored: Table

    def may_begin(self, text: str) -> bool:
        """Whether a token may begin as this text does."""
        head = text[:HEAD]
        if head not in self.direct and head not in self.joined:
            return False
        shapes = self.direct.get(head, ()) + self.joined.get(head, ())
        return any(shape.begins(text) for shape in shapes)

    @cached_property
    def no_head(self) -> re.Pattern[str]:
        """Words none of which begins as a token or a JSON web token does."""
        by_first: dict[str, set[str]] = {"e": {"yJ"}}
        for head in (*self.direct, *self.joined):
            by_first.setdefault(head[0], set()).add(re.escape(head[1:]))
        heads = [f"{first}(?:{'|'.join(sorted(rest))})" for first, rest in by_first.items()]
        return re.compile(f"[^{WORD}]*+(?:(?!{'|'.join(heads)})[{WORD}]++[^{WORD}]*+)*+")

    @cached_property
    def short(self) -> dict[str, re.Pattern[str]]:
        """One expression for the shapes of each head that is short, as decimals have such heads."""
        return {
            head: re.compile("|".join(shape.pattern.pattern for shape in shapes))
            for head, shapes in self.joined.items()
            if all(len(shape.head) < HEAD for shape in shapes)
        }

    @cached_property
    def no_token(self) -> re.Pattern[str]:
        """Words of base64, each behind its sign or the end of a line, none of which is a token."""
        third: dict[str, str] = {}
        for head in filter(lambda head: len(head) == HEAD, (*self.direct, *self.joined)):
            third[head[:2]] = third.get(head[:2], "") + head[2:]
        by_first: dict[str, list[str]] = {}
        for two, letters in third.items():
            by_first.setdefault(two[0], []).append(f"{re.escape(two[1])}[{re.escape(letters)}]")
        heads = [f"{re.escape(first)}(?:{'|'.join(rest)})" for first, rest in by_first.items()]
        of_length = dict.fromkeys(
            shape.pattern.pattern for v in self.by_length.values() for shape in v
        )
        none = "|".join((*heads, *of_length))
        return re.compile(f"(?:[+/\n](?!{none})[{WORD}]*+(?=[+/\n]))++")

    @cached_property
    def of_length(self) -> dict[int, re.Pattern[str]]:
        """One expression for the shapes of each length, as most words of it have none of them."""
        return {
            length: re.compile("|".join(shape.pattern.pattern for shape in shapes))
            for length, shapes in self.by_length.items()
        }


def shapes(all_of_them: Iterable[Shape]) -> Shapes:
    """The tables of some shapes."""
    direct: Table = {}
    by_length: dict[int, tuple[Shape, ...]] = {}
    joined: Table = {}
    joints: Table = {}
    anchored: Table = {}
    for shape in all_of_them:
        least, most, goes_on = shape.first_run
        if shape.anchor and shape.anchor[-1] in JOINERS and len(shape.anchor) == 2:
            anchored[shape.anchor] = (*anchored.get(shape.anchor, ()), shape)
            continue
        if shape.anchor:
            for joint in _joints(shape):
                joints[joint] = (*joints.get(joint, ()), shape)
            continue
        if len(shape.head) < 2 and most < ENDLESS:
            for length in range(max(least, RUN), most + 1):
                by_length[length] = (*by_length.get(length, ()), shape)
            continue
        for head in shape.heads():
            if most >= RUN:
                direct[head] = (*direct.get(head, ()), shape)
            if goes_on and least < RUN:
                joined[head] = (*joined.get(head, ()), shape)
    return Shapes(direct, by_length, joined, joints, anchored)


def _joints(shape: Shape) -> Iterator[str]:
    """What may be around the joiner of an anchor: the characters before, of, and behind it."""
    sign = max(shape.anchor.rfind(joiner) for joiner in JOINERS)
    at = shape.text.rindex(shape.anchor) + sign
    parts = list(PART.finditer(shape.text))
    before = next((p for p in parts if p.end() == at), None)
    after = next((p for p in parts if p.start() == at + 1), None)
    fronts = expanded(shape.alphabets[before[1]]) if before else shape.text[at - 1]
    backs = expanded(shape.alphabets[after[1]]) if after else shape.text[at + 1]
    for front in fronts:
        for back in backs:
            yield front + shape.text[at] + back
