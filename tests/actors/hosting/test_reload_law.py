"""A configuration that changes under load: a real file, a real state directory, real runs."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import motet
from motet.protocols.errors import ConfigError
from motet.protocols.hooks import Allow, BeforeModel

# The load, and edits of the file

EDITS = {
    "tools": ('tools = ["group:fs"]', 'tools = ["group:fs", "group:shell", "group:web"]'),
    "guard": ('guard = "warn"', 'guard = "off"'),
    "turns": ("turns = 20", "turns = 9"),
    "window": ("window = 128000", "window = 64000"),
    "hour": ("calls_per_hour = 0", "calls_per_hour = 999"),
    "url": ("", '[models.openai]\nbase_url = "http://127.0.0.1:9/v1"'),
    "other": ("", '[agents.other]\nmodel = "openai:x"'),
    "policy": ("", '[[policy]]\ntool = "http_fetch"\neffect = "deny"'),
    "token": ("", '[[gateway.tokens]]\ntoken = "mtt_0123456789abcdef0123456789abcdef"'),
    "listen": ('listen = "127.0.0.1:0"', 'listen = "127.0.0.1:1"'),
    "mcp": ("", '[mcp.spare]\ncommand = ["true"]'),
}
"""Two texts for each place of the file."""

DENIED = "http_fetch"
"""What a rule may take from a run at any time."""

BROKEN = ("nonsense =", "[agents.helper.nothing]", '[agents.z]\ntools = ["no_such_tool"]')

LOAD = (
    "write a.txt: hello",
    "list files and then write b.txt: x and then read b.txt",
    "write c.txt: 1 and write d.txt: 2 and then wait 0.02",
)


@attrs.frozen
class Edit:
    """Another value of some keys, and always of the agent's instructions."""

    places: frozenset[str]
    broken: str | None = None


@attrs.frozen
class Say:
    session: str
    text: str


@attrs.frozen
class Wait:
    """Let everything else go on for some steps."""

    steps: int


Step: TypeAlias = Edit | Say | Wait

STEPS = st.lists(
    st.one_of(
        st.builds(
            Edit,
            st.frozensets(st.sampled_from(sorted(EDITS)), max_size=4),
            st.one_of(st.none(), st.none(), st.sampled_from(BROKEN)),
        ),
        st.builds(Say, st.sampled_from(["a", "b", "c"]), st.sampled_from(LOAD)),
        st.builds(Wait, st.integers(1, 60)),
    ),
    min_size=4,
    max_size=14,
)


def text_of(value: int, edit: Edit) -> str:
    """The file with the value ``value`` in the instructions of its agent."""
    chosen = {place: two[place in edit.places] for place, two in EDITS.items()}
    return "\n".join(
        [
            'state = "state"',
            chosen["guard"],
            "[limits]",
            chosen["turns"],
            "[gateway]",
            chosen["listen"],
            chosen["token"],
            "[tools]",
            chosen["hour"],
            "[agents.helper]",
            'model = "demo"',
            f'instructions = "The value is {value}."',
            chosen["tools"],
            chosen["window"],
            *(chosen[place] for place in ("url", "other", "policy", "mcp")),
            edit.broken or "",
        ]
    )


@attrs.define
class Seen:
    """What the models of each run were told, in order: the value, and the names of the tools."""

    requests: dict[str, list[tuple[int, tuple[str, ...]]]] = attrs.field(
        factory=lambda: defaultdict[str, list[tuple[int, tuple[str, ...]]]](list)
    )

    async def look(self, event: BeforeModel) -> Allow:
        value = int(event.request.system.partition("The value is ")[2].partition(".")[0])
        names = tuple(tool.name for tool in event.request.tools if tool.name != DENIED)
        self.requests[event.run_id].append((value, names))
        return Allow()


async def under_load(steps: list[Step], folder: Path) -> None:
    file, seen = folder / "motet.toml", Seen()
    file.write_text(text_of(0, Edit(frozenset())))
    value, asked = 0, dict[str, int]()
    async with motet.open_host(config=file) as host:
        host.on("before_model", fail_open=False)(seen.look)
        for step in steps:
            match step:
                case Say():
                    ack = await host.submit(step.text, session=step.session)
                    asked[ack.run_id] = value
                case Wait():
                    for _ in range(step.steps):
                        await trio.lowlevel.checkpoint()
                case Edit(broken=None):
                    file.write_text(text_of(value + 1, step))
                    await host.reload()
                    value += 1
                case Edit():
                    file.write_text(text_of(value + 1, step))
                    before = host.configuration()
                    with pytest.raises((ConfigError, motet.UnknownName)):
                        await host.reload()
                    assert host.configuration() == before
        last = await host.run("helper", "write last.txt: x")
        for run_id in asked:
            assert (await host.wait_run(run_id)).status == "completed"
    assert {one for one, _ in seen.requests[last.run_id]} == {value}
    for run_id, least in asked.items():
        told = seen.requests[run_id]
        assert len(set(told)) == 1, "one run, one configuration"
        assert least <= told[0][0] <= value


@given(STEPS)
@settings(max_examples=5, deadline=None)
def test_no_run_fails_while_the_configuration_changes(steps: list[Step]) -> None:
    """Law: whatever is edited while runs go on and wait, each completes with the values and tools
    that it began with, no run sees older values than those in force when its input came, the next
    one sees the newest, and a broken file changes nothing.
    """
    with TemporaryDirectory() as folder:
        trio.run(under_load, steps, Path(folder))
