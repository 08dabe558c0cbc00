"""What people say to members who have the floor, in a room whose mode is ``steer``.

It enters their runs as what steers any run does, on disk and past its gates. Invariants: it enters
in the order in which it was said, and nothing of it when what was said before it has not entered;
what enters nobody is not lost: it opens the next round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from motet.actors.log import logger
from motet.actors.rooms.speaker import Speaker
from motet.actors.rooms.told import line_of
from motet.actors.sessions.run import Run
from motet.protocols.rooms import RoomMessage

_log = logger("motet.rooms")


class Interjections:
    """Of the turns that go on in one room. :meth:`run` is to go on while something waits."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, RoomMessage]] = deque()
        self._through: dict[str, int] = {}
        self._begun = 0
        self._given: dict[str, list[tuple[int, Run]]] = {}
        self._heard: set[int] = set()
        self._running = False

    def begin(self, heard: int) -> None:
        """Others have the floor; what people said up to number ``heard`` is told to them then."""
        self._waiting.clear()
        self._through.clear()
        self._begun = heard
        self._given.clear()
        self._heard.clear()

    def add(self, message: RoomMessage, before: int) -> bool:
        """Whether :meth:`run` has to be started for it; ``before``: what people said before it."""
        self._waiting.append((before, message))
        return not self._running

    async def run(self, speaker: Speaker) -> None:
        """Give what waits to whoever speaks."""
        if self._running:
            return
        self._running = True
        try:
            while self._waiting:
                before, message = self._waiting.popleft()
                for member, run in speaker.at_work().items():
                    if self._through.get(member, self._begun) >= before:
                        await self._give(speaker, member, run, message)
        finally:
            self._running = False

    async def _give(self, speaker: Speaker, member: str, run: Run, message: RoomMessage) -> None:
        try:
            entering = await speaker.entering(run, line_of(message))
            self._given.setdefault(member, []).append((message.seq, entering))
            await speaker.enter(entering)
            self._through[member] = message.seq
        except Exception as error:
            _log.info("a message waits for the next round", room=speaker.room.name, why=str(error))

    def spoken(self, member: str) -> Collection[int]:
        """The numbers of what has entered the turn of a member, which is over."""
        given = self._given.get(member, ())
        entered = {seq for seq, run in given if run.result and run.result.status == "steered"}
        self._heard |= entered
        return entered

    def heard(self, unheard: Sequence[RoomMessage], before: int) -> int:
        """Up to which number people were heard, if that was ``before`` and these came then."""
        return prefix(unheard, self._heard, before)


def prefix(messages: Sequence[RoomMessage], numbers: Collection[int], before: int) -> int:
    """The last of the ``messages`` before the first that is not among the ``numbers``."""
    for message in messages:
        if message.seq not in numbers:
            break
        before = message.seq
    return before
