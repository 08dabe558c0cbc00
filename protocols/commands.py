"""Commands typed as chat text: their names, and their parsing. Pure.

Invariants: a text is either one command or a text for the model, never both, and no text is lost:
only a word that stands alone is a command without a slash, and ``//`` at its start escapes a text
that would be taken for one.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from motet.protocols.errors import nearest


class Command(msgspec.Struct, frozen=True):
    """A command as it was typed. ``known``: there is a command of this name."""

    name: str
    argument: str = ""
    known: bool = True

    @property
    def stops(self) -> bool:
        """Whether it is a stop, which has to get through when everything else is stuck."""
        return self.name in _STOPS

    @property
    def shows(self) -> bool:
        """Whether it changes nothing. Its answer may quote people, who may withdraw what they said:
        it is not kept for a resend, which shows what there is then.
        """
        return self.name in _SHOW or not (self.argument or self.name in _ACT_ALONE)


COMMANDS: Final[dict[str, str]] = {
    "help": "list the commands",
    "status": "show the runs and the queue of this chat",
    "stop": "stop your newest run here and drop your waiting inputs: /stop [RUN], or just stop",
    "stopall": "stop all your runs in every session and room, with queues and sub-agents",
    "new": "start the model from an empty history; the transcript stays",
    "queue": "show the queue, or set the mode of messages during a run: /queue [MODE]",
    "activation": "what the agents of a room answer: /activation [always, mention, off, default]",
    "model": "show the model; /model NAME sets another, /model default the agent's own",
    "compact": "summarise the history for the model; the transcript stays",
    "approve": "answer an approval: /approve [ID] allow-once, allow-always or deny [why]",
    "resolve": "answer an escalation: /resolve [ID] retry [TEXT], advice TEXT, skip TEXT, give_up",
    "errors": "show the last errors of tools here",
    "usage": "show the usage of the last runs here",
    "agents": "list the agents of this host",
    "who": "show your user name and role",
    "edit": "give a message of yours in this room another text: /edit NUMBER|last TEXT",
    "delete": "withdraw a message of this room: /delete NUMBER|last",
    "react": "react to a message of this room: /react NUMBER|last SIGN [off]",
    "thread": "say something in the thread of a message: /thread NUMBER TEXT",
    "search": "in a room: the newest messages that have these words: /search WORDS",
    "here": "show who has this room open",
    "people": "in a room: list its people and their roles",
    "add": "in a room: /add USER [reader, member or moderator]; irc:* adds all of a channel",
    "remove": "in a room: /remove USER",
    "mute": "in a room: /mute USER [10m, 2h, 7d]",
    "unmute": "in a room: /unmute USER",
    "ban": "in a room: /ban USER",
    "unban": "in a room: /unban USER",
    "leave": "leave the room",
    "transfer": "in a room: give it to another of its people: /transfer USER",
    "title": "in a room: give it another title: /title TEXT",
    "slow": "in a room: seconds between two messages of one person: /slow 30, /slow off",
    "rate": "in a room: messages of one person in a minute: /rate 10, /rate off",
    "archive": "in a room: take no more messages",
    "unarchive": "in a room: take messages again",
    "answers": "in a room: set who answers approvals: /answers ROLE",
    "details": "in a room: set who sees arguments and results of tools: /details ROLE",
    "newcomers": "in a room: what newcomers read: /newcomers none, joining, all, summary, default",
    "summary": "in a room: what was said before you came, if newcomers read a summary",
    "invite": "in a room: make an invite: /invite [ROLE] [how long, such as 7d] [uses]",
    "invites": "in a room: list the invites that are open",
    "revoke": "in a room: end an invite: /revoke INVITE",
    "join": "come into a room by an invite: /join mti_...",
    "export": "in a room: all that was said, as JSON lines: /export [AFTER NUMBER]",
    "deleteroom": "delete the room and all that was said in it: /deleteroom NAME",
}
_SHOW: Final = frozenset(
    {"help", "status", "errors", "usage", "agents", "who", "search", "here", "people", "summary",
     "invites", "export"}
)  # fmt: skip
_ACT_ALONE: Final = frozenset(
    {"stop", "stopall", "new", "compact", "leave", "archive", "unarchive", "invite"}
)
"""Commands that do something without an argument; the others show what can be done."""
_STOPS: Final = frozenset({"stop", "stopall"})
_WITHOUT_ARGUMENT: Final = frozenset({"new"})
_BARE_STOPS: Final = frozenset({"stop", "abort", "esc"})
# A path such as /usr/bin is no command: a name ends at white space or the end of the text.
_SLASH: Final = re.compile(r"/([A-Za-z][A-Za-z0-9_-]*)(?:\s+(.*))?", re.DOTALL)


def parse_command(text: str) -> Command | None:
    """The command of a text; None: the text is for the model."""
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
    """Whether the text is a single word that means ``/stop``."""
    return text.strip().rstrip(".!").rstrip().lower() in _BARE_STOPS


def message_text(text: str) -> str:
    """The text for the model: an escaped ``//text`` becomes ``/text``."""
    stripped = text.lstrip()
    return stripped[1:] if stripped.startswith("//") else text


def help_text() -> str:
    """All commands, a line each."""
    lines = [f"/{name}: {what}" for name, what in COMMANDS.items()]
    return "\n".join([*lines, "To send a text that begins with a slash, double it: //text"])


def problem_with(command: Command) -> str | None:
    """Why a command cannot be carried out; None: it can."""
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
