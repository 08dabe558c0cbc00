"""The two roots of every message type: messages to tell, requests to ask.

A message is a frozen, tagged :class:`msgspec.Struct`. It holds data only, so it can cross
a process border; live objects (tasks, channels, functions) never travel in a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

import msgspec

R = TypeVar("R")
T = TypeVar("T")
M_co = TypeVar("M_co", covariant=True)
R_co = TypeVar("R_co", covariant=True)
T_co = TypeVar("T_co", covariant=True)


class Message(msgspec.Struct, frozen=True):
    """A one-way message, for ``ref.tell``.

    Subclasses repeat ``frozen=True`` (type checkers want it) and give a ``tag`` that is unique
    in the actor's protocol, by convention ``"actor.verb"``.
    """


class Request(Message, Generic[R], frozen=True):
    """A message with exactly one answer of type ``R``, for ``ref.ask`` (G3)."""

    if TYPE_CHECKING:

        def __motet_message__(self) -> Self: ...
        def __motet_answer__(self) -> R: ...


class StreamRequest(Request[R], Generic[T, R], frozen=True):
    """A request that yields items ``T`` before its answer ``R``, for ``ref.stream``."""

    if TYPE_CHECKING:

        def __motet_item__(self) -> T: ...


# `ref.ask` wants a request that is in the actor's union *and* gives its answer's type. Python has
# no intersection of types; a structure that says both is one. Only checkers see these methods.


class Asked(Protocol[M_co, R_co]):
    """A request that is an ``M_co`` and whose answer is an ``R_co``."""

    def __motet_message__(self) -> M_co: ...
    def __motet_answer__(self) -> R_co: ...


class Streamed(Asked[M_co, R_co], Protocol[M_co, T_co, R_co]):
    """The same for a request that yields items ``T_co`` first."""

    def __motet_item__(self) -> T_co: ...
