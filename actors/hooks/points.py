"""The values that hooks return, as decisions that their points allow. Pure.

One that restricts (:func:`restriction`) is taken however malformed it is; one that lets something
happen (:func:`allowance`) must be well-formed, and is refused by ``TypeError`` or ``ValueError``, a
fault of the hook.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec.structs import replace

from motet.actors.transcript.grammar import close_calls
from motet.protocols import hooks
from motet.protocols.chat import JsonObject
from motet.protocols.hook_rules import POINTS
from motet.protocols.hooks import (
    Abort,
    Allow,
    AnyDecision,
    AnyHookEvent,
    Ask,
    Continue,
    Deny,
    Replace,
    Respond,
    point_of,
)
from motet.protocols.models import ModelRequest, ModelResponse

S = TypeVar("S", bound=msgspec.Struct)


def restriction(event: AnyHookEvent, value: object) -> Abort | Deny | Ask | None:
    """The decision, if it restricts and the point allows it."""
    if isinstance(value, POINTS[point_of(event)].decides):
        for kind in (Abort, Deny, Ask):
            if isinstance(value, kind):
                return kind(_text(value.reason))
    return None


def allowance(event: AnyHookEvent, value: object) -> AnyDecision:
    """The decision, if it lets something happen and the point allows it.

    Raises ``TypeError`` and ``ValueError`` for anything else.
    """
    point = point_of(event)
    rule = POINTS[point]
    if value is None and rule.on_error == "continue":  # as after a failure, things go on
        return Allow()
    if not isinstance(value, rule.decides):
        allowed = ", ".join(kind.__name__ for kind in rule.decides) or "nothing"
        raise TypeError(f"a hook at {point} returns {allowed}, not {_kind(value)}")
    match value:
        case Allow(args=None):
            return Allow()
        case Allow(args=args) if point == "before_tool":
            return msgspec.convert({"args": copied(args)}, Allow)
        case Respond(text=text):
            return msgspec.convert({"text": text}, Respond)
        case Continue(text=text):
            return msgspec.convert({"text": text}, Continue)
        case Replace():
            return _replacement(event, value)
        case _:
            raise TypeError(f"{_kind(value)} with arguments is for before_tool, not for {point}")


def replaced(event: AnyHookEvent, decision: AnyDecision) -> AnyHookEvent:
    """The event as the next hook sees it."""
    match event, decision:
        case hooks.BeforeTool(), Allow(args=args) if args is not None:
            return replace(event, args=args)
        case hooks.BeforeModel(), Replace(request=request) if request is not None:
            return replace(event, request=request)
        case hooks.AfterModel(), Replace(response=response) if response is not None:
            return replace(event, response=response)
        case (
            (hooks.BeforeInput() | hooks.BeforeOutput() | hooks.AfterTool()),
            Replace(text=text),
        ) if text is not None:
            return replace(event, text=text)
        case _:
            return event


def own_copy(event: AnyHookEvent) -> AnyHookEvent:
    """The event with copies of its mutable parts, so that a hook cannot change them in place."""
    # A struct that `match` compares in vain takes much longer than a look at its type.
    if type(event) is hooks.BeforeTool or type(event) is hooks.AfterTool:
        return replace(event, args=copied(event.args))
    if type(event) is hooks.BeforeModel and event.request.tools:
        request = event.request
        tools = tuple([replace(t, parameters=copied(t.parameters)) for t in request.tools])
        return replace(event, request=replace(request, tools=tools))
    return event


def copied(args: JsonObject | None) -> JsonObject:
    """A deep copy. Raises ``TypeError`` for values that are not JSON."""
    copy: JsonObject = msgspec.to_builtins(args)
    return copy


def _replacement(event: AnyHookEvent, value: Replace) -> Replace:
    """Of the right type throughout, and valid for the model or its provider."""
    fields = {name: getattr(value, name) for name in ("text", "request", "response")}
    given = [name for name, part in fields.items() if part is not None]
    wanted = POINTS[point_of(event)].replaces
    match event, given:
        case hooks.AfterModel(response=response), ["text"]:
            text = msgspec.convert(value.text, str)
            return Replace(response=replace(response, text=text))
        case hooks.AfterModel(response=old), ["response"]:
            return Replace(response=_response(_whole(value.response, ModelResponse), old))
        case hooks.BeforeModel(), ["request"]:
            return Replace(request=_request(_whole(value.request, ModelRequest)))
        case ((hooks.BeforeInput() | hooks.BeforeOutput() | hooks.AfterTool()), ["text"]):
            return Replace(msgspec.convert(value.text, str))
        case _:
            got = " and ".join(given) or "nothing"
            raise ValueError(f"Replace at {point_of(event)} takes {wanted}, not {got}")


def _whole(value: object, kind: type[S]) -> S:
    """A copy of a struct, checked field by field."""
    if not isinstance(value, kind):
        raise TypeError(f"expected a {kind.__name__}, not {_kind(value)}")
    return msgspec.convert(msgspec.to_builtins(value), kind)


def _request(request: ModelRequest) -> ModelRequest:
    if close_calls(request.messages, "unknown") != request.messages:
        raise ValueError("the replaced messages do not answer each call once, in call order")
    return request


def _response(response: ModelResponse, old: ModelResponse) -> ModelResponse:
    """With the usage of the real response, since that was spent."""
    ids = [call.id for call in response.calls]
    if len(set(ids)) != len(ids):
        raise ValueError(f"two calls of the replaced response share one id: {ids}")
    return replace(response, usage=old.usage)


def _text(reason: object) -> str:
    return reason if isinstance(reason, str) else f"<{type(reason).__name__}>"


def _kind(value: object) -> str:
    return type(value).__name__
