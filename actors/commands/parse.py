"""Commands in chat text: what is for the host and not for the model. Pure.

Invariants: a text is either one command or a text for the model, never both, and nothing that was
said is swallowed: only a word that stands alone is a command without a slash, and ``//`` at its
start escapes a text that would be taken for one.
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

    @property
    def stops(self) -> bool:
        """Whether it has to get through when everything else is stuck."""
        return self.name in _STOPS


COMMANDS: Final[dict[str, str]] = {
    "help": "what can be typed here",
    "status": "what goes on here",
    "stop": "end your newest run here: /stop [RUN]; `stop`, `abort` or `esc` alone do it too",
    "stopall": "end all that you have going, in every session, with its queue and sub-agents",
    "new": "begin anew: the model forgets what was said, the transcript stays",
    "queue": "what waits here, and what becomes of a message during a run: /queue [MODE]",
    "model": "which model answers here; /model NAME sets another, /model default the agent's own",
    "compact": "summarise what was said, so that the model has room; the transcript stays",
    "approve": "answer what waits: /approve [ID] allow-once, allow-always or deny [why]",
    "errors": "the last errors of tools here",
    "usage": "what the last runs here have used",
    "agents": "the agents of this host",
    "who": "who you are here",
}
_STOPS: Final = frozenset({"stop", "stopall"})
_WITHOUT_ARGUMENT: Final = frozenset({"new"})
_BARE_STOPS: Final = frozenset({"stop", "abort", "esc"})
# A path such as /usr/bin is no command: a name ends at white space or the end of the text.
_SLASH: Final = re.compile(r"/([A-Za-z][A-Za-z0-9_-]*)(?:\s+(.*))?", re.DOTALL)


def parse_command(text: str) -> Command | None:
    """The command a text is, or None for a text that goes to the model."""
    stripped = text.strip()
    if is_bare_stop(stripped):
        return Command("stop")
    found = _SLASH.fullmatch(stripped)
    if found is None:
        return None
    name, argument = found[1].lower(), (found[2] or "").strip()
    if name == "stop" and argument.lower() == "all":
        return Command("stopall")
    return Command(name, argument, known=name in COMMANDS)


def is_bare_stop(text: str) -> bool:
    """Whether it is a word that stands for ``/stop`` when nothing else is said."""
    return text.strip().rstrip(".!").rstrip().lower() in _BARE_STOPS


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
