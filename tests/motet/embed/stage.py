"""An agent whose tool waits, and tells other threads where it is."""

from __future__ import annotations

import threading

import trio

import motet
from tests.scripted import Scripted, call, say


class Waiting:
    """``agent`` calls a tool that waits until it is cancelled.

    ``begun`` is set when it waits, ``ended`` when it has cleaned up, which takes a moment.
    """

    def __init__(self, runs: int = 1) -> None:
        self.begun = threading.Event()
        self.ended = threading.Event()
        model = Scripted(*(call(("wait", {})) for _ in range(runs)), name="waiting")
        self.agent = motet.Agent("waiting", model=model, tools=[self.wait])

    async def wait(self) -> None:
        self.begun.set()
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.02)
            self.ended.set()


def talker(*answers: str) -> motet.Agent:
    return motet.Agent(
        "talker", model=Scripted(*(say(answer) for answer in answers), name="talker")
    )
