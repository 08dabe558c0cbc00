"""The corpus: secrets in the forms in which programs print them, and texts that look like them."""

from __future__ import annotations

import re

import pytest

from motet.protocols.redaction.redact import redact_text
from tests.protocols.redaction.builders import MASK, Case, cases

PARTS = ("", "_blind", "_second", "_third", "_fourth", "_fifth", "_sixth")
SECRETS = [case for part in PARTS for case in cases(f"secrets{part}.txt")]
LOOK_ALIKES = [case for part in PARTS for case in cases(f"lookalikes{part}.txt")]
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


@pytest.mark.parametrize("case", SECRETS, ids=shown)
def test_no_part_of_a_secret_is_left(case: Case) -> None:
    clean = redact_text(case.text)
    for secret in case.secrets:
        for piece in pieces(secret):
            assert piece not in clean
    assert MASK.search(clean)
    assert redact_text(clean) == clean


@pytest.mark.parametrize("case", LOOK_ALIKES, ids=shown)
def test_a_look_alike_stays(case: Case) -> None:
    assert redact_text(case.text) == case.text
