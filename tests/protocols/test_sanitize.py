"""The sanitizer: what each step takes away, and what is never touched."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from motet.protocols.sanitize import STEPS, Segmenter, masked, runs, sanitize, unmasked
from tests.actors.runs.texts import (
    CODE,
    FENCE,
    LINE,
    PLACES,
    REASONING,
    SOUP,
    TOLD_CALLS,
    cut_at,
)

# The steps


def test_there_are_eight_steps_in_the_order_of_the_specification() -> None:
    assert list(STEPS) == [
        "garbled tool XML",
        "downgraded tool text",
        "thinking tags",
        "final tags",
        "echoed system messages",
        "duplicate blocks",
        "media paths",
        "leading blank lines",
    ]


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("Before <tool_call>x</tool_call> after", "Before x after"),
        ("<invoke name='x'>abc</invoke>", "<invoke name='x'>abc</invoke>"),
        ("a <tool_call", "a <tool_call"),
        ("<think>hmm</think>\nHello <final>world</final>", "Hello world"),
        ('<thinking mode="deep">a</thinking >b', "b"),
        ("<think>a</thinking>b</think>c", "c"),
        ("<think/>c", "c"),
        ("<thinker>a</thinker>", "<thinker>a</thinker>"),
        ("Sure. <redacted_thinking>and then", "Sure."),
        ("[Tool Call: x]\nArguments:\n{}\n\nDone", "Done"),
        ('Hi.\n<tool_call>\n{"name": "x"}\n</tool_call>', "Hi."),
        ('Hi.\n<tool_call>{"name": "x", "a": "</tool_call>"}', "Hi."),
        ('Hi.\n[Tool Call: x]\nArguments:\n{\n  "a": {\n    "b": 1\n  }\n}\nDone', "Hi.\nDone"),
        ('Hi.\n[Tool Call: x]\nArguments: {\n  "a": "cut o', "Hi."),
        ('Say <parameter name="x">y</parameter> so', 'Say <parameter name="x">y</parameter> so'),
        (
            "Hi<｜tool▁calls▁begin｜>x<｜tool▁sep｜>{}<｜tool▁calls▁end｜>!<｜end▁of▁sentence｜>",
            "Hi!",
        ),
        ('Hi.\n<tool_call>\n{"name": "x", "a": [{"b": "}}', "Hi."),
        ("The tag <tool_call> {as such} stands", "The tag  {as such} stands"),
        ('Hi.\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="x">\n</｜DSML｜invoke>', "Hi."),
        ("A.\n[System Message] s\nt\n\nB.", "A.\nB."),
        ("A.\n[System Message] s\nt", "A."),
        ("See [System Message] here", "See [System Message] here"),
        ("A\n\n A \n\nB\n\n\n\nA", "A\n\nB\n\nA"),
        ("See MEDIA:/tmp/a.png now\n[[audio_as_voice]]\nkeep", "keep"),
        ("[[audio_as_voice]]\nMEDIA: none", "MEDIA: none"),
        (" \t\n\n  Content. \n", "Content."),
    ],
)
def test_artefacts_go_and_the_answer_stays(text: str, clean: str) -> None:
    assert sanitize(text) == clean


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call></tool_call>",
        '<tool_call>\n{"name": "read_file",\n "x": 1}\n</tool_call>\n<tool_call>[{}]</tool_call>',
        '<function_calls><invoke name="f"><parameter name="p">a b</parameter></invoke>',
    ],
)
def test_a_response_that_was_nothing_but_garbled_calls_is_empty(text: str) -> None:
    assert sanitize(text) == ""


def test_an_answer_that_came_within_a_garbled_tag_stays() -> None:
    for answer in ("It is raining.", "[Here](a) it is [1]", "```\nx = {}\n```"):
        assert sanitize(f"<tool_call>\n{answer}\n</tool_call>") == answer


def test_leading_blank_lines_go_and_the_indent_stays() -> None:
    assert STEPS["leading blank lines"]("\n \t\n  a\n\nb\n") == "  a\n\nb\n"


def test_reasoning_that_talks_about_calls_and_code_does_not_swallow_the_answer() -> None:
    for inside in ["[Tool Call: x] ", "```\ncode", "`", "[System Message]\n", "{\n<final>"]:
        assert sanitize(f"<think>\n{inside}</think>\nThe answer.") == "The answer.", inside


def test_artefacts_joined_by_a_removal_are_removed_too() -> None:
    assert sanitize("a <th<think>x</think>ink>b</think>c") == "a c"
    assert sanitize("<tool_<final>call>a b</tool_call>c") == "a bc"


def test_a_text_that_never_comes_to_an_end_leaves_its_code_only() -> None:
    text = "<think></think>"
    for _ in range(40):
        text = f"<th{text}ink></think>"
    fence = "```\n<think>\n```"
    assert sanitize(f"{fence}\n{text}b\n{fence}") == f"{fence}\n{fence}"


# Code


@pytest.mark.parametrize("text", ["`<think>` opens it", "``a `<final>` b`` c", "`[Tool Call: x]`"])
def test_code_spans_are_unchanged(text: str) -> None:
    assert sanitize(f"A\n\n{text}\n\n{text}\n\n<final>B</final>") == f"A\n\n{text}\n\nB"


def test_a_lonely_backtick_protects_nothing() -> None:
    assert sanitize("It`s here <think>no</think>\nand `there`") == "It`s here \nand `there`"


def test_an_unclosed_fence_reaches_to_the_end() -> None:
    text = "See:\n\n```xml\n<think>\n\n\n<think>"
    assert sanitize(text) == text


def test_equal_fences_are_no_duplicates() -> None:
    text = "```\na\n```\n\n```\na\n```"
    assert sanitize(text) == text


MARKERS = ["[Tool Call: x]", "{", "<final>", "<tool_call>", "MEDIA:/a", "[System Message]", ""]


@given(st.lists(st.one_of(LINE, FENCE, REASONING, st.sampled_from(MARKERS)), max_size=10))
def test_every_fence_is_in_the_answer_verbatim(blocks: list[str]) -> None:
    """Law: whatever stands around a fence, it is in the output as it was, in its order."""
    fences = [block for block in blocks if block[:3] in ("```", "~~~")]
    clean = sanitize("\n".join(blocks))
    at = 0
    for fence in fences:
        at = clean.index(fence, at) + len(fence)


# Laws


@given(SOUP)
@example("<think>a</think>")
@example("A\n\nMEDIA:/x\n\nA")
@example("<" + "<think></think>" * 3 + "think>x")
@example("\0f0\0 <tool_call \0>x</tool_call>")
def test_sanitizing_twice_changes_nothing_more(text: str) -> None:
    """Law: the sanitizer is idempotent."""
    clean = sanitize(text)
    assert sanitize(clean) == clean


@given(st.lists(LINE.filter(str.strip), unique_by=str.strip, max_size=6), CODE)
def test_a_text_without_artefacts_is_only_trimmed(paragraphs: list[str], code: list[str]) -> None:
    """Law: prose and code that no step is about come out as they were."""
    fence = "\n".join(["```", *code, "```"])
    text = "\n\n".join([*paragraphs, fence, " An end with `a < b`, 1 > 0, [a](b) and {c}. "])
    assert sanitize(text) == text.strip()


@given(st.lists(st.one_of(LINE, REASONING), max_size=8), st.booleans())
def test_reasoning_is_never_shown(parts: list[str], unterminated: bool) -> None:
    """Law: nothing inside of a thinking tag is in the output, also when nothing closes it."""
    text = "".join(parts) + ("<think>SECRET" if unterminated else "")
    assert "SECRET" not in sanitize(text)


@given(SOUP, PLACES)
def test_pieces_are_the_text_however_it_comes(text: str, places: list[int]) -> None:
    """Law: the pieces joined are the text, and chunks do not change what is what."""
    reader = Segmenter()
    pieces = [piece for chunk in cut_at(text, places) for piece in reader.feed(chunk)]
    pieces += reader.close()
    assert "".join(piece.text for piece in pieces) == text
    kinds = [(piece.kind, letter) for piece in pieces for letter in piece.text]
    assert kinds == [(run.kind, letter) for run in runs(text) for letter in run.text]


@given(SOUP)
def test_unmasking_restores_the_masked_text(text: str) -> None:
    """Law: unmasking is the inverse of masking."""
    assert unmasked(*masked(text)) == text


@given(st.lists(st.one_of(st.just(""), TOLD_CALLS), max_size=6), st.sampled_from(["\n", "\n\n"]))
def test_a_call_that_came_as_text_goes_whole_and_the_words_around_it_stay(
    parts: list[str], between: str
) -> None:
    """Law: of a call neither a marker nor a part of its JSON is left; every word is."""
    said = [part or f"word{number}" for number, part in enumerate(parts)]
    clean = sanitize(between.join(said))
    assert clean.split() == [part for part in said if part.startswith("word")]


@given(
    st.lists(
        st.one_of(
            LINE,
            st.sampled_from(
                [
                    '<parameter name="timeout">',
                    "</parameter>",
                    "`<tool_call>`",
                    "<b>",
                    "a | b",
                    "<|",
                ]
            ),
        ),
        max_size=8,
    )
)
def test_prose_about_parameters_is_no_call(parts: list[str]) -> None:
    """Law: without a call, a ``<parameter>`` and what stands behind it are unchanged."""
    text = 'Use <parameter name="x"> here: ' + " ".join(parts)
    assert sanitize(text) == text.strip()


# Time

HOSTILE = [
    "<", "< ", "`", "<think", "<think ", "<think>", "<tool_call", "` `` ``` ", "```\n", "~~~",
    "[Tool Call:\n", "{\n", "\n", " \n", "<final", "MEDIA:x\n", "[System Message]\n", "A\n\n",
    "<｜", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁end｜", '<tool_call>{"a":"', "<tool_call>[{",
    "[Tool Call: {\n", '[Tool Call: x]\nArguments: {"a":[', '<tool_call>{"a": 1}', '"a":\n',
    "<｜DSML｜", '<｜DSML｜invoke name="x">', "</｜DSML｜invoke>", "<tool_call>{a}",
    "\0", "<th<think></think>ink>", "`<think>", "`a <tool_call", "</think>", " ",
]  # fmt: skip


def calls_of(work: Callable[[str], object], text: str) -> int:
    """How many functions, also of C, the work calls."""
    count = 0

    def counted(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        work(text)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("unit", HOSTILE)
def test_a_text_of_twice_the_length_takes_twice_the_work(unit: str) -> None:
    for start in ("", "<tool_call `x` ", "MEDIA:a <parameter name="):
        once = start + unit * (8_000 // len(unit))
        twice = start + unit * (16_000 // len(unit))
        assert calls_of(sanitize, twice) <= 2.2 * calls_of(sanitize, once) + 500


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["<tool_call", "<think ", "` `` ", "\n \n", "<th<think></think>"])
def test_a_megabyte_of_hostile_text_comes_to_an_end(unit: str) -> None:
    """No search may look at more than a bounded part of it again and again."""
    text = "<tool_call `x` " + unit * (1_000_000 // len(unit))
    assert len(sanitize(text)) <= len(text)
