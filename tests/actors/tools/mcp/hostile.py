"""The misdeeds of an MCP server: the bytes that it sends in place of an answer. Pure, stdlib only.

``python hostile.py`` is such a server on pipes; ``hostile_web.py`` is one over HTTP. Their tool
``do`` takes the misdeed as ``how``; ``echo`` is well-behaved.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

DEAD = frozenset({"never", "garbage", "wrong_id", "null_id"})
"""After these, a client on a pipe can only wait for its time-out."""
GOOD = {
    *("surrogate", "bytes", "nulls", "twice", "early", "text_id", "notices", "requests", "relist"),
    *("big", "commas", "unknown_fields"),
}
"""After these, or during them, the answer comes."""
BAD = {
    *("list_result", "text_result", "no_result", "both", "no_content", "bad_content", "nested"),
    *("bad_error", "error", "surrogate_error", "dense"),
}
"""The answer breaks the protocol, or refuses: the call fails at once and the session goes on."""
ENDS = {"huge", "flood", "answers_to_nobody", "close", "exit", "half", "babble"}
"""The session ends."""
MISDEEDS = sorted({*GOOD, *BAD, *ENDS, *DEAD})

FLOOD = 20_000


def line(message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


def fine(id: object, text: str = "done") -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": text}]}}


def dense(id: object) -> bytes:
    """Of a quarter of a million values, in a megabyte."""
    answer = fine(id)
    answer["result"]["structuredContent"] = {"rows": [[1, {}]] * 80_000}
    return line(answer)


def answers(how: str, id: int) -> list[bytes]:
    """The lines in place of an answer."""
    head = {"jsonrpc": "2.0", "id": id}
    raw = b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"%%s"}]}}\n' % id
    notice = {"jsonrpc": "2.0", "method": "notifications/message"}
    noise = line({**notice, "params": {"level": "info", "data": "la"}})
    changed = line({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    found: dict[str, Callable[[], list[bytes]]] = {
        "never": list,
        "garbage": lambda: [b"\x00\xff\xfe garbage {]\n", b"[]\n", b"null\n", b'"x"\n', b"{}\n"],
        "wrong_id": lambda: [line(fine(id + 1000))],
        "null_id": lambda: [
            line({**head, "id": None, "error": {"code": -32700, "message": "what?"}})
        ],
        "surrogate": lambda: [raw % b"a\\ud800b \\ud83d\\ude00 \\\\ud800"],
        "bytes": lambda: [raw % b"a\xff\xfeb"],
        "nulls": lambda: [raw % b"a\\u0000b"],
        "twice": lambda: [line(fine(id)), line(fine(id, "again")), line({**head, "error": {}})],
        "early": lambda: [line(fine(id + n, "early")) for n in (1, 2, 3)] + [line(fine(id))],
        "text_id": lambda: [line(fine(str(id)))],
        "notices": lambda: [noise] * 2_000 + [line(fine(id))],
        "flood": lambda: [noise] * FLOOD,
        "answers_to_nobody": lambda: [line(fine(n)) for n in range(id + 1, id + FLOOD)],
        "requests": lambda: [*pings(FLOOD // 40), line(fine(id))],
        "relist": lambda: [changed] * 500 + [line(fine(id))] + [changed] * 500,
        "big": lambda: [line(fine(id, "x" * 5_000_000))],
        "commas": lambda: [line(fine(id, '[{,\\",' * 300_000))],
        "dense": lambda: [dense(id)],
        "unknown_fields": lambda: [line({**fine(id), "more": {"x": 1}})],
        "list_result": lambda: [line({**head, "result": [1, 2]})],
        "text_result": lambda: [line({**head, "result": "done"})],
        "no_result": lambda: [line(head)],
        "both": lambda: [line({**head, "result": 5, "error": 6})],
        "no_content": lambda: [line({**head, "result": {"content": None}})],
        "bad_content": lambda: [line({**head, "result": {"content": [{"type": "text"}, 5]}})],
        "nested": lambda: [
            raw % (b'"},' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b',{"b":"')
        ],
        "bad_error": lambda: [line({**head, "error": "no"})],
        "error": lambda: [line({**head, "error": {"code": -32000, "message": "no"}})],
        "surrogate_error": lambda: [
            b'{"jsonrpc":"2.0","error":{"code":1,"message":"\\udc00"},"id":%d}\n' % id
        ],
        "huge": lambda: [line(fine(id, "x" * 10_000_000))],
        "half": lambda: [line(fine(id))[:30]],
        "babble": lambda: [b"la la la\n"] * 1_000,
    }
    return found.get(how, list)()


def pings(count: int) -> list[bytes]:
    return [line({"jsonrpc": "2.0", "id": n, "method": "ping"}) for n in range(count)]


def listing(tools: list[str]) -> dict[str, object]:
    schema = {"type": "object"}
    return {"tools": [{"name": name, "inputSchema": schema} for name in tools]}


def hello(params: dict[str, Any]) -> dict[str, object]:
    return {
        "protocolVersion": params["protocolVersion"],
        "serverInfo": {"name": "hostile", "version": "1"},
        "capabilities": {"tools": {"listChanged": True}},
    }


class Server:
    """On pipes. Its list of tools has another tool with each look."""

    looks = 0

    def run(self) -> None:
        for text in sys.stdin:
            self.take(json.loads(text))

    def send(self, *lines: bytes) -> None:
        sys.stdout.buffer.write(b"".join(lines))
        sys.stdout.buffer.flush()

    def take(self, message: dict[str, Any]) -> None:
        id, params = message.get("id"), message.get("params", {})
        head = {"jsonrpc": "2.0", "id": id}
        match message.get("method"):
            case "initialize":
                self.send(line({**head, "result": hello(params)}))
            case "tools/list":
                self.looks += 1
                self.send(line({**head, "result": listing(["do", "echo", f"t{self.looks}"])}))
            case "tools/call" if params["name"] == "echo":
                self.send(line(fine(id, params["arguments"]["text"])))
            case "tools/call":
                assert isinstance(id, int)
                how = params["arguments"]["how"]
                self.send(*answers(how, id))
                if how == "close":
                    os.close(1)
                if how in ("exit", "half"):
                    os._exit(7)
            case _:
                pass


if __name__ == "__main__":
    Server().run()
