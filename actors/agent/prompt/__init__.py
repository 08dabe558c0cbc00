"""The system prompt: sections in a fixed order, assembled from what is known of an agent."""

from __future__ import annotations

from datetime import date

from motet.actors.agent.prompt.assemble import SECTIONS, Prompt, Section, assemble
from motet.actors.agent.prompt.given import ContextFile, PromptInput, PromptTool, Sandbox, Skill

__all__ = [
    "SECTIONS",
    "ContextFile",
    "Prompt",
    "PromptInput",
    "PromptTool",
    "Sandbox",
    "Section",
    "Skill",
    "assemble",
    "system_prompt",
]


def system_prompt(instructions: str, today: date, context: str = "") -> str:
    """The prompt of a plain agent: its instructions, the date, what is remembered."""
    given = PromptInput(instructions=instructions, today=today, recalled=context)
    return assemble(given).text
