"""The places of literal texts, found in a few fast passes over a text. Pure.

``re`` looks for an expression that begins with one fixed letter at the speed of ``str.find``, and
for any other one at a tenth of that. So literals that share a letter are found in one pass: behind
the letter comes what is left of each of them, and a look-behind at what was before it. A letter is
chosen so that no two literals of a pass can be meant by the same one: so each place of each literal
is found, whatever is beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import attrs

LETTERS = "jkpcubfm4:q"
"""The letters by which literals are found, the rare ones before the others."""
COMMON = "etaoinshrdlu"
"""Letters so common that ``str.find`` looks faster for a text that begins with one."""
SIGNS = "|$@<*~\t"
"""Signs that most texts do not hold at all."""
SHORT = 2_048
"""In a shorter text ``in`` takes less time than the begin of a pass, in a longer one more."""


@attrs.frozen
class Pass:
    """One expression, whose groups are literals.

    Attributes:
        letter: the letter that each match begins with.
        needed: a text without which there is no match, at least the letter.
        before: for each group of a name the place of the letter in it, from the first group on.
        literals: the literals of all groups.
    """

    letter: str
    needed: str
    pattern: re.Pattern[str]
    before: tuple[int, ...]
    literals: tuple[str, ...]


@attrs.frozen
class Anchors:
    """Literals, and the passes that find them. The places of names are wanted, of others not.

    Attributes:
        alone: literals that share no letter and begin with a common one, or are frequent; no names.
    """

    passes: tuple[Pass, ...]
    signs: tuple[str, ...]
    alone: tuple[str, ...]

    def scan(self, low: str) -> tuple[list[int], set[str]]:
        """Where the names are, in order, and which of the other literals occur at all."""
        starts: list[int] = []
        present = {sign for sign in self.signs if sign[0] in low and sign in low}
        present.update(literal for literal in self.alone if literal in low)
        is_short = len(low) < SHORT
        for one in self.passes:
            if (one.needed if is_short else one.letter) not in low:
                continue
            before, names = one.before, len(one.before)
            for found in one.pattern.finditer(low):
                group = found.lastindex or 0
                if group < names:
                    starts.append(found.start() - before[group])
                else:
                    present.add(one.literals[group])
        starts.sort()
        return starts, present


def anchors(names: Iterable[str], others: Iterable[str], frequent: Iterable[str] = ()) -> Anchors:
    """The passes that find these literals. One that begins with a sign is looked for by itself.

    ``frequent``: those of the others that many texts hold in many places; the first one is enough.
    """
    named, common = tuple(dict.fromkeys(names)), tuple(frequent)
    signs = [other for other in dict.fromkeys(others) if other[0] in SIGNS]
    by_letter: dict[str, list[tuple[str, int]]] = {}
    alone: list[str] = []
    passed = [other for other in others if other not in (*signs, *common)]
    for literal in dict.fromkeys((*named, *passed)):
        fitting = [
            one
            for one in LETTERS
            if one in literal and _is_apart(literal, one, by_letter.get(one, []))
        ]
        fitting.sort(key=literal.endswith)  # the last letter would be the only one of its pass
        if letter := next(iter(fitting), ""):
            by_letter.setdefault(letter, []).append((literal, literal.rindex(letter)))
        else:
            alone.append(literal)
    passes = [_pass(letter, literals, named) for letter, literals in by_letter.items()]
    rest: list[str] = []
    for literal in alone:
        letter = next((one for one in LETTERS if one in literal), literal[0])
        if literal in named or letter not in COMMON:
            passes.append(_pass(letter, [(literal, literal.rindex(letter))], named))
        else:
            rest.append(literal)
    return Anchors(tuple(passes), tuple(signs), (*rest, *common))


def _is_apart(literal: str, letter: str, others: list[tuple[str, int]]) -> bool:
    """Whether at no place both this literal and another one could be meant."""
    front, _, rest = literal.rpartition(letter)
    for other, at in others:
        before, behind = other[:at], other[at + 1 :]
        if (rest.startswith(behind) or behind.startswith(rest)) and (
            front.endswith(before) or before.endswith(front)
        ):
            return False
    return True


def _pass(letter: str, literals: list[tuple[str, int]], names: tuple[str, ...]) -> Pass:
    literals = sorted(literals, key=lambda one: one[0] not in names)
    made: list[str] = []
    for literal, at in literals:
        behind = f"(?<={re.escape(literal)})" if at else ""
        first, others = literal[at + 1 : at + 2], literal[at + 2 :]
        # Only a branch that begins with a letter, and not with a group, is passed over at once.
        made.append(f"{re.escape(first)}({re.escape(others)}{behind})")
    before = (0, *(at for literal, at in literals if literal in names))  # groups begin with one
    pattern = re.compile(re.escape(letter) + f"(?:{'|'.join(made)})")
    needed = literals[0][0] if len(literals) == 1 else letter
    return Pass(letter, needed, pattern, before, ("", *(literal for literal, _ in literals)))
