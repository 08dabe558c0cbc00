"""State machines: an actor whose states are objects with handlers of their own.

A :class:`Machine` accepts the messages of all its states; a message goes to the handler of the
state it is in. The invariants:

* a state is entered once and left once, and the next is entered in the step in which it is left;
* a transition is taken when the handler that asked for it has returned, and not if it failed or was
  cancelled. ``on_enter`` and ``on_leave`` do not wait, so that nothing can come in between;
* the timers of a state end when it is left: none of their messages is handled after that;
* what a state postpones is handled first, in its order, in the states after it. Until then it has a
  place in the mailbox, which no sender that waits gets. The last place is never taken, since the
  message that ends the state needs it: what finds no other becomes a dead letter, and its asker
  gets MailboxFull (with ``drop_oldest``, the one postponed first). The ``gen_statem`` of OTP
  postpones without a bound, which a bounded mailbox cannot (G13).

Choices not taken. A table of (state, message) to (action, state) has no types for the data of a
state; a ``match`` in each handler forgets cases. Handlers that return the next state (as Akka's
behaviours do) could not return an answer.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, ClassVar, Generic, TypeVar, cast, final

import msgspec

from motet.protocols.messages import Message, Request, StreamRequest
from motet.runtime.actor import Actor
from motet.runtime.envelope import Replies
from motet.runtime.errors import MotetRuntimeError, NotInState, unwrapped
from motet.runtime.handlers import (
    Call,
    Calls,
    Handler,
    check_protocol,
    collect_handlers,
    declared_types,
    handles,
)
from motet.runtime.outside import foreign_code
from motet.runtime.schedule import ActorTimers

__all__ = ["Machine", "State"]

P_contra = TypeVar("P_contra", bound=Message, contravariant=True)
M = TypeVar("M", bound="Machine[Any]")

_log = logging.getLogger("motet.runtime")


class State(Generic[P_contra, M]):
    """One state of a machine: ``class Open(State[Close | Status, "Door"])``.

    The first parameter is the messages that it handles, with methods that :func:`handles` marks, as
    in an actor; the second is its machine. ``postpones`` are messages for later states. The data of
    a state are its attributes.
    """

    postpones: ClassVar[tuple[type[Message], ...]] = ()

    __motet_handlers__: ClassVar[dict[type[Message], Handler]] = {}
    __motet_calls__: ClassVar[Calls]
    __motet_machine__: Machine[Any] | None = None
    __motet_timers__: ActorTimers[Any] | None = None

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        cls.__motet_handlers__ = collect_handlers(cls)
        cls.__motet_calls__ = Calls(cls, cls.__motet_handlers__)
        check_protocol(cls, State, cls.__motet_handlers__)
        plain = [msgspec.structs.replace(h, later=False) for h in cls.__motet_handlers__.values()]
        beside = [h.method for h in plain if h != Handler(h.message_type, h.method)]
        if beside:
            raise TypeError(
                f"{cls.__qualname__} declares more than later= for {', '.join(beside)}: a state "
                "handles one message at a time, and the machine declares the order of its mail"
            )
        both = [kind.__name__ for kind in cls.postpones if kind in cls.__motet_handlers__]
        if both:
            raise TypeError(f"{cls.__qualname__} handles and postpones {', '.join(both)}")

    # ------------------------------------------------------------------ for subclasses to write

    def on_enter(self) -> None:
        """Runs when the machine has this state. Must not wait. A failure crashes the machine."""

    def on_leave(self) -> None:
        """Runs before the next state is entered, but not at a crash or stop. Must not wait."""

    # ------------------------------------------------------------------ for subclasses to call

    @property
    def machine(self) -> M:
        """The machine; from ``on_enter`` on."""
        machine = self.__motet_machine__
        if machine is None:
            raise MotetRuntimeError(f"this {type(self).__name__} was not entered yet")
        return cast("M", machine)  # `become` and `initial` take states of this machine only

    @property
    def timers(self) -> ActorTimers[Any]:
        """Timers that end with this state: ``self.timers.once(5, Expired())`` in ``on_enter``.

        For those of the machine, which outlive the state, use ``self.machine.timers``.
        """
        machine = self.machine
        if machine.state is not self:
            raise MotetRuntimeError(f"{machine.path} has left this {type(self).__name__}")
        if self.__motet_timers__ is None:
            self.__motet_timers__ = machine.timers.scope()
        return self.__motet_timers__

    def become(self, state: State[Any, M]) -> None:
        """As :meth:`Machine.become`."""
        self.machine.become(state)


class Machine(Actor[P_contra], Generic[P_contra]):
    """An actor that is in one state at a time: ``class Door(Machine[Open | Close | Status])``.

    Its parameter names all messages of its states. A handler of the class itself is for the states
    that have none for the message. A message that the state neither handles nor postpones goes to
    :meth:`unhandled`. A restart begins with :meth:`initial` again.
    """

    __motet_state__: State[Any, Any] | None = None
    __motet_next__: State[Any, Any] | None = None

    def __init_subclass__(cls, **options: object) -> None:
        for kind in declared_types(cls, Machine) or ():
            _dispatch(cls, kind)
        super().__init_subclass__(**options)
        check_protocol(cls, Machine, cls.__motet_handlers__)
        base: type[Machine[Any]] = Machine
        if cls.on_start is not base.on_start:
            raise TypeError(
                f"{cls.__qualname__} overrides on_start, which enters its first state: override "
                "initial instead, which runs in it and may wait"
            )

    async def initial(self) -> State[Any, Any]:
        """The first state of an incarnation. Runs as ``on_start`` of an actor does."""
        raise NotImplementedError

    def unhandled(self, message: Message) -> None:
        """The state neither handles nor postpones ``message``. Logs a warning.

        An error raised here is that of the handler. The asker of a request gets NotInState in any
        case.
        """
        with suppress(Exception), foreign_code:
            state, kind = type(self.state).__name__, type(message).__name__
            _log.warning("%s does not handle %s in the state %s", self.path, kind, state)

    @property
    def state(self) -> State[Any, Any]:
        """The state it is in; from the end of :meth:`initial` on."""
        if self.__motet_state__ is None:
            raise MotetRuntimeError(f"{type(self).__name__} has not started yet")
        return self.__motet_state__

    def become(self, state: State[Any, Any]) -> None:
        """Go to ``state`` when the running handler has returned; the last call counts.

        A handler that raises, or is cancelled with its asker, changes nothing. To enter the same
        state anew, give a new object. Raises TypeError for a state with messages that the machine
        does not name.
        """
        kinds = {*type(state).__motet_handlers__, *type(state).postpones}
        unknown = [kind.__name__ for kind in kinds - self.__motet_handlers__.keys()]
        if unknown:
            raise TypeError(
                f"{type(state).__name__} has {', '.join(sorted(unknown))}, which "
                f"{type(self).__name__} does not name"
            )
        if state.__motet_machine__ is not None:
            raise MotetRuntimeError(
                f"this {type(state).__name__} was entered before: make a new one"
            )
        self.__motet_next__ = state

    @final
    async def on_start(self) -> None:
        """Enter the first state. Override :meth:`initial` instead."""
        self.become(await self.initial())
        self._enter()

    # ------------------------------------------------------------------ within

    async def __motet_handle__(self, message: Message, own: Call | None, *replies: Any) -> Any:
        """Handle a message in the state, then take the transition it has asked for."""
        state = self.state
        kind = type(message)
        calls = type(state).__motet_calls__
        found: Callable[..., Awaitable[Any]] | None = (calls.streams if replies else calls.all).get(
            kind
        )
        self.__motet_next__ = None
        if found is not None:
            result = await found(state, message, *replies)
        elif kind in state.postpones:
            self._cell.mailbox.reserve_place(postponed=True)
            return None
        elif own is not None:
            result = await own(self, message, *replies)
        else:
            self.unhandled(message)
            if isinstance(message, Request):
                raise NotInState(self.path, type(state).__name__, kind)
            result = None
        if self.__motet_next__ is not None:
            try:
                with foreign_code:
                    self._enter()
            except Exception as error:
                # Also for a request: the old state was left, and the machine is in neither.
                incarnation = self._incarnation
                if incarnation is not None:
                    incarnation.crash(unwrapped(error))
                raise
        return result

    def _enter(self) -> None:
        """Leave the state, and enter the next, in one step."""
        before, after = self.__motet_state__, self.__motet_next__
        self.__motet_next__ = None
        assert after is not None, "its caller looked"
        if before is not None:
            before.on_leave()
            if before.__motet_timers__ is not None:
                before.__motet_timers__.cancel_all()
        after.__motet_machine__ = self
        self.__motet_state__ = after
        self.__motet_postpones__ = after.postpones
        after.on_enter()
        if before is not None and before.postpones:
            self.unstash_all()


def _dispatch(machine: type[Machine[Any]], kind: type[Message]) -> None:
    """Give the class a handler of ``kind`` that looks at the state."""
    declared = collect_handlers(machine).get(kind)
    own: Any = None if declared is None else getattr(machine, declared.method)
    order = {} if declared is None else {"priority": declared.priority}
    name = f"__motet_on_{kind.__name__}__" if declared is None else declared.method
    if declared is not None and not declared.in_turn:
        return  # beside the turn, so in no state
    mark: Any = handles
    if issubclass(kind, StreamRequest):

        async def stream(self: Machine[Any], message: Message, replies: Replies[Any]) -> Any:
            return await self.__motet_handle__(message, own, replies)

        stream.__name__ = name
        setattr(machine, name, mark(kind, **order)(stream))
        return

    async def handler(self: Machine[Any], message: Message) -> Any:
        return await self.__motet_handle__(message, own)

    handler.__name__ = name
    options: dict[str, Any] = {"later": True} if issubclass(kind, Request) else {}
    if declared is not None and not issubclass(kind, Request):
        options = {"max_age": declared.max_age}
    setattr(machine, name, mark(kind, **options, **order)(handler))
