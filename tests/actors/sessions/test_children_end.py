"""Children end with their caller in one step, whatever ends it and however long that cleans up."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal, TypeAlias

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

import motet
from motet.actors.models.provider import Played
from motet.protocols.approvals import ApprovalsConfig
from motet.protocols.config import HostConfig
from motet.protocols.models import ModelEvent, ModelRequest
from tests.scripted import Scripted, call, say

End: TypeAlias = Literal["interrupt", "wall", "cancel", "stop", "drain"]
ENDS: tuple[End, ...] = ("interrupt", "wall", "cancel", "stop", "drain")
CLEANS_UP = 3.0


@attrs.define
class Busy:
    """A model that has its tool called again and again, after one more child if there is to be.

    ``done``: when it was asked, and when the tool of its agent began.
    """

    name: str
    below: str = ""
    done: list[float] = attrs.field(factory=list[float])

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        self.done.append(trio.current_time())
        await trio.sleep(0.05)
        first = len(request.messages) == 1 and self.below
        step = call(("spawn", {"agent": self.below, "task": "go"})) if first else None
        step = step or call(("tick", {"n": len(request.messages)}))
        assert isinstance(step, list)
        yield Played(step)

    def agent(self) -> motet.Agent[None]:
        limits = motet.Limits(turns=1_000, depth=5)
        agent = motet.Agent(self.name, model=self, tools=["group:agents"], limits=limits)

        @agent.tool
        async def tick(n: int) -> str:
            self.done.append(trio.current_time())
            await trio.sleep(0.25)
            return f"ticked {n}"

        return agent


def lead(wall: float | None = None, *, asks: bool = False) -> motet.Agent[None]:
    """It starts a child, and then has a tool that cleans up for long, or that a person allows."""
    model = Scripted(
        call(("spawn", {"agent": "child", "task": "go"}), ("tidy", {})), say("new"), say("more")
    )
    limits = motet.Limits(wall=wall, depth=5)
    agent = motet.Agent("lead", model=model, tools=["group:agents"], limits=limits)

    @agent.tool(approval=asks)
    async def tidy() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(CLEANS_UP)

    return agent


async def lived(end: End, after: float, depth: int) -> None:
    models = [Busy("child", "grandchild" if depth > 1 else ""), Busy("grandchild")]
    first = lead(after if end == "wall" else None)
    async with motet.open_host(agents=[first, *(one.agent() for one in models)]) as host:
        began = trio.current_time()
        async with host.stream(first, "go", session="s") as run:
            await trio.sleep(after)
            match end:
                case "interrupt":
                    await host.submit("no, this", session="s", mode="interrupt")
                case "cancel":
                    run.cancel()
                case "stop":
                    await host.stop(run_id=run.id, grace=0)
                case "drain":
                    await host.drain(0)
                case "wall":
                    pass
            result = await run.wait()
        assert result.status == ("limited" if end == "wall" else "cancelled")
        children = [one for one in await host.runs(limit=50) if one.agent.endswith("child")]
    assert {one.status for one in children} <= {"cancelled", "dropped"}
    done = [at for model in models for at in model.done]
    assert max(done, default=began) <= began + after, "nothing of a child begins after the end"


@settings(max_examples=8)
@given(end=st.sampled_from(ENDS), after=st.floats(0.01, 2), depth=st.integers(1, 2))
def test_children_end_in_the_step_in_which_their_caller_is_to_end(
    end: End, after: float, depth: int
) -> None:
    """Law: no tool of a child begins, and no model is asked for it, after its caller was to end,
    while tools of the caller clean up."""
    trio.run(lived, end, after, depth, clock=MockClock(autojump_threshold=0))


async def test_the_wall_time_of_children_stands_still_while_their_caller_asks_a_person(
    autojump_clock: MockClock,
) -> None:
    """The child works on; both have the rest of their time once the person has answered."""
    child, first = Busy("child"), lead(2.0, asks=True)
    config = HostConfig(approvals=ApprovalsConfig(hold=3_600))
    async with (
        motet.open_host(agents=[first, child.agent()], config=config) as host,
        host.stream(first, "go", session="s") as run,
    ):
        began = trio.current_time()
        await trio.sleep(10)
        (approval,) = await host.approvals(state="pending")
        assert max(child.done) > began + 9
        await host.approve(approval.id, "allow-once")
        answered = trio.current_time()
        result = await run.wait()
    assert result.status == "limited"
    assert answered + 1 < max(child.done) <= answered + 2
    del autojump_clock
