"""A stream is redacted as its whole, in whatever pieces it comes."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from motet.protocols.redaction import (
    anchors,
    commands,
    finders,
    forms,
    named,
    personal,
    shapes,
    tokens,
    values,
)
from motet.protocols.redaction import redact as redaction
from motet.protocols.redaction import rules as rule_module
from motet.protocols.redaction.redact import (
    AHEAD,
    LIMIT,
    Redactor,
    look_together,
    redact_text,
    redacted_after,
)
from motet.protocols.redaction.values import Found
from tests.protocols.redaction.builders import cases, filled, key, random_text, without_marks

CORPUS = [
    case.text
    for kind in ("secrets", "lookalikes")
    for part in ("", "_blind", "_second", "_third", "_fourth", "_fifth")
    for case in cases(f"{kind}{part}.txt")
]
FORMS = rule_module.files()[1]
EXAMPLES: list[rule_module.FormRule | rule_module.FinderRule] = [*FORMS.forms, *FORMS.finders]
RULES = [
    without_marks(filled(example, random.Random(example)))[0]
    for rule in EXAMPLES
    for example in (*rule.leaks, *rule.stays)
]
TEXTS = [*CORPUS, *RULES]
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


@given(documents, st.lists(documents, min_size=1, max_size=3))
def test_a_beginning_that_texts_have_in_common_is_redacted_once(
    head: str, rests: list[str]
) -> None:
    """Law: it gives the redacted whole of each, also where a secret goes on behind it."""
    done, heads = dict[str, str](), dict[str, str]()
    for rest in (*rests, *rests):
        assert redacted_after(head, rest, done, heads) == redact_text(head + rest)


SHORT = [case for case in TEXTS if "\n" in case or len(case) < 200]


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(n, marks=pytest.mark.sweep) for n in (1, 2, 3))]
)
def test_pieces_of_one_character_give_the_redacted_whole(first: int) -> None:
    """Law: for every text of the corpus and every example, a border between any two characters."""

    def by_characters(text: str) -> str:
        redactor = Redactor()
        return "".join([*map(redactor.feed, text), redactor.close()])

    assert [text for text in SHORT[first::4] if by_characters(text) != redact_text(text)] == []


@given(documents)
@example("password = '''\n    WmUiH1*x7\n'''\n")
def test_the_end_of_a_line_that_is_not_open_parts_a_text(text: str) -> None:
    """Law: line by line gives the redacted whole, so that a line need not wait for the next."""
    redactor = Redactor()
    lines = [redactor.feed(line) for line in text.splitlines(keepends=True)]
    assert "".join([*lines, redactor.close()]) == redact_text(text)


LINES = sorted({line for text in TEXTS for line in (text, *text.splitlines())})


@given(st.lists(st.tuples(st.sampled_from(LINES), st.integers(1, 400)), max_size=24))
def test_what_a_search_of_many_texts_notes_is_what_each_of_them_gives(
    parts: list[tuple[str, int]],
) -> None:
    """Law: also of texts that were cut at any place, and beside any others."""
    done: dict[str, str] = {}
    look_together((text[:size] for text, size in parts), done)
    assert done == {text: redact_text(text) for text in done}


def test_texts_without_secrets_are_searched_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []
    found = redaction._found  # pyright: ignore[reportPrivateUsage]

    def search(text: str, scanned: finders.Scanned | None = None) -> list[Found]:
        searched.append(text)
        return found(text, scanned)

    monkeypatch.setattr(redaction, "_found", search)
    done: dict[str, str] = {}
    texts = [f"no route to host {number}" for number in range(60)]
    secret = "the model said pypi-AgEI" + "cHlwaS5vcmc" + "a1B2" * 20 + " twice"
    look_together([*texts, secret, *texts], done)
    assert done == dict(zip(texts, texts, strict=True))
    assert len(searched) == 1


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


def test_a_text_of_open_lines_is_not_looked_at_line_by_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: of a window in which each line may go on, so many ends of lines are tried at most."""
    tried = [0]
    is_open = finders.is_open

    def noting(*given: Any) -> bool:
        tried[0] += 1
        return is_open(*given)

    monkeypatch.setattr(finders, "is_open", noting)
    text = "secret: |\n  abc\n" * (4 * LIMIT // 16)
    assert redact_text(text) == text
    assert tried[0] <= 6 * redaction.OPEN_LINES


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
    *("?key=", "token ", "curl -u ", '{"password": "', "key", "passw", 'token="a\\\\'),
    *("Cookie: a=b1;", "authorization: ", "bearer ", "-- -p ", "mysql -p ", "set token "),
    *("login x password ", "a", "token: ", "pass\"pass'", "secret\n  ", "password: >\n "),
    *("key=a?", "pwd:", "auth=(", "a=a=a=", "--password ", "://", "@", "a.b.c.", "a@b.", "a:b@"),
    *("-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----\n", "MIIE\n", "eyJ", "eyJ.eyJ."),
    *(
        "plaintext",
        "keyplaintext",
        "tokenbase64",
        "aaaa",
        "Aaa",
        "ghp_",
        "sk-",
        "xoxb-",
        "A/",
        "+1",
    ),
    *(
        "AKIA",
        "1234 ",
        "555-",
        "4111 1111 ",
        "\\",
        '"',
        "'",
        '\\"',
        "\"'",
        "`",
        "$1$",
        "|echo ",
        "echo |",
    ),
    *("data:\n", "kind: secret\n", "data:\n a: b\n", "name: a_key\nvalue", "value:", "key = (\n"),
    *(
        "%26",
        "&amp;",
        "<key>",
        "\x1b[0m",
        "\x1b[",
        "[secret:a]",
        "identified by ",
        "432:",
        "jdbc:oracle:",
    ),
    *(
        "net use ",
        "sqlplus a/",
        "mnemonic: abc ",
        "word ",
        "phrase=",
        '"kty"',
        '"d":"',
        "curl -b a=",
        "${key:",
    ),
    *(
        "password is ",
        "password for ",
        "key abc1",
        "token '",
        "api key ",
        "_KEY=",
        'name="key"\n\n',
    ),
]


class Counted:
    """An expression that counts its calls, the characters of its matches and of its windows."""

    total = 0

    def __init__(self, real: re.Pattern[str]) -> None:
        self.real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def _noted(self, found: re.Match[str] | None, window: int) -> re.Match[str] | None:
        Counted.total += 1 + (found.end() - found.start() if found else 0) + window
        return found

    def match(self, text: str, at: int = 0, end: int = sys.maxsize) -> re.Match[str] | None:
        return self._noted(self.real.match(text, at, end), 0)

    def fullmatch(self, text: str) -> re.Match[str] | None:
        return self._noted(self.real.fullmatch(text), 0)

    def search(self, text: str, at: int = 0, end: int = sys.maxsize) -> re.Match[str] | None:
        found = self.real.search(text, at, end)
        return self._noted(found, (found.start() if found else min(end, len(text))) - at)

    def finditer(
        self, text: str, at: int = 0, end: int = sys.maxsize
    ) -> Iterator[re.Match[str] | None]:
        Counted.total += max(0, min(end, len(text)) - at)
        for found in self.real.finditer(text, at, end):
            yield self._noted(found, 0)


class CountingRe:
    """The module ``re``, but that expressions count."""

    def __getattr__(self, name: str) -> Any:
        return getattr(re, name)

    def compile(self, pattern: Any, flags: int = 0) -> Any:
        made = re.compile(pattern, flags)
        return Counted(made) if isinstance(pattern, str) else made


@pytest.fixture(scope="module")
def counting() -> Iterator[None]:
    """All expressions of the engine count: those of the data, and those of its modules."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (rule_module, anchors, shapes):
            patch.setattr(module, "re", CountingRe())
        counted = rule_module.build(*rule_module.files())
        patch.setattr(redaction, "_table", lambda: counted)
        for module in (finders, forms, named, commands, personal, tokens, values):
            patch.setattr(module, "re", CountingRe())
            for name, one in list(vars(module).items()):
                if isinstance(one, re.Pattern):
                    known = cast("re.Pattern[str]", one)
                    if isinstance(known.pattern, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                        patch.setattr(module, name, Counted(known))
        yield


PER_CHARACTER = 1_500
"""Characters that all expressions together examine for one character of a text, at most."""


def examined(text: str) -> int:
    Counted.total = 0
    redact_text(text)
    return Counted.total


@pytest.mark.usefixtures("counting")
@pytest.mark.parametrize("piece", HOSTILE)
def test_a_hostile_text_is_searched_in_linear_time(piece: str) -> None:
    """Law: for every rule, twice the text is at most about twice the work."""
    one, two = (examined(piece * (size // len(piece))) for size in (8_000, 16_000))
    assert one <= PER_CHARACTER * 8_000
    assert two <= 2.3 * one + 20_000


@pytest.mark.usefixtures("counting")
def test_the_next_variable_is_not_read_as_the_rest_of_a_token() -> None:
    """Of a file of tokens each line would be read once for each of the twenty before it."""
    source = random.Random(1)
    text = "".join(f"LINEAR_KEY=lin_api_{random_text('alnum', 40, source)}\n" for _ in range(200))
    assert examined(text) <= 40 * len(text)


mixtures = (
    st.lists(st.sampled_from(HOSTILE) | st.text("a1-_.=: '\"\\@/\n", max_size=4), max_size=4)
    .map("".join)
    .filter(bool)
)


@pytest.mark.usefixtures("counting")
@given(mixtures)
def test_a_mixture_of_hostile_texts_is_searched_in_linear_time(piece: str) -> None:
    """Law: the same for mixtures, so that one rule does not begin the work of another anew."""
    one, two = (examined(piece * (size // len(piece) + 1)) for size in (3_000, 6_000))
    assert one <= PER_CHARACTER * (3_000 + len(piece))
    assert two <= 2.4 * one + 30_000


@pytest.mark.parametrize("front", ["auth=disabled/", "token: a1", "password=x/"])
def test_a_key_that_begins_within_a_named_value_is_masked_to_its_end(front: str) -> None:
    """Given a key right behind another value, when its lines come one by one, then none shows."""
    text = front + key("RSA PRIVATE KEY", random.Random(1)) + "\nafter\n"
    redactor = Redactor()
    out = "".join(redactor.feed(line) for line in text.splitlines(keepends=True))
    assert out + redactor.close() == redact_text(text)
    assert not any(line in out for line in text.splitlines()[1:-2])
