"""What the wire formats of all providers share: pure helpers and the shape of a reader."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, cast

import msgspec

from motet.protocols.chat import JsonObject, UserMessage
from motet.protocols.models import ModelEvent, ModelFailure


class Reader(Protocol):
    """Turns one stream's chunks into events; knows nothing of connections."""

    @property
    def complete(self) -> bool:
        """Whether the provider has said how the answer ends."""
        ...

    def feed(self, chunk: object) -> Iterable[ModelEvent]:
        """The events in one chunk. Raises ``msgspec.ValidationError`` for what it can't read."""
        ...

    def close(self) -> Iterable[ModelEvent]:
        """The events that are known only at the end of the stream, ``Finished`` last.

        Raises :class:`ModelFailure` ``cut`` when the stream ended too early.
        """
        ...


def cut() -> ModelFailure:
    """The failure of a stream that ended without saying how the answer ends."""
    return ModelFailure("the stream ended in the middle of the answer", kind="cut")


def user_text(message: UserMessage) -> str:
    """The text as the model reads it: in a room every line of talk names its speaker."""
    return f"{message.author}: {message.text}" if message.author else message.text


def arguments_object(text: str) -> JsonObject:
    """The arguments as an object, also when the model wrote something else.

    A transcript keeps what the model wrote, but servers refuse a whole request for one call
    whose arguments are no object, and would do so on every later turn.
    """
    try:
        return msgspec.json.decode(text, type=JsonObject)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return {"invalid_arguments": text.encode(errors="replace").decode()}


def json_object(value: object) -> JsonObject:
    """The value if it is a JSON object, else an empty one."""
    # The cast holds since a JSON decoder made the value, so that its keys are strings.
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def wire_model(requested: str, own: str, provider: str) -> str:
    """The name a provider knows its model by; the request's wins over the adapter's own."""
    return requested.removeprefix(f"{provider}:") or own
