"""The arguments of a call as a person reads them before they are approved."""

from __future__ import annotations

import json
import re
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from motet.protocols.chat import JsonObject
from motet.protocols.review import MARGIN, reveal, review

NAMED = re.compile(r"<U\+([0-9A-F]{4,6})>")
TEXTS = st.text(st.characters() | st.sampled_from("ab \t\n\r\x1b\x9b\u202e\u200b\u00a0;<>"))


def hidden_in(text: str) -> list[str]:
    """The characters that cannot be seen, or that steer a terminal."""
    return [one for one in text if one not in " \t\n" and unicodedata.category(one)[0] in "CZ"]


def text_of(revealed: str) -> str:
    return NAMED.sub(lambda found: chr(int(found[1], 16)), revealed)


@given(TEXTS.filter(lambda text: not NAMED.search(text)))
def test_a_text_is_shown_with_every_character_and_none_acts(text: str) -> None:
    """Law: what is shown gives the text back, and nothing in it is invisible."""
    shown = reveal(text)
    assert text_of(shown) == text
    assert hidden_in(shown) == []


@given(st.dictionaries(TEXTS, TEXTS, max_size=3), st.sampled_from(["shell", "edit_file"]))
def test_every_line_of_every_argument_is_in_the_review(args: dict[str, str], tool: str) -> None:
    """Law: of whatever arguments, each line is there, whole, in one line of the review."""
    given_args: JsonObject = dict(args)
    lines = review(tool, given_args)
    assert hidden_in("".join(lines)) == []
    assert all("\n" not in line for line in lines)
    for text in args.values():
        for part in text.split("\n"):
            assert any(reveal(part) in line for line in lines)


def test_a_command_behind_blanks_is_shown_and_pointed_at() -> None:
    text = "\n".join(review("shell", {"command": "ls" + " " * 200 + "; rm important"}))
    assert "ls" + " " * 200 + "; rm important" in text
    assert "200 blanks in a row" in text


def test_escape_sequences_and_marks_of_direction_are_named() -> None:
    text = "\n".join(review("shell", {"command": "ls\x1b[2K\x1b]0;x\x07 \u202egnp.sh\r"}))
    assert "ls<U+001B>[2K<U+001B>]0;x<U+0007> <U+202E>gnp.sh<U+000D>" in text


def test_a_text_of_several_lines_keeps_its_lines() -> None:
    lines = review("write_file", {"path": "a.py", "content": 'if x:\n\treturn "y"  \n'})
    assert lines == [
        "write_file(",
        '  path = "a.py"',
        "  content = 3 lines:",
        f"{MARGIN}if x:",
        f'{MARGIN}\treturn "y"  ',
        MARGIN,
        ")",
    ]


def test_an_edit_is_a_diff() -> None:
    lines = review("edit_file", {"path": "a", "old": "one\ntwo\nthree", "new": "one\nTWO\nthree"})
    assert lines[2:-1] == ["  old -> new:", "    one", "  - two", "  + TWO", "    three"]


def test_arguments_that_a_hook_has_changed_are_a_diff() -> None:
    lines = review("shell", {"command": "rm -rf x"}, {"command": "ls"})
    assert lines[-4:] == ["    {", '  -   "command": "ls"', '  +   "command": "rm -rf x"', "    }"]


def test_a_long_edit_is_shown_without_being_compared() -> None:
    old, new = ("\n".join(f"{name}{n}" for n in range(4_000)) for name in "ab")
    lines = review("edit_file", {"path": "a", "old": old, "new": new})
    assert sum(line.startswith("  - a") for line in lines) == 4_000
    assert sum(line.startswith("  + b") for line in lines) == 4_000


def test_numbers_are_exact() -> None:
    number = 12345678901234567890
    assert f"  n = {number}" in review("t", {"n": number})
    assert json.dumps({"a": [number]}, indent=2).splitlines()[2].strip() in "\n".join(
        review("t", {"o": {"a": [number]}})
    )
