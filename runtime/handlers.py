"""Handlers: the decorator ``@handles`` and the table from message types to methods.

The table is made once per class. Invariants: one handler per message type; the handlers cover the
protocol that the class names (``Actor[Add | Total]``) and nothing else.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import (
    Any,
    Final,
    Generic,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    overload,
)

import msgspec

from motet.protocols.messages import Message, Request, StreamRequest
from motet.runtime.envelope import Replies
from motet.runtime.reply import ReplyTo

__all__ = [
    "Call",
    "Calls",
    "Handler",
    "check_protocol",
    "collect_handlers",
    "declared_types",
    "handles",
]

A = TypeVar("A")
F = TypeVar("F", bound=Callable[..., object])
R = TypeVar("R")
T = TypeVar("T")
M_co = TypeVar("M_co", bound=Message, covariant=True)
Q_co = TypeVar("Q_co", bound=Request[Any], covariant=True)
S_co = TypeVar("S_co", bound=StreamRequest[Any, Any], covariant=True)

# An unbound method of an actor's class. Any: each takes messages of its own type only, and the
# table that holds it is keyed by that type.
Call = Callable[[Any, Any], Awaitable[object]]
_StreamCall = Callable[[Any, Any, Replies[Any]], Awaitable[object]]

_MARK = "__motet_handles__"
_DISCARD: Final = Replies[Any]()


class Handler(msgspec.Struct, frozen=True):
    """The declaration of one handler."""

    message_type: type[Message]
    method: str
    concurrent: int = 1
    retries: int = 0
    here: bool = False
    brief: bool = False
    later: bool = False
    priority: int = 0
    max_age: float = math.inf

    @property
    def streams(self) -> bool:
        return issubclass(self.message_type, StreamRequest)

    @property
    def in_turn(self) -> bool:
        """Handled by the actor's own task, one message after the other (G5)."""
        return self.concurrent == 1


class Calls:
    """The handlers of a class by message type; all its actors share one object.

    ``bare`` has the handlers in the turn without retries, which may be called with a told message
    directly. ``streams`` has the handlers of streams, which take a ``replies`` argument; in ``all``
    these discard their items. ``concurrent`` lists the message types with concurrent handlers.
    ``ordered``: some have a priority or an age, so the mailbox needs an order.
    """

    __slots__ = ("all", "bare", "concurrent", "ordered", "streams")

    def __init__(self, actor: type, handlers: dict[type[Message], Handler]) -> None:
        # Looked up by the type of each item in a queue. The type of an envelope is no key, so the
        # same lookup tells bare messages and envelopes apart.
        self.all: dict[type, Call] = {}
        self.bare: dict[type, Call] = {}
        self.streams: dict[type, _StreamCall] = {}
        self.concurrent = [kind for kind, handler in handlers.items() if not handler.in_turn]
        self.ordered = any(h.priority or h.max_age < math.inf for h in handlers.values())
        for kind, handler in handlers.items():
            # By name, since a subclass may override the method without marking it again.
            method = getattr(actor, handler.method)
            if handler.streams:
                self.streams[kind] = method
                method = _discarding(method)
            self.all[kind] = method
            if handler.in_turn and not handler.retries:
                self.bare[kind] = method


def _discarding(method: _StreamCall) -> Call:
    return lambda actor, message: method(actor, message, _DISCARD)


class _Handles:
    def __init__(
        self,
        message_type: type[Message],
        concurrent: int,
        retries: int = 0,
        *,
        here: bool = False,
        brief: bool = False,
        later: bool = False,
        priority: int = 0,
        max_age: float = math.inf,
    ) -> None:
        self._message_type = message_type
        self._concurrent = concurrent
        self._retries = retries
        self._here = here
        self._brief = brief
        self._later = later
        self._priority = priority
        self._max_age = max_age

    def _mark(self, method: F) -> F:
        name = method.__name__
        is_async: bool = inspect.iscoroutinefunction(method)
        if not is_async:
            raise TypeError(f"a handler is an `async def` method, which {method!r} is not")
        handler = Handler(
            self._message_type,
            name,
            self._concurrent,
            self._retries,
            self._here,
            self._brief,
            self._later,
            self._priority,
            self._max_age,
        )
        setattr(method, _MARK, handler)
        return method


# The three decorators differ in the signature that type checkers demand. The message type is
# covariant, so matching `self` against Request[R] tells the checker R without naming it.


class _HandlesTell(_Handles, Generic[M_co]):
    def __call__(
        self, method: Callable[[A, M_co], Coroutine[Any, Any, None]]
    ) -> Callable[[A, M_co], Coroutine[Any, Any, None]]:
        return self._mark(method)


class _HandlesRequest(_Handles, Generic[Q_co]):
    def __call__(
        self: _HandlesRequest[Request[R]],
        method: Callable[[A, Q_co], Coroutine[Any, Any, R]],
    ) -> Callable[[A, Q_co], Coroutine[Any, Any, R]]:
        return self._mark(method)


class _HandlesLater(_Handles, Generic[Q_co]):
    def __call__(
        self: _HandlesLater[Request[R]],
        method: Callable[[A, Q_co], Coroutine[Any, Any, R | ReplyTo[R]]],
    ) -> Callable[[A, Q_co], Coroutine[Any, Any, R | ReplyTo[R]]]:
        return self._mark(method)


class _HandlesStream(_Handles, Generic[S_co]):
    def __call__(
        self: _HandlesStream[StreamRequest[T, R]],
        method: Callable[[A, S_co, Replies[T]], Coroutine[Any, Any, R]],
    ) -> Callable[[A, S_co, Replies[T]], Coroutine[Any, Any, R]]:
        return self._mark(method)


# The more special overload comes first, which is all that "overlap" means here.
@overload
def handles(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]
    message_type: type[S_co],
    *,
    concurrent: int = 1,
    here: bool = False,
    brief: bool = False,
    priority: int = 0,
) -> _HandlesStream[S_co]: ...
@overload
def handles(
    message_type: type[Q_co], *, concurrent: int = 1, later: Literal[True], priority: int = 0
) -> _HandlesLater[Q_co]: ...
@overload
def handles(  # type: ignore[overload-overlap]
    message_type: type[Q_co],
    *,
    concurrent: int = 1,
    here: bool = False,
    brief: bool = False,
    priority: int = 0,
) -> _HandlesRequest[Q_co]: ...
@overload
def handles(
    message_type: type[M_co],
    *,
    concurrent: int = 1,
    retries: int = 0,
    priority: int = 0,
    max_age: float = math.inf,
) -> _HandlesTell[M_co]: ...
def handles(
    message_type: type[Message],
    *,
    concurrent: int = 1,
    retries: int = 0,
    here: bool = False,
    brief: bool = False,
    later: bool = False,
    priority: int = 0,
    max_age: float = math.inf,
) -> object:
    """Mark a method as the handler of ``message_type``.

    ``async def h(self, message) -> R`` for a ``Request[R]``, ``-> None`` for a plain message, and
    ``async def h(self, message, replies: Replies[T]) -> R`` for a ``StreamRequest[T, R]``.

    With ``concurrent=1`` the handler is part of the actor's turn (G5). With ``concurrent=k`` up to
    k of them run at once as tasks of the actor, beside its turn; more wait, counted as stashed.

    With ``here=True`` too, an ask runs the handler in the asker's task, if one of the k places is
    free, nobody waits before it and nobody observes the actor. All guarantees hold as for a task of
    the actor: cancellation (G1), stops (G2), one outcome (G3), counters (G4), the limit (G5), and
    cycles (G11). Four things differ. The ask is a checkpoint only if the handler has one. The
    handler may see the context variables of its asker in place of the actor's, and those it sets
    may stay. The dump of an asker that waits for its clean-up says ``answer of`` and no time. And
    a cancellation of the asker meets both at the next checkpoint: an item that is sent before it,
    or from within a shield of the handler, is still taken.

    ``brief=True`` with it: the handler has no wait of unbounded length, so that it needs no scope
    of its own: a stop of the actor waits for its end, as for one without a checkpoint. A time limit
    of the ask itself cancels it all the same.

    With ``later=True`` the handler of a request may return a token in place of its answer, which it
    gets by :meth:`Actor.reply_later`: ``-> R | ReplyTo[R]``.

    With ``retries=n`` a told message whose handler crashed the actor is handled again by the next
    incarnation, before all other mail, at most n times; only then it becomes a dead letter (G4).
    Only for a handler whose effect may happen twice.

    ``priority``: in the turn, a message goes before queued ones of a lower priority. ``max_age``: a
    told message that waits for longer, in seconds, is a dead letter when its turn comes.
    """
    _check_order(message_type, concurrent, priority, max_age)
    _check_retries(message_type, concurrent, retries)
    if concurrent < 1:
        raise ValueError(f"concurrent is the number of handlers at once, so >= 1, not {concurrent}")
    _check_here(message_type, concurrent, here=here, brief=brief)
    kind = message_type  # which issubclass does not narrow
    if later:
        if not issubclass(message_type, Request) or issubclass(message_type, StreamRequest) or here:
            name = message_type.__name__
            raise ValueError(f"later=True is for an ask that no asker's task runs, not for {name}")
        return _HandlesLater[Any](kind, concurrent, later=True, priority=priority)
    if issubclass(message_type, StreamRequest):
        return _HandlesStream[Any](kind, concurrent, here=here, brief=brief, priority=priority)
    if issubclass(message_type, Request):
        return _HandlesRequest[Any](kind, concurrent, here=here, brief=brief, priority=priority)
    return _HandlesTell[Any](kind, concurrent, retries, priority=priority, max_age=max_age)


def _check_retries(kind: type[Message], concurrent: int, retries: int) -> None:
    if retries < 0:
        raise ValueError(f"retries is a number of further attempts, so >= 0, not {retries}")
    if retries and issubclass(kind, Request):
        raise ValueError(
            f"{kind.__name__} is a request: its error goes to the asker, which may ask again; "
            "retries are for told messages"
        )
    if retries and concurrent > 1:
        raise ValueError(
            f"{kind.__name__} is handled concurrently: retries are for handlers in the turn, "
            "since a crash ends all the others too"
        )


def _check_order(kind: type[Message], concurrent: int, priority: int, max_age: float) -> None:
    if priority < 0:
        raise ValueError(f"priority is 0 or more, since all others have 0, not {priority}")
    if priority and concurrent > 1:
        raise ValueError(
            f"{kind.__name__} is handled concurrently, where no other type waits before it: "
            "priority is for handlers in the turn"
        )
    if not max_age > 0:
        raise ValueError(f"max_age is a number of seconds, so > 0, not {max_age}")
    if max_age < math.inf and issubclass(kind, Request):
        raise ValueError(f"{kind.__name__} is a request: its asker has a timeout instead")


def _check_here(kind: type[Message], concurrent: int, *, here: bool, brief: bool) -> None:
    if here and not issubclass(kind, Request):
        raise ValueError(
            f"{kind.__name__} is told: nobody waits, in whose task it could be handled"
        )
    if here and concurrent == 1:
        raise ValueError(
            f"{kind.__name__} is handled in the turn, which is a task of the actor: "
            "here=True needs concurrent=k with k > 1"
        )
    if brief and not here:
        raise ValueError(
            f"brief=True says of a handler with here=True that {kind.__name__} is brief"
        )


def collect_handlers(actor: type) -> dict[type[Message], Handler]:
    """The handlers of a class and its bases; a subclass's handler replaces its base's."""
    # From the base to the class itself, so that a later one replaces an earlier one. Two handlers
    # within one class are an error: the order of methods must not decide.
    found: dict[type[Message], Handler] = {}
    for base in reversed(actor.__mro__):
        own: dict[type[Message], Handler] = {}
        for value in vars(base).values():
            handler = getattr(value, _MARK, None)
            if not isinstance(handler, Handler):
                continue
            kind = handler.message_type
            if kind in own:
                raise TypeError(f"{base.__qualname__} has two handlers for {kind.__name__}")
            own[kind] = handler
        found.update(own)
    return found


def check_protocol(actor: type, generic: type, handlers: dict[type[Message], Handler]) -> None:
    """Raise TypeError unless the handlers match the protocol named by the base ``generic[...]``."""
    declared = declared_types(actor, generic)
    if declared is None:
        return
    missing = [
        kind.__name__ for kind in declared if not any(issubclass(have, kind) for have in handlers)
    ]
    if missing:
        raise TypeError(
            f"{actor.__qualname__} has no handler for {', '.join(missing)} of its protocol"
        )
    extra = [have.__name__ for have in handlers if not issubclass(have, declared)]
    if extra:
        raise TypeError(
            f"{actor.__qualname__} handles {', '.join(extra)}, which its protocol does not name"
        )


def declared_types(actor: type, generic: type, place: int = 0) -> tuple[type, ...] | None:
    """The members of the union that the base ``generic[...]`` names at ``place``.

    None: there is no such base, or its parameter is a variable.
    """
    for base in getattr(actor, "__orig_bases__", ()):
        if get_origin(base) is generic:
            members = tuple(_members(get_args(base)[place]))
            if all(isinstance(member, type) for member in members):
                return cast(tuple[type, ...], members)  # just checked, member by member
    return None


def _members(protocol: object) -> Iterator[object]:
    if get_origin(protocol) in (Union, types.UnionType):
        for member in get_args(protocol):
            yield from _members(member)
    else:
        yield get_origin(protocol) or protocol
