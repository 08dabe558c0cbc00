"""Regular expressions of strangers: the dialect of JSON Schema, in linear time."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from motet.protocols.patterns import compiled


class Spent(Exception):
    """The steps are used up."""


def matches(pattern: str, text: str, steps: int = 2_000_000) -> bool | None:
    left = steps

    def spend(count: int) -> None:
        nonlocal left
        left -= count
        if left < 0:
            raise Spent

    return compiled(pattern).matches(text, spend)


ATOMS = st.sampled_from(["a", "b", "c", "[ab]", "[^a]", ".", r"\d", r"\w", r"\b", "^", "$"])
REPEATS = st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?", "{0}"])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: (
        st.tuples(inner, inner).map("".join)
        | st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})")
        | st.tuples(inner, REPEATS).map(lambda two: f"(?:{two[0]}){two[1]}")
        | inner.map(lambda one: f"^(?!{one})a*")
    ),
    max_leaves=8,
)


@given(PATTERNS, st.text("abc1 ", max_size=8))
def test_a_match_is_one_of_pythons_own(pattern: str, text: str) -> None:
    """Law: where both dialects mean the same, the answer is that of ``re``, or none."""
    found = re.search(pattern.replace("$", r"\Z"), text, re.ASCII) is not None
    assert matches(pattern, text) in (found, None)


@example("[[", "")
@example(r"([[a])\1", "[[")
@given(st.text(r"ab()[]{}*+?|^$\\.,0123456789<=!:-pPwdu", max_size=30), st.text(max_size=5))
def test_any_text_is_a_pattern_or_has_no_answer(pattern: str, text: str) -> None:
    """Law: a pattern never raises, whatever it is."""
    assert matches(pattern, text) in (True, False, None)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"^(a+)+$", "a" * 5_000 + "b"),
        (r"(a|aa)+$", "a" * 5_000 + "b"),
        (r"^(a|a?)+$", "a" * 5_000 + "b"),
        (r"^(\w+\s?)*$", "word " * 1_000 + "!"),
        (r"a+$", "a" * 20_000 + "b"),
        (r"^(?=(a+)+b)(a+)+$", "a" * 5_000),
        ("a?" * 40 + "a" * 40 + "$", "a" * 40 + "b"),
        (r"(a|b)*a(a|b){100}$", "ab" * 2_000 + "c"),
    ],
)
def test_no_pattern_backtracks(pattern: str, text: str) -> None:
    """The steps are bounded: Python's ``re`` would need years for most of these."""
    assert matches(pattern, text) is False


@pytest.mark.parametrize("pattern", [r"(?<=(a+)+)c", r"^(a+)+\1$", "(?=x)" + "a?" * 40 + "a" * 40])
def test_a_pattern_beyond_the_automaton_is_not_matched_where_it_could_backtrack(
    pattern: str,
) -> None:
    assert matches(pattern, "a" * 60 + "b") is None


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        (r"^\p{Letter}+$", "π", True),
        (r"^\p{Lu}$", "π", False),
        (r"^\P{L}$", "1", True),
        (r"^\d$", "\u0661", False),  # a digit of Arabic, and for Python's re
        (r"^a$", "a\n", False),
        (r"^\S$", "\ufeff", False),
        (r"^\cC$", "\x03", True),
        (r"^\ud83d\udc32*$", "🐲🐲", True),
        (r"^\u{1F432}$", "🐲", True),
        (r"^.$", "\u2028", False),
        (r"[^\w-]", "a-b", False),
        (r"^(?<year>\d{4})$", "2026", True),
        (r"^(?P<year>\d{4})\Z", "2026", True),
        (r"(?i)abc", "xABCx", True),
        (r"^(?!-)[a-z]+(-[a-z]+)*$", "-a", False),
        (r"^(?!-)[a-z]+(-[a-z]+)*$", "a-b", True),
        (r"^.{1,5000}$", "a" * 5_001, False),
        (r"a(?=b)b", "ab", True),
        ("(", "(", None),
        (r"^\p{Script=Greek}$", "π", None),
        ("a" * 6_000, "a" * 6_000, None),
    ],
)
def test_the_dialect_is_that_of_json_schema(pattern: str, text: str, found: bool | None) -> None:
    assert matches(pattern, text) is found
