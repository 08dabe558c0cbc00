"""The corpus: secrets in the forms in which programs print them, and texts that look like them."""

from __future__ import annotations

import re

import pytest

from motet.protocols.redaction.redact import redact_text
from tests.protocols.redaction.builders import MASK, Case, cases

LATER = "blind second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
PARTS = ("", *(f"_{part}" for part in LATER.split()))
PIECE = 6
"""Characters of a secret that must not be seen together."""


def pieces(secret: str) -> list[str]:
    """Parts of a secret: of a key, of its lines, without the words that all keys share."""
    lines = [line.strip() for line in re.split(r"\n|\\n", secret) if "-----" not in line]
    parts = [line for line in lines if line] or [secret]
    if "://" in secret:
        return [secret.partition("://")[2].partition(":")[2].partition("@")[0]]
    return [part[-max(PIECE, len(part) // 2) :] for part in parts]


def shown(case: Case) -> str:
    return f"{case.number}: {case.text[:60]!r}"


def what_is_left(case: Case) -> list[str]:
    """What is wrong about the redacted text of a case."""
    clean = redact_text(case.text)
    left = [piece for secret in case.secrets for piece in pieces(secret) if piece in clean]
    if not MASK.search(clean):
        left.append("it has no mask")
    if redact_text(clean) != clean:
        left.append("redacting it again changes it")
    return left


# A file each, since its thousands of texts take less time than the reports of as many tests.


@pytest.mark.parametrize("part", PARTS)
def test_no_part_of_a_secret_is_left(part: str) -> None:
    secrets = list(cases(f"secrets{part}.txt"))
    assert len(secrets) > 50
    assert [(shown(case), left) for case in secrets if (left := what_is_left(case))] == []


@pytest.mark.parametrize("part", PARTS)
def test_a_look_alike_stays(part: str) -> None:
    look_alikes = list(cases(f"lookalikes{part}.txt"))
    assert len(look_alikes) > 50
    assert [shown(case) for case in look_alikes if redact_text(case.text) != case.text] == []
