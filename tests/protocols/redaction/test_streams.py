"""A stream is redacted as its whole, in whatever pieces it comes."""

from __future__ import annotations

import random
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.protocols.redaction import named
from motet.protocols.redaction import redact as redaction
from motet.protocols.redaction.named import Found
from motet.protocols.redaction.redact import AHEAD, LIMIT, Redactor, redact_text
from tests.protocols.redaction.builders import cases, key, random_text

TEXTS = [
    case.text
    for name in ("secrets.txt", "secrets_second.txt", "lookalikes.txt")
    for case in cases(name)
]
SCRAPS = ["\n", "\r\n", " ", "  ", "password:", "token=", "--password \\", "- name: DB_PASSWORD"]


def in_pieces(text: str, sizes: list[int]) -> str:
    redactor, at = Redactor(), 0
    out: list[str] = []
    for size in sizes:
        out.append(redactor.feed(text[at : at + size]))
        at += size
    return "".join([*out, redactor.feed(text[at:]), redactor.close()])


documents = st.lists(
    st.tuples(
        st.sampled_from(TEXTS) | st.sampled_from(SCRAPS), st.sampled_from(["\n", " ", "\n\n"])
    ),
    max_size=8,
).map(lambda parts: "".join(text + gap for text, gap in parts))


@given(documents, st.lists(st.integers(0, 40), max_size=60))
def test_any_split_gives_the_redacted_whole(text: str, sizes: list[int]) -> None:
    """Law: for any split into pieces the output is that of the whole."""
    assert in_pieces(text, sizes) == redact_text(text)


@given(documents)
def test_the_end_of_a_line_that_is_not_open_parts_a_text(text: str) -> None:
    """Law: line by line gives the redacted whole, so that a line need not wait for the next."""
    redactor = Redactor()
    lines = [redactor.feed(line) for line in text.splitlines(keepends=True)]
    assert "".join([*lines, redactor.close()]) == redact_text(text)


@given(documents)
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    """Law: redact(redact(x)) == redact(x)."""
    once = redact_text(text)
    assert redact_text(once) == once


@pytest.mark.parametrize("seed", range(6))
def test_a_long_text_gives_the_same_in_any_pieces(seed: int) -> None:
    """Law: the same for texts of many windows, lines that are longer than one among them."""
    source = random.Random(seed)
    parts = [source.choice(TEXTS) for _ in range(2_500)]
    text = "".join(
        part + source.choice(["\n", " ", ", "] if seed % 2 else ["\n"]) for part in parts
    )
    if seed > 3:
        text = text.replace("\n", " ")
    sizes = [source.randrange(1, 30_000) for _ in range(60)]
    assert in_pieces(text, sizes) == redact_text(text)


@pytest.mark.parametrize("gap", [" ", "\n", ",", "x "])
def test_a_secret_is_found_wherever_a_window_ends(gap: str) -> None:
    source = random.Random(1)
    token = "ghp_" + random_text("alnum", 36, source)
    for shift in range(-60, 60, 7):
        filler = ("word" + gap) * LIMIT
        for secret in (token, f'password: "{token[4:24]}"', f"https://u:{token[4:24]}@h/"):
            text = f"{filler[: LIMIT + shift - len(secret)]} {secret} {filler[: 2 * LIMIT]}"
            assert token[4:24] not in redact_text(text)


def test_a_key_in_a_stream_goes_whole_and_what_follows_stays() -> None:
    source = random.Random(2)
    text = f"before\n{key('RSA PRIVATE KEY', source)}\nafter\n"
    clean = in_pieces(text, [7] * 100)
    assert clean.startswith("before\n[secret:private-key:")
    assert clean.endswith("]\nafter\n")
    assert len(clean.splitlines()) == 3


def test_a_line_comes_out_as_soon_as_it_has_ended() -> None:
    redactor = Redactor()
    assert redactor.feed("hello\nwor") == "hello\n"
    assert redactor.feed("ld\npassword:\n") == "world\n"
    assert redactor.feed("  hunter2x\n").startswith("password:\n  [secret:password:")
    assert redactor.close() == ""


def test_memory_is_bounded_whatever_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: no more than a window and a piece are kept, and nothing longer is searched."""
    searched: list[int] = []
    found = redaction._found  # pyright: ignore[reportPrivateUsage]

    def noting(text: str) -> list[Found]:
        searched.append(len(text))
        return found(text)

    monkeypatch.setattr(redaction, "_found", noting)
    for piece in (
        "a" * 1_000,
        "sk-" + "a1" * 500,
        "password:\n",
        "MIIE\n" * 200,
        "\n" * 1_000,
        "- " * 500,
    ):
        redactor, out, kept = Redactor(), 0, 0
        for _ in range(300):
            out += len(redactor.feed(piece))
            kept = max(kept, redactor.kept)
        out += len(redactor.close())
        assert kept <= LIMIT + AHEAD + len(piece)
        assert out > 0
    assert max(searched) <= LIMIT + AHEAD + 1_000
    assert sum(searched) < 300 * 8_000 * 2


HOSTILE = [
    *(
        "?key=",
        "token ",
        "curl -u ",
        '{"password": "',
        "key",
        "passw",
        'token="a\\\\',
        "Cookie: a=b1;",
    ),
    *("authorization: ", "bearer ", "-- -p ", "mysql -p ", "set token ", "login x password ", "a"),
    *("token: ", "pass\"pass'", "secret\n  ", "password: >\n ", "key=a?", "pwd:", "auth=("),
]


class Counted:
    """An expression that counts the characters of its matches."""

    def __init__(self, real: re.Pattern[str]) -> None:
        self.real = real
        self.searched = 0

    def match(self, low: str, start: int, stop: int = sys.maxsize) -> re.Match[str] | None:
        found = self.real.match(low, start, stop)
        self.searched += found.end() - start if found else 1
        return found


@pytest.mark.parametrize("piece", HOSTILE)
def test_a_hostile_text_is_searched_in_linear_time(
    monkeypatch: pytest.MonkeyPatch, piece: str
) -> None:
    """Law: each hit reads a bounded window, and only a secret that was found is read to its end."""
    counted = Counted(named.NAMED)
    monkeypatch.setattr(named, "NAMED", counted)
    counts: list[int] = []
    for size in (8_000, 32_000):
        counted.searched = 0
        redact_text(piece * (size // len(piece)))
        counts.append(counted.searched)
        assert counted.searched <= (named.WINDOW // len(piece) + 2) * size
    assert counts[1] <= 4.2 * counts[0] + 2 * named.WINDOW
