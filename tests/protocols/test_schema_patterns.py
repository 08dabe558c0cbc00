"""Texts that a regular expression finds itself in."""

from __future__ import annotations

import re
from random import Random

import pytest

from motet.protocols.schema_values import matching

SIMPLE = [
    "^[a-z][a-z0-9_-]{2,7}$",
    r"^\d{4}-\d{2}$",
    r"^(GET|POST|PUT)\s+/\w*$",
    r"[^a-z]+\.txt",
    r"^(?:ab?c*)+x{2}$",
    r"^[\w.-]+@[\w-]+\.[a-z]{2,}$",
    r"^$",
    r"^a|b$",
    r"^[]x]$",
    r"^.{3}$",
]


@pytest.mark.parametrize("pattern", SIMPLE)
def test_a_text_matches_for_all_choices(pattern: str) -> None:
    texts = {matching(pattern, Random(seed).randrange) for seed in range(50)}
    assert None not in texts
    assert all(re.search(pattern, text) for text in texts if text is not None)


@pytest.mark.parametrize("pattern", [r"^(?=a)a$", r"(a)\1", "[", "*", r"\p{L}", "(a", "a)", "[a"])
def test_an_unsupported_expression_has_no_text(pattern: str) -> None:
    assert matching(pattern, lambda _: 0) is None


def test_the_first_choices_make_the_shortest_text() -> None:
    assert matching("^[a-z]{2,}(x|y)*z?$", lambda _: 0) == "aa"
