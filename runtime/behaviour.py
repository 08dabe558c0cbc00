"""The base class of actors as the kernel knows it: the handlers, the declarations, the callbacks.

The kernel builds, starts and ends a :class:`Behaviour`. Users write an :class:`~.actor.Actor`,
which adds the methods an actor uses on itself. Two classes, because those methods need the
whole kernel (``self.system``, ``self.start_child``), while the kernel needs only these callbacks.
"""

from __future__ import annotations

import math
from typing import ClassVar, Generic, TypeVar

from motet.protocols.messages import Message
from motet.runtime.handlers import Calls, Handler, collect_handlers
from motet.runtime.kernel import Owner
from motet.runtime.order import MailboxSpec
from motet.runtime.supervision import Supervision

__all__ = ["Behaviour"]

P_contra = TypeVar("P_contra", bound=Message, contravariant=True)


class Behaviour(Generic[P_contra]):
    """An object whose handlers take the messages of the type parameter, one at a time (G5)."""

    mailbox: ClassVar[MailboxSpec] = MailboxSpec()
    supervision: ClassVar[Supervision] = Supervision()  # of its own children
    cleanup_budget: ClassVar[float] = 5.0  # seconds that on_stop may take
    # Seconds that on_start may take. Then it is cancelled, and fails with StartTimeout, also in a
    # restart, where it counts as a crash.
    start_timeout: ClassVar[float] = math.inf
    # Seconds of a stop that names none, and of a restart of its group; None: five. In a stop of its
    # parent it gets no more of the time that is left than this; None: all of it.
    stop_grace: ClassVar[float | None] = None

    # Spelled as dunder names, so that no subclass can collide with them by accident.
    __motet_handlers__: ClassVar[dict[type[Message], Handler]] = {}
    __motet_calls__: ClassVar[Calls]
    __motet_owner__: Owner | None = None
    # Of the state that a machine is in; see `machine.py`.
    __motet_postpones__: tuple[type[Message], ...] = ()

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        cls.__motet_handlers__ = collect_handlers(cls)
        cls.__motet_calls__ = Calls(cls, cls.__motet_handlers__)

    async def on_start(self) -> None:
        """Runs before the first message. A failure here is a failed start: nothing is left."""

    async def on_stop(self) -> None:
        """Runs after the last message and after all children have ended; also after a crash.

        Shielded from cancellation, for at most ``cleanup_budget`` seconds. Not called if
        ``on_start`` did not return.
        """

    def on_child_end(self, name: str, error: Exception | None) -> None:
        """Runs in the step in which a child has ended for ever; its name is free by then.

        ``error``: the reason if the child never started, or RestartLimitExceeded if it was given up
        alone; see ``give_up`` of :class:`Supervision`. Must not wait. A failure here is a crash
        of this actor. Not called while this actor itself ends.
        """

    def on_inspect(self) -> object:
        """What :meth:`ActorRef.get_state` shows: the public attributes, if it is not overridden."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}
