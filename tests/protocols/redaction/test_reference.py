"""The shortcuts of the engine lose nothing: each finds what a plain and slow reference finds."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from motet.protocols.redaction import finders, forms, named, personal, redact, tokens
from motet.protocols.redaction.anchors import SHORT
from motet.protocols.redaction.rules import NEEDLES, build, files, rules
from tests.protocols.redaction import reference
from tests.protocols.redaction.builders import cases
from tests.protocols.redaction.test_streams import TEXTS, documents

RULES = rules()
FILE, FORMS = files()
PLAIN = build(
    FILE,
    msgspec.structs.replace(
        FORMS,
        grammar={
            **FORMS.grammar,
            "name": reference.PLAIN_NAME,
            "quick": "(?!)",
            "quick-header": "(?!)",
        },
    ),
)
"""The rules without the quick expressions, and without the group that lets it stop early."""
LITERALS = sorted(
    {
        *(*NEEDLES, *RULES.anchors.signs, *RULES.anchors.alone),
        *(n for p in RULES.anchors.passes for n in p.literals),
    }
)
NOISE = "".join(sorted({letter for literal in LITERALS for letter in literal}))

mixed = st.lists(
    st.sampled_from(TEXTS)
    | st.text("0123456789 .-()+", max_size=24)
    | st.text("ab1AQ~_-+/.: =\"'\n", max_size=40),
    max_size=6,
).map("".join)


def lowered(text: str) -> str:
    return text.encode("ascii", "replace").lower().decode("ascii")


@example("sp_addlogin")  # with a space behind it, it ends with another literal
@given(st.lists(st.sampled_from(LITERALS) | st.text(NOISE, max_size=4), max_size=12).map("".join))
def test_the_passes_find_every_place_of_every_literal(low: str) -> None:
    """Law: the passes give what a search for each literal gives, however they overlap."""
    for text in (low, low + " " * SHORT):  # the two begin a pass in different ways
        starts, present = RULES.anchors.scan(text)
        # Of the text with its spaces: some literals end with one.
        assert starts == reference.all_needles(text)
        assert present == {one for one in LITERALS if one and one not in NEEDLES and one in text}


@given(mixed)
def test_a_short_text_that_is_not_searched_holds_nothing(text: str) -> None:
    """Law: the first look passes over a text only where the search would find nothing."""
    assert redact.redact_text(text) == text or not redact.is_calm(text)
    assert not redact.is_calm(text) or finders.find(RULES, text) == []


@given(mixed)
def test_numbers_are_found_as_without_their_signs(text: str) -> None:
    """Law: cards, phones and numbers of social security are those of the expressions alone."""
    fast = {
        (a, b, kind)
        for a, b, _, kind in personal.numbers(RULES, text, text.encode("ascii", "replace"))
    }
    assert union(fast) == union(reference.numbers(RULES, text))


@given(mixed)
def test_tokens_are_found_as_without_their_tables(text: str) -> None:
    """Law: a word that a shape matches is masked, whichever table has the shape."""
    raw = text.encode("ascii", "replace")
    fast = list(tokens.tokens(RULES, text, raw))
    for start, end, kind in reference.whole_words(text):
        assert any(one[0] <= start and end <= one[1] for one in fast), (text[start:end], kind)


@given(mixed)
def test_names_are_found_as_without_quick_expressions(text: str) -> None:
    """Law: what stops early, and what is decided quickly, is decided as in full."""
    low = lowered(text)
    fast = named.named(RULES, text, low, RULES.anchors.scan(low)[0], {}, set())
    assert union({(a, b, k) for a, b, _, k in fast}) == union(
        {(a, b, k) for a, b, _, k in reference.by_names(PLAIN, text, low)}
    )


@given(mixed)
def test_forms_are_found_as_without_the_texts_near_them(text: str) -> None:
    """Law: a form is found at its own text and nowhere else."""
    low = lowered(text)
    starts, present = RULES.anchors.scan(low)
    fast = {(a, b) for a, b, _, _ in forms.found_by_forms(RULES, text, low, starts, present)}
    for start, end, kind in reference.by_forms(RULES, text, low):
        assert any(a <= start and end <= b for a, b in fast), (text[start:end], kind)


@pytest.mark.parametrize("text", [t for t in TEXTS if not any(s in t for s in " =:")])
def test_a_text_without_signs_is_redacted_as_with_one_beside_it(text: str) -> None:
    """Law: the engine stops early only where no rule could find more."""
    assert finders.find(RULES, text) == [
        one for one in finders.find(RULES, f"{text}\n ;") if one[1] <= len(text)
    ]


def union(found: set[tuple[int, int, str]]) -> list[tuple[int, int]]:
    """The masked parts of a text, without overlaps."""
    made: list[tuple[int, int]] = []
    for start, end, _ in sorted(found):
        if made and start < made[-1][1]:
            made[-1] = (made[-1][0], max(end, made[-1][1]))
        else:
            made.append((start, end))
    return made


def test_the_corpus_has_texts_of_each_part() -> None:
    assert len(TEXTS) > 1_500
    assert len(list(cases("secrets.txt"))) >= 250
    assert documents is not None
