"""The rules are data: each has an id, a group and examples, and can be taken off."""

from __future__ import annotations

import random
import re
from collections import Counter
from importlib import import_module
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.protocols.redaction import forms
from motet.protocols.redaction.own import OwnRules, known_rules, table
from motet.protocols.redaction.redact import redact_text, registered_secrets
from motet.protocols.redaction.rules import FinderRule, FormFile, FormRule, files, identities, rules
from tests.protocols.redaction.builders import filled, without_marks

FILE, FORMS = files()
EXAMPLES: list[FormRule | FinderRule] = [*FORMS.forms, *FORMS.finders]
WIDEST = 10_000_000
"""Characters of the widest expression, which is the body of a private key."""


def test_every_rule_has_an_id_of_its_own_in_a_group() -> None:
    names = list(identities(FILE, FORMS))
    assert [name for name, count in Counter(names).items() if count > 1] == []
    for name in names:
        assert re.fullmatch(r"[a-z]+\.[a-z0-9-]+", name), name
    for rule in EXAMPLES:
        assert rule.id.partition(".")[0] == rule.group
    assert {"token", "name", "header", "url", "flag", "command", "personal"} <= known_rules()


def test_a_rule_with_a_field_that_no_rule_has_is_refused() -> None:
    raw = msgspec.to_builtins(FORMS)
    raw["forms"][0]["patern"] = "x"
    with pytest.raises(msgspec.ValidationError, match="patern"):
        msgspec.convert(raw, FormFile)


@pytest.mark.parametrize("rule", EXAMPLES, ids=lambda rule: rule.id)
def test_the_examples_of_a_rule_leak_or_stay_as_it_says(rule: FormRule | FinderRule) -> None:
    assert rule.leaks
    assert rule.stays
    for example in rule.leaks:
        text, secrets = without_marks(filled(example, random.Random(example)))
        clean = redact_text(text)
        assert secrets
        for secret in secrets:
            assert secret not in clean, text
    for example in rule.stays:
        text, _ = without_marks(filled(example, random.Random(example)))
        assert redact_text(text) == text


SHAPES = [(rule.kind, shape) for rule in FILE.tokens for shape in rule.shapes]
_PART = re.compile(r"\{([a-z0-9]+):(\d+)(?:(,)(\d*))?\}")


def made(shape: str, source: random.Random, more: int) -> str:
    """A token of a shape with parts of the least length and some ``more``, as far as it allows."""

    def part(found: re.Match[str]) -> str:
        letters = [
            chr(code)
            for code in range(33, 127)
            if re.match(f"[{FILE.alphabets[found[1]]}]", chr(code)) and chr(code) not in ".~+/=_-"
        ]
        least = int(found[2])
        most = int(found[4]) if found[4] else (least + more if found[3] else least)
        chosen = source.choices(letters, k=min(most, least + more))
        kinds = [str.isdigit, str.islower, str.isupper]
        for place, kind in enumerate(kinds):  # random as tokens are
            of_kind = [letter for letter in letters if kind(letter)]
            if of_kind and len(chosen) > 8:
                chosen[1 + 2 * place] = source.choice(of_kind)
        return "".join(chosen)

    return _PART.sub(part, shape)


@given(st.sampled_from(SHAPES), st.integers(0, 40), st.randoms(use_true_random=False))
def test_a_token_of_every_shape_is_masked_wherever_a_word_begins(
    shape: tuple[str, str], more: int, source: random.Random
) -> None:
    """Law: for every shape and every length that it allows, the whole token goes."""
    token = made(shape[1], source, more)
    for text in (f"at {token} it", f"({token})", f"x={token}\n", f'"{token}"'):
        assert token not in redact_text(text)


def test_a_shape_without_its_random_part_stays() -> None:
    assert len(SHAPES) > 100
    for kind, shape in SHAPES:
        head = _PART.split(shape)[0].rstrip("_-.:/+$~")
        assert kind
        assert redact_text(f"see {head}... of {kind}") == f"see {head}... of {kind}"


OFF = {
    "personal.email": "write to jane.doe@example.com",
    "personal": "call 555-123-4567",
    "token.github": "ghp_" + "a1B2c3D4e5F6" * 3,
    "command.net-use": "net user bob Abcd1234x /add",
    "name.password": "password=hunter2x",
    "header.cookie": "Cookie: sid=a1b2c3d4e5f6",
    "header.authorization": "Authorization: Digest a1b2c3d4e5f6",
    "url.query": "https://x.example.com/?sig=a1b2c3d4e5f6g7",
    "url.password": "https://bob:hunter2x@example.com/",
    "flag.redis": "redis-cli -a a1b2c3d4e5 ping",
    "token.json-web": "eyJhbGciOiJI" + ".eyJzdWIiOiIx" + ".c2lnbmF0dXJl",
    "webhook.zapier": "https://hooks.zapier.com/" + "hooks/catch/123456/abcdefg",
}


@pytest.mark.parametrize(("name", "text"), OFF.items(), ids=OFF)
def test_a_rule_that_is_off_masks_nothing(name: str, text: str) -> None:
    assert redact_text(text) != text
    with registered_secrets([], own=OwnRules(off=(name,))):
        assert redact_text(text) == text
        with registered_secrets([], own=OwnRules(allow=("x",))):
            assert redact_text(text) != text  # another host has the rule
    assert redact_text(text) != text


def expressions() -> dict[str, re.Pattern[str]]:
    one = rules()
    found = {name: one.expression(name) for name in FORMS.grammar if name not in INNER}
    found |= {rule.id: re.compile(one.source(rule.pattern)) for rule in FORMS.forms}
    found |= {f"query behind {sign}": behind for sign, behind in one.queries.items()}
    found |= {"webhooks": one.webhooks, "passes by": one.passes_by}
    return found


INNER = {"value"}
"""Parts that are only used inside of others, once in each."""


def test_every_expression_has_an_end() -> None:
    """Law: an expression reads a bounded number of characters from where it is tried."""
    parser: Any = import_module("re._parser")
    found = {name: parser.parse(one.pattern).getwidth()[1] for name, one in expressions().items()}
    assert len(found) > 100
    assert {name: most for name, most in found.items() if int(most) > WIDEST} == {}


def test_every_check_of_a_form_is_a_function() -> None:
    assert {rule.check for rule in FORMS.forms} - {""} <= set(forms.CHECKS)
    assert table(()) is rules()
