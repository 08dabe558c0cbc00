"""The public class of an agent: an :class:`AgentSpec` that can run itself in a host of its own.

It stands above the host, which it opens. Everything below passes an ``AgentSpec`` around.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, TypeVar, Unpack, overload

import trio

from motet.actors.agents.spec import AgentSpec, D_contra, O_co
from motet.actors.host import open_host
from motet.actors.hosting.inputs import RunStream
from motet.protocols.approvals import ApprovalsConfig
from motet.protocols.config import HostConfig
from motet.protocols.run import Bounds, RunResult
from motet.runtime.loops import refuse_in_asyncio, refuse_in_loop
from motet.runtime.scopes import only_in_a_block

Out = TypeVar("Out")

ALONE = HostConfig(workspace=".", approvals=ApprovalsConfig(ask=False))
"""For a host that lives for one run: there is no person to ask."""
_IN_ASYNCIO = (
    "use a motet.HostThread and its `host.asyncio.{0}(agent, ...)`, or "
    "`async with motet.guest() as host` and `host.{0}(agent, ...)`"
)


class Agent(AgentSpec[D_contra, O_co]):
    """An agent that any number of hosts can run. Share it freely.

    ``Agent[Deps, Ticket]`` wants ``deps`` of the one type and gives outputs of the other; plain
    ``Agent`` wants none and gives a text.

    Args:
        name: how sessions, events and other agents call it: letters, digits, ``_ . -``.
        model: ``provider:model`` (``openai:gpt-5.2``, ``anthropic:claude-sonnet-4-5``), ``demo``,
            or any object that is a ``Model``.
        instructions: the system prompt.
        description: one line for people and for other agents.
        tools: tools, type-hinted functions, or names of built-in tools and groups.
        handoffs: agents that it may hand its conversation to: its model sees a
            ``transfer_to_<name>`` for each. :meth:`may_hand_to` adds more.
        deps_type: type of the ``deps`` that tools find in their ``Context``.
        output_type: what a run's ``output`` is: anything msgspec can read, or a pydantic model.
            Absent: the text of the answer.
        output_retries: how often the model may mend an answer that is not of that type.
        limits: what one run may spend.
        memory: whether it remembers the user from one session to another, with ``group:memory``.
        window: tokens that its model takes, 200,000 by default; a conversation that gets near is
            compacted.
        history: user turns that the model is shown at most; 0 is all.
        profile: bootstrap files, a workspace for each user, and how its prompt is made.
        skills: folders of skills, before those of its files and of the host; empty: no skills.
        policy: which of its tools it may call; it holds for all that work for it too.

    Raises ``ConfigError`` for a name that cannot be one, ``TypeError`` for an ``output_type`` that
    cannot be described to a model.
    """

    @overload
    async def run(
        self: Agent[None, Out],
        text: str,
        *,
        deps: None = None,
        check: bool = True,
        **bounds: Unpack[Bounds],
    ) -> RunResult[Out]: ...

    @overload
    async def run(
        self, text: str, *, deps: D_contra, check: bool = True, **bounds: Unpack[Bounds]
    ) -> RunResult[O_co]: ...

    async def run(
        self, text: str, *, deps: object = None, check: bool = True, **bounds: Unpack[Bounds]
    ) -> RunResult[Any]:
        """One answer from a host in memory that lives for this call only.

        Calls that need an approval are denied: there is no person to ask. Raises and is cancelled
        as :meth:`motet.Host.run`.
        """
        refuse_in_asyncio("agent.run()", _IN_ASYNCIO.format("run"))
        async with open_host(config=ALONE) as host:
            return await host.run(self._any, text, deps=deps, check=check, **bounds)

    @overload
    def run_sync(
        self: Agent[None, Out],
        text: str,
        *,
        deps: None = None,
        check: bool = True,
        **bounds: Unpack[Bounds],
    ) -> RunResult[Out]: ...

    @overload
    def run_sync(
        self, text: str, *, deps: D_contra, check: bool = True, **bounds: Unpack[Bounds]
    ) -> RunResult[O_co]: ...

    def run_sync(
        self, text: str, *, deps: object = None, check: bool = True, **bounds: Unpack[Bounds]
    ) -> RunResult[Any]:
        """As :meth:`run`, for programs without a loop. Raises ``RuntimeError`` inside one."""
        refuse_in_loop(
            "run_sync()",
            trio="use `await agent.run(...)` there",
            asyncio="use a motet.HostThread and `await host.asyncio.run(agent, ...)` there",
        )
        return trio.run(partial(self._any.run, text, deps=deps, check=check, **bounds))

    @overload
    def stream(
        self: Agent[None, Out], text: str, *, deps: None = None, **bounds: Unpack[Bounds]
    ) -> AbstractAsyncContextManager[RunStream[Out]]: ...

    @overload
    def stream(
        self, text: str, *, deps: D_contra, **bounds: Unpack[Bounds]
    ) -> AbstractAsyncContextManager[RunStream[O_co]]: ...

    @only_in_a_block
    async def stream(
        self, text: str, *, deps: object = None, **bounds: Unpack[Bounds]
    ) -> AsyncGenerator[RunStream[Any]]:
        """The events of one answer, from a host in memory that lives for this block only."""
        refuse_in_asyncio("agent.stream()", _IN_ASYNCIO.format("stream"))
        async with (
            open_host(config=ALONE) as host,
            host.stream(self._any, text, deps=deps, **bounds) as run,
        ):
            yield run

    @property
    def _any(self) -> Agent[Any, Any]:
        """Itself, where what it wants and gives has been checked already."""
        return self
