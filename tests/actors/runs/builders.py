"""Rows, calls and answers for tests of the turn."""

from __future__ import annotations

from hypothesis import strategies as st

from motet.actors.runs.turn import Decision, Turn
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, ToolMessage, UserMessage
from motet.protocols.models import ModelResponse, Usage
from motet.protocols.tools import CallResult


def call(number: int, name: str = "look") -> Call:
    return Call(f"call_{number}", name, "{}")


def answer(text: str = "", *calls: Call, tokens: int = 0) -> ModelResponse:
    return ModelResponse(text, calls=calls, usage=Usage(tokens, 0))


def heard(turn: Turn, response: ModelResponse) -> Decision:
    """The turn takes an answer, and what it used."""
    turn.spend(response.usage)
    return turn.answered(response)


def done(one: Call, text: str = "ok") -> CallResult:
    return CallResult(one.id, one.name, text)


ids = st.sampled_from([f"call_{n}" for n in range(5)])
users = st.builds(UserMessage, st.text(max_size=5))
calls = st.lists(ids, unique=True, max_size=4).map(lambda some: tuple(Call(i, "t") for i in some))
assistants = st.builds(AssistantMessage, st.text(max_size=5), calls)
tools = st.builds(ToolMessage, ids, st.just("t"), st.text(max_size=5))
any_rows: st.SearchStrategy[list[ChatMessage]] = st.lists(users | assistants | tools, max_size=12)
