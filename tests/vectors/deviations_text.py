"""Where the specification decides otherwise about the texts around a turn."""

from __future__ import annotations

import re

from tests.vectors.cases import MAIN, Case, Facts
from tests.vectors.rules import Rule

_REASONING = re.compile(r"<(?:think|thinking|thought|antThinking|redacted_thinking)\b", re.I)
_ONE_ELEMENT = re.compile(r"\s*<(?:function|invoke|tool_|minimax:|parameter).*</[^<>]+>\s*", re.S)
_CODE = re.compile(r"^[ \t]*```.*?(?:^[ \t]*```|\Z)|`[^`\n]+`", re.S | re.M)


def _text(case: Case) -> str:
    return str(case.given.get("text", case.given.value))


def _hides_reasoning(case: Case, facts: Facts) -> bool:
    return bool(_REASONING.search(str(case.expect))) and not _REASONING.search(str(facts[MAIN]))


def _only_calls(case: Case, facts: Facts) -> bool:
    return facts[MAIN] == "" and _ONE_ELEMENT.fullmatch(_text(case)) is not None


def _keeps_code(case: Case, facts: Facts) -> bool:
    code = _CODE.findall(_text(case))
    lost = any(block not in str(case.expect) for block in code)
    return lost and all(block in str(facts[MAIN]) for block in code)


def _only_trims(case: Case, facts: Facts) -> bool:
    return facts[MAIN] == _text(case).strip()


def _decorated(case: Case, facts: Facts) -> bool:
    """The token between decorations, in any case: silent."""
    bare = _text(case).strip(" \t\r\n_*`'\"~()[]{}<>.,:;!?-–—#|")
    return facts[MAIN] is True and bare.upper() == "NO_REPLY"


def _more_than_the_token(case: Case, facts: Facts) -> bool:
    """A reply with words besides the token: not silent."""
    words = re.findall(r"\w+", _text(case))
    return facts[MAIN] is False and len(words) > 1 and "NO_REPLY" in _text(case)


def _refuses_the_word(case: Case, facts: Facts) -> bool:
    return "configured" in case.given and facts.get("error") == "ConfigError"


def _tells_the_sender(case: Case, facts: Facts) -> bool:
    injected = "injected" in case.given.text("where")
    return injected and "the sender is told: " in str(facts.get("message"))


def _says_nothing_of_it(_case: Case, facts: Facts) -> bool:
    """A blocked message: the sender knows why, and no event tells of it."""
    return "detected" in str(facts.get("error")) and facts.get("events") == []


def _counts_code_points(case: Case, facts: Facts) -> bool:
    """Bytes and code points are not the same here, and the limit is held in the latter."""
    text, limit = case.given.text("text"), case.given.number("max")
    kept = text if len(text) <= limit else f"{text[:limit]}\n["
    return not text.isascii() and str(facts[MAIN]).startswith(kept)


def _cuts_every_result(case: Case, facts: Facts) -> bool:
    return case.expect is None and facts[MAIN] == 1_000


_REASONING_GOES = (
    'agent-loop.md 3: "thinking tags (`think thinking thought antThinking redacted_thinking`, '
    'attributes allowed, an unterminated block is removed to the end)"'
)
_GARBLED = 'agent-loop.md 3: "If a response was nothing but garbled XML, the result is empty"'
_CODE_STAYS = 'agent-loop.md 3: "Code fences and code spans are left alone in every step"'
_EIGHT = 'agent-loop.md 3: "Eight steps and a trim, in this order", and this is none of them'

RULES = (
    *(Rule(area, _REASONING_GOES, _hides_reasoning) for area in ("sanitize", "sanitize_steps")),
    *(Rule(area, _GARBLED, _only_calls) for area in ("sanitize", "sanitize_steps")),
    *(Rule(area, _CODE_STAYS, _keeps_code) for area in ("sanitize", "sanitize_steps")),
    *(Rule(area, _EIGHT, _only_trims) for area in ("message_directives_later", "config_leak")),
    Rule(
        "silent_reply",
        'agent-loop.md 3: "silent when the whole reply, decorations peeled off, is the token, '
        'without case"',
        _decorated,
    ),
    Rule(
        "silent_reply",
        'agent-loop.md 3: "silent when the whole reply ... is the token ...; a real answer that '
        'mentions it is delivered"',
        _more_than_the_token,
    ),
    Rule(
        "input_guard_action",
        'agent-loop.md 2: "an unknown word is a configuration error"',
        _refuses_the_word,
    ),
    Rule(
        "input_guard_action",
        'agent-loop.md 2: "the sender is told why"',
        _tells_the_sender,
    ),
    Rule(
        "input_guard_action",
        'agent-loop.md 2: "A blocked message\'s text is not broadcast, and the sender is told why"',
        _says_nothing_of_it,
    ),
    Rule(
        "preview_limits",
        'agent-loop.md 13: "Previews: argument strings 500, results 1,000 characters"',
        _cuts_every_result,
    ),
    Rule(
        "message_truncation",
        'agent-loop.md 1: "truncation at `max_message_chars` = 32,768 **code points** with a '
        'notice after the kept part"',
        _counts_code_points,
    ),
)
