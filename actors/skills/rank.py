"""Which skills fit a query: by the words of their names and descriptions. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from motet.actors.skills.shelf import Skill

_WORD = re.compile(r"\w+")
_SHORT = 3
"""Letters of a word at least of which another may be the beginning: ``deploy``, ``deployment``."""
_IN_NAME = 2.0


def best(skills: Sequence[Skill], query: str, limit: int) -> list[Skill]:
    """The skills that have a word of the query, the best fit first; equal ones by name.

    A rare word counts more than one that many skills have, and in a name twice.
    """
    words = {word.casefold() for word in _WORD.findall(query)}
    texts = [(_words(skill.name), _words(skill.description)) for skill in skills]
    scores = [0.0] * len(skills)
    for word in words:
        hits = [max(_hit(word, name) * _IN_NAME, _hit(word, rest)) for name, rest in texts]
        found = sum(1 for hit in hits if hit)
        weight = math.log(1 + len(skills) / found) if found else 0.0
        scores = [score + hit * weight for score, hit in zip(scores, hits, strict=True)]
    ranked = sorted(zip(scores, skills, strict=True), key=lambda pair: (-pair[0], pair[1].name))
    return [skill for score, skill in ranked if score > 0][:limit]


def _words(text: str) -> set[str]:
    # Names are written with hyphens and underscores between their words.
    return {word.casefold() for word in _WORD.findall(text.replace("_", " "))}


def _hit(word: str, words: set[str]) -> float:
    if word in words:
        return 1.0
    return 0.5 if any(_begins(word, other) for other in words) else 0.0


def _begins(word: str, other: str) -> bool:
    short, long = sorted((word, other), key=len)
    return len(short) >= _SHORT and long.startswith(short)
