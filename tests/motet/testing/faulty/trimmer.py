"""A project that breaks tool pairs: to save tokens, a hook keeps the last four messages.

It counts messages, and so cuts between a call and its result. The host does not send what a
provider would refuse, so that the session is not lost; but the run is.
"""

from __future__ import annotations

from msgspec.structs import replace

import motet

agent = motet.Agent("reader", instructions="You read files.")

KEPT = 4


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
