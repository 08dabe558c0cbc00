"""``motet init``: a configuration, an agent with a tool of its own, and a test of it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from motet.announced import default_state
from motet.cli.exits import OK
from motet.cli.trust import consent
from motet.protocols.errors import ConfigError

CONFIG = """\
# What may stand here: motet config schema. What holds now: motet config show --effective

state = "state"              # sessions, errors and traces; keep it out of the workspace
workspace = "workspace"      # what the tools of agents see

[limits]
turns = 20                   # model requests in one run
# usd = 0.50                 # dollars in one run

[agents.helper]
model = "demo"               # no key needed; then openai:NAME, anthropic:NAME, ollama:NAME
instructions = "You are a helpful assistant. Answer briefly."
tools = ["group:fs", "agent_tools:word_count"]

[gateway]
listen = "127.0.0.1:7878"    # motet serve
"""

TOOLS = '''\
"""The tools of the agents in motet.toml."""


async def word_count(text: str) -> int:
    """How many words a text has."""
    return len(text.split())
'''

TEST = '''\
"""Tests of the agents in motet.toml: with a scripted model, so that no key is needed."""

from pathlib import Path

import trio

import motet
from agent_tools import word_count
from motet.testing import ScriptedModel, call, say


def test_the_agent_counts_words(tmp_path: Path) -> None:
    model = ScriptedModel([call("word_count", text="one two three"), say("3 words")])
    agent = motet.Agent("helper", model=model, tools=[motet.tool(word_count)])

    async def talk() -> str:
        async with motet.open_host(agents=[agent], workspace=tmp_path) as host:
            return (await host.run(agent, "How many words?")).output

    assert trio.run(talk) == "3 words"
    model.assert_complete()
'''

IGNORED = "state/\nworkspace/\n"

FILES = {
    "motet.toml": CONFIG,
    "agent_tools.py": TOOLS,
    "test_agents.py": TEST,
    ".gitignore": IGNORED,
}
USED = ("state", "workspace")
OPTIONAL = (".gitignore",)
"""Files that are left alone if they exist."""


def _strange_in(folder: Path) -> list[Path]:
    """What an import would find in the folder, before what is installed, and folders that the
    configuration uses: links, or a state with inputs that go on."""
    ends = (".py", ".pyc", ".so")
    found = [path for path in folder.iterdir() if path.name.endswith(ends)]
    found += [path.parent for path in folder.glob("*/__init__.*")]
    return sorted({*found, *(folder / name for name in USED if os.path.lexists(folder / name))})


def write_project(folder: Path) -> int:
    """Write the files, all or none. Raises ``ConfigError`` when one of them is there."""
    there = [name for name in FILES if (folder / name).exists() and name not in OPTIONAL]
    if there:
        raise ConfigError(
            f"{folder / there[0]} is there already, and nothing is overwritten: choose another "
            "folder, such as `motet init my-agents`"
        )
    folder.mkdir(parents=True, exist_ok=True)
    strange = _strange_in(folder)
    for name, text in FILES.items():
        if not (folder / name).exists():
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write(text)
            print(f"  {folder / name}")
    if strange:
        print(f"not yet trusted, as {strange[0]} was there before: the first command asks")
    else:
        with suppress(OSError):  # where nothing can be stored, the first command asks
            consent(folder / "motet.toml", default_state())
    where = "" if folder == Path() else f"cd {folder} && "
    print(f"try it:   {where}motet chat\ntest it:  {where}python -m pytest")
    return OK
