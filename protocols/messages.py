"""What an actor can be told and asked: the two roots of every message type.

A message is a frozen, tagged :class:`msgspec.Struct`. It holds data only, so it can cross
a process border; live objects (tasks, channels, functions) never travel in a message.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

R = TypeVar("R")
T = TypeVar("T")


class Message(msgspec.Struct, frozen=True):
    """A one-way message, for ``ref.tell``.

    Subclasses repeat ``frozen=True`` (type checkers want it) and give a ``tag`` that is unique
    in the actor's protocol, by convention ``"actor.verb"``.
    """


class Request(Message, Generic[R], frozen=True):
    """A message with exactly one answer of type ``R``, for ``ref.ask`` (G3)."""


class StreamRequest(Request[R], Generic[T, R], frozen=True):
    """A request that yields items ``T`` before its answer ``R``, for ``ref.stream``."""
