"""The head of a SKILL.md: what is read, and what is said of one that cannot be."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.agents.skills import MAX_HEAD, BadSkill, FrontMatter, front_matter


def head(text: str) -> str:
    return f"---\n{text}\n---\n# How\n"


@pytest.mark.parametrize(
    ("text", "description"),
    [
        ("name: a\ndescription: does it", "does it"),
        ('name: "a"\ndescription: "Use when: asked"', "Use when: asked"),
        ("name: a\ndescription: >\n  folded\n  text\n", "folded text"),
        ("name: a\ndescription: |\n  two\n  lines\nlicense: MIT", "two lines"),
        ("description: plain\n  goes on\nmetadata: {tags: [x, y]}\nname: a", "plain goes on"),
    ],
)
def test_what_authors_write_is_read(text: str, description: str) -> None:
    assert front_matter(head(text)) == FrontMatter("a", description)
    assert front_matter("\ufeff" + head(text).replace("\n", "\r\n")) == FrontMatter(
        "a", description
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("# no head", "does not begin with a head"),
        ("---\nname: a\ndescription: b\n", "does not begin with a head"),
        (head("name: a"), "missing required field `description`"),
        (head("name: a\ndescription: [x]"), "Expected `str`, got `array`"),
        (head("name: a\ndescription: use: it"), "is not YAML: mapping values"),
        (head("name: ../etc\ndescription: b"), "name '../etc'"),
        (head(f"name: {'a' * 65}\ndescription: b"), "1 to 64"),
        (head("name: a\ndescription: '  '"), "1 to 1024 characters"),
        (head(f"name: a\ndescription: {'b' * 1_025}"), "1 to 1024 characters"),
        (head("- name: a"), "got `array`"),
        (head("name: a\ndescription: !!python/object/apply:os.getcwd []"), "is not YAML"),
        (head(f"description: {'[' * 4_000}{']' * 4_000}"), "in its head"),
    ],
)
def test_a_broken_head_is_explained(text: str, says: str) -> None:
    with pytest.raises(BadSkill) as refused:
        front_matter(text)
    assert says.casefold() in str(refused.value).casefold()


@given(st.text(max_size=200), st.text(max_size=50))
def test_any_text_is_a_head_or_explained(text: str, rest: str) -> None:
    """No file makes anything but a front or a ``BadSkill``."""
    for whole in (text, f"---\n{text}\n---\n{rest}"):
        try:
            front_matter(whole[:MAX_HEAD])
        except BadSkill:
            continue


@given(
    st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,20}", fullmatch=True),
    st.text("abc: '\"#é-", min_size=1),
)
def test_what_is_written_as_json_is_read_back(name: str, description: str) -> None:
    """JSON strings are YAML: a name and a description come back, but for their white space."""
    if description.strip():
        quoted = [msgspec.json.encode(text).decode() for text in (name, description)]
        front = front_matter(head(f"name: {quoted[0]}\ndescription: {quoted[1]}"))
        assert front == FrontMatter(name, " ".join(description.split()))
