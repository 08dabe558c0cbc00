"""The errors of the kernel: one exception class for each reaction that a caller may have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

__all__ = [
    "ActorDead",
    "ActorPaused",
    "AskCycle",
    "AskTimeout",
    "InjectedCrash",
    "LinkBroken",
    "MailboxFull",
    "MessageNotPortable",
    "MotetRuntimeError",
    "NameTaken",
    "NotInProtocol",
    "NotInState",
    "RestartLimitExceeded",
    "StartFailed",
    "StartTimeout",
    "TellCycle",
    "TooManyChildren",
    "WaitCycle",
    "WrongLoop",
    "only_error",
    "unwrapped",
]


class MotetRuntimeError(Exception):
    """Base of all errors that the kernel itself raises."""


class InjectedCrash(MotetRuntimeError):
    """A crash that a test ordered by :meth:`System.inject`."""

    def __init__(self, path: str) -> None:
        super().__init__(f"a crash of {path} was injected")


class MailboxFull(MotetRuntimeError):
    """The mailbox did not accept the message, or its overflow policy dropped it."""

    def __init__(self, path: str, capacity: int) -> None:
        super().__init__(
            f"the mailbox of {path} is full ({capacity} messages): "
            "slow down, use `await ref.tell(...)` which waits, or declare a larger capacity"
        )
        self.path = path
        self.capacity = capacity


class ActorDead(MotetRuntimeError):
    """The actor will not handle this message: it has stopped, or ended while handling it."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} is not there to handle this: {reason}")
        self.path = path
        self.reason = reason


class ActorPaused(MotetRuntimeError):
    """The actor is suspended and refuses requests until it is resumed. Nothing was accepted."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is suspended and takes no requests: ask again when it is resumed")
        self.path = path


class AskTimeout(MotetRuntimeError, TimeoutError):
    """The ask's time limit passed. Its handler never began, or has ended its clean-up."""

    def __init__(self, path: str, request: type, seconds: float) -> None:
        super().__init__(f"{path} did not answer {request.__name__} within {seconds:g} s")
        self.path = path
        self.seconds = seconds


class NotInProtocol(MotetRuntimeError):
    """The actor has no handler for this type of message. Raised at the sender."""

    def __init__(self, path: str, actor: str, message: type, accepted: Iterable[type]) -> None:
        names = ", ".join(sorted(kind.__name__ for kind in accepted)) or "nothing"
        super().__init__(
            f"{actor} at {path} does not accept {message.__name__}; it accepts {names}"
        )
        self.path = path
        self.message_type = message


class NotInState(MotetRuntimeError):
    """The state machine has no handler for this request in the state that it is in."""

    def __init__(self, path: str, state: str, message: type) -> None:
        super().__init__(f"{path} does not take {message.__name__} in the state {state}")
        self.path = path
        self.state = state
        self.message_type = message


class MessageNotPortable(MotetRuntimeError):
    """The message cannot cross a process border unchanged. Raised with ``check_messages=True``."""

    def __init__(self, message: type, problem: str) -> None:
        super().__init__(
            f"{message.__qualname__} does not survive a round trip through msgpack: {problem}; "
            "messages hold data only, with the types their fields declare"
        )
        self.message_type = message


class WrongLoop(MotetRuntimeError, RuntimeError):
    """Called outside of the Trio loop of the actor's system. Nothing was changed.

    Other threads and loops use :meth:`ActorRef.threadsafe` and :meth:`System.portal`. Those raise
    this too, for a call that would block the very loop it waits for.
    """

    def __init__(self, path: str, problem: str, instead: str) -> None:
        super().__init__(f"{path} {problem}: {instead}")
        self.path = path


class NameTaken(MotetRuntimeError):
    """A living sibling has this name."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"there is an actor at {path} already: stop it first, or choose a new name"
        )
        self.path = path


class TooManyChildren(MotetRuntimeError):
    """The supervisor has as many children as it was declared to have at most."""

    def __init__(self, path: str, limit: int) -> None:
        super().__init__(
            f"{path} has {limit} children, which is its limit: "
            "stop one first, or declare a larger limit"
        )
        self.path = path
        self.limit = limit


class StartFailed(MotetRuntimeError):
    """The actor's factory or ``on_start`` failed; the error is the cause. Nothing is left."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} did not start: {reason}")
        self.path = path


class StartTimeout(MotetRuntimeError, TimeoutError):
    """``on_start`` took longer than the actor's ``start_timeout``, and was cancelled."""

    def __init__(self, path: str, seconds: float) -> None:
        super().__init__(f"on_start of {path} did not return within {seconds:g} s")
        self.path = path
        self.seconds = seconds


class LinkBroken(MotetRuntimeError):
    """An actor to which this one is linked has failed: ``path``. The cause is its error, if any."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}, to which it is linked, {why}")
        self.path = path


class RestartLimitExceeded(MotetRuntimeError):
    """Children failed too often: their supervisor gives up, and its own supervisor decides (G9).

    ``alone``: one child did, and its supervisor gives up that child only.
    """

    def __init__(
        self, path: str, child: str, intensity: int, period: float, *, alone: bool = False
    ) -> None:
        times = f"more than {intensity} restarts"
        super().__init__(
            f"{path} gave up its child {child!r} after {times} within {period:g} s"
            if alone
            else f"{path} gave up: {times} of its children within {period:g} s, "
            f"the last one of {child!r}"
        )
        self.path = path
        self.child = child


class WaitCycle(MotetRuntimeError):
    """The wait would never end: it waits for itself through the actors in ``chain`` (G11).

    Itself for the wait of a handler for the end of an actor that cannot end before this handler.
    """

    what = "this actor would never end"
    advice = "use stop_soon or stop_child_soon, or watch the actor"

    def __init__(self, chain: Sequence[str]) -> None:
        path = " -> ".join(chain)
        super().__init__(f"{self.what}, each waits for the next: {path}; {self.advice}")
        self.chain = tuple(chain)


class AskCycle(WaitCycle):
    """The ask would wait for itself through the actors named in ``chain`` (G11)."""

    what = "this ask would never be answered"
    advice = "use tell, or mark one of the handlers concurrent"


class TellCycle(WaitCycle):
    """The mailbox is full, and nothing in ``chain`` can take a message before this tell (G11)."""

    what = "this tell would wait for room for ever"
    advice = "use a larger mailbox, another overflow policy, or tell_nowait"


def only_error(error: BaseException) -> BaseException:
    """The only error in nested groups of one, or the error itself."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    group = cast("BaseExceptionGroup[BaseException]", error)  # its parameter is lost by isinstance
    return only_error(group.exceptions[0]) if len(group.exceptions) == 1 else group


def unwrapped(error: Exception) -> Exception:
    """The only error in nested groups of one, with the outermost group as its cause.

    Trio's nurseries are strict: one failing task gives a group of one. The asker wants the error.
    """
    inner = only_error(error)
    assert isinstance(inner, Exception), "a group that is an Exception holds Exceptions only"
    if inner is not error and inner.__cause__ is None:
        inner.__cause__ = error
    return inner
