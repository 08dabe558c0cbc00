"""The system prompt: the agent's own words and what does not change within a day."""

from __future__ import annotations

from datetime import date


def system_prompt(instructions: str, today: date, context: str = "") -> str:
    """Instructions, the date, what is remembered: the more it changes, the later it stands.

    No clock: a prompt that changes defeats the provider's cache.
    """
    parts = [instructions.strip(), f"Today is {today.isoformat()}.", context]
    return "\n\n".join(part for part in parts if part)
