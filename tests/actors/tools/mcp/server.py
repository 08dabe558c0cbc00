"""A small MCP server written by hand, with all the faults that a server can have.

``python server.py [FAULT] [--journal FILE]``. It needs nothing but the standard library, so that it
starts in a moment. What its calls come to goes into the journal, a line each.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

FAULTS = (
    *("dies", "silent", "greets", "babbles", "floods", "old", "stubborn", "deaf", "modern"),
    "odd",
)
TOOLS = {
    "echo": {"text": {"type": "string"}},
    "slow": {"seconds": {"type": "number"}},
    "big": {"size": {"type": "integer"}},
    "die": {},
    "grow": {"name": {"type": "string"}},
    "image": {},
    "fail": {},
    "busy": {},
    "absent": {},
    "pending": {},
    "structured": {},
    "orphan": {"mark": {"type": "string"}},
}
UNLAWFUL: dict[str, dict[str, object]] = {
    "text_schema": {"inputSchema": "object"},
    "null_schema": {"inputSchema": None},
    "list_schema": {"inputSchema": [{"type": "object"}]},
    "bool_schema": {"inputSchema": True},
    "of_array": {"inputSchema": {"type": "array"}},
    "of_types": {"inputSchema": {"type": ["object", "null"]}},
    "untyped": {"inputSchema": {"properties": {}}},
    "odd_properties": {"inputSchema": {"type": "object", "properties": ["a"]}},
    "odd_required": {"inputSchema": {"type": "object", "required": "a"}},
    "odd_text": {"description": {"en": "x"}},
    "odd_hints": {"annotations": "read-only"},
    "odd_output": {"outputSchema": []},
    "odd_icons": {"icons": [5]},
    "nameless": {"name": None},
    "numbered": {"name": 5},
}
ODD: dict[str, dict[str, object]] = {
    "raw": {"inputSchema": {"type": "object", "properties": {"any": True, "none": False}}},
    "loop": {"inputSchema": {"type": "object", "allOf": [{"$ref": "#"}]}},
    "older": {
        "inputSchema": {"type": "object", "properties": {"x": {"items": [{"type": "null"}]}}}
    },
    "task": {"execution": {"taskSupport": "required"}},
    "may_be_task": {"execution": {"taskSupport": "optional"}},
    "page": {"_meta": {"ui": {"visibility": ["app"]}}},
    "remote": {"inputSchema": {"type": "object", "$ref": "https://schemas.example/x.json"}},
    "invalid": {"inputSchema": {"type": "object", "properties": {"x": {"type": "strin"}}}},
    "deep": {"inputSchema": {"type": "object", "not": {"not": {"not": None}}}},
    "half_pair": {"description": "a \ud800 b"},
    **UNLAWFUL,
}
READS = ("echo", "slow", "structured")
PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(60)).decode()


class Server:
    def __init__(self, fault: str, journal: str | None) -> None:
        self.fault = fault
        self.journal = journal
        self.tools: dict[str, dict[str, Any]] = dict(TOOLS)
        if fault == "odd":
            self.tools = {name: {} for name in ODD}
        self.timers: dict[object, threading.Timer] = {}
        self.lock = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        with self.lock:
            print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

    def note(self, text: str) -> None:
        if self.journal:
            with open(self.journal, "a") as file:
                file.write(text + "\n")

    def run(self) -> None:
        if self.fault == "dies":
            print("cannot find my settings", file=sys.stderr)
            sys.exit(4)
        if self.fault == "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self.fault == "greets":
            print("Welcome to the server!\n\n{half a line", flush=True)
        while self.fault == "babbles":
            print("la la la", flush=True)
        if self.fault == "floods":
            for _ in range(20_000):
                print("something is deprecated " * 20, file=sys.stderr)
        self.note("start")
        for line in sys.stdin:
            self.take(json.loads(line))
        while self.fault == "stubborn":
            time.sleep(60)
        self.note("end")

    def take(self, message: dict[str, Any]) -> None:
        number, params = message.get("id"), message.get("params", {})
        match message["method"]:
            case _ if self.fault == "silent":
                pass
            case "initialize" if self.fault == "modern":
                self.send({"id": number, "error": {"code": -32601, "message": "Method not found"}})
            case "initialize":
                version = "1999-01-01" if self.fault == "old" else params["protocolVersion"]
                self.send({"id": number, "result": self.hello(protocolVersion=version)})
            case "server/discover":
                hello = self.hello(supportedVersions=["2026-07-28"], resultType="complete")
                self.send({"id": number, "result": hello})
            case "tools/list":
                listing = self.listing(params)
                self.send({"id": number, "result": listing})
                if self.fault == "deaf" and "nextCursor" not in listing:
                    time.sleep(3600)
            case "tools/call":
                self.call(number, params["name"], params.get("arguments", {}))
            case "notifications/cancelled":
                timer = self.timers.pop(params["requestId"], None)
                if timer:
                    timer.cancel()
                self.note(f"cancelled {'' if timer else 'unknown '}".strip())
            case _:
                pass

    def hello(self, **more: object) -> dict[str, object]:
        info = {"name": "faulty", "version": "1"}
        modern = {"ttlMs": 0, "cacheScope": "private"} if "supportedVersions" in more else {}
        return {
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": info,
            **more,
            **modern,
        }

    def listing(self, params: dict[str, Any]) -> dict[str, object]:
        """Two tools a page."""
        names = list(self.tools)
        at = int(params.get("cursor", 0))
        listed = [self.listed(name) for name in names[at : at + 2]]
        more = {"nextCursor": str(at + 2)} if at + 2 < len(names) else {}
        modern = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        return {"tools": listed, **more, **(modern if self.fault == "modern" else {})}

    def listed(self, name: str) -> dict[str, object]:
        schema = {
            "type": "object",
            "properties": self.tools[name],
            "required": list(self.tools[name]),
        }
        hints = {"readOnlyHint": name in READS}
        about = f"The tool {name}."
        plain = {"name": name, "description": about, "inputSchema": schema, "annotations": hints}
        return {**plain, **(ODD[name] if self.fault == "odd" else {})}

    def answer(self, number: object, *content: dict[str, object], **more: object) -> None:
        modern = {"resultType": "complete"} if self.fault == "modern" else {}
        self.send({"id": number, "result": {"content": list(content), **more, **modern}})

    def call(self, number: object, name: str, args: dict[str, Any]) -> None:
        self.note(f"call {name}")
        match name:
            case "echo":
                self.answer(number, text(args["text"]))
            case "slow":
                self.timers[number] = threading.Timer(args["seconds"], self.late, (number,))
                self.timers[number].daemon = True
                self.timers[number].start()
            case "big":
                self.answer(number, text("line of a large result\n" * (args["size"] // 23)))
            case "die":
                print("I have had enough", file=sys.stderr, flush=True)
                os._exit(3)
            case "grow":
                self.tools[args["name"]] = {}
                self.send({"method": "notifications/tools/list_changed"})
                self.answer(number, text("grown"))
            case "image":
                self.answer(
                    number,
                    text("a picture"),
                    {"type": "image", "data": PIXEL, "mimeType": "image/png"},
                )
            case "pending":
                self.answer(number, text(str(len(self.timers))))
            case "busy":
                self.send({"id": number, "error": {"code": -32000, "message": "too busy"}})
            case "absent":
                self.send({"id": number, "error": {"code": -32002, "message": "no such page"}})
            case "fail":
                self.answer(number, text("the disk is full\nreally"), isError=True)
            case "structured":
                self.answer(number, text('{"a": 1}'), structuredContent={"a": 1})
            case "raw":
                self.answer(number, text(json.dumps(args)))
            case "orphan":
                # A grandchild in a session of its own: no process group holds it.
                program = (
                    "import os, sys, time; os.fork() and sys.exit(); os.setsid(); time.sleep(3600)"
                )
                subprocess.run([sys.executable, "-c", program, args["mark"]], check=True)
                self.answer(number, text("left behind"))
            case _:
                self.answer(number, text(f"this is {name}"))

    def late(self, number: object) -> None:
        if self.timers.pop(number, None):
            self.answer(number, text("at last"))


def text(words: str) -> dict[str, object]:
    return {"type": "text", "text": words}


if __name__ == "__main__":
    words = sys.argv[1:]
    file = words[words.index("--journal") + 1] if "--journal" in words else None
    Server(words[0] if words and words[0] in FAULTS else "", file).run()
