"""A project whose group chat never ends: a bridge brings back what agents have said.

What is said in the room goes to a messenger. What comes from the messenger is posted in the room,
and nobody has thought of leaving out what the room itself has said. The room answers every message,
also among several people, which it would not do by default.
"""

from __future__ import annotations

import motet

planner = motet.Agent("planner", description="plans")
coder = motet.Agent("coder", description="writes code")
speakers = motet.mentions() | motet.round_robin()
room = motet.Room("den", members=[planner, coder], speakers=speakers, max_turns=2, people=("*",))

MESSENGER = motet.Principal("messenger")


def install(host: motet.Host) -> None:
    """Register the project's hooks."""

    @host.on("run_end")
    async def forward(event: motet.RunEnd) -> None:
        if event.status == "completed" and event.output:
            await from_messenger(host, event.output)


async def from_messenger(host: motet.Host, text: str) -> None:
    """Somebody has written something in the messenger's group."""
    await host.rooms.post(room.name, text, principal=MESSENGER)
