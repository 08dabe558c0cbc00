"""The redactor: processor time for ten megabytes of texts of several kinds.

The machine is told by a fixed work: one scan of the same text for two rare signs. Values are the
best of some rounds, in processor seconds, so that other programs of the machine count little.
Texts are made here, with random parts, so that no secret is written down.
"""

from __future__ import annotations

import base64
import json
import random
import re
import string
import time
from collections.abc import Callable
from functools import partial

import msgspec

from motet.protocols.redaction.redact import redact_text

__all__ = ["TEXTS", "Figure", "measure", "table"]

SIZE = 10_000_000
GOAL = 0.3
"""Processor seconds, for texts of work as for texts of which each line has a secret."""
CALIBRATION = re.compile("[@~]")
LETTERS = string.ascii_letters + string.digits


class Figure(msgspec.Struct, frozen=True):
    """One figure. ``ratio``: over the calibration, which is comparable between machines."""

    row: str
    value: float
    unit: str
    ratio: float
    goal: str
    met: bool


def _logs(source: random.Random) -> str:
    return (
        f"2026-11-21T10:20:{source.randrange(60):02}.{source.randrange(10**6):06}Z INFO "
        f"[worker-{source.randrange(32)}] motet.runs request_id={source.getrandbits(128):032x} "
        f"GET /api/v1/items/{source.randrange(10**6)} 200 {source.randrange(9_000)} bytes\n"
    )


WORDS = re.findall(
    "[a-z]+",
    "the error was stored before the model had seen its summary and a person could answer it in "
    "time because every line of the text is read once by an engine that knows many forms of keys",
)


def _prose(source: random.Random) -> str:
    return " ".join(source.choices(WORDS, k=14)).capitalize() + ".\n"


def _json(source: random.Random) -> str:
    row = {"id": source.randrange(10**9), "at": "2026-11-21T10:20:10Z", "price": source.random()}
    return json.dumps({**row, "tags": ["a", "b"], "owner": f"{source.getrandbits(128):x}"}) + "\n"


def _base64(source: random.Random) -> str:
    return base64.b64encode(source.randbytes(57)).decode() + "\n"


def _code(source: random.Random) -> str:
    name = source.choice(("value", "result", "text", "token", "path"))
    return (
        f"    def read_{name}_{source.randrange(99)}(self, {name}: str | None = None) -> str:\n"
        f'        """The {name} of a request, or nothing."""\n'
        f"        if {name} is None or len({name}) > {source.randrange(99)}:\n"
        f"            raise ValueError(f'no {name}: {{self.kind!r}}')\n"
    )


def _traceback(source: random.Random) -> str:
    frame = (
        f'  File "/srv/app/pkg{source.randrange(9)}/mod.py", line {source.randrange(900)}, in f\n'
    )
    return f"{frame}    result = await self.client.call(request, timeout=30)\n"


def _word(source: random.Random, size: int) -> str:
    return "".join(source.choices(LETTERS, k=size - 1)) + "7"


def _variables(source: random.Random) -> str:
    return f"export SERVICE_{source.randrange(99)}_DB_PASSWORD={_word(source, 24)}\n"


def _objects(source: random.Random) -> str:
    row = {"user": "bob", "host": "db.example.com", "password": _word(source, 16), "port": 5432}
    return json.dumps(row) + "\n"


def _headers(source: random.Random) -> str:
    return f"> GET /api/v1/items HTTP/1.1\n> Authorization: Bearer {_word(source, 40)}\n"


def _urls(source: random.Random) -> str:
    return f"connecting to postgres://app:{_word(source, 16)}@db.example.com:5432/app\n"


def _tokens(source: random.Random) -> str:
    return f"the key {'gh' + 'p_'}{_word(source, 36)} was refused by the server\n"


TEXTS: dict[str, tuple[Callable[[random.Random], str], float]] = {
    "logs": (_logs, GOAL),
    "prose": (_prose, GOAL),
    "JSON": (_json, GOAL),
    "base64": (_base64, GOAL),
    "source code": (_code, GOAL),
    "tracebacks": (_traceback, GOAL),
    "secrets in variables": (_variables, GOAL),
    "secrets in JSON": (_objects, GOAL),
    "secrets in headers": (_headers, GOAL),
    "secrets in URLs": (_urls, GOAL),
    "secrets of a vendor": (_tokens, GOAL),
}


def text(name: str, size: int = SIZE) -> str:
    """A text of one kind."""
    source = random.Random(name)
    block = "".join(TEXTS[name][0](source) for _ in range(5_000))
    return (block * (size // len(block) + 1))[:size]


def measure(rounds: int, size: int = SIZE) -> list[Figure]:
    """The figures of all texts, in processor seconds for ten megabytes."""
    made: list[Figure] = []
    for name, (_, goal) in TEXTS.items():
        whole = text(name, size)
        redact_text(whole[:100_000])
        scan = _best(partial(CALIBRATION.findall, whole), rounds)
        value = _best(partial(redact_text, whole), rounds) * SIZE / size
        ratio = round(value / (scan * SIZE / size), 1)
        made.append(
            Figure(
                f"redact {name}", round(value, 3), "s/10 MB", ratio, f"<= {goal} s", value <= goal
            )
        )
    return made


def _best(work: Callable[[], object], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return best


def table(figures: list[Figure]) -> str:
    """The figures as aligned text."""
    lines = [f"{'':32}{'CPU':>8} {'unit':10}{'scans':>7}  goal"]
    for one in figures:
        met = "met" if one.met else "MISSED"
        lines.append(
            f"{one.row:32}{one.value:>8.3f} {one.unit:10}{one.ratio:>7.1f}  {one.goal}  {met}"
        )
    return "\n".join(lines)
