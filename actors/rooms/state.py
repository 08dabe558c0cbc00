"""The mutable state of one open room, as plain data that a stop can reach while its actor is stuck.

Two objects: the settings hold its definition, the control its stops. Its messages and the state of
its round are in :mod:`motet.actors.rooms.history`.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager
from math import inf

import attrs
import trio

from motet.actors.errors.log import logger
from motet.actors.rooms.definition import Room
from motet.actors.runs.run import Run
from motet.protocols.room_calls import EVERYBODY, mentioned, strangers
from motet.protocols.room_people import Standing
from motet.protocols.rooms import MemberInfo
from motet.protocols.sessions import LOCAL, Principal
from motet.runtime.outside import foreign_code

Definition = tuple[Room, tuple[MemberInfo, ...]]

_log = logger("motet.rooms")


@attrs.define(eq=False)
class RoomSettings:
    """The definition of a room, its members, and its audience; changed by its methods only.

    The audience changes at once; the definition changes between two rounds, so that no round
    changes its rules on the way. ``standing``: who may do what in it;
    ``gone``: members whose agents the host does not have any more.
    """

    room: Room
    members: tuple[MemberInfo, ...]
    standing: Standing
    gone: tuple[str, ...] = ()
    _planned: Definition | None = attrs.field(default=None, init=False)
    _planned_gone: tuple[str, ...] = attrs.field(default=(), init=False)

    @property
    def name(self) -> str:
        return self.room.name

    @property
    def owner(self) -> str:
        """Empty: the room is the host's."""
        return self.standing.owner

    @property
    def latest(self) -> Room:
        """The definition that its next round will have."""
        return self._planned[0] if self._planned else self.room

    @property
    def expected(self) -> tuple[MemberInfo, ...]:
        """Its members, and those that it will have in its next round."""
        names = {one.name for one in self.members}
        planned = self._planned[1] if self._planned else ()
        return (*self.members, *(one for one in planned if one.name not in names))

    def called(self, text: str, also: Collection[str] = ()) -> tuple[str, ...]:
        """The members that a message calls, and those of them that ``also`` names.

        A policy of the program that fails calls nobody. Names are calls for every policy in a room
        whose members speak only when they are called.
        """
        infos = self.expected
        names = [one.name for one in infos]
        gone = [MemberInfo(name) for name in also if name not in names]
        try:
            with foreign_code:
                found = self.room.speakers.called(text, (*infos, *gone))
                if self.room.activation == "mention":
                    found = (*found, *mentioned(text, [one.name for one in (*infos, *gone)]))
        except Exception as error:
            _log.error("the calls of a message are unknown", room=self.name, exc_info=error)
            return ()
        return tuple(dict.fromkeys(one for one in found if one in names or one in also))

    def strangers(self, text: str, authors: Collection[str]) -> tuple[str, ...]:
        """The names that a message calls and nobody has: no member, none of the people.

        None where no name is a call. A user of a channel (``irc:bob``) is known as ``bob``, too.
        """
        people = {self.owner, *self.standing.people, *authors}
        known = [one.name for one in self.expected]
        known += [name for one in people for name in (one, one.rpartition(":")[2])]
        found = strangers(text, known)
        return found if found and self.called(f"@{EVERYBODY}") else ()

    def is_shared(self, authors: Iterable[str]) -> bool:
        """Whether several people talk in it: invited to, or among the ``authors``."""
        known = self.standing.people.items()
        banned = {user for user, one in known if one.banned or one.role == "left"}
        here = {user for user, one in known if one.role in ("member", "moderator")}
        talking = ({*here, *authors} - banned) | ({self.owner} - {"", LOCAL.user})
        return len(talking) > 1 or any("*" in user for user in talking)

    def hidden(self, who: Principal) -> int:
        """The number up to which no message of the room is shown to somebody; 0 in a thread."""
        return 0 if self.standing.thread else self.standing.hidden(who).messages

    def open_to(self, who: Principal) -> bool:
        """Whether the principal may know that there is such a room."""
        return self.standing.role(who) is not None

    def admit(self, standing: Standing) -> None:
        """These users may do this from now on, and no others."""
        self.standing = standing

    def plan(self, definition: Definition, gone: tuple[str, ...] = ()) -> None:
        """Have another definition from the next :meth:`adopt` on."""
        self._planned, self._planned_gone = definition, gone

    def adopt(self) -> None:
        """Put the planned definition in force."""
        if self._planned is not None:
            self.room, self.members = self._planned
            self._planned, self.gone = None, self._planned_gone


@attrs.define(eq=False)
class RoomControl:
    """The stops of a room and of its rounds: needs neither the room's actor nor the disk.

    Whoever gives the floor, chooses a speaker or stores a message takes a :meth:`mark` first and
    asks :meth:`overtaken` afterwards: the one check for a stop that came in between.

    Attributes:
        closing: set when the host shuts down; see :attr:`ends`.
        above: the run that the room works for, if it does.
        idle: set while no agent speaks and none is to, also before an actor loads the room.
        clears: counts the stops after which the messages of people so far need no answer.
        cleared: number of the last message of a person that needs none.
    """

    closing: trio.Event
    above: Run | None = None
    idle: trio.Event = attrs.field(factory=trio.Event, init=False)
    clears: int = attrs.field(default=0, init=False)
    cleared: int = attrs.field(default=0, init=False)
    _interrupts: int = attrs.field(default=0, init=False)
    _stopped: int = attrs.field(default=0, init=False)
    _carried_out: int = attrs.field(default=0, init=False)
    _interrupted: trio.Event = attrs.field(factory=trio.Event, init=False)
    _choosing: trio.CancelScope | None = attrs.field(default=None, init=False)
    _posts: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.idle.set()

    def interrupt(self) -> None:
        """End the round; unanswered messages and calls open the next one."""
        self._interrupts += 1
        if self._choosing is not None:
            self._choosing.cancel()
        self._interrupted.set()
        self._interrupted = trio.Event()

    def stop(self, said: int) -> None:
        """End the round; the messages up to number ``said`` need no answer any more."""
        self.clears += 1
        self.clear(said)
        self.interrupt()
        self._stopped = self._interrupts

    def clear(self, said: int) -> None:
        """The messages of people up to number ``said`` need no answer."""
        self.cleared = max(self.cleared, said)

    @property
    def ends(self) -> bool:
        """Whether no member gets the floor any more; the rest of the round is for the next host.

        A room below a run goes on as long as that does, also while the host drains.
        """
        return self.closing.is_set() if self.above is None else bool(self.above.stop_reason)

    def mark(self) -> int:
        """The number of stops and interrupts so far."""
        return self._interrupts

    def overtaken(self, mark: int) -> bool:
        """Whether the room was stopped or interrupted since the mark was taken."""
        return self._interrupts != mark

    @property
    def stopping(self) -> bool:
        """Whether a round has to be ended for a stop."""
        return self._carried_out != self._interrupts

    @property
    def stopped(self) -> bool:
        """Whether one of these is a stop, and not only an interrupt."""
        return self._stopped > self._carried_out

    def carried_out(self, mark: int) -> None:
        """The stops up to this mark have ended their rounds."""
        self._carried_out = mark

    async def wait_interrupted(self, seconds: float) -> None:
        """Wait for the next stop or interrupt, at most so long."""
        with trio.move_on_after(seconds):
            await self._interrupted.wait()

    @contextmanager
    def choosing(self, seconds: float = inf) -> Generator[trio.CancelScope]:
        """A block that the next stop cancels: a policy may ask a model. It ends after a time."""
        with trio.CancelScope(deadline=trio.current_time() + seconds) as scope:
            self._choosing = scope
            yield scope
        self._choosing = None

    @contextmanager
    def posting(self) -> Generator[None]:
        """A block in which a message is on its way to disk."""
        self._posts += 1
        try:
            yield
        finally:
            self._posts -= 1

    @property
    def is_posting(self) -> bool:
        return self._posts > 0

    def busy(self) -> None:
        """Agents speak, or are to."""
        if self.idle.is_set():
            self.idle = trio.Event()
