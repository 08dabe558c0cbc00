"""Areas of the texts around a turn: the input guard, the sanitizer, silence, secrets, limits."""

from __future__ import annotations

import hashlib
import re

from motet.actors.agent.act import ARGUMENT_PREVIEW, PREVIEW
from motet.actors.agent.guard import Finding, Where, admit, find, guard_action
from motet.actors.agent.sanitize import sanitize, sanitize_step
from motet.actors.agent.sanitize.steps import STEPS
from motet.actors.agent.silence import is_silent
from motet.actors.errors.redact import redact_text
from motet.actors.tracing import texts
from motet.protocols.errors import ConfigError
from tests.vectors.cases import MAIN, Facts, Given, NotUnderstood, NotYet

_LEVELS = {"info": "info", "warning": "warn"}


def _whole(given: Given) -> str:
    """An input that is a text itself, or an object that has one."""
    value = given.get("text", given.value)
    if not isinstance(value, str):
        raise NotUnderstood(str(given))
    return value


# The answer


def answer(given: Given) -> Facts:
    return {MAIN: sanitize(_whole(given))}


def step(given: Given) -> Facts:
    """A step by the words its name shares with one of ours."""
    words = set(given.text("step").lower().split())
    name = max(STEPS, key=lambda name: len(words & set(name.lower().split())))
    if not words & set(name.lower().split()):
        raise NotUnderstood(given.text("step"))
    return {MAIN: sanitize_step(name, given.text("text"))}


def silence(given: Given) -> Facts:
    return {MAIN: is_silent(_whole(given))}


# The input


def guard(given: Given) -> Facts:
    found = find(_whole(given), "warn")
    return {MAIN: list(found.names) if found else []}


def action(given: Given) -> Facts:
    if "configured" in given:
        return _configured(given.text("configured"))
    where = given.text("where")
    place: Where = "injected" if "injected" in where else "message"
    if of := re.match(r"message of (\d+) bytes whose match is at byte (\d+)", where):
        text = "\0".rjust(int(of[2]) + 1, "a").ljust(int(of[1]), "a")
        found = admit(text, guard_action(given.text("action")), where=place).finding
        return _finding(found) if found else {"run": "continues"}
    if "matches" not in given:
        raise NotUnderstood(str(given))
    if given.text("action") == "block" and place == "message":
        raise NotYet("which events a blocked message has is known when the loop has the guard")
    names = tuple(given.texts("matches"))
    return _finding(Finding(names, guard_action(given.text("action")), place))


def _configured(word: str) -> Facts:
    try:
        chosen = guard_action(word)
    except ConfigError as error:
        return {"error": "ConfigError", "message": str(error)}
    return {"action": chosen, "guard": find("\0", chosen) is not None}


def _finding(found: Finding) -> Facts:
    """A blocked message that enters a running turn is dropped; the turn goes on without it."""
    ends = found.blocked and found.where == "message"
    return {
        "log_level": _LEVELS[found.level],
        "event": found.event,
        "run": "fails" if ends else "continues",
        "error": found.told if ends else "",
        "message": f"dropped, and the sender is told: {found.told}" if found.blocked else "kept",
    }


def truncation(given: Given) -> Facts:
    if "injected" in given.text("where"):
        text = admit("a" * 6, "off", 5, "injected").text
        return {MAIN: text, "suffix": text.removeprefix("aaaaa\n")}
    text, limit = given.text("text"), given.number("max")
    if not text:
        raise NotUnderstood(str(given))
    made = admit(text, "off", limit).text
    kept, notice = made[: min(limit, len(text))], made[limit:]
    return {
        MAIN: made,
        "truncated": made != text,
        "kept_bytes": len(kept.encode()),
        "kept_prefix_sha256": hashlib.sha256(kept.encode()).hexdigest(),
        "notice_mentions": [int(figure) for figure in re.findall(r"\d+", notice)],
    }


# Secrets and previews


def secrets(given: Given) -> Facts:
    known = dict.fromkeys(given.texts("dynamic_values"), "[SERVER_IP]")
    return {MAIN: redact_text(given.text("text"), known)}


def preview(given: Given) -> Facts:
    """The limit in code points of what an input describes; nothing described is a span's output."""
    words = _whole(given)
    if not words:
        return {MAIN: texts.PREVIEW}
    if "verbose" in words:
        return {MAIN: texts.INPUT_LIMIT}
    return {MAIN: ARGUMENT_PREVIEW if "argument" in words else PREVIEW}
