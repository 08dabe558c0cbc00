"""The files and functions of motet that each story of a host executes.

A reader who has to change a story reads these files, so their number is a cost like time and
memory. The host is a real one on disk; its model is scripted. Code of ``motet.testing`` is the
reader's own side and does not count, and neither do generated functions without a file.

    python tests/house_trace.py            the figures; docs/architecture.md holds them
    python tests/house_trace.py --files    with the names of the files
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import trio
import trio.testing

import motet
from motet.testing import ScriptedModel, call, say

ROOT = Path(motet.__file__).resolve().parent.parent
STORIES = ("submit", "text turn", "tool turn", "stop")
MOST = {"submit": 24, "text turn": 55, "tool turn": 70, "stop": 45}
"""The bounds on files."""
TURNS, STOPS = 3, 4
"""Times that turns and inputs, and the stop, are told: spans are written a second after they come,
as may happen in one of them."""


class Tracer:
    """Notes each function of motet that begins while a story is open, in all threads.

    Of a story that is told several times, what each of them executes: a timer of the host that goes
    off in one of them is no part of it.
    """

    def __init__(self) -> None:
        self.stories: dict[str, set[tuple[str, str]]] = {}
        self._open: set[tuple[str, str]] | None = None
        self._names: dict[str, str | None] = {}

    @contextmanager
    def story(self, name: str) -> Generator[None]:
        seen = self._open = set()
        yield
        self._open = None
        self.stories[name] = self.stories.get(name, seen) & seen

    def __call__(self, frame: FrameType, _event: str, _argument: object) -> None:
        if self._open is not None and (file := self._file(frame.f_code.co_filename)):
            self._open.add((file, frame.f_code.co_qualname))

    def _file(self, name: str) -> str | None:
        if name not in self._names:
            # Generated functions have names such as ``<attrs generated ...>``.
            path = Path(name if name[0] != "<" else "/").resolve()
            inside = path.is_relative_to(ROOT) and ".venv" not in path.parts
            relative = path.relative_to(ROOT) if inside else Path("motet/testing")
            counted = (
                relative.parts[0] not in ("tests", "bench") and "testing" not in relative.parts
            )
            self._names[name] = relative.as_posix() if counted else None
        return self._names[name]

    def files(self, story: str) -> list[str]:
        return sorted({file for file, _ in self.stories[story]})


def helper(entered: trio.Semaphore) -> motet.Agent:
    hello, order_it = say("hello"), [call("order", item="pear"), say("done")]
    told = [hello] * (1 + TURNS)
    script = [*told, *order_it * TURNS, hello, *[hello] * TURNS, *[call("slow")] * STOPS]
    agent = motet.Agent("helper", model=ScriptedModel(script))

    @agent.tool
    async def order(item: str) -> str:
        """Order an item."""
        return f"ordered {item}"

    @agent.tool
    async def slow() -> str:
        """Take for ever."""
        entered.release()
        await trio.sleep_forever()
        return ""

    return agent


async def quiet() -> None:
    """Return when the batches of the story before are on disk: they are part of no other story."""
    await trio.testing.wait_all_tasks_blocked(cushion=0.1)


async def tell(tracer: Tracer, state: str) -> None:
    entered = trio.Semaphore(0)
    agent = helper(entered)
    async with motet.open_host(state, agents=[agent]) as host:
        await host.run(agent, "warm up", session="user:ann")
        await quiet()
        for _ in range(TURNS):
            with tracer.story("text turn"):
                await host.run(agent, "again", session="user:ann")
            await quiet()
        for _ in range(TURNS):
            with tracer.story("tool turn"):
                await host.run(agent, "use a tool", session="user:ann")
            await quiet()
        # The first input that nobody waits for starts the session's actor.
        await host.wait_run((await host.submit("third", session="user:ann")).run_id)
        await quiet()
        for _ in range(TURNS):
            with tracer.story("submit"):
                ack = await host.submit("fourth", agent="helper", session="user:ann")
            await host.wait_run(ack.run_id)
            await quiet()
        for number in range(STOPS):
            await host.submit("be slow", agent="helper", session=f"user:ben{number}")
            await entered.acquire()
            await quiet()
            with tracer.story("stop"):
                await host.stop(session=f"user:ben{number}")


def traced() -> Tracer:
    tracer = Tracer()
    threading.settrace(tracer)
    sys.settrace(tracer)
    try:
        with tempfile.TemporaryDirectory() as state:
            trio.run(tell, tracer, state)
    finally:
        sys.settrace(None)
        threading.settrace(None)
    return tracer


def main() -> None:
    tracer = traced()
    for story in STORIES:
        files = tracer.files(story)
        print(f"{story}: {len(files)} files, {len(tracer.stories[story])} functions")
        if "--files" in sys.argv:
            print(*(f"    {file}" for file in files), sep="\n")


if __name__ == "__main__":
    main()
