"""Commands in chat text: what is for the host and not for the model. Pure.

Invariant: a text is either one command or a text for the model, never both; ``//`` at its start
escapes a text that would be taken for a command.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from motet.protocols.errors import nearest


class Command(msgspec.Struct, frozen=True):
    """A command as it was typed. ``known`` is false for a name that nobody has."""

    name: str
    argument: str = ""
    known: bool = True


COMMANDS: Final[dict[str, str]] = {
    "help": "what can be typed here",
    "status": "what this session is doing",
    "stop": "end this session's runs and drop its queue; `stop`, `abort` or `esc` alone do too",
    "stopall": "end all your runs in all sessions",
    "approve": "answer what waits: /approve [ID] allow-once, allow-always or deny [why]",
    "new": "begin anew: the model forgets what was said, the transcript stays",
}
_WITHOUT_ARGUMENT: Final = frozenset({"new"})
_BARE_STOPS: Final = frozenset({"stop", "abort", "esc"})
# A path such as /usr/bin is no command: a name ends at white space or the end of the text.
_SLASH: Final = re.compile(r"/([A-Za-z][A-Za-z0-9_-]*)(?:\s+(.*))?", re.DOTALL)


def parse_command(text: str) -> Command | None:
    """The command a text is, or None for a text that goes to the model."""
    stripped = text.strip()
    if stripped.rstrip(".!").rstrip().lower() in _BARE_STOPS:
        return Command("stop")
    found = _SLASH.fullmatch(stripped)
    if found is None:
        return None
    name, argument = found[1].lower(), (found[2] or "").strip()
    return Command(name, argument, known=name in COMMANDS)


def message_text(text: str) -> str:
    """The text as the model is to read it: an escaped ``//text`` becomes ``/text``."""
    stripped = text.lstrip()
    return stripped[1:] if stripped.startswith("//") else text


def help_text() -> str:
    """All commands, a line each."""
    lines = [f"/{name}: {what}" for name, what in COMMANDS.items()]
    return "\n".join([*lines, "To send a text that begins with a slash, double it: //text"])


def complaint(command: Command) -> str | None:
    """Why a command cannot be carried out, or None when it can."""
    if not command.known:
        near = nearest(command.name, tuple(COMMANDS))
        hint = f"did you mean /{near}?" if near else "/help lists the commands."
        return (
            f"There is no command /{command.name}; {hint} "
            f"To send it as a text, double the slash: //{command.name}"
        )
    if command.argument and command.name in _WITHOUT_ARGUMENT:
        return (
            f"Nothing was done: /{command.name} stands alone. "
            f"Send /{command.name}, then the text as the next message."
        )
    return None
