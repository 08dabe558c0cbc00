"""Areas of tool loops: the canonical text of arguments, and when calls go in circles."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from motet.actors.transcript.guards import Detector, Kind, Loop, LoopDetector, before_request
from motet.protocols.chat import Call
from motet.protocols.stable_json import call_key, stable_json
from motet.protocols.tools import CallResult
from tests.vectors.cases import MAIN, Facts, Given

# What the tools of the original are; an `action` argument decides for its task board.
KINDS: Mapping[str, Kind] = {
    "exec": "polling",
    "bash": "polling",
    "wait": "polling",
    "mcp_*": "polling",
    "write_file": "write",
    "edit": "write",
    "edit_file": "write",
    "delete_file": "write",
    "message": "write",
    "spawn": "write",
    "team_tasks": "write",
    "team_tasks:": "polling",
    "team_tasks:progress": "polling",
    "team_tasks:list": "read",
    "team_tasks:get": "read",
    "team_tasks:search": "read",
}
NAMES: Mapping[str, Detector] = {
    "same_args": "same_call",
    "read_only": "reads",
    "same_result": "same_result",
}


def canonical(given: Given) -> Facts:
    if set(given.fields) == {"tool", "args"}:
        return {MAIN: call_key(given.text("tool"), json.dumps(given.get("args")))}
    return {MAIN: stable_json(given.value)}


def same_call(given: Given) -> Facts:
    """The first detector alone, in a host whose tools are not marked as polling."""
    loops = LoopDetector()
    if isinstance(given.get("calls"), str):
        return _words(loops)
    found = (_by_detector(loops.observe(*pair)) for pair in _pairs(given))
    return {MAIN: [levels["same_args"] for levels in found]}


def detectors(given: Given) -> Facts:
    """The word of each detector on the last call, and the gravest that it had on any."""
    loops = LoopDetector(KINDS)
    seen = [_by_detector(loops.observe(*pair)) for pair in _pairs(given)]
    gravest = {
        name: max((levels[name] for levels in seen), key=("", "warning", "critical").index)
        for name in NAMES
    }
    last = {**seen[-1], "streak": loops.reads, "unique": loops.distinct}
    return {"last": last, "highest": gravest}


def _words(loops: LoopDetector) -> Facts:
    call, result = Call("c", "list_files", '{"path":"."}'), CallResult("c", "list_files", "x")
    found = [loops.observe(call, result) for _ in range(5)]
    texts = [
        before_request(6, 20, "tool_loop" if one[0].level == "critical" else "", one[0])
        for one in found[2:]
    ]
    return {
        "warning_mentions": _mentions(texts[0], 3),
        "critical_mentions": _mentions(texts[2], 5),
        "starts": all(text.startswith("[System: ") for text in texts),
    }


def _mentions(text: str, count: int) -> list[str]:
    named = ["tool name list_files"] if "list_files" in text else []
    return named + ([f"the count {count}"] if str(count) in text else [])


def _by_detector(found: Sequence[Loop]) -> dict[str, str]:
    levels: dict[Detector, str] = {one.detector: one.level for one in found}
    return {name: levels.get(detector, "") for name, detector in NAMES.items()}


def _pairs(given: Given) -> list[tuple[Call, CallResult]]:
    calls = [Given(item) for item in given.items("calls")]
    return [
        (
            Call(f"c{place}", call.text("tool"), json.dumps(call.get("args"))),
            CallResult(f"c{place}", call.text("tool"), call.text("result")),
        )
        for place, call in enumerate(calls)
    ]
