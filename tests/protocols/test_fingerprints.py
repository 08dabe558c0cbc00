"""Fingerprints: the looks that save slow searches change nothing."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.protocols import fingerprints
from motet.protocols.fingerprints import fingerprint, template, templates

PARTS = (
    *("2026-11-27T10:11:12.5Z", "10.0.0.1:8080", "::1", "[fe80::1]:53", "https://x.y/z?a=1"),
    *("/srv/app/a.py", "C:\\a\\b", "~/x", "a/b/c@1", "0xdeadBEEF", "run_9b1d2c3e4f5a", "utf8"),
    *("'x y'", "don't", "[EMAIL_REDACTED]", "[secret:aws:1f3a]", "bob@x.com", "1,234.5e-7", "-12"),
    *("12345678-abcd-abcd-abcd-1234567890ab", "abcdefab-abcd-abcd-abcd-abcdefabcdef", "<n>-<id>"),
)
NUMBER = re.compile(r"(?<![A-Za-z_])[+-]?\d+(?:[.,_]\d+)*(?:[eE][+-]?\d+)?")
"""A number as it is read, without the set of characters by which it is found fast."""

lines = st.lists(
    st.sampled_from(PARTS) | st.text("abexTZX0129 -_+.,:/\\@'\"`[]<>()~٣\n", max_size=12)
).map("".join)


def reference(message: str) -> str:
    """The template with every placeholder tried on every message."""
    found = fingerprints.LINE.search(message[: fingerprints.READ])
    line = found.group() if found else ""
    for *_, expression, placeholder in fingerprints.PLACEHOLDERS[:-1]:
        line = expression.sub(placeholder, line)
    line = " ".join(NUMBER.sub("<n>", line).split())
    return fingerprints.ADJACENT.sub(r"\1", line)[: fingerprints.SHOWN]


@given(lines)
def test_a_template_is_that_of_all_placeholders_tried(message: str) -> None:
    """Law: a sign that is absent leaves out only placeholders that stand for nothing there."""
    assert template(message) == reference(message)


@given(st.lists(lines, min_size=8, max_size=16))
def test_templates_that_are_made_together_are_those_of_each(messages: list[str]) -> None:
    """Law: no placeholder stands for a part of two messages, nor hangs on one beside it."""
    made = templates(messages)
    assert made == {message: template(message) for message in made}


def test_templates_of_a_crowd_are_made_together() -> None:
    messages = [f"no route to host {number}" for number in range(9)]
    assert templates(messages) == dict.fromkeys(messages, "no route to host <n>")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("no route to 10.0.0.1:80", "no route to 192.168.7.9:8080"),
        ("no file '/srv/a.txt'", "no file '/home/bob/b c.txt'"),
        ("run run_9b1d2c3e4f5a took 3.5 s", "run run_000000000001 took 41 s"),
        ("at 2026-11-27T10:11:12Z", "at 2025-01-01 00:00:00.5"),
    ],
)
def test_messages_that_differ_in_their_data_have_one_fingerprint(one: str, other: str) -> None:
    made = {fingerprint("t", "unknown", {"message": text}) for text in (one, other)}
    assert len(made) == 1
    assert fingerprint("t", "unknown", {"message": "something else"}) not in made
