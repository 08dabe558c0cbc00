"""Rules of one's own: what they mask and spare, and the patterns that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from motet.actors.hosting.config import load_config
from motet.protocols.config import HostConfig, parse_config
from motet.protocols.errors import ConfigError
from motet.protocols.redaction.own import DenyRule, OwnRules
from motet.protocols.redaction.redact import redact, redact_text, registered_secrets
from tests.protocols.redaction.builders import alike
from tests.protocols.redaction.test_redact import SECRETS


def test_own_rules_hold_as_long_as_they_are_registered() -> None:
    own = OwnRules(
        deny=(DenyRule("acme_[0-9a-f]{8}", kind="acme"), DenyRule(r"badge no[.] ([0-9]{4,8})")),
        allow=("AKIA[0-9A-Z]{9}EXAMPLE",),
    )
    text = f"acme_0123abcd and badge no. 12345 and {SECRETS['aws']}\n"
    with registered_secrets([], own=own):
        clean = redact_text(text)
        assert alike(clean) == f"[REDACTED] and badge no. [REDACTED] and {SECRETS['aws']}\n"
        assert clean.startswith("[secret:acme:")
        assert redact_text(clean) == clean
        assert redact({"api_key": SECRETS["aws"]}) == {"api_key": SECRETS["aws"]}
    assert redact_text("acme_0123abcd") == "acme_0123abcd"
    assert SECRETS["aws"] not in redact_text(text)


def test_tags_tell_secrets_apart_and_belong_to_a_key() -> None:
    one, other = "password=hunter2x", "password=hunter3x"
    with registered_secrets([], key=b"first"):
        first = redact_text(one)
        assert redact_text(one) == first != redact_text(other)
    with registered_secrets([], key=b"second"):
        assert redact_text(one) != first
    with registered_secrets([], key=b"first"):
        assert redact_text(one) == first
    assert redact_text(one, tagged=False) == "password=[secret:password]"


def test_own_rules_have_the_power_of_motets() -> None:
    """A shape, a name, a parameter and a flag are rules as those of the data files are."""
    own = OwnRules(
        deny=(
            DenyRule(shape="acmek_{alnum:16,32}", kind="acme"),
            DenyRule(name="acme widget key"),
            DenyRule(parameter="acmesig"),
            DenyRule(programs=("acmectl",), flags=("-P",)),
        )
    )
    texts = {
        "the acmek_a1b2c3d4e5f6g7h8 it": "the [REDACTED] it",
        "ACME_WIDGET_KEY=a1b2c3d4e5": "ACME_WIDGET_KEY=[REDACTED]",
        '{"acmeWidgetKey": "a1b2c3d4e5"}': '{"acmeWidgetKey": "[REDACTED]"}',
        "GET /x?acmesig=a1b2c3d4e5": "GET /x?acmesig=[REDACTED]",
        "acmectl -P hunter2x now": "acmectl -P [REDACTED] now",
    }
    for text in texts:
        assert redact_text(text) == text
    with registered_secrets([], own=own):
        assert {text: alike(redact_text(text)) for text in texts} == texts


def test_a_value_and_the_values_of_a_name_are_allowed() -> None:
    """A value is compared as it is written; a name in every spelling, behind any words."""
    own = OwnRules(allow_values=("demo(1)+x7",), allow_names=("acme demo token",))
    spared = (
        'password="demo(1)+x7"',
        "ACME_DEMO_TOKEN=a1b2c3d4e5f6",
        '{"acmeDemoToken": "a1b2c3d4e5f6"}',
        "MY_ACME_DEMO_TOKEN: a1b2c3d4e5f6",
    )
    masked = (
        'password="demo(1)+x77"',
        "DEMO_TOKEN=a1b2c3d4e5f6",
        f"ACME_DEMO_TOKEN={SECRETS['aws']}",
    )
    assert all(redact_text(text) != text for text in (*spared, *masked))
    with registered_secrets([], own=own):
        assert [redact_text(text) for text in spared] == list(spared)
        assert redact({"acmeDemoToken": "a1b2c3d4e5f6"}) == {"acmeDemoToken": "a1b2c3d4e5f6"}
        assert redact({"password": "demo(1)+x7"}) == {"password": "demo(1)+x7"}
        assert all(redact_text(text) != text for text in masked)
        with registered_secrets([], own=OwnRules(off=("personal.ssn",))):
            assert redact_text(spared[1]) != spared[1]  # another host does not allow the name
    with pytest.raises(ConfigError, match="no name of a secret"):
        OwnRules(allow_names=("acme",))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "one of"),
        ({"pattern": "acme_x", "shape": "acme_{alnum:8}"}, "one of"),
        ({"shape": "acme_{letters:8}"}, "no part of a shape"),
        ({"shape": "a_{alnum:8}"}, "3 letters"),
        ({"name": "acme"}, "no name of a secret"),
        ({"parameter": "A b"}, "no parameter"),
        ({"programs": ("x",)}, "need 'flags'"),
    ],
)
def test_a_rule_that_is_none_is_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        DenyRule(**fields)
    with pytest.raises(ConfigError, match=r"did you mean 'personal\.email'"):
        OwnRules(off=("personal.mail",))


REFUSED = {
    "acme_(": "is no regular expression",
    "(acme_a+)+": "slow",
    "acme_.*": "without an end",
    "acme_[a-z]{1,900}[a-z0-9]{1,900}": "side by side",
    r"(acme)\1": "refers back",
    "[0-9]{8}": "literal characters",
    "(?i)acme_x": "flags",
}


@pytest.mark.parametrize(("pattern", "why"), REFUSED.items(), ids=REFUSED.values())
def test_a_pattern_that_is_none_or_could_be_slow_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        DenyRule(pattern)


def test_a_refused_rule_of_a_file_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "motet.toml"
    file.write_text(
        '[redaction]\nallow = ["ok"]\n\n[[redaction.deny]]\npattern = "acme_[0-9]{4}"\n\n'
        '[[redaction.deny]]\nkind = "x"\npattern = "acme_.*"\n'
    )
    with pytest.raises(ConfigError, match=r"motet\.toml: redaction\.deny\[1\].*line 9: .*slow"):
        load_config(file)
    file.write_text('[redaction]\nallow = ["a(b"]\n')
    with pytest.raises(
        ConfigError, match=r"redaction.*allow\[0\]: line 2: .*no regular expression"
    ):
        load_config(file)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[redaction]\nallow = [\n  "ok", # "a(b"\n  "a(b",\n]\n', 4),
        ('[redaction]\nallow = [\n  "ok",\n  "(x+)+",\n]\n', 4),
        (
            '[redaction]\ndeny = [\n  {kind = "x", pattern = "ok_x"},\n  {pattern = "a.*"},\n]\n',
            4,
        ),
        ('[redaction]\ndeny = [{pattern = "acme_x"}, {pattern = "ab.*", kind = "y"}]\n', 2),
        ('redaction = {allow = ["ok"], deny = [{pattern = "a.*"}]}\n', 1),
        ("[tools]\n\n[[redaction.deny]]\nkind = 'x'\n\npattern = 'a.*'\n", 6),
    ],
)
def test_a_refused_pattern_is_named_with_its_line_however_it_is_written(
    tmp_path: Path, text: str, line: int
) -> None:
    file = tmp_path / "motet.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=rf"motet\.toml: redaction.*: line {line}: '"):
        load_config(file)


def test_a_configuration_has_the_rules() -> None:
    section = {"allow": ["x"], "deny": [{"pattern": "acme_[0-9]{4}"}]}
    own = parse_config({"redaction": section}).redaction
    assert own == OwnRules(deny=(DenyRule("acme_[0-9]{4}"),), allow=("x",))
    assert HostConfig().redaction == OwnRules()
