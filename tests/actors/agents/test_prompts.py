"""Cached prompts: always equal to those that would be written anew."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from motet.actors.agents.prompt import PromptCache, assemble
from motet.actors.agents.prompt_sections import PromptInput
from motet.actors.agents.workspace import PromptRun, Workspace, prompt_input
from motet.actors.transcript.history import overhead
from motet.protocols.agents import AgentProfile, AgentType
from motet.protocols.tools import ToolSpec

TODAY = date(2026, 11, 21)
LOOK = ToolSpec("look", "Looks.", {"type": "object"})
WRITE = ToolSpec("write", "Writes.", {"type": "object"}, "write")

inputs = st.builds(
    PromptInput,
    today=st.sampled_from([TODAY, date(2026, 11, 22)]),
    instructions=st.sampled_from(["", "Be brief."]),
    agent=st.sampled_from(["helper", "writer"]),
    type=st.sampled_from(["plain", "open"]),
    user=st.sampled_from(["ann", "ben"]),
    recalled=st.sampled_from(["", "<memory>tea</memory>"]),
)
offers = st.sampled_from([(), (LOOK,), (LOOK, WRITE)])


@given(st.lists(st.tuples(inputs, offers), max_size=8))
def test_a_prompt_is_what_would_be_written_now(
    asked: list[tuple[PromptInput, tuple[ToolSpec, ...]]],
) -> None:
    """Law: whatever was asked before, text and size are those of this input and these tools."""
    prompts = PromptCache()
    for one, tools in asked:
        written = prompts.write(one, tools)
        text = assemble(one).text
        assert (written.text, written.around) == (text, overhead(text, tools))
        assert written.tools == tools
        assert prompts.write(one, tools) is written


def occasion(kind: AgentType, session: str, user: str) -> PromptRun:
    return PromptRun(
        agent="helper",
        instructions="Be brief.",
        profile=AgentProfile(type=kind),
        workspace=Workspace(Path("workspace")),
        today=TODAY,
        session=session,
        user=user,
        model="openai:m",
    )


def test_all_sessions_of_a_plain_agent_have_one_prompt_and_those_of_others_their_own() -> None:
    prompts = PromptCache()
    one, two = (
        prompts.write(prompt_input(occasion("plain", *whose)), ())
        for whose in (("s1", "ann"), ("s2", "ben"))
    )
    assert one is two
    texts = {
        prompts.write(prompt_input(occasion("open", *whose)), ()).text
        for whose in (("s1", "ann"), ("s2", "ben"))
    }
    assert len(texts) == 2
