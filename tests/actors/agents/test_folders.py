"""Folders of users: one each, inside, and readable backwards."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import assume, given
from hypothesis import strategies as st

from motet.actors.agents.workspace import (
    LONGEST,
    SHARED,
    folder_names,
    shares,
    text_of,
    user_folder,
)
from motet.protocols.agents import AgentProfile, Sharing

TEXT = st.text(st.characters(exclude_categories=()), max_size=40) | st.text(
    "./%\\ aA\0", max_size=9
)
LONG = st.text("abé%/", min_size=150, max_size=700)
PER_USER = AgentProfile(workspace="per_user", sharing=Sharing(dm=True, users=("ann",)))


@given(TEXT | LONG)
def test_a_folder_gives_its_text_back(text: str) -> None:
    """Law: reading is the inverse of writing, for every text that Python can hold."""
    assert text_of(folder_names(text)) == text


@given(TEXT | LONG)
def test_a_folder_is_inside_and_can_be_made(text: str) -> None:
    """Law: each name is one plain step down, and short enough for a file system."""
    names = folder_names(text)
    for name in names:
        assert 0 < len(name.encode()) <= 255
        assert name not in (".", "..")
        assert not set(name) & {"/", "\\", "\0", "="}
        assert name == name.lower()
    assert os.path.normpath("/base/" + "/".join(names)).startswith("/base/")


@given(TEXT, TEXT)
def test_no_two_texts_share_a_folder_even_where_case_is_not_told_apart(a: str, b: str) -> None:
    """Law: the escape is injective, also after folding."""
    assume(a != b)
    assert "/".join(folder_names(a)).casefold() != "/".join(folder_names(b)).casefold()


@given(LONG, LONG)
def test_no_folder_lies_in_another_text_s_folder(a: str, b: str) -> None:
    """Law: what a user sees below their folder is theirs."""
    assume(a != b)
    one, other = folder_names(a), folder_names(b)
    assert one != other[: len(one)]


def test_simple_names_stay_what_they_are(tmp_path: Path) -> None:
    assert folder_names("user_1-x.y") == ("user_1-x.y",)
    assert folder_names("group:telegram:-100") == ("group%3atelegram%3a-100",)
    assert folder_names("..") == ("%2e.",)
    deep = folder_names("é" * 300)
    assert all(len(name) <= LONGEST + 1 for name in deep)
    tmp_path.joinpath(*deep).mkdir(parents=True)


def test_a_shared_folder_is_no_user_s() -> None:
    sharing = Sharing(group=True, users=("ann",))
    assert shares(sharing, "ann", "direct")
    assert not shares(sharing, "bob", "direct")
    assert shares(sharing, "bob", "group")
    assert user_folder("Bo", "bob", PER_USER, "direct") == ("%42o", SHARED)
    assert user_folder("Bo", "bob", PER_USER, "group") == ("%42o", "bob")
    assert user_folder("Bo", "ann", AgentProfile(sharing=sharing), "direct") == ("%42o", "ann")
