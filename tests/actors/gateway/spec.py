"""Fakes that are generated from a Protocol, in the manner of ``create_autospec``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import trio

from motet.protocols.errors import NotFound


class Call(NamedTuple):
    """A call of a fake: the method, and all arguments by name, with their defaults."""

    method: str
    arguments: Mapping[str, Any]


def fake_of(protocol: object, answers: Mapping[str, object], calls: list[Call]) -> Any:
    """An object with the methods of ``protocol``, which notes its calls.

    A call has to fit the method's signature. ``answers`` is looked at with each call: an exception
    is raised, a function is called with those of the arguments that it names, anything else is
    returned. A method that has no answer raises ``NotFound``, a property is its answer. The caller
    says what type the fake has: no type checker takes a Protocol for a ``type[T]``.
    """
    members: dict[str, object] = {}
    for name in dir(protocol):
        member = inspect.getattr_static(protocol, name)
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            members[name] = answers[name]
        elif inspect.isfunction(member):
            members[name] = _method(member, answers, calls)
    return type(f"FakeOf{protocol}", (), members)()


def _method(
    method: Callable[..., object], answers: Mapping[str, object], calls: list[Call]
) -> Callable[..., object]:
    signature, name = inspect.signature(method), method.__name__

    def answer(*args: object, **kwargs: object) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = {key: value for key, value in bound.arguments.items() if key != "self"}
        calls.append(Call(name, given))
        found = answers.get(name, NotFound(f"{name}: there is no such thing"))
        if isinstance(found, Exception):
            raise found
        if not callable(found):
            return found
        return found(**{key: given[key] for key in inspect.signature(found).parameters})

    async def answer_later(*args: object, **kwargs: object) -> object:
        await trio.lowlevel.checkpoint()
        found = answer(*args, **kwargs)
        return await found if inspect.isawaitable(found) else found

    return answer_later if inspect.iscoroutinefunction(method) else answer
