"""A project that sends broken histories: to save tokens, a hook keeps the last five messages.

It counts messages, and so cuts between a call and its result.
"""

from __future__ import annotations

from msgspec.structs import replace

import motet

agent = motet.Agent("reader", instructions="You read files.")

KEPT = 5


@agent.tool
async def look(name: str) -> str:
    """What is in a file."""
    return f"{name} is empty"


def install(host: motet.Host) -> None:
    """Register the project's hooks."""

    @host.on("before_model")
    async def trim(event: motet.BeforeModel) -> motet.Replace | motet.Allow:
        request = event.request
        if len(request.messages) <= KEPT:
            return motet.Allow()
        return motet.Replace(request=replace(request, messages=request.messages[-KEPT:]))
