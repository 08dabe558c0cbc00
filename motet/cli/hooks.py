"""``motet hooks``: the configured hooks, and their answers to a made-up event, without any run."""

from __future__ import annotations

import sys

import msgspec
import trio

from motet.actors.hooks.chain import decide
from motet.actors.hooks.programs import add_configured
from motet.actors.hooks.registry import Hook, HookSet
from motet.cli.exits import FAILED, OK
from motet.cli.render import in_json, one_line
from motet.cli.screen import console
from motet.cli.setup import Setup
from motet.protocols import hooks
from motet.protocols.chat import JsonObject, UserMessage
from motet.protocols.errors import ConfigError
from motet.protocols.hook_rules import HookFault, rule_of
from motet.protocols.hooks import AnyDecision, AnyHookEvent, Verdict
from motet.protocols.models import ModelRequest, ModelResponse, Usage
from motet.protocols.sessions import LOCAL


class HookAnswer(msgspec.Struct, frozen=True):
    """The answer of one hook, as ``--json`` prints it. ``fault``: the failure, if it failed."""

    hook: str
    verdict: AnyDecision
    ms: float
    fault: str = ""


class Report(msgspec.Struct, frozen=True):
    """The answers of all hooks. ``allowed``: the event may happen."""

    allowed: bool
    merged: AnyDecision
    hooks: tuple[HookAnswer, ...]


def list_hooks(setup: Setup, *, json: bool) -> int:
    """Print the configured hooks, in the order they are asked at each point."""
    hooks = _configured(setup).all()
    if json:
        print(in_json([_row(hook) for hook in hooks]))
    elif hooks:
        _print_table(hooks)
    else:
        print(f"no [[hooks]] in {setup.source}", file=sys.stderr)
    return OK


def ask_hooks(setup: Setup, event: str, tool: str, args: str, text: str, *, json: bool) -> int:
    """Ask the configured hooks about a made-up event; 0 if it is allowed, 1 if not."""
    made = _event(setup, event, tool, _arguments(args), text)
    report = trio.run(_asked, _configured(setup), made)
    if json:
        print(in_json(report))
    else:
        for heard in report.hooks:
            failed = f"  failed: {heard.fault}" if heard.fault else ""
            said = f"{_words(heard.verdict)}  {heard.ms:.0f} ms{failed}"
            print(f"{one_line(heard.hook)}: {one_line(said)}")
        matched = "" if report.hooks else "  (no hook matches)"
        print(f"=> {one_line(_words(report.merged))}{matched}")
    return OK if report.allowed else FAILED


async def _asked(configured: HookSet, event: AnyHookEvent) -> Report:
    heard: list[HookAnswer] = []
    faults: list[HookFault] = []

    def hear(hook: Hook, verdict: Verdict, seconds: float) -> None:
        fault = faults.pop().message if faults else ""
        heard.append(HookAnswer(hook.name, verdict.decision, round(seconds * 1000, 1), fault))

    verdict = await decide(configured.of(event), event, faults.append, hear)
    merged = verdict.decision
    refused = isinstance(merged, hooks.Abort | hooks.Deny | hooks.Ask | hooks.Continue)
    return Report(not refused, merged, tuple(heard))


def _configured(setup: Setup) -> HookSet:
    hooks = HookSet()
    try:
        add_configured(hooks, setup.config.hooks, setup.workspace)
    except ConfigError as error:
        raise ConfigError(f"{setup.source}: {error}") from None
    return hooks


def _event(setup: Setup, point: str, tool: str, args: JsonObject, text: str) -> AnyHookEvent:
    """An event like one of a run of the first agent."""
    kind = rule_of(point).event
    if kind in (hooks.BeforeTool, hooks.AfterTool) and not tool:
        raise ConfigError(f"which call? {point} is about one: give --tool NAME")
    call: JsonObject = {"call_id": "call_test", "name": tool, "args": args}
    fields: dict[type[AnyHookEvent], JsonObject] = {
        hooks.SessionStart: {"resumed": False},
        hooks.SessionEnd: {},
        hooks.BeforeInput: {"text": text},
        hooks.BeforeModel: {"request": ModelRequest("model", (UserMessage(text),)), "iteration": 1},
        hooks.AfterModel: {"response": ModelResponse(text), "iteration": 1},
        hooks.BeforeTool: call,
        hooks.AfterTool: {**call, "ok": True, "text": text, "duration_ms": 1.0},
        hooks.BeforeOutput: {"text": text, "continued": 0},
        hooks.BeforeChild: {"child": "helper", "text": text},
        hooks.AfterChild: {
            "child": "helper",
            "child_run": "run_child",
            "status": "completed",
            "output": text,
            "usage": Usage(),
        },
        hooks.BeforeCompact: {"rows": 40, "tokens": 150_000},
        hooks.AfterCompact: {"rows": 40, "summary": text},
        hooks.RunEnd: {"status": "completed", "output": text, "detail": "", "usage": Usage()},
        hooks.RunError: {"kind": "Llm", "message": text},
        hooks.RunWarning: {"source": "test", "message": text},
    }
    common: JsonObject = {
        "point": point,
        "run_id": "run_test",
        "session": "hooks:test",
        "agent": setup.name(None),
        "principal": LOCAL,
    }
    return msgspec.convert(common | fields[kind], kind)


def _arguments(args: str) -> JsonObject:
    try:
        return msgspec.json.decode(args, type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise ConfigError(f"--args {args!r} is not a JSON object: {error}") from None


def _words(decision: AnyDecision) -> str:
    """A decision on one line: its name and its data."""
    given = msgspec.to_builtins(decision)
    name = str(given.pop("decision"))
    said = [value for value in given.values() if value is not None]
    if not said:
        return name
    first = said[0] if isinstance(said[0], str) else msgspec.json.encode(said[0]).decode()
    return f"{name}: {first}"


def _row(hook: Hook) -> JsonObject:
    return {
        "point": hook.point,
        "hook": hook.name,
        "match": "|".join(hook.patterns),
        "on_error": hook.on_error,
        "timeout": hook.timeout,
        "priority": hook.priority,
    }


def _print_table(hooks: tuple[Hook, ...]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in _row(hooks[0]):
        table.add_column(heading, overflow="fold")
    for hook in hooks:
        cells = [f"{v:g} s" if k == "timeout" else str(v) for k, v in _row(hook).items()]
        table.add_row(*(Text(one_line(cell)) for cell in cells))
    console(sys.stdout).print(table)
