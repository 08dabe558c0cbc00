"""Plan and progress: a team plans its research, gets stuck, plans again and answers."""

import trio

import motet
from motet.testing import ScriptedModel, say


def ledger(progress: str, worker: str, instruction: str = "", done: str = "no") -> str:
    """A progress ledger as the model of the tracker writes it."""
    return (
        f"done: {done}\nloop: no\nprogress: {progress}\nnext: {worker}\ninstruction: {instruction}"
    )


# One model for planner, tracker and reporter; a real one reads the chat.
LEAD = ScriptedModel(
    [
        say("Facts to look up: the year of the first motet. Plan: 1. surfer searches."),
        say(ledger("yes", "surfer", "Search for the first motet.")),
        say(ledger("no", "surfer", "Search again.")),
        say("The search was too narrow. Plan: 1. librarian looks into a handbook."),
        say(ledger("yes", "librarian", "Look up where motets come from.")),
        say(ledger("yes", "", done="yes")),
        say("Motets were first written in Paris, around 1200."),
    ],
    name="lead",
)
SURFER = ScriptedModel([say("Nothing found.")], name="surfer")
LIBRARIAN = ScriptedModel([say("School of Notre-Dame, Paris, around 1200.")], name="librarian")

room = motet.plan_and_progress(
    "research",
    [
        motet.Agent("surfer", model=SURFER, description="searches the web"),
        motet.Agent("librarian", model=LIBRARIAN, description="has handbooks"),
    ],
    model=LEAD,
    max_stalls=1,
    limits=motet.Limits(usd=2.0, wall=600),
)


async def main() -> None:
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        result = await opened.run("Where were the first motets written?", user="alice")
        for message in result.messages:
            first = message.text.splitlines()[-1]
            print(f"[{message.author}] {first}")
        print(f"{result.turns} turns; {result.reason}")


if __name__ == "__main__":
    trio.run(main)
