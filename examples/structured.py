"""An agent whose answer is a typed value, not text."""

from typing import Annotated, Literal

import msgspec
import trio

import motet
from motet.testing import ScriptedModel, say

MODEL = ScriptedModel(
    [
        say(
            '{"title": "Login fails", "severity": "bad"}'
        ),  # invalid: the model is told why, and tries again
        say('{"title": "Login fails", "severity": "high", "steps": ["open", "sign in"]}'),
    ]
)


class Ticket(msgspec.Struct):
    title: Annotated[str, msgspec.Meta(max_length=80)]
    severity: Literal["low", "high"]
    steps: list[str] = []


triage = motet.Agent("triage", model=MODEL, output_type=Ticket)


async def main() -> None:
    async with motet.open_host() as host:
        ticket = (await host.run(triage, "I cannot sign in!")).output
    print(f"{ticket.severity}: {ticket.title} ({len(ticket.steps)} steps)")


if __name__ == "__main__":
    trio.run(main)
