"""Functions that tests run in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import date
from pathlib import Path

import msgspec

from motet.actors.tools.process_tool import process_tool
from motet.protocols.tools import ToolDenied, ToolFailure, ToolNegative, ToolRetry


class Point(msgspec.Struct):
    x: int
    day: date


@process_tool(timeout=30, effects="write", name="moved")
def move(point: Point, by: int = 1) -> Point:
    """Move a point.

    Args:
        by: how far.
    """
    print("this is no part of the result")
    return Point(point.x + by, point.day)


def where() -> dict[str, object]:
    return {"pid": os.getpid(), "folder": os.getcwd(), "data": b"\0\1"}


async def later(text: str) -> str:
    return text.upper()


def sleep(mark: str) -> None:
    """With a child, and one that has left the session."""
    subprocess.Popen(["sleep", mark])
    subprocess.Popen(["sleep", mark], start_new_session=True)
    time.sleep(float(mark))


def linger() -> str:
    """Leaves a thread behind that never ends."""
    threading.Thread(target=time.sleep, args=(1000,)).start()
    return "done"


def fail(how: str) -> object:
    print("said before")
    match how:
        case "retry":
            raise ToolRetry("try list_units")
        case "denied":
            raise ToolDenied("not you")
        case "failure":
            raise ToolFailure("broken", detail={"part": 7}, code="E7", kind="auth")
        case "missing":
            Path("/no/such/file").read_text()
        case "exit":
            sys.exit(3)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "vanish":
            os._exit(7)
        case "strange":
            return object()
        case "cycle":
            cycle: list[object] = []
            cycle.append(cycle)
            return cycle
        case "half":
            return "\ud800"
        case "large":
            return [2**70]
        case "no":
            raise ToolNegative("none", value=object())
        case "garbled":
            raise ToolFailure("a\ud800b", detail={"x": object()}, code="\ud800")
        case _:
            return "x" * int(how)
    return None
