"""Secrets and personal data are taken out; what only resembles them stays."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.protocols.redaction.personal import luhn
from motet.protocols.redaction.redact import SHORTEST, registered_secrets
from motet.protocols.redaction.redact import redact as redact_value
from motet.protocols.redaction.redact import redact_text as redact_real
from tests.protocols.redaction.builders import alike


def redact_text(text: str, known: Mapping[str, str] | None = None) -> str:
    """The redacted text, in which all masks of secrets look alike."""
    return str(alike(redact_real(text, known)))


def redact(value: object, known: Mapping[str, str] | None = None) -> object:
    return alike(redact_value(value, known))


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghij"
SERVERS = {"18.141.232.136": "[SERVER_IP]", "34.160.111.145": "[SERVER_IP]"}

# Put together here, or a scanner of repositories would take them for real ones.
SECRETS = {
    "openai": "sk-" + LETTERS[:24],
    "openai project": "sk-proj-" + LETTERS + "_-1",
    "anthropic": "sk-ant-" + "api03-" + LETTERS,
    "stripe": "sk_live_" + LETTERS[:24],
    "google": "AIza" + LETTERS[:35],
    "github": "ghp_" + LETTERS,
    "github refresh": "ghr_" + LETTERS,
    "github fine-grained": "github_pat_" + LETTERS,
    "gitlab": "glpat-" + LETTERS[:20],
    "slack": "xoxb-" + "123456789012-abcdef",
    "aws": "AKIA" + "IOSFODNN7EXAMPLE",
    "gateway token": "mtt_" + "0123456789abcdef" * 2,
    "jwt": "eyJhbGciOiJI." + "eyJzdWIiOiIx." + "c2lnbmF0dXJl",
    "private key": "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
    "private key cut short": "-----BEGIN PRIVATE KEY-----\nMIIE",
}


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS.keys())
def test_a_secret_is_replaced_as_a_whole(secret: str) -> None:
    assert redact_text(f"key {secret}") == "key [REDACTED]"
    assert redact_text(f"got={secret}") == "got=[REDACTED]"


REPLACED = {
    "two secrets in one line": (
        f"openai={SECRETS['openai']}, github={SECRETS['github']}",
        "openai=[REDACTED], github=[REDACTED]",
    ),
    "aws": (f"aws_key: {SECRETS['aws']}", "aws_key: [REDACTED]"),
    "bearer": ("Bearer abc123def456", "Bearer [REDACTED]"),
    "header": ("Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic [REDACTED]"),
    "database": ("postgres://u:p@h:5432/db rest", "[REDACTED] rest"),
    "database in a sentence": ("(redis://:pw@r:6379/0), then", "([REDACTED]), then"),
    "address with a password": ("https://bob:pw@h.com/x", "https://[REDACTED]@h.com/x"),
    "assignment": ("DB_PASSWORD=hunter2 x", "DB_PASSWORD=[REDACTED] x"),
    "header of a key": ("x-api-key: abcdef123456", "x-api-key: [REDACTED]"),
    "json": ('{"password": "hunter 2", "n": 1}', '{"password": "[REDACTED]", "n": 1}'),
    "json in a string": (r"\"password\": \"hunter2\"", r"\"password\": \"[REDACTED]\""),
    "escaped quote": (r'"password": "a\"b"', '"password": "[REDACTED]"'),
    "query": ("?page=2&token=abc123456789&x=1", "?page=2&token=[REDACTED]&x=1"),
    "e-mail": ("Contact: john.doe@example.com", "Contact: [EMAIL_REDACTED]"),
    "phone": ("Call me at 555-123-4567", "Call me at [PHONE_REDACTED]"),
    "phone in brackets": ("(555) 123-4567, now", "[PHONE_REDACTED], now"),
    "phone abroad": ("+49 30 1234567890", "[PHONE_REDACTED]"),
    "phone with country": ("+1 (555) 123-4567", "[PHONE_REDACTED]"),
    "social security": ("SSN: 123-45-6789", "SSN: [SSN_REDACTED]"),
    "card": ("card 4111111111111111.", "card [CARD_REDACTED]."),
    "card in groups": ("4111 1111 1111 1111", "[CARD_REDACTED]"),
    "card of 15 digits": ("3782 822463 10005", "[CARD_REDACTED]"),
}


@pytest.mark.parametrize(("text", "clean"), REPLACED.values(), ids=REPLACED.keys())
def test_what_has_the_shape_of_a_secret_is_replaced(text: str, clean: str) -> None:
    assert redact_text(text) == clean


KEPT = (
    "err_20241121_230334_abc123",
    "sk-short",
    "ghp_tooshort",
    "sk-learn-contrib-some-long-name",
    "a" * 63,
    "sha256:" + "a" * 64,
    "token: string = getToken()",
    "password = getPassword()",
    "password: must be at least 8 characters",
    "max_tokens=4096 token=12345678",
    "PWD=/home/me",
    "Bearer authentication required",
    "1795244701 1795244701512 1795244701512345 1795244701512345678",
    "row 4155552671 and 555123456",
    "4111-1111-1111-1112 is no card: its last digit is wrong",
    "0.4111111111111111",
    "2024-11-21 23:03:34 10.0.0.1 v1.2.3-4",
    "123-45-67890 000-12-3456 666-12-3456 900-12-3456",
    "550e8400-e29b-41d4-a716-446655440000",
    "git@github.com:x/y icon@2x.png @decorator a@b",
    "https://example.com/path?page=2#token",
    "ssh://git@example.com/x",
    "-----BEGIN CERTIFICATE-----",
)


@pytest.mark.parametrize("text", KEPT)
def test_what_only_resembles_a_secret_stays(text: str) -> None:
    assert redact_text(text) == text


BESIDE_CODES = {
    "coloured": "\x1b[31m{}\x1b[0m",
    "behind a coloured word": "word\x1b[1;31m{}\x1b[m",
    "the 8-bit form": "word\x9b31m{}\x9b0m",
    "a title": "\x1b]0;title\x07{}",
    "as repr shows it": r"word\x1b[31m{}\x1b[0m",
    "as JSON shows it": r"word\u001b[31m{}",
    "behind an escaped line end": r"line\n{}\n",
    "what looks like half a code": "\x9b {} \x9b",
}


@pytest.mark.parametrize("around", BESIDE_CODES.values(), ids=BESIDE_CODES.keys())
def test_a_secret_beside_a_code_of_a_terminal_is_found(around: str) -> None:
    secret = SECRETS["openai"]
    clean = redact_text(around.format(secret))
    assert secret not in clean
    assert "[REDACTED]" in clean
    assert redact_text(clean) == clean


def test_a_secret_with_a_code_in_its_middle_is_found_and_colours_alone_stay() -> None:
    secret = SECRETS["openai"]
    assert redact_text(f"a {secret[:9]}\x1b[1m{secret[9:]} b") == "a [REDACTED] b"
    assert redact_text("password=\x1b[31mhunter2\x1b[0m") == "password=\x1b[31m[REDACTED]\x1b[0m"
    coloured = "\x1b[31merror\x1b[0m: no such file"
    assert redact_text(coloured) == coloured


@pytest.mark.parametrize("at", [131_072, 196_608])
def test_a_secret_is_found_wherever_the_windows_of_a_long_text_end(at: int) -> None:
    """The text is searched in windows; each secret lies once across every border of theirs."""
    for secret in (SECRETS["openai"], SECRETS["private key"], "password=hunter2 "):
        for shift in range(0, len(secret) + 2, 9):
            filler = ("word " * (at // 5 + 1))[: max(0, at - shift)].rsplit(" ", 1)[0]
            text = f"{filler} {secret}" + " more" * 30_000
            assert redact_text(text) == f"{filler} {redact_text(secret)}" + " more" * 30_000


def test_a_secret_longer_than_a_window_goes_whole() -> None:
    key = "-----BEGIN PRIVATE KEY-----\n" + "MIIE\n" * 100_000
    assert redact_text(f"a {key}-----END PRIVATE KEY----- b") == "a [REDACTED] b"
    assert redact_text("sk-" + "a1" * 300_000 + " b") == "[REDACTED] b"


def test_known_values_are_replaced_where_they_are_whole_words() -> None:
    text = "X-Forwarded-For: 18.141.232.136, 34.160.111.145"
    assert redact_text(text, SERVERS) == "X-Forwarded-For: [SERVER_IP], [SERVER_IP]"
    assert (
        redact_text("Hello 1.2.3.4, 118.141.232.136", SERVERS) == "Hello 1.2.3.4, 118.141.232.136"
    )
    assert redact({"a": ["my-secret!"]}, {"my-secret!": "***"}) == {"a": ["***"]}


def test_values_are_redacted_all_the_way_down() -> None:
    value = {
        "message": "mail to bob@example.com",
        "list": [{"password": "hunter2", "token": "}", "tokens": 4111111111111111}],
        "api_key": "abcdef123456",
        "none": None,
    }
    assert redact(value) == {
        "message": "mail to [EMAIL_REDACTED]",
        "list": [{"password": "[REDACTED]", "token": "}", "tokens": 4111111111111111}],
        "api_key": "[REDACTED]",
        "none": None,
    }


pieces = st.sampled_from(
    [text for text, _ in REPLACED.values()]
    + list(KEPT)
    + list(SECRETS.values())
    + [
        '"',
        "'",
        "\\",
        ":",
        "=",
        " ",
        "\n",
        "@",
        "://",
        "password",
        "token",
        "1",
        "a",
        "-",
        "+",
        "[",
    ]
)
texts = st.lists(pieces | st.text(max_size=5), max_size=12).map(" ".join)


@given(texts)
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    """Law: redact(redact(x)) == redact(x), where the words of x stand apart."""
    once = redact_text(text)
    assert redact_text(once) == once


@given(st.sampled_from(list(SECRETS.values())[:12]), st.text(" .,;:()\n", max_size=8), st.text())
def test_a_secret_between_others_words_never_stays(secret: str, gap: str, rest: str) -> None:
    """Law: a whole-token secret is not in the result, wherever it stands."""
    assert secret not in redact_text(f"{rest} {secret}{gap} {rest}")


@given(st.integers(0, 4_000_000_000), st.integers(1, 10**6))
def test_unix_times_stay_at_every_grain(seconds: int, grain: int) -> None:
    """Law: a number without separators is a secret only as a card: Unix times never are."""
    for text in (str(seconds), f"{seconds}.{grain}", str(seconds * 1_000)):
        assert redact_text(f"at {text} it failed") == f"at {text} it failed"


@given(st.dictionaries(st.text(max_size=5), st.integers() | texts | st.lists(texts), max_size=4))
def test_a_value_keeps_its_structure(value: dict[str, object]) -> None:
    """Law: only texts change; redacting twice changes nothing more."""
    once = redact(value)
    assert redact(once) == once
    assert shape(once) == shape(value)


NAMES = ["password", "db_password", "token", "message", "port", "maxTokens", "Cookie", "apiKey"]


@given(st.lists(st.tuples(st.sampled_from(NAMES), texts, st.booleans()), max_size=8))
def test_names_of_fields_that_come_again_are_looked_at_by_the_rules_of_now(
    drawn: list[tuple[str, str, bool]],
) -> None:
    """Law: while secrets come and go, a field is redacted as by rules that remember no names."""
    for name, text, is_secret in drawn:
        value = {name: text, "other": [{name: [text]}]}
        with registered_secrets([name] if is_secret else []):
            made = redact_value(value)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("motet.protocols.redaction.redact._is_word", str.isspace)
                assert made == redact_value(value)
            assert (name in cast("dict[str, object]", made)) != (
                is_secret and len(name) >= SHORTEST
            )


def shape(value: object) -> object:
    """The value without its texts."""
    match value:
        case dict():
            return [shape(item) for item in cast("dict[str, object]", value).values()]
        case list():
            return [shape(item) for item in cast("list[object]", value)]
        case _:
            return "" if isinstance(value, str) else value


@given(st.text("0123456789", min_size=1, max_size=18))
def test_exactly_one_check_digit_completes_a_number(digits: str) -> None:
    """Law: for every number one last digit of ten satisfies Luhn's formula."""
    assert sum(luhn(digits + last) for last in "0123456789") == 1


HOSTILE = (
    "a@",
    "://",
    "eyJ",
    "password='",
    "bearer ",
    "1234 ",
    "+1",
    "a.",
    "-----BEGIN PRIVATE KEY",
)


@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_text_is_read_to_its_end(piece: str) -> None:
    """What takes quadratic time here would take a minute."""
    assert len(redact_text(piece * 100_000)) > 0
    assert re.match(r"[\w\[]|.", redact_text(piece))


def test_sixty_four_hex_digits_are_a_secret_only_behind_a_key() -> None:
    """They are a digest everywhere else: in checksums, commits, images and tags."""
    digits = "0a1b2c3d" * 8
    assert redact_text(f"key {digits}") == "key [REDACTED]"
    assert redact_text(f"SECRET_KEY={digits}") == "SECRET_KEY=[REDACTED]"
    for text in (f"checksum mismatch: expected {digits}, got {digits}", f"cache key {digits}"):
        assert redact_text(text) == text


WORDS = st.sampled_from(
    [
        *" ./~'(\n",
        *("Bearer ", "abcdefg7", "password ", "Jane Kim Asks ", SECRETS["google"], SECRETS["jwt"]),
        *("AKIA" + LETTERS[:16], "ASIA" + LETTERS[:16]),
    ]
)


@given(st.lists(WORDS | st.text(string.ascii_letters, max_size=20), max_size=5).map("".join))
def test_a_text_without_numbers_and_signs_is_looked_at_no_further(text: str) -> None:
    """Law: what the rules find beside a number, which has them look, is found without one.

    The number stands on a line of its own: the end of a line is an end of a value, too.
    """
    assert redact_text(f"{text}\nin 300 words") == f"{redact_text(text)}\nin 300 words"
