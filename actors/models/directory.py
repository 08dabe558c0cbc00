"""The models of a host: one provider actor per model, started when first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias
from urllib.parse import quote

from motet.actors.models.provider import Provider
from motet.protocols.messages import Request
from motet.protocols.models import Generate, Model
from motet.runtime import Actor, ActorRef, handles

Find: TypeAlias = Callable[[str], Model]


class Provide(Request[ActorRef[Generate]], frozen=True, tag="models.provide"):
    """The actor that speaks to this model. Raises ``UnknownName`` or ``MissingExtra``.

    ``generation``: as which configuration of models says.
    """

    model: str
    generation: int = 0


class ForgetModels(Request[None], frozen=True, tag="models.forget"):
    """Stop the actors of a generation that nobody uses any more."""

    generation: int


class Models(Actor[Provide | ForgetModels]):
    """Parent of the provider actors. A provider that crashes is restarted alone.

    ``later``: how models are found in generations after the first one.
    """

    def __init__(self, find: Find, later: Mapping[int, Find] | None = None) -> None:
        self.find = find
        self.later: Mapping[int, Find] = {} if later is None else later

    @handles(Provide)
    async def provide(self, message: Provide) -> ActorRef[Generate]:
        name = _name(message.model, message.generation)
        known = self.child(name)
        if known is not None and known.is_alive:
            return known
        model = self.later.get(message.generation, self.find)(message.model)
        await self.stop_child(name)  # one that is ending has its name until it has ended
        return await self.start_child(lambda: Provider(model), name=name)

    @handles(ForgetModels)
    async def forget(self, message: ForgetModels) -> None:
        ending = _name("", message.generation)
        for name in [name for name in self.children if _generation_of(name) == ending]:
            await self.stop_child(name)


def _name(model: str, generation: int) -> str:
    """The name of the actor of a model; quoted, no model's own name has the sign in it."""
    return quote(model, safe=":") + (f"+{generation}" if generation else "")


def _generation_of(name: str) -> str:
    sign = name.rfind("+")
    return "" if sign < 0 else name[sign:]
