"""What a tool returned, as text."""

from __future__ import annotations

from pathlib import Path

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.tools.output import render


class Point(msgspec.Struct):
    x: int


@attrs.define
class Size:
    width: int


class Hostile:
    @property
    def __dict__(self) -> dict[str, object]:  # type: ignore[override]
        raise RuntimeError("no")


LOOP: list[object] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        ("", ""),
        (None, "null"),
        ({"a": [1, True]}, '{"a":[1,true]}'),
        ([Point(1), Size(2), Path("a/b")], '[{"x":1},{"width":2},"a/b"]'),
        ("nul\x00, half \ud800, ok \U0001f600", "nul\ufffd, half \ufffd, ok \U0001f600"),
        (["half \ud800"], '["half \ufffd"]'),
        (object(), "[unserializable result of type object]"),
        (Hostile(), "[unserializable result of type Hostile]"),
        (LOOP, "[unserializable result of type list]"),
        (float("nan"), "null"),
    ],
)
def test_a_value_has_a_text(value: object, text: str) -> None:
    assert render(value, 1_000) == text


def test_what_is_cut_says_how_much_is_shown() -> None:
    assert render("abcdef", 4) == "abcd\n[truncated: 4 of 6 characters]"
    assert render("abcd", 4) == "abcd"


@given(st.text(alphabet=st.characters(codec=None)), st.integers(1, 50))
def test_any_text_becomes_encodable_and_bounded(text: str, limit: int) -> None:
    """Law: the result encodes as UTF-8, holds no NUL, and is the text cut at ``limit``."""
    shown = render(text, limit)
    assert "\x00" not in shown
    assert len(shown.encode().decode()) <= limit + 60
    assert len(text) > limit or len(shown) == len(text)
