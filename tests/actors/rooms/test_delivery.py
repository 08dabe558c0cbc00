"""In every mode and at every moment, each member is told everything once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress

import attrs
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st

import motet
from motet.protocols.chat import UserMessage
from motet.protocols.models import ModelEvent, ModelRequest
from motet.protocols.rooms import ROOM_MODES, RoomMode
from motet.protocols.sessions import LOCAL, SessionBusy
from tests.actors.rooms.talk import Speaks

MEMBERS = ("ann", "ben")


@attrs.frozen
class Step:
    """Somebody says something, after so many of the room's own steps."""

    called: str
    after: int


steps = st.builds(Step, st.sampled_from(["@ann", "@ben", "@all", ""]), st.integers(0, 60))


class Talks(Speaks):
    """Says something of its own, then passes, in turns of several steps."""

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        for _ in range(30):
            await trio.lowlevel.checkpoint()
        async with super().request(request) as parts:
            yield parts


def member(name: str) -> motet.Agent[None]:
    counts = iter(range(10_000))

    def script(_: str) -> str:
        number = next(counts)
        return f"<{name}{number}>" if number % 2 else "PASS"

    return motet.Agent(name, model=Talks(script, name))


async def play(mode: RoomMode, concurrency: int, story: list[Step]) -> None:
    agents = [member(name) for name in MEMBERS]
    room = motet.Room("r", members=agents, mode=mode, concurrency=concurrency, history=500)
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        for number, step in enumerate(story):
            for _ in range(step.after):
                await trio.lowlevel.checkpoint()
            with suppress(SessionBusy):
                await opened.post(f"{step.called} <m{number}>", user="alice")
        await opened.wait()
        await opened.post("@all <last>", user="alice")
        await opened.wait()
        assert opened.waits
        said = [(one.author, one.text) for one in await opened.history(limit=500)]
        for name in MEMBERS:
            session = f"agent:{name}:room:group:r"
            rows = await host.history(session, limit=200, principal=LOCAL)
            heard = "\n".join(one.row.text for one in rows if isinstance(one.row, UserMessage))
            for author, text in said:
                token = text[text.index("<") : text.index(">") + 1]
                # What is said after the last one's turn began is told at the next.
                behind = said.index((author, text)) > said.index(("alice", "@all <last>"))
                times = heard.count(token)
                assert times == (author != name) or (behind and times == 0), (name, token, heard)


@settings(max_examples=5, deadline=None)
@given(st.sampled_from(ROOM_MODES), st.integers(1, 2), st.lists(steps, min_size=1, max_size=5))
@example("steer", 2, [Step("@all", 0), Step("", 30), Step("@ben", 10), Step("", 30)])
@example("steer", 1, [Step("@ann", 0), Step("@ann", 0), Step("@ann", 0), Step("@ann", 0)])
@example("followup", 1, [Step("@all", 0), Step("@ann", 9), Step("@ben", 0)])
@example("interrupt", 1, [Step("@all", 0), Step("@ann", 30), Step("", 9)])
def test_each_member_is_shown_every_message_once(
    mode: RoomMode, concurrency: int, story: list[Step]
) -> None:
    """Law: of what was taken and said, each member is told all that others said, none twice."""

    async def main() -> None:
        with trio.fail_after(20):
            await play(mode, concurrency, story)

    trio.run(main)
