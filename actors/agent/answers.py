"""What has to be known of a model's answer before it is acted on. Pure.

An answer is made from its beginning to its end, so only what was made last can be incomplete; but
servers stream calls in any order, and so every call of an answer that was cut off is looked at.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from motet.actors.models.assemble import unique_ids
from motet.protocols.chat import Call, JsonObject
from motet.protocols.models import ModelResponse

CONTINUATIONS = 3
"""How many times in a row a model may go on with an answer that was cut off."""


def is_cut(response: ModelResponse) -> bool:
    """Whether the answer was cut off at its greatest length."""
    return response.stop_reason == "length"


def incomplete(response: ModelResponse) -> frozenset[str]:
    """The ids of the calls of a cut answer whose arguments may not be all that was meant.

    The last one's empty arguments may be arguments that had not begun.
    """
    if not is_cut(response) or not response.calls:
        return frozenset()
    last = response.calls[-1]
    broken = {call.id for call in response.calls if _arguments(call) is None}
    return frozenset(broken if _arguments(last) else broken | {last.id})


def with_unique_ids(response: ModelResponse) -> ModelResponse:
    """The same answer; calls that share an id, or have none, get one of their own."""
    if not response.calls:
        return response
    ids = [call.id for call in response.calls]
    if all(ids) and len(set(ids)) == len(ids):
        return response
    pairs = zip(response.calls, unique_ids(ids), strict=True)
    return replace(response, calls=tuple(replace(call, id=id) for call, id in pairs))


def _arguments(call: Call) -> JsonObject | None:
    try:
        return msgspec.json.decode(call.arguments or "{}", type=JsonObject)
    except (msgspec.DecodeError, RecursionError):
        return None
