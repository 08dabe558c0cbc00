"""Triage with hand-offs: the desk gives the floor to a specialist, who keeps it."""

import trio

import motet
from motet.testing import ScriptedModel, call, say

TRIAGE = ScriptedModel(
    [call("give_floor", to="refunds"), say("Refunds will help you.")], name="triage"
)
REFUNDS = ScriptedModel(
    [
        say("Which order is it?"),
        call("refund", order="A-17"),
        say("Order A-17 is refunded."),
    ],
    name="refunds",
)


def refund(order: str) -> str:
    """Pay an order back."""
    return f"{order}: 20 EUR are on their way"


room = motet.Room(
    "support",
    members=[
        motet.Agent("triage", model=TRIAGE, tools=["give_floor"], description="finds who helps"),
        motet.Agent(
            "refunds",
            model=REFUNDS,
            tools=["give_floor", motet.tool(refund, effects="write")],
            description="pays money back",
        ),
    ],
    speakers=motet.handoff(),
)


async def main() -> None:
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        for text in ("I want my money back.", "Order A-17."):
            print(f"[alice] {text}")
            result = await opened.run(text, user="alice")
            for message in result.messages:
                print(f"[{message.author}] {message.text}")


if __name__ == "__main__":
    trio.run(main)
