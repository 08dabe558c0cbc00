"""Runs with a hook that aborts, raises or hangs, at each point of the host."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import cast

import trio
from trio.testing import MockClock

import motet
from motet.actors.tools.tool import tool
from motet.protocols.chat import ToolMessage
from motet.protocols.errors import Aborted
from motet.protocols.events import AnyEvent, event_name
from motet.protocols.hooks import AnyDecision, AnyHookEvent, Deny, OnError, Point
from motet.protocols.run import RunResult
from tests.scripted import Scripted, call, say
from tests.vectors.cases import Facts, Given, NotUnderstood
from tests.vectors.compare import AnyOf
from tests.vectors.logs import kept_logs

# Words of a point, the first that occurs counts. The seed's names stand beside ours.
_POINTS: tuple[tuple[str, Point], ...] = (
    (r"session.?end", "session_end"),
    (r"session", "session_start"),
    (r"(turn|run).?(error|fail)", "error"),
    (r"warning", "warning"),
    (r"run.?end", "run_end"),
    (r"(post|after).?(turn|run|output)|output", "before_output"),
    (r"turn|run|input|prompt", "before_input"),
    (r"(post|after).?(llm|model|chat)", "after_model"),
    (r"llm|model|chat", "before_model"),
    (r"(post|after).?tool", "after_tool"),
    (r"tool|dispatch", "before_tool"),
)
_HOOKS = re.compile(r"hook|session|turn|output|model|(pre|post|before|after)[_. -]")


def is_hook(given: Given) -> bool:
    """Whether a case is about a hook. ``llm.chat`` and ``tool.execute`` are what hooks stand at."""
    return "hook" in given or _HOOKS.match(given.text("point")) is not None or "fail_open" in given


def hook(given: Given) -> Facts:
    """One run with one call and one hook."""
    words = _words(given)
    named: list[Point] = [p for pattern, p in _POINTS if re.search(pattern, words)]
    point = named[0] if named else "session_start"
    clock = MockClock(autojump_threshold=0)
    return trio.run(_run, point, words, _policy(given), clock=clock)


def _words(given: Given) -> str:
    known = ("point", "hook", "outcome", "raises", "action", "decision", "returns", "at")
    words = " ".join(str(given.get(key)) for key in known if key in given).lower()
    if not words:
        raise NotUnderstood(str(given))
    return words


def _policy(given: Given) -> OnError | None:
    match given.get("fail_open"), given.get("on_error", given.get("policy")):
        case True, _:
            return "continue"
        case False, _:
            return "block"
        case _, "block" | "closed" | "fail_closed" | "fail-closed":
            return "block"
        case _, "continue" | "open" | "fail_open" | "fail-open":
            return "continue"
        case _:
            return None


async def _run(point: Point, words: str, policy: OnError | None) -> Facts:
    async def decide(_event: AnyHookEvent) -> AnyDecision:
        if re.search(r"abort|reject", words):
            return motet.Abort("the hook says no")
        if re.search(r"den(y|ies|ied)", words):
            return Deny("the hook says no")
        if re.search(r"hang|time|slow", words):
            await trio.sleep_forever()
        if re.search(r"continue|allow|ok\b", words) and not re.search(r"rais|fail|err", words):
            return motet.Allow()
        raise RuntimeError("the hook is broken")

    ran: list[str] = []

    async def works() -> str:
        ran.append("t")
        return "fine"

    model = Scripted(call(("t", {})), say("went on"))
    agent = motet.Agent("a", model=model, tools=[tool(works, name="t", description="works")])
    with kept_logs() as logs:
        async with motet.open_host() as host:
            # A case gives each point only what fits it.
            register = cast("Callable[[object], object]", host.on(point, on_error=policy))
            register(decide)
            async with host.stream(agent, "go") as run:
                seen = [event async for event in run]
    return _facts(run.result, seen, ran, logs)


def _facts(result: RunResult, seen: list[AnyEvent], ran: list[str], logs: list[str]) -> Facts:
    error = result.error
    kind = type(error).__name__
    rows = [row for row in result.rows if isinstance(row, ToolMessage)]
    aborted = error if isinstance(error, Aborted) else None
    return {
        "turn": AnyOf((f"Err({kind})",) if error else ("Ok", "continues")),
        "raised": f"AgentError.{kind}" if error else "",
        "error": f"AgentError.{kind}" if error else None,
        "hook": aborted.hook if aborted else "",
        "reason": aborted.reason if aborted else "",
        "cause": aborted.cause if aborted else "",
        "executed": len(ran),
        "skipped": not ran,
        "results": len(rows),
        "success": bool(rows) and rows[0].outcome == "done",
        "output": {"error": rows[0].text if rows else ""},
        "output_text": rows[0].text if rows else "",
        "log": next((level for level in ("error", "warning") if level in logs), "none"),
        "events": [event_name(event) for event in seen],
    }
