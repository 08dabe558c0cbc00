"""Areas of compact errors: their form, when they escalate, which a model sees, the breaker."""

from __future__ import annotations

import re
from datetime import date
from importlib import import_module
from typing import Literal, cast

import msgspec

from motet.actors.agents.prompt import PromptInput, assemble
from motet.actors.errors.classify import compact_error, error_block
from motet.actors.errors.tracker import ErrorContext, ErrorLimits, ErrorTracker, counts_as
from motet.actors.tools.breakers import refusal
from motet.protocols.chat import FailureClass, Outcome
from motet.protocols.errors import CompactError
from motet.protocols.redaction.redact import redact, redact_text
from motet.runtime.breaker import Breaker, BreakerPolicy
from tests.vectors.areas_compaction import compaction
from tests.vectors.areas_host import failing_model
from tests.vectors.cases import MAIN, Facts, Given, NotUnderstood
from tests.vectors.error_forms import escalation_result, render, short_form, without

NOW = 1732230214.0


# Form and category


def compact(given: Given) -> Facts:
    error = short_form(given.text("tool", "t"), raised(given), NOW, code=given.text("code"))
    if "error_type" in given:  # an error that is compact already
        kind, tool = given.get("error_type"), given.text("tool_name", error.tool_name)
        suggestion = given.get("suggestion") or ""
        given_fields = {"error_type": kind, "tool_name": tool, "suggestion": suggestion}
        error = msgspec.convert({**msgspec.to_builtins(error), **given_fields}, CompactError)
    block = error_block(error, given.text("error_id") or None)
    lines = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
    return {
        MAIN: block,
        "context": block,
        "line_count": len(block.split("\n")),
        "tool_name": error.tool_name,
        "error_type": error.error_type,
        "message": lines["message"],
        "suggestion": error.suggestion or None,
        "timestamp": error.timestamp,
    }


def raised(given: Given) -> object:
    if "exception_group" in given:
        members = [Exception(text) for text in given.texts("exception_group")]
        return ExceptionGroup("unhandled errors in a nursery", members)
    if "exception_type" in given:
        return _instance(given.text("exception_type"), given.text("text"))
    for key in ("exception", "error", "message", "text"):
        if key in given:
            value = given.get(key)
            return Exception(value) if isinstance(value, str) else value
    raise NotUnderstood(str(given))


def _instance(name: str, text: str) -> BaseException:
    """An exception by the name of its class, also of one that wants more than a text."""
    module, _, kind = name.rpartition(".")
    found: object = getattr(import_module(module or "builtins"), kind, None)
    if not isinstance(found, type) or not issubclass(found, BaseException):
        raise NotUnderstood(f"{name} is no exception class")
    made = found.__new__(found)
    made.args = (text,) if text else ()
    return made


# Counting and escalation


def tracker(given: Given) -> Facts:
    limits = ErrorLimits(given.number("max_consecutive", 3), given.number("max_total", 10))
    state = ErrorTracker(limits)
    if "ops" in given:
        return {MAIN: _answers(state, given.texts("ops"))}
    if "errors" in given:
        return _escalation(state, given)
    if "new_user_turn" in given:
        return _scope(state)
    if "determine_next_step" in given:
        return failing_model(given)
    if not {"error", "result", "outcome", "exception", "hook"} & given.fields.keys():
        raise NotUnderstood(str(given))
    outcome, failure = _outcome(given)
    counted = counts_as(outcome, failure) == "error"
    return {"counted": counted, "outcome": outcome, "failure": failure}


def _answers(state: ErrorTracker, ops: list[str]) -> list[bool | None]:
    """After each operation: True to go on, False to escalate, None where nothing is counted."""
    answers: list[bool | None] = []
    for op in ops:
        kind, _, tool = op.partition(":")
        match kind:
            case "e":
                state = state.failed(_error(tool, "boom"))
                answers.append(state.escalation is None)
                continue
            case "s":
                state = state.succeeded(tool)
            case "n" | "new_run" | "turn":
                state = state.new_run()
            case "d" | "c":
                assert counts_as("denied") == counts_as("cancelled_while_running") == "neither"
            case _:
                raise NotUnderstood(op)
        answers.append(None)
    return answers


def _escalation(state: ErrorTracker, given: Given) -> Facts:
    errors = given.get("errors")
    spread = re.match(r"(\d+) over (\d+) tools?", errors) if isinstance(errors, str) else None
    if spread:
        pairs = [(f"tool{n % int(spread[2])}", f"e{n}") for n in range(int(spread[1]))]
    else:
        pairs = [(given.text("tool", "t"), text) for text in given.texts("errors")]
    for tool, message in pairs:
        state = state.failed(_error(tool, message))
    if state.escalation is None:
        return {"status": "continues"}
    result = escalation_result(state.escalation)
    return {
        **result,
        "error_history": [error.message for error in state.escalation.history],
        "error_history_len": len(state.escalation.history),
    }


def _scope(state: ErrorTracker) -> Facts:
    before = state.failed(_error("a", "x")).failed(_error("a", "x"))
    after = before.new_run()
    return {
        "consecutive": "kept per session" if after.rows == before.rows else "reset",
        "total": "reset per run" if after.total == 0 else "kept",
    }


def _outcome(given: Given) -> tuple[Outcome, FailureClass | Literal[""]]:
    """How a call ended that an input describes by its error, result or outcome."""
    words = str(given).lower()
    if any(word in words for word in ("denied", "permission", "skip")):
        return "denied", "refusal"
    if "cancel" in words:
        return "cancelled_while_running", ""
    if re.search(r"tool '\w+' not found", words):
        return "failed", "argument"
    return ("done", "") if given.sub("result").get("success") is True else ("failed", "fault")


def _error(tool: str, message: str) -> CompactError:
    return compact_error(tool, "unknown", message, NOW)


# What a model still sees


def context(given: Given) -> Facts:
    if "error_events" in given:
        state = _failures([("t", f"m{n}") for n in range(given.number("error_events"))])
        return {"error_blocks_in_prompt": render(state).count("<error>\n")}
    if "compile" in given:
        prompts = {_prompt() for _ in range(given.number("compile"))}
        return {"equal": len(prompts) == 1}
    if "errors" not in given:
        return compaction(given)
    errors, resolved = given.texts("errors"), given.texts("resolved")
    if len(errors) == 1 and (described := _described(errors[0])):
        return _described_context(described, resolved)
    state = _failures([_tool_and_text(error) for error in given.items("errors")])
    if "success" in given:
        state = state.succeeded(given.text("success"))
    for text in resolved:
        state = without(state, _first(state, text))
    made = render(state, given.number("max_context_errors", 3))
    return {MAIN: made, "shown": made.count("<error>\n")}


def _tool_and_text(error: object) -> tuple[str, str]:
    if not isinstance(error, dict):
        return "t", str(error)
    fields = Given(cast("object", error))
    return fields.text("tool", fields.text("tool_name", "t")), fields.text("message")


def _failures(errors: list[tuple[str, str]]) -> ErrorContext:
    state = ErrorContext()
    for tool, text in errors:
        state = state.failed(short_form(tool, text, NOW))
    return state


def _first(state: ErrorContext, text: str) -> set[int]:
    return {next((e.number for e in state.open if e.error.message == text), 0)}


def _described(text: str) -> list[tuple[str, str]]:
    """Errors that a vector describes: ``same text twice``, ``validation x3 in some_tool``."""
    if "twice" in text:
        return [("t", "same text")] * 2
    several = re.match(r"(\w+) x(\d+) in (\w+)", text)
    return [(several[3], several[1])] * int(several[2]) if several else []


def _described_context(errors: list[tuple[str, str]], resolved: list[str]) -> Facts:
    state = _failures(errors)
    if "the first" in resolved:
        state = without(state, {state.open[0].number})
    return {MAIN: render(state), "shown": render(state).count("<error>\n")}


def _prompt() -> str:
    state = _failures([("t", f"m{n}") for n in range(7)])
    given = PromptInput(instructions="Be brief.", today=date(2024, 11, 21))
    return assemble(given).text + render(state)


# Breaker and redaction


def breaker(given: Given) -> Facts:
    if "opens" in given:
        base = float(given.number("base", 30))
        cap = float(given.number("max", given.number("cap", 600)))
        policy = BreakerPolicy(base=base, cap=cap)
        return {MAIN: [policy.delay(int(str(opens))) for opens in given.items("opens")]}
    if "result" in given:
        return {"counts": counts_as(*_outcome(given)) == "error"}
    if "half_open" in given and given.items("half_open"):
        return _driven(_opened(), given.texts("half_open"))
    if "ops" in given:
        return _driven((Breaker(), 0.0), given.texts("ops"))
    fields = {**given.fields, **given.sub("half_open").fields}
    numbers = [value for value in fields.values() if isinstance(value, int)]
    if len(numbers) != 1:
        raise NotUnderstood(str(given))
    return _at_once(numbers[0])


def _at_once(calls: int) -> Facts:
    """How many of so many calls at once a half-open breaker lets through."""
    state, now = _opened()
    admitted = 0
    for _ in range(calls):
        state, epoch = state.admit(now)
        admitted += epoch is not None
    return {MAIN: admitted, "allowed": admitted, "admitted": admitted}


def _opened() -> tuple[Breaker, float]:
    """A breaker whose time to be open has just passed."""
    state = Breaker()
    for _ in range(state.policy.failures):
        state = state.failed(state.epoch, 0.0)
    return state, state.until


def _driven(start: tuple[Breaker, float], ops: list[str]) -> Facts:
    state, now = start
    for op in ops:
        if op[:1] == "w":
            now += float(re.sub(r"[^\d.]", "", op) or 0)
            continue
        state, epoch = state.admit(now)
        if epoch is not None:
            state = state.succeeded(epoch) if op == "s" else state.failed(epoch, now)
    return {
        "state": state.state,
        "failures": state.failures,
        "allowed": state.admit(now)[1] is not None,
        "retry_after": max(state.until - now, 0.0),
        "message": refusal(state, "t", now),
    }


def redaction(given: Given) -> Facts:
    if "attribute" in given:
        return {MAIN: redact_text(given.text("attribute"))}
    for key in ("attributes", "value"):
        if key in given:
            return {MAIN: redact(given.get(key))}
    raise NotUnderstood(str(given))
